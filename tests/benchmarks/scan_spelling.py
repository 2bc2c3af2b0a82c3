"""The gated delta rule's token scan with multiply and sum in place of einsum, as some ports of the model write it."""

import jax.numpy as jnp
from jax import lax

from jaxsplice.models.qwen3_5.norms import l2_norm


def multiply_and_sum(q, k, v, g, beta, state):
    """Same arguments and results as `models/qwen3_5/gdn.gated_delta_rule`."""
    heads_per_key = v.shape[2] // k.shape[2]
    q = jnp.repeat(l2_norm(q) * q.shape[-1] ** -0.5, heads_per_key, axis=2)
    k = jnp.repeat(l2_norm(k), heads_per_key, axis=2)

    def token_step(state, token):
        q, k, v, g, beta = token
        state = state * jnp.exp(g)[..., None, None]
        read = (state * k[..., None]).sum(-2)
        correction = beta[..., None] * (v - read)
        state = state + k[..., None] * correction[..., None, :]
        return state, (state * q[..., None]).sum(-2)

    tokens = [jnp.moveaxis(x.astype(jnp.float32), 1, 0) for x in (q, k, v, g, beta)]
    state, out = lax.scan(token_step, state.astype(jnp.float32), tuple(tokens))
    return jnp.moveaxis(out, 0, 1), state
