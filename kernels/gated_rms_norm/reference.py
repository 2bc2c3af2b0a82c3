"""Gated RMS norm in plain JAX: the meaning, the oracle and the derivative."""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float


def gated_rms_norm(
    x: Float[Array, "*rows D"], weight: Float[Array, "D"], gate: Float[Array, "*rows D"], *, eps: float
) -> Float[Array, "*rows D"]:
    """Scale every row of `x` to unit root mean square, then by a weight and by silu(gate).

    Norm first, gate second. The row is normalised in float32 and cast back to x's type before the weight; silu is
    float32. Those casts are part of the meaning: they are what Qwen3.5 was trained with.

    Args:
        x: rows of D features, any float type (Qwen3.5: the output of the delta rule, one row per head).
        weight: one scale per feature, not zero-centred.
        gate: same shape as x.
        eps: added to the mean square, inside the root.

    Returns:
        An array of x's shape and type.

    Cost: 9 FLOPs per element; reads x, gate and weight once, writes x's size once.

    Source: the output norm of Gated DeltaNet (Yang, Kautz and Hatamizadeh 2024).

    Example:
        >>> import jax.numpy as jnp
        >>> y = gated_rms_norm(jnp.array([3.0, -3.0]), jnp.ones(2), jnp.array([0.0, 100.0]), eps=0.0)
        >>> y.tolist()
        [0.0, -100.0]
    """
    y = x.astype(jnp.float32)
    y = y * lax.rsqrt(jnp.mean(jnp.square(y), axis=-1, keepdims=True) + eps)
    y = weight * y.astype(x.dtype)
    return (y * jax.nn.silu(gate.astype(jnp.float32))).astype(x.dtype)
