"""SwiGLU in plain JAX: the meaning, the oracle and the derivative."""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float


def swiglu(
    x: Float[Array, "*rows D"],
    w_gate: Float[Array, "D F"],
    w_up: Float[Array, "D F"],
    *,
    precision: lax.PrecisionLike = None,
) -> Float[Array, "*rows F"]:
    """Two projections of the same rows, one of them the other's gate: silu(x w_gate) * (x w_up).

    Args:
        x: rows of D features.
        w_gate: weights of the gate.
        w_up: weights of what is gated.
        precision: of both products, as in `jax.numpy.dot`.

    Returns:
        Rows of F features, in the products' type.

    Cost: 4 M D F FLOPs for M rows; reads x and both weights once, writes M F once.

    Source: Shazeer 2020, "GLU Variants Improve Transformer".

    Example:
        >>> import jax.numpy as jnp
        >>> swiglu(jnp.array([[1.0, 2.0]]), jnp.array([[100.0], [0.0]]), jnp.array([[0.0], [3.0]])).tolist()
        [[600.0]]
    """
    return jax.nn.silu(jnp.dot(x, w_gate, precision=precision)) * jnp.dot(x, w_up, precision=precision)
