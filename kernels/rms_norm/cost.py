"""What an RMS norm costs when it is fused into one pass."""

from jax import ShapeDtypeStruct


def cost(x: ShapeDtypeStruct, weight: ShapeDtypeStruct, *, eps: float, zero_centred: bool) -> dict[str, int]:
    """Work of an ideal RMS norm: each input read once, the output written once.

    Args:
        x: the rows, [..., D].
        weight: the scale, [D].
        eps: does not change the cost.
        zero_centred: one more addition per weight.

    Returns:
        flops, hbm_bytes_read, hbm_bytes_written, link_bytes and vmem_bytes (one row in float32, and the weight).

    Example:
        >>> import jax
        >>> x, w = jax.ShapeDtypeStruct((2, 8), "float32"), jax.ShapeDtypeStruct((8,), "float32")
        >>> cost(x, w, eps=1e-6, zero_centred=False)["hbm_bytes_written"]
        64
    """
    features = x.shape[-1]
    weight_bytes = weight.size * weight.dtype.itemsize
    return {
        "flops": 4 * x.size + (features if zero_centred else 0),
        "hbm_bytes_read": x.size * x.dtype.itemsize + weight_bytes,
        "hbm_bytes_written": x.size * x.dtype.itemsize,
        "link_bytes": 0,
        "vmem_bytes": 4 * features + weight_bytes,
    }
