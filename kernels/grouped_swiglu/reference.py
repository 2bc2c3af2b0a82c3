"""SwiGLU with one pair of weights per group of rows, in plain JAX: the meaning, the oracle and the derivative."""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int


def grouped_swiglu(
    x: Float[Array, "M D"] | Float[Array, "E T D"],
    w_gate: Float[Array, "E D F"],
    w_up: Float[Array, "E D F"],
    group_sizes: Int[Array, "E"] | None = None,
    *,
    precision: lax.PrecisionLike = None,
) -> Float[Array, "M F"] | Float[Array, "E T F"]:
    """Give every row the SwiGLU of its expert: silu(x w_gate[e]) * (x w_up[e]).

    Args:
        x: with `group_sizes`, M rows sorted by expert; without, T rows for each of E experts.
        w_gate: weights of the experts' gates.
        w_up: weights of what is gated.
        group_sizes: rows of each expert, in order, adding up to M at most; rows beyond the sum belong to no expert.
        precision: of both products, as in `jax.numpy.dot`.

    Returns:
        Rows of F features; zeros where a row belongs to no expert.

    Cost: 4 M D F FLOPs; reads x and the weights of experts that have rows once, writes M F once. On CPUs `ragged_dot`
    multiplies every row by every expert's weights, E times as much.

    Source: the experts of Qwen3.5; Gale et al. 2022, "MegaBlocks".

    Example:
        >>> import jax.numpy as jnp
        >>> x, w = jnp.array([[100.0], [100.0], [100.0]]), jnp.array([[[1.0]], [[2.0]]])
        >>> grouped_swiglu(x, w, w, jnp.array([1, 1])).ravel().tolist()
        [10000.0, 40000.0, 0.0]
    """
    if group_sizes is None:
        gate = jnp.einsum("etd,edf->etf", x, w_gate, precision=precision)
        return jax.nn.silu(gate) * jnp.einsum("etd,edf->etf", x, w_up, precision=precision)
    gate = lax.ragged_dot(x, w_gate, group_sizes, precision=precision)
    return jax.nn.silu(gate) * lax.ragged_dot(x, w_up, group_sizes, precision=precision)
