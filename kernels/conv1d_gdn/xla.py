"""Convolution, gates and chunked delta rule of a Gated DeltaNet block, with the heads' work done once per key head.

The convolution is one pass over all tokens. Everything after it happens chunk by chunk inside one loop, so that only
the convolved tokens and the outputs travel through memory. 1,024 tokens on two cores, heads of 128 x 128, milliseconds
for reference / this:

    key heads, value heads       16, 16 float32    16, 16 bfloat16    16, 32 bfloat16
    JAX 0.10                       290 / 52           274 / 57           409 / 107
    JAX 0.12                       232 / 40           225 / 35           356 / 68
"""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jaxsplice.kernels.causal_conv1d.xla import causal_conv1d
from jaxsplice.kernels.gated_delta_rule.chunk import chunk_step, scan_chunks
from jaxsplice.kernels.gated_delta_rule.reference import gated_delta_rule as token_by_token
from jaxsplice.kernels.gated_delta_rule.xla import chunk_size, chunks_pay, single_token

from .reference import gates, key_heads_of, unit_length


def conv1d_gdn(
    u: Float[Array, "B T C"],
    conv_weight: Float[Array, "K C"],
    conv_state: Float[Array, "B K-1 C"] | None,
    b: Float[Array, "B T HV"],
    a: Float[Array, "B T HV"],
    A_log: Float[Array, "HV"],
    dt_bias: Float[Array, "HV"],
    state: Float[Array, "B HV DK DV"],
) -> tuple[Float[Array, "B T HV DV"], Float[Array, "B HV DK DV"]]:
    """Compute the reference's function: chunk by chunk for many tokens, in one pass over the state for one.

    Args:
        u: projected tokens; C = 2 HK DK + HV DV channels in the order queries, keys, values, each head-major.
        conv_weight: K taps per channel.
        conv_state: the K-1 tokens of u before these, oldest first; None means zeros.
        b: write strength before its sigmoid.
        a: decay before its softplus.
        A_log: logarithm of the decay rate.
        dt_bias: added to a.
        state: memory left by earlier tokens; HV, DK and DV are read off it.

    Returns:
        The outputs in u's type, and the state after the last token in float32.

    Raises:
        ValueError: as the reference.
    """
    batch, value_heads, key_features, value_features = state.shape
    key_heads = key_heads_of(u.shape[-1], state.shape)
    repeats = value_heads // key_heads
    tokens = u.shape[1]
    y = causal_conv1d(u, conv_weight, conv_state, activation="silu")
    g, beta = gates(b, a, A_log, dt_bias)
    if not chunks_pay(tokens, state.shape):
        qk, v = _heads(y, key_heads, key_features, value_heads)
        # Otherwise XLA computes the convolution and the norms again for every element of the states.
        qk = lax.optimization_barrier(qk)
        q, k = (jnp.repeat(qk[:, :, i], repeats, axis=2) for i in range(2))
        return (single_token if tokens == 1 else token_by_token)(q, k, v, g, beta, state)

    def step(state, chunk):
        y, g, beta = chunk
        size = y.shape[1]
        qk, v = _heads(y, key_heads, key_features, value_heads)
        qk = jnp.transpose(qk, (0, 3, 2, 1, 4)).reshape(batch, key_heads, 2 * size, key_features)
        v, g, beta = (_by_key_head(x.astype(jnp.float32), key_heads) for x in (v, g, beta))
        state, o = chunk_step(state, qk, v, g, beta)
        o = jnp.transpose(o, (0, 3, 1, 2, 4)).reshape(batch, size, value_heads, value_features)
        return state, o.astype(y.dtype)

    grouped = state.astype(jnp.float32).reshape(batch, key_heads, repeats, key_features, value_features)
    end, o = scan_chunks(step, jnp.swapaxes(grouped, 2, 3), (y, g, beta), chunk_size(tokens))
    return o, jnp.swapaxes(end, 2, 3).reshape(state.shape)


def _heads(y, key_heads, key_features, value_heads):
    """Queries and keys of length DK^-1/2 and 1, [B, T, 2, HK, DK], and values, [B, T, HV, DV]."""
    keys = key_heads * key_features
    qk = unit_length(y[..., : 2 * keys].reshape(*y.shape[:2], 2, key_heads, key_features))
    scale = jnp.array([key_features**-0.5, 1.0], jnp.float32)[:, None, None]
    v = y[..., 2 * keys :]
    return qk * scale, v.reshape(*y.shape[:2], value_heads, v.shape[-1] // value_heads)


def _by_key_head(x, key_heads):
    """[B, C, HV, ...] -> [B, HK, R, C, ...]."""
    batch, tokens, value_heads, *rest = x.shape
    x = x.reshape(batch, tokens, key_heads, value_heads // key_heads, *rest)
    return jnp.moveaxis(x, 1, 3)
