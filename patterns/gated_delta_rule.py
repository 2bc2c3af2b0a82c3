"""scan over tokens { decay, read, correct, write, output }  ->  gated_delta_rule(q, k, v, g, beta, state)

    S <- exp(g) S;  u = beta (v - S^T k);  S <- S + k u^T;  o = S^T q        once per token, in a loop

Recognised in any layout of state and tokens, with the strength and the decay before or behind the read, with the output
read from the new state or put together from the old one, with S multiplied by (I - beta k k^T), and for a single token.

Pays: tokens are solved a chunk at a time in matrix products (a GDN layer on TPU, 1,024 tokens: 41.8 M -> 3.15 M cycles,
8,261 -> 204 launches); one fused step when there is one token.
Source: Yang, Kautz and Hatamizadeh 2024; the chunked form is theirs too.
A loop that counts, or computes gates and norms inside, is looked at in its plain form: they go before the loop.
Limits: scalar decay per head, written exp(g); q and k already normalised; all of it float32. A form that already works
on chunks of tokens is another algorithm and is left alone.
"""

from functools import partial

import jax.numpy as jnp
from jax import ShapeDtypeStruct as Shape
from jax import lax

from jaxsplice.kernels.gated_delta_rule import gated_delta_rule
from jaxsplice.kernels.gated_delta_rule.shapes import sample
from jaxsplice.passes.rewrite.in_plain_form import in_plain_form
from jaxsplice.passes.rewrite.rule import Case, GraphCase, GraphRule, NearMiss, Rule


def _scan(step, q, k, v, g, beta, state):
    time_major = tuple(jnp.moveaxis(x, 1, 0) for x in (q, k, v, g, beta))
    state, o = lax.scan(step, state, time_major)
    return jnp.moveaxis(o, 0, 1), state


def _read(state, key):
    return jnp.einsum("bhkv,bhk->bhv", state, key)


def _step(state, token, correction: str, output: str):
    """One token, in one of the ways to write its correction and its output; all are one equation."""
    q, k, v, g, beta = token
    decay, strength = jnp.exp(g)[..., None], beta[..., None]
    decayed = state * decay[..., None]
    if correction == "strength in front":
        u = strength * (v - _read(decayed, k))
    elif correction == "strength within":
        u = v * strength - _read(decayed, k * strength)
    else:
        u = strength * (v - decay * _read(state, k))
    new = decayed + jnp.einsum("bhk,bhv->bhkv", k, u)
    if output == "new state":
        return new, _read(new, q)
    scores = (q * k).sum(-1, keepdims=True)
    old = decay * _read(state, q) if output == "old state, decay behind" else _read(state, q * decay)
    return new, old + scores * u


def before(q, k, v, g, beta, state, *, correction, output):
    """The obvious token step."""
    return _scan(partial(_step, correction=correction, output=output), q, k, v, g, beta, state)


def after(q, k, v, g, beta, state, *, correction, output):
    """One Op."""
    return gated_delta_rule(q, k, v, g, beta, state)


def before_one_token(q, k, v, g, beta, state, *, correction, output):
    """A step of decoding: no loop, no time axis."""
    state, o = _step(state, (q, k, v, g, beta), correction, output)
    return o, state


def after_one_token(q, k, v, g, beta, state, *, correction, output):
    """One Op on a time axis of one."""
    o, state = gated_delta_rule(*(x[:, None] for x in (q, k, v, g, beta)), state)
    return o[:, 0], state


def before_matrix(q, k, v, g, beta, state):
    """The state times a matrix that forgets along the key."""

    def step(state, token):
        q, k, v, g, beta = token
        decay, strength = jnp.exp(g)[..., None, None], beta[..., None, None]
        forget = jnp.eye(k.shape[-1], dtype=k.dtype) - strength * k[..., :, None] * k[..., None, :]
        state = decay * jnp.einsum("bhij,bhjv->bhiv", forget, state) + strength * k[..., :, None] * v[..., None, :]
        return state, _read(state, q)

    return _scan(step, q, k, v, g, beta, state)


def after_matrix(q, k, v, g, beta, state):
    """One Op."""
    return gated_delta_rule(q, k, v, g, beta, state)


def _shapes(batch: int, tokens: int, heads: int, keys: int, values: int):
    key, gate = Shape((batch, tokens, heads, keys), jnp.float32), Shape((batch, tokens, heads), jnp.float32)
    value, state = Shape((batch, tokens, heads, values), jnp.float32), Shape((batch, heads, keys, values), jnp.float32)
    return key, key, value, gate, gate, state


def _output_before_write(q, k, v, g, beta, state):
    def step(state, token):
        q, k, v, g, beta = token
        state = state * jnp.exp(g)[..., None, None]
        o = jnp.einsum("bhkv,bhk->bhv", state, q)
        correction = beta[..., None] * (v - jnp.einsum("bhkv,bhk->bhv", state, k))
        return state + jnp.einsum("bhk,bhv->bhkv", k, correction), o

    return _scan(step, q, k, v, g, beta, state)


