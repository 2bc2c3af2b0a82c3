"""What a causal convolution costs when it is fused into one pass."""

from jax import ShapeDtypeStruct


def cost(
    x: ShapeDtypeStruct, weight: ShapeDtypeStruct, state: ShapeDtypeStruct | None, *, activation: str | None
) -> dict[str, int]:
    """Work of an ideal causal convolution: each input read once, the output written once.

    Args:
        x: the tokens, [B, T, C].
        weight: the taps, [K, C].
        state: the tokens before, [B, K-1, C], or None.
        activation: "silu" adds 4 FLOPs per element.

    Returns:
        flops, hbm_bytes_read, hbm_bytes_written, link_bytes and vmem_bytes (K tokens of one sequence in float32, and
        the weight).

    Example:
        >>> import jax
        >>> x, w = jax.ShapeDtypeStruct((1, 8, 16), "float32"), jax.ShapeDtypeStruct((4, 16), "float32")
        >>> cost(x, w, None, activation=None)["flops"]
        1024
    """
    taps, channels = weight.shape
    inputs = [a for a in (x, weight, state) if a is not None]
    return {
        "flops": x.size * (2 * taps + (4 if activation else 0)),
        "hbm_bytes_read": sum(a.size * a.dtype.itemsize for a in inputs),
        "hbm_bytes_written": x.size * x.dtype.itemsize,
        "link_bytes": 0,
        "vmem_bytes": 4 * taps * channels + weight.size * weight.dtype.itemsize,
    }
