"""RMS norm in plain JAX: the meaning, the oracle and the derivative."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float


def rms_norm(
    x: Float[Array, "*rows D"], weight: Float[Array, "D"], *, eps: float, zero_centred: bool
) -> Float[Array, "*rows D"]:
    """Scale every row of `x` to unit root mean square, then by a learned weight.

    All arithmetic is float32, with one cast at the end.

    Args:
        x: rows of D features, any float type.
        weight: one scale per feature.
        eps: added to the mean square, inside the root.
        zero_centred: the stored weight is the scale minus one (Gemma, Qwen3.5), so `1 + weight` is applied.

    Returns:
        An array of x's shape and type.

    Cost: 4 FLOPs per element; reads x and weight once, writes x's size once.

    Source: Zhang and Sennrich 2019, "Root Mean Square Layer Normalization".

    Example:
        >>> import jax.numpy as jnp
        >>> rms_norm(jnp.array([3.0, -3.0]), jnp.zeros(2), eps=0.0, zero_centred=True).tolist()
        [1.0, -1.0]
    """
    y = x.astype(jnp.float32)
    scale = weight.astype(jnp.float32)
    if zero_centred:
        scale = 1.0 + scale
    y = y * lax.rsqrt(jnp.mean(jnp.square(y), axis=-1, keepdims=True) + eps)
    return (y * scale).astype(x.dtype)