def _reads_undecayed(q, k, v, g, beta, state):
    def step(state, token):
        q, k, v, g, beta = token
        correction = beta[..., None] * (v - jnp.einsum("bhkv,bhk->bhv", state, k))
        state = state * jnp.exp(g)[..., None, None] + jnp.einsum("bhk,bhv->bhkv", k, correction)
        return state, jnp.einsum("bhkv,bhk->bhv", state, q)

    return _scan(step, q, k, v, g, beta, state)


def _no_correction(q, k, v, g, beta, state):
    def step(state, token):
        q, k, v, g, beta = token
        state = state * jnp.exp(g)[..., None, None]
        state = state + jnp.einsum("bhk,bhv->bhkv", k, beta[..., None] * v)
        return state, jnp.einsum("bhkv,bhk->bhv", state, q)

    return _scan(step, q, k, v, g, beta, state)


def _no_correction_of_one_token(q, k, v, g, beta, state):
    state = state * jnp.exp(g)[..., None, None] + jnp.einsum("bhk,bhv->bhkv", k, beta[..., None] * v)
    return jnp.einsum("bhkv,bhk->bhv", state, q), state


def _unit(x):
    return x * lax.rsqrt((x * x).sum(-1, keepdims=True) + 1e-6)


def _counted(q, k, v, g, beta, state, first=0):
    """A loop that counts, reads tokens and writes outputs at its counter; norms and gates inside."""

    def body(t, carry):
        state, o = carry
        g_t, beta_t = -jnp.exp(g[:, t]), 1 / (1 + jnp.exp(-beta[:, t]))
        token = (_unit(q[:, t]), _unit(k[:, t]), v[:, t], g_t, beta_t)
        state, new = _step(state, token, *WAYS[0])
        return state, o.at[:, t].set(new)

    state, o = lax.fori_loop(first, v.shape[1], body, (state, jnp.zeros_like(v)))
    return o, state


def _counted_from_one(q, k, v, g, beta, state):
    return _counted(q, k, v, g, beta, state, first=1)


def _gates_inside(q, k, v, a, b, state, A_log, dt_bias):
    def step(state, token):
        q, k, v, a, b = token
        g = -jnp.exp(A_log) * jnp.logaddexp(a + dt_bias, 0.0)
        return _step(state, (_unit(q), _unit(k), v, g, 1 / (1 + jnp.exp(-b))), *WAYS[-1])

    return _scan(step, q, k, v, a, b, state)


ARGS = _shapes(2, 7, 3, 4, 5)
HEAD = Shape((3,), jnp.float32)
STEP = (*(Shape((x.shape[0], *x.shape[2:]), x.dtype) for x in ARGS[:-1]), ARGS[-1])
# How libraries combine them, the most usual first.
WAYS = [
    ("strength in front", "new state"),
    ("strength in front", "old state, decay behind"),
    ("strength within", "new state"),
    ("strength within", "old state, decay within"),
    ("decay behind", "new state"),
    ("decay behind", "old state, decay behind"),
]


_family = partial(
    Rule,
    "gated-delta-rule",
    tolerance=2e-6,
    tolerance_reason="the oracle's limit for this operator",
    benefit="chunks of tokens in matrix products instead of a loop over tokens",
)
_token_rules = (
    _family(
        before,
        after,
        cases=[Case(*ARGS, correction=correction, output=output) for correction, output in WAYS],
        near_misses=[
            NearMiss(_output_before_write, *ARGS, reason="another value"),
            NearMiss(_reads_undecayed, *ARGS, reason="found an input"),
            NearMiss(_no_correction, *ARGS, reason="wanted sub"),
        ],
        sample=lambda rng, *args, **_: sample(rng, *args),
    ),
    _family(before_matrix, after_matrix, cases=[Case(*ARGS)], sample=sample),
)
rules = (
    *_token_rules,
    GraphRule(
        "gated-delta-rule",
        in_plain_form(_token_rules),
        equation="numeric",
        stage="raise",
        cases=[GraphCase(_counted, ARGS, {}), GraphCase(_gates_inside, (*ARGS, HEAD, HEAD), {})],
        near_misses=[NearMiss(_counted_from_one, *ARGS, reason="another loop")],
        benefit="as above; norms and gates for all tokens at once",
    ),
    _family(
        before_one_token,
        after_one_token,
        cases=[Case(*STEP, correction=correction, output=output) for correction, output in WAYS],
        near_misses=[NearMiss(_no_correction_of_one_token, *STEP, reason="wanted sub")],
        sample=lambda rng, *args, **_: sample(rng, *args),
    ),
)
