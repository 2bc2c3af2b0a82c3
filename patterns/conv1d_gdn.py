"""causal_conv1d, split, l2 norms, gates, head repeat, gated_delta_rule  ->  conv1d_gdn(u, ..., state)

    u ─ causal_conv1d ─ split ─┬─ q ─ l2 ─ scale ─ repeat ─┐
                               ├─ k ─ l2 ─ repeat ─────────┼─ gated_delta_rule        becomes one node
                               └─ v ───────────────────────┤
    b ─ sigmoid ───────────────────────────────── beta ────┤
    a ─ + dt_bias ─ softplus ─ * -exp(A_log) ──── g ───────┘

Pays: nothing between the projections and the output reaches HBM (six round trips in the Qwen3.5 playbook, P12 and P16),
and products of queries and keys are done once per key head, not per value head.
Source: Yang, Kautz and Hatamizadeh 2024; Qwen3.5.
Limits: channels in the order q, k, v, head-major; norms' epsilon 1e-6 inside the root; q scaled by DK^-1/2; one value
head and several rows in float32 only.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import ShapeDtypeStruct as Shape
from jax import lax

from jaxsplice.kernels.causal_conv1d import causal_conv1d
from jaxsplice.kernels.conv1d_gdn import conv1d_gdn
from jaxsplice.kernels.gated_delta_rule import gated_delta_rule
from jaxsplice.passes.rewrite.rule import Case, NearMiss, Rule


def _unit(x):
    x = x.astype(jnp.float32)
    return x * lax.rsqrt(jnp.sum(x * x, axis=-1, keepdims=True) + 1e-6)


def _block(delta_rule, u, conv_weight, conv_state, b, a, A_log, dt_bias, state):
    batch, tokens, channels = u.shape
    _, value_heads, features, value_features = state.shape
    key_heads = (channels - value_heads * value_features) // (2 * features)
    y = causal_conv1d(u, conv_weight, conv_state, activation="silu")
    q, k, v = jnp.split(y, [key_heads * features, 2 * key_heads * features], axis=-1)
    q, k = (x.reshape(batch, tokens, key_heads, features) for x in (q, k))
    v = v.reshape(batch, tokens, value_heads, value_features).astype(jnp.float32)
    q, k = _unit(q) * features**-0.5, _unit(k)
    q, k = (jnp.repeat(x, value_heads // key_heads, axis=2) for x in (q, k))
    beta = jax.nn.sigmoid(b).astype(jnp.float32)
    rate = -jnp.exp(A_log.astype(jnp.float32))
    g = rate * jax.nn.softplus(a.astype(jnp.float32) + dt_bias.astype(jnp.float32))
    o, state = delta_rule(q, k, v, g, beta, state)
    return o.astype(u.dtype), state


def before(u, conv_weight, conv_state, b, a, A_log, dt_bias, state):
    """The block between its projections and its output norm, with two Ops in it."""
    return _block(gated_delta_rule, u, conv_weight, conv_state, b, a, A_log, dt_bias, state)


def after(u, conv_weight, conv_state, b, a, A_log, dt_bias, state):
    """One Op."""
    return conv1d_gdn(u, conv_weight, conv_state, b, a, A_log, dt_bias, state)


def before_zeros(u, conv_weight, b, a, A_log, dt_bias, state):
    """As `before`, with nothing before u."""
    return before(u, conv_weight, None, b, a, A_log, dt_bias, state)


def after_zeros(u, conv_weight, b, a, A_log, dt_bias, state):
    """One Op."""
    return conv1d_gdn(u, conv_weight, None, b, a, A_log, dt_bias, state)


def _across_rows(q, k, v, g, beta, state):
    """To the delta rule alone, rows are as good as heads."""
    o, state = gated_delta_rule(*(jnp.swapaxes(x, 0, 2) for x in (q, k, v, g, beta)), jnp.swapaxes(state, 0, 1))
    return jnp.swapaxes(o, 0, 2), jnp.swapaxes(state, 0, 1)


def before_one_head(u, conv_weight, conv_state, b, a, A_log, dt_bias, state):
    """As `before` with one head, whose rows the delta rule takes for heads."""
    return _block(_across_rows, u, conv_weight, conv_state, b, a, A_log, dt_bias, state)


def before_one_head_zeros(u, conv_weight, b, a, A_log, dt_bias, state):
    """As `before_one_head`, with nothing before u."""
    return before_one_head(u, conv_weight, None, b, a, A_log, dt_bias, state)


def _shapes(tokens: int, key_heads: int, value_heads: int, dtype, past: bool = True):
    batch, features, value_features, taps = 2, 8, 12, 4
    channels = 2 * key_heads * features + value_heads * value_features
    gate, head = Shape((batch, tokens, value_heads), dtype), Shape((value_heads,), jnp.float32)
    return (
        Shape((batch, tokens, channels), dtype), Shape((taps, channels), dtype),
        *([Shape((batch, taps - 1, channels), dtype)] if past else []),
        gate, gate, head, head, Shape((batch, value_heads, features, value_features), jnp.float32),
    )  # fmt: skip


_HEADS = [(2, 6), (3, 3), (1, 4), (1, 1)]
ARGS = _shapes(7, 2, 6, jnp.float32)


def _tiled_heads(u, conv_weight, conv_state, b, a, A_log, dt_bias, state):
    y = causal_conv1d(u, conv_weight, conv_state, activation="silu")
    q, k, v = jnp.split(y, [16, 32], axis=-1)
    q, k, v = q.reshape(2, 7, 2, 8), k.reshape(2, 7, 2, 8), v.reshape(2, 7, 6, 12)
    q, k = jnp.tile(_unit(q) * 8**-0.5, (1, 1, 3, 1)), jnp.tile(_unit(k), (1, 1, 3, 1))
    g = -jnp.exp(A_log) * jax.nn.softplus(a + dt_bias)
    return gated_delta_rule(q, k, v, g, jax.nn.sigmoid(b), state)


def _unscaled_queries(u, conv_weight, conv_state, b, a, A_log, dt_bias, state):
    y = causal_conv1d(u, conv_weight, conv_state, activation="silu")
    q, k, v = jnp.split(y, [16, 32], axis=-1)
    q, k, v = q.reshape(2, 7, 2, 8), k.reshape(2, 7, 2, 8), v.reshape(2, 7, 6, 12)
    q, k = jnp.repeat(_unit(q), 3, 2), jnp.repeat(_unit(k), 3, 2)
    g = -jnp.exp(A_log) * jax.nn.softplus(a + dt_bias)
    return gated_delta_rule(q, k, v, g, jax.nn.sigmoid(b), state)


_family = partial(
    Rule,
    "conv1d-gdn",
    stage="fuse",
    needs=("causal-conv1d", "gated-delta-rule"),
    tolerance=5e-6,
    tolerance_reason="a delta rule behind a convolution and norms, all float32",
    benefit="no intermediate between projections and output reaches HBM",
)
# Rows for heads is no equation that is proved term by term: it is measured, at the limit of the type.
_one_head = partial(_family, tolerance=None, tolerance_reason="")
rules = (
    _family(
        before=before,
        after=after,
        cases=[Case(*_shapes(t, k, v, d)) for d in (jnp.float32, jnp.bfloat16) for k, v in _HEADS for t in (7, 1)],
        near_misses=[
            NearMiss(_tiled_heads, *ARGS, reason="found tile"),
            NearMiss(_unscaled_queries, *ARGS, reason="the number 1"),
        ],
    ),
    _family(
        before=before_zeros,
        after=after_zeros,
        cases=[Case(*_shapes(7, k, v, d, past=False)) for d in (jnp.float32, jnp.bfloat16) for k, v in _HEADS],
    ),
    _one_head(
        before=before_one_head,
        after=after,
        cases=[Case(*_shapes(t, 1, 1, d)) for d in (jnp.float32, jnp.bfloat16) for t in (7, 1)],
    ),
    _one_head(
        before=before_one_head_zeros,
        after=after_zeros,
        cases=[Case(*_shapes(7, 1, 1, d, past=False)) for d in (jnp.float32, jnp.bfloat16)],
    ),
)
