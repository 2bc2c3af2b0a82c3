"""What a gated RMS norm costs when it is fused into one pass."""

from jax import ShapeDtypeStruct


def cost(x: ShapeDtypeStruct, weight: ShapeDtypeStruct, gate: ShapeDtypeStruct, *, eps: float) -> dict[str, int]:
    """Work of an ideal gated RMS norm: each input read once, the output written once.

    Args:
        x: the rows, [..., D].
        weight: the scale, [D].
        gate: the gate, [..., D].
        eps: does not change the cost.

    Returns:
        flops, hbm_bytes_read, hbm_bytes_written, link_bytes and vmem_bytes (a row of x and of gate in float32, and
        the weight).

    Example:
        >>> import jax
        >>> x, w = jax.ShapeDtypeStruct((2, 8), "float32"), jax.ShapeDtypeStruct((8,), "float32")
        >>> cost(x, w, x, eps=1e-6)["hbm_bytes_read"]
        160
    """
    weight_bytes = weight.size * weight.dtype.itemsize
    return {
        "flops": 9 * x.size,
        "hbm_bytes_read": x.size * x.dtype.itemsize + gate.size * gate.dtype.itemsize + weight_bytes,
        "hbm_bytes_written": x.size * x.dtype.itemsize,
        "link_bytes": 0,
        "vmem_bytes": 2 * 4 * x.shape[-1] + weight_bytes,
    }
