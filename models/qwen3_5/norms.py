"""The three norms of Qwen3.5.  All of them compute in float32."""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float


def rms_norm(x: Float[Array, "... D"], weight: Float[Array, "D"], eps: float) -> Float[Array, "... D"]:
    """Root-mean-square norm with a zero-centred weight: the scale is 1 + weight.

    Used for both norms of a layer, the final norm and the attention's query and key norms.

    Args:
        x: [..., D].
        weight: [D], around 0.
        eps: added to the mean square.

    Returns:
        [..., D] in x's type.
    """
    y = x.astype(jnp.float32)
    y = y * lax.rsqrt(jnp.mean(jnp.square(y), axis=-1, keepdims=True) + eps)
    return (y * (1.0 + weight.astype(jnp.float32))).astype(x.dtype)


def gated_rms_norm(
    x: Float[Array, "... D"], weight: Float[Array, "D"], z: Float[Array, "... D"], eps: float
) -> Float[Array, "... D"]:
    """Root-mean-square norm with a plain weight, then the gate silu(z).  Used after the delta rule only.

    Args:
        x: [..., D].
        weight: [D] float32, around 1 (not zero-centred).
        z: [..., D], the gate before its activation.
        eps: added to the mean square.

    Returns:
        [..., D] in x's type.
    """
    y = x.astype(jnp.float32)
    y = y * lax.rsqrt(jnp.mean(jnp.square(y), axis=-1, keepdims=True) + eps)
    y = y.astype(x.dtype) * weight
    return (y * jax.nn.silu(z.astype(jnp.float32))).astype(x.dtype)


def l2_norm(x: Float[Array, "... D"]) -> Float[Array, "... D"]:
    """Scales the last axis to length 1; 1e-6 stands inside the root, on the sum (not the mean).

    Returns:
        [..., D] in float32.
    """
    x = x.astype(jnp.float32)
    return x * lax.rsqrt(jnp.sum(x * x, axis=-1, keepdims=True) + 1e-6)
