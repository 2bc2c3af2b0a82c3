"""What a grouped SwiGLU costs when every row meets only its own expert's weights, once."""

import math

from jax import ShapeDtypeStruct

LANES = 128


def cost(
    x: ShapeDtypeStruct,
    w_gate: ShapeDtypeStruct,
    w_up: ShapeDtypeStruct,
    group_sizes: ShapeDtypeStruct | None = None,
    *,
    precision=None,
) -> dict[str, int]:
    """Work of an ideal grouped SwiGLU: each input read once, the output written once.

    Sizes of groups are not known here: all rows are counted, and the weights of as many experts as there are rows to
    choose them, at most all.

    Args:
        x: the rows, [M, D] or [E, T, D].
        w_gate: [E, D, F].
        w_up: [E, D, F].
        group_sizes: [E], or None.
        precision: does not change the cost.

    Returns:
        flops (4 D F per row, and 5 per output for the gate), hbm_bytes_read, hbm_bytes_written, link_bytes and
        vmem_bytes (one expert's mean rows, 128 columns of both its weights, and their float32 products).

    Example:
        >>> import jax
        >>> x, w = jax.ShapeDtypeStruct((6, 8), "float32"), jax.ShapeDtypeStruct((4, 8, 16), "float32")
        >>> cost(x, w, w, jax.ShapeDtypeStruct((4,), "int32"))["flops"]
        3552
    """
    experts, features, width = w_gate.shape
    rows = math.prod(x.shape[:-1])
    weight_bytes = sum(w.size * w.dtype.itemsize for w in (w_gate, w_up)) // experts * min(experts, rows)
    index_bytes = 0 if group_sizes is None else group_sizes.size * group_sizes.dtype.itemsize
    mean_rows = -(-rows // experts)
    column_bytes = w_gate.dtype.itemsize + w_up.dtype.itemsize
    return {
        "flops": 4 * rows * features * width + 5 * rows * width,
        "hbm_bytes_read": x.size * x.dtype.itemsize + weight_bytes + index_bytes,
        "hbm_bytes_written": rows * width * x.dtype.itemsize,
        "link_bytes": 0,
        "vmem_bytes": mean_rows * features * x.dtype.itemsize + LANES * (features * column_bytes + 2 * 4 * mean_rows),
    }
