"""The gated delta rule in plain JAX, token by token: the meaning, the oracle and the derivative."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float


def gated_delta_rule(
    q: Float[Array, "B T H DK"],
    k: Float[Array, "B T H DK"],
    v: Float[Array, "B T H DV"],
    g: Float[Array, "B T H"],
    beta: Float[Array, "B T H"],
    state: Float[Array, "B H DK DV"],
) -> tuple[Float[Array, "B T H DV"], Float[Array, "B H DK DV"]]:
    """Read, correct and write an associative memory once per token.

    Per head, with S the state: decay S by exp(g); u = beta (v - S^T k), the correction, reads the decayed state; S
    gains k u^T; the output S^T q reads the updated state. All of it is float32.

    Args:
        q: queries, already normalised, scaled and repeated to H heads.
        k: keys, already normalised and repeated to H heads.
        v: values.
        g: logarithm of the decay, finite and at most 0.
        beta: strength of the write, in [0, 1].
        state: memory left by earlier tokens, key index first.

    Returns:
        The outputs in v's type, and the state after the last token in float32.

    Raises:
        ValueError: shapes that do not belong together.

    Cost: 7 H DK DV FLOPs per token and sequence, and T steps that wait for each other.

    Source: Yang, Kautz and Hatamizadeh 2024, "Gated Delta Networks: Improving Mamba2 with Delta Rule".

    Example:
        >>> import jax.numpy as jnp
        >>> one = jnp.ones((1, 1, 1, 1))
        >>> o, state = gated_delta_rule(one, one, 5 * one, jnp.zeros((1, 1, 1)), 0.5 * one[..., 0], one)
        >>> float(o[0, 0, 0, 0]), float(state[0, 0, 0, 0])
        (3.0, 3.0)
    """
    check_shapes(q, k, v, g, beta, state)

    def token_step(state, token):
        q, k, v, g, beta = token
        state = state * jnp.exp(g)[..., None, None]
        read = jnp.einsum("bhkv,bhk->bhv", state, k, precision=lax.Precision.HIGHEST)
        u = beta[..., None] * (v - read)
        state = state + jnp.einsum("bhk,bhv->bhkv", k, u, precision=lax.Precision.HIGHEST)
        return state, jnp.einsum("bhkv,bhk->bhv", state, q, precision=lax.Precision.HIGHEST)

    time_major = tuple(jnp.moveaxis(x.astype(jnp.float32), 1, 0) for x in (q, k, v, g, beta))
    state, o = lax.scan(token_step, state.astype(jnp.float32), time_major)
    return jnp.moveaxis(o, 0, 1).astype(v.dtype), state


def check_shapes(q, k, v, g, beta, state) -> None:
    """Raise ValueError unless all six shapes agree; broadcasting would hide a missing repeat of the heads."""
    needed = {
        "q": (*v.shape[:3], q.shape[-1]),
        "k": (*v.shape[:3], q.shape[-1]),
        "g": v.shape[:3],
        "beta": v.shape[:3],
        "state": (v.shape[0], v.shape[2], q.shape[-1], v.shape[3]),
    }
    given = {"q": q, "k": k, "g": g, "beta": beta, "state": state}
    for name, shape in needed.items():
        if given[name].shape != shape:
            raise ValueError(
                f"gated_delta_rule: {name} has shape {given[name].shape}, but v {v.shape} and q {q.shape} need {shape};"
                " queries and keys with fewer heads than values must be repeated first"
            )
