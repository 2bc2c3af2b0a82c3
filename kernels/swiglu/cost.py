"""What a SwiGLU costs when both products and the gate are one pass."""

import math

from jax import ShapeDtypeStruct

LANES = 128


def cost(x: ShapeDtypeStruct, w_gate: ShapeDtypeStruct, w_up: ShapeDtypeStruct, *, precision=None) -> dict[str, int]:
    """Work of an ideal SwiGLU: each input read once, the output written once.

    Args:
        x: the rows, [..., D].
        w_gate: [D, F].
        w_up: [D, F].
        precision: does not change the cost.

    Returns:
        flops (4 M D F, and 5 per output for the gate), hbm_bytes_read, hbm_bytes_written, link_bytes and vmem_bytes: to
        read every input once, either the rows or both weights stay on the chip while 128 columns or rows of the other
        pass by.

    Example:
        >>> import jax
        >>> x, w = jax.ShapeDtypeStruct((2, 8), "float32"), jax.ShapeDtypeStruct((8, 16), "float32")
        >>> cost(x, w, w)["flops"]
        1184
    """
    rows = math.prod(x.shape[:-1])
    features, width = w_gate.shape
    x_bytes = x.size * x.dtype.itemsize
    weight_bytes = sum(w.size * w.dtype.itemsize for w in (w_gate, w_up))
    rows_stay = x_bytes + LANES * weight_bytes // width + 2 * 4 * rows * LANES
    weights_stay = weight_bytes + LANES * x.dtype.itemsize * features + 2 * 4 * LANES * width
    return {
        "flops": 4 * rows * features * width + 5 * rows * width,
        "hbm_bytes_read": x_bytes + weight_bytes,
        "hbm_bytes_written": rows * width * x.dtype.itemsize,
        "link_bytes": 0,
        "vmem_bytes": min(rows_stay, weights_stay),
    }
