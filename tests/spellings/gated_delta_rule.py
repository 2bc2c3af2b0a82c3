"""Ways in which people write the gated delta rule in JAX, and recurrences that only look like it.

`G1` to `G7` name the forms of the models they were seen in; name -> (function, arguments, hits per rule). Near misses
must not match at all: name -> (function, arguments, part of the reason).
"""

import jax
import jax.numpy as jnp
from jax import lax

from .delta_rule_steps import (
    ARGS,
    BATCH,
    BETA,
    CHUNK,
    GATES,
    HEADS,
    KEYS,
    RAW,
    STATE,
    TIME,
    VALUES,
    G,
    K,
    Q,
    V,
    arguments,
    bf16,
    decay_in_read,
    einsum,
    f32,
    householder,
    identity,
    looped,
    normal,
    one_head,
    outer,
    over_time,
    plain,
    rows_of_matrices,
    strength_in_read,
    strength_with_key,
    sums,
    unit,
    values_first,
)

ONE = {"gated-delta-rule": 1}


# ---------------------------------------------------------------- layouts around the loop
def time_first(q, k, v, g, beta, state):
    return lax.scan(plain, state, (q, k, v, g, beta))


def heads_first(q, k, v, g, beta, state):
    def step(state, token):
        q, k, v, g, beta = token
        state = state * jnp.exp(g)[..., None, None]
        state = state + einsum("hbk,hbv->hbkv", k, beta[..., None] * (v - einsum("hbkv,hbk->hbv", state, k)))
        return state, einsum("hbkv,hbk->hbv", state, q)

    moved = tuple(jnp.moveaxis(x, (1, 2), (0, 1)) for x in (q, k, v, g, beta))
    state, o = lax.scan(step, state.swapaxes(0, 1), moved)
    return jnp.moveaxis(o, (0, 1), (1, 2)), state.swapaxes(0, 1)


def values_first_state(q, k, v, g, beta, state):
    o, state = over_time(values_first, q, k, v, g, beta, state.swapaxes(-1, -2))
    return o, state.swapaxes(-1, -2)


def vmapped_heads(q, k, v, g, beta, state):
    one = lambda *args: lax.scan(one_head, args[-1], args[:-1])
    state, o = jax.vmap(jax.vmap(one, (1, 1, 1, 1, 1, 0), (0, 1)))(q, k, v, g, beta, state)
    return o, state


def vmapped_batch(q, k, v, g, beta, state):
    def step(state, token):
        q, k, v, g, beta = token
        state = state * jnp.exp(g)[:, None, None]
        state = state + einsum("hk,hv->hkv", k, beta[:, None] * (v - einsum("hkv,hk->hv", state, k)))
        return state, einsum("hkv,hk->hv", state, q)

    state, o = jax.vmap(lambda *a: lax.scan(step, a[-1], a[:-1]))(q, k, v, g, beta, state)
    return o, state


def half_precision(q, k, v, g, beta, state):
    q, k, v, beta = (x.astype(bf16) for x in (q, k, v, beta))
    o, state = over_time(plain, *(x.astype(f32) for x in (q, k, v, g, beta)), state)
    return o.astype(bf16), state


def decay_outside(q, k, v, g, beta, state):
    def step(state, token):
        q, k, v, decay, beta = token
        state = state * decay[..., None, None]
        state = state + outer(k, beta[..., None] * (v - einsum("bhkv,bhk->bhv", state, k)))
        return state, einsum("bhkv,bhk->bhv", state, q)

    return over_time(step, q, k, v, jnp.exp(g), beta, state)


def output_only(q, k, v, g, beta):
    return over_time(plain, q, k, v, g, beta, jnp.zeros((BATCH, HEADS, KEYS, VALUES)))[0]


def grouped_heads(q, k, v, g, beta, state):
    q, k = (jnp.repeat(x[:, :, :1], HEADS, axis=2) for x in (q, k))
    return over_time(plain, q, k, v, g, beta, state)


def packed(qkv, g, beta, state):
    q, k, v = jnp.split(qkv, [HEADS * KEYS, 2 * HEADS * KEYS], axis=-1)
    q, k, v = (x.reshape(BATCH, TIME, HEADS, -1) for x in (q, k, v))
    return over_time(plain, unit(q) * KEYS**-0.5, unit(k), v, g, beta, state)


def in_layers(q, k, v, g, beta, state):
    def layer(v, state):
        o, state = over_time(plain, q, k, v, g, beta, state)
        return v + o, state

    return lax.scan(layer, v, jnp.stack([state, 2 * state]))


# ---------------------------------------------------------------- more inside the loop
def gates_inside(q, k, v, a, b, A_log, dt_bias, state):
    def step(state, token):
        q, k, v, a, b = token
        g = -jnp.exp(A_log) * jax.nn.softplus(a + dt_bias)
        return sums(state, (q, k, v, g, jax.nn.sigmoid(b)))

    return over_time(step, q, k, v, a, b, state)


def strength_inside(q, k, v, g, b, state):
    return over_time(lambda s, t: plain(s, (*t[:4], jax.nn.sigmoid(t[4]))), q, k, v, g, b, state)


def norms_inside(q, k, v, g, beta, state):
    def step(state, token):
        q, k, v, g, beta = token
        return plain(state, (unit(q) * KEYS**-0.5, unit(k), v, g, beta))

    return over_time(step, q, k, v, g, beta, state)


def norms_by_division_inside(q, k, v, g, beta, state):
    def step(state, token):
        q, k, v, g, beta = token
        q, k = (x / jnp.maximum(jnp.linalg.norm(x, axis=-1, keepdims=True), 1e-6) for x in (q, k))
        return sums(state, (q, k, v, g, beta))

    return over_time(step, q, k, v, g, beta, state)


def everything_inside(q, k, v, a, b, A_log, dt_bias, state):
    def step(state, token):
        q, k, v, a, b = (x.astype(f32) for x in token)
        g = -jnp.exp(A_log) * jax.nn.softplus(a + dt_bias)
        q, k = (jnp.repeat(unit(x[:, :1]), HEADS, axis=1) for x in (q, k))
        return identity(state, (q * KEYS**-0.5, k, v, g, jax.nn.sigmoid(b)))

    return over_time(step, q, k, v, a, b, state)


def scale_inside(q, k, v, g, beta, state):
    return over_time(lambda s, t: plain(s, (t[0] * KEYS**-0.5, *t[1:])), q, k, v, g, beta, state)


# ---------------------------------------------------------------- other loops
def counted_loop(q, k, v, g, beta, state):
    """G6: a counter, reads at it, writes into a buffer."""

    def body(t, carry):
        state, o = carry
        at = lambda x: lax.dynamic_index_in_dim(x, t, 1, keepdims=False)
        state, new = plain(state, (at(q), at(k), at(v), at(g), at(beta)))
        return state, lax.dynamic_update_slice_in_dim(o, new[:, None], t, 1)

    state, o = lax.fori_loop(0, TIME, body, (state, jnp.zeros_like(v)))
    return o, state


def counted_loop_with_set(q, k, v, g, beta, state):
    def body(t, carry):
        state, o = carry
        state, new = sums(state, (q[:, t], k[:, t], v[:, t], g[:, t], beta[:, t]))
        return state, o.at[:, t].set(new)

    state, o = lax.fori_loop(0, TIME, body, (state, jnp.zeros_like(v)))
    return o, state


def scan_over_positions(q, k, v, g, beta, state):
    step = lambda state, t: plain(state, (q[:, t], k[:, t], v[:, t], g[:, t], beta[:, t]))
    state, o = lax.scan(step, state, jnp.arange(TIME))
    return jnp.moveaxis(o, 0, 1), state


def with_reset(q, k, v, g, beta, state, first):
    def step(state, token):
        *token, first = token
        return plain(jnp.where(first[:, None, None, None], 0.0, state), token)

    every = tuple(jnp.moveaxis(x, 1, 0) for x in (q, k, v, g, beta, first))
    return lax.scan(step, state, every)


def states_returned(q, k, v, g, beta, state):
    def step(state, token):
        state, o = plain(state, token)
        return state, (o, state)

    return lax.scan(step, state, tuple(jnp.moveaxis(x, 1, 0) for x in (q, k, v, g, beta)))


def counted_past(q, k, v, g, beta, state):
    """It starts at the second token."""

    def body(t, carry):
        state, o = carry
        state, new = plain(state, (q[:, t], k[:, t], v[:, t], g[:, t], beta[:, t]))
        return state, o.at[:, t].set(new)

    return lax.fori_loop(1, TIME, body, (state, jnp.zeros_like(v)))


# ---------------------------------------------------------------- one token
def single_step(q, k, v, g, beta, state):
    """G7."""
    q, k, v, g, beta = (x[:, 0] for x in (q, k, v, g, beta))
    decay, strength = jnp.exp(g)[..., None], beta[..., None]
    new = v * strength - einsum("bhk,bhkv->bhv", k * strength * decay, state)
    o = einsum("bhk,bhkv->bhv", q * decay, state) + (q * k).sum(-1, keepdims=True) * new
    return o[:, None], state * decay[..., None] + einsum("bhk,bhv->bhkv", k, new)


def a_step(step):
    def run(q, k, v, g, beta, state):
        state, o = step(state, tuple(x[:, 0] for x in (q, k, v, g, beta)))
        return o[:, None], state

    return run


def decode_step(q, k, v, g, beta, state):
    """A layer's own decode function: no time axis at all."""
    return sums(state, (q, k, v, g, beta))


TOKEN = arguments(1)
NO_TIME = (*(x[:, 0] for x in TOKEN[:-1]), TOKEN[-1])


# ---------------------------------------------------------------- chunks of tokens
def in_chunks(x):
    """[B, N*C, H, ...] -> [B, H, N, C, ...]."""
    return jnp.moveaxis(x.reshape(BATCH, -1, CHUNK, *x.shape[2:]), 3, 1)


def out_of_chunks(o):
    return jnp.moveaxis(o, 1, 3).reshape(BATCH, -1, HEADS, VALUES)


def chunked_solve(q, k, v, g, beta, state):
    """G1: the corrections of a chunk by a triangular solve, then a scan over chunks."""
    q, k, v, g, beta = map(in_chunks, (q, k, v, g, beta))
    g = jnp.cumsum(g, -1)
    lower = jnp.tril(jnp.ones((CHUNK, CHUNK), bool))
    decay = jnp.exp(jnp.where(lower, g[..., :, None] - g[..., None, :], -1e30))
    k_beta = k * beta[..., None]
    system = jnp.tril(einsum("bhnik,bhnjk->bhnij", k_beta, k) * decay, -1) + jnp.eye(CHUNK)
    right = jnp.concatenate([v * beta[..., None], k_beta * jnp.exp(g)[..., None]], -1)
    solved = jax.scipy.linalg.solve_triangular(system, right, lower=True, unit_diagonal=True)
    u, w = solved[..., :VALUES], solved[..., VALUES:]

    def step(state, chunk):
        q, k, u, w, g, decay = chunk
        new = u - einsum("bhik,bhkv->bhiv", w, state)
        inner = einsum("bhik,bhjk->bhij", q, k) * decay
        o = einsum("bhik,bhkv->bhiv", q * jnp.exp(g)[..., None], state) + einsum("bhij,bhjv->bhiv", inner, new)
        last = g[..., -1:]
        state = state * jnp.exp(last)[..., None] + einsum("bhik,bhiv->bhkv", k * jnp.exp(last - g)[..., None], new)
        return state, o

    state, o = lax.scan(step, state, tuple(jnp.moveaxis(x, 2, 0) for x in (q, k, u, w, g, decay)))
    return out_of_chunks(jnp.moveaxis(o, 0, 2)), state


def chunked_rows(q, k, v, g, beta, state):
    """G3, and the chunked form of transformers: the inverse row by row, every chunk written out."""
    q, k, v, g, beta = map(in_chunks, (q, k, v, g, beta))
    g = jnp.cumsum(g, -1)
    lower = jnp.tril(jnp.ones((CHUNK, CHUNK), bool))
    decay = jnp.where(lower, jnp.exp(jnp.where(lower, g[..., :, None] - g[..., None, :], 0.0)), 0.0)
    k_beta = k * beta[..., None]
    inverse = jnp.tril(-einsum("bhnik,bhnjk->bhnij", k_beta, k) * decay, -1)
    for i in range(1, CHUNK):
        row = inverse[..., i, :i]
        inverse = inverse.at[..., i, :i].set(row + (row[..., None] * inverse[..., :i, :i]).sum(-2))
    inverse = inverse + jnp.eye(CHUNK)
    values = inverse @ (v * beta[..., None])
    reads = inverse @ (k_beta * jnp.exp(g)[..., None])
    outs = []
    for n in range(q.shape[2]):
        new = values[:, :, n] - reads[:, :, n] @ state
        inner = q[:, :, n] @ k[:, :, n].swapaxes(-1, -2) * decay[:, :, n]
        outs.append((q[:, :, n] * jnp.exp(g[:, :, n])[..., None]) @ state + inner @ new)
        last = g[:, :, n, -1, None]
        grown = k[:, :, n] * jnp.exp(last - g[:, :, n])[..., None]
        state = state * jnp.exp(last)[..., None] + grown.swapaxes(-1, -2) @ new
    return out_of_chunks(jnp.stack(outs, 2)), state


TIME_FIRST = (*(jnp.moveaxis(x, 1, 0) for x in ARGS[:-1]), STATE)
FIRST = jnp.zeros((BATCH, TIME), bool).at[:, 3].set(True)
LONG = arguments(2 * CHUNK)
QKV = normal(BATCH, TIME, HEADS * (2 * KEYS + VALUES))

POSITIVES = {
    "einsum, time moved first": (looped(plain), ARGS, ONE),
    "time first throughout": (time_first, TIME_FIRST, ONE),
    "G4 sums of products": (looped(sums), ARGS, ONE),
    "row vectors times matrices": (looped(rows_of_matrices), ARGS, ONE),
    "state values first": (looped(values_first), (*ARGS[:-1], STATE.swapaxes(-1, -2)), ONE),
    "state values first inside only": (values_first_state, ARGS, ONE),
    "heads first": (heads_first, ARGS, ONE),
    "one head under two vmaps": (vmapped_heads, ARGS, ONE),
    "heads under vmap over the batch": (vmapped_batch, ARGS, ONE),
    "strength with the key": (looped(strength_with_key), ARGS, ONE),
    "strength within the read": (looped(strength_in_read), ARGS, ONE),
    "decay behind the read": (looped(decay_in_read), ARGS, ONE),
    "G5 output from the old state": (looped(identity), ARGS, ONE),
    "state times I - beta k k'": (looped(householder), ARGS, ONE),
    "decay computed before the loop": (decay_outside, ARGS, ONE),
    "bf16 in and out": (half_precision, ARGS, ONE),
    "no state in or out": (output_only, ARGS[:-1], ONE),
    "keys shared by heads": (grouped_heads, ARGS, ONE),
    "split, norms, scale before the loop": (packed, (QKV, G, BETA, STATE), ONE),
    "unrolled by two": (looped(plain, unroll=2), ARGS, ONE),
    "in jit and remat": (jax.jit(jax.checkpoint(looped(sums))), ARGS, ONE),
    "in scan over layers": (in_layers, ARGS, ONE),
    "gates inside": (gates_inside, (Q, K, V, *GATES, STATE), ONE),
    "strength inside": (strength_inside, ARGS, ONE),
    "norms and scale inside": (norms_inside, (*RAW, G, BETA, STATE), ONE),
    "norms by division inside": (norms_by_division_inside, (*RAW, G, BETA, STATE), ONE),
    "everything inside, G5": (everything_inside, (*RAW, *GATES, STATE), ONE),
    "scale inside": (scale_inside, ARGS, ONE),
    "G6 counted loop": (counted_loop, ARGS, ONE),
    "counted loop, at[].set": (counted_loop_with_set, ARGS, ONE),
    "scan over positions": (scan_over_positions, ARGS, ONE),
    "G7 single step": (single_step, TOKEN, ONE),
    "single step, sums": (a_step(sums), TOKEN, ONE),
    "single step, plain": (a_step(plain), TOKEN, ONE),
    "single step, G5": (a_step(identity), TOKEN, ONE),
    "single step without a time axis": (decode_step, NO_TIME, ONE),
    "scan of one token": (looped(plain), TOKEN, ONE),
    "step by step: documents reset the state": (with_reset, (*ARGS, FIRST), ONE),
    "step by step: backwards": (looped(plain, reverse=True), ARGS, ONE),
    "step by step: every state is returned": (states_returned, ARGS, ONE),
    "step by step: all tokens but the first": (counted_past, ARGS, ONE),
    "G1 chunks, triangular solve": (chunked_solve, LONG, ONE),
    "G3 chunks written out": (chunked_rows, LONG, ONE),
}


# ---------------------------------------------------------------- other recurrences
def before_write(state, token):
    q, k, v, g, beta = token
    state = state * jnp.exp(g)[..., None, None]
    o = einsum("bhkv,bhk->bhv", state, q)
    return state + outer(k, beta[..., None] * (v - einsum("bhkv,bhk->bhv", state, k))), o


def undecayed_read(state, token):
    q, k, v, g, beta = token
    delta = beta[..., None] * (v - einsum("bhkv,bhk->bhv", state, k))
    state = state * jnp.exp(g)[..., None, None] + outer(k, delta)
    return state, einsum("bhkv,bhk->bhv", state, q)


def linear_attention(state, token):
    """GLA with one decay per head, and Mamba-2's recurrence: nothing is corrected."""
    q, k, v, g, beta = token
    state = state * jnp.exp(g)[..., None, None] + outer(k, beta[..., None] * v)
    return state, einsum("bhkv,bhk->bhv", state, q)


def decay_per_channel(state, token):
    """KDA."""
    q, k, v, g, beta = token
    state = state * jnp.exp(g)[..., None]
    state = state + outer(k, beta[..., None] * (v - einsum("bhkv,bhk->bhv", state, k)))
    return state, einsum("bhkv,bhk->bhv", state, q)


def without_decay(state, token):
    """DeltaNet."""
    q, k, v, _, beta = token
    state = state + outer(k, beta[..., None] * (v - einsum("bhkv,bhk->bhv", state, k)))
    return state, einsum("bhkv,bhk->bhv", state, q)


def two_keys(state, token):
    """RWKV-7: it removes along another key than it writes."""
    q, k, v, g, beta = token
    state = state * jnp.exp(g)[..., None, None]
    state = state + outer(k, beta[..., None] * (v - einsum("bhkv,bhk->bhv", state, q)))
    return state, einsum("bhkv,bhk->bhv", state, q)


def strength_per_channel(state, token):
    q, k, v, g, beta = token
    state = state * jnp.exp(g)[..., None, None]
    state = state + outer(k, beta * (v - einsum("bhkv,bhk->bhv", state, k)))
    return state, einsum("bhkv,bhk->bhv", state, q)


def added(state, token):
    q, k, v, g, beta = token
    state = state * jnp.exp(g)[..., None, None]
    state = state + outer(k, beta[..., None] * (v + einsum("bhkv,bhk->bhv", state, k)))
    return state, einsum("bhkv,bhk->bhv", state, q)


def real_gated_lru(x, a, h):
    """RG-LRU: a state without a matrix."""

    def step(h, token):
        x, a = token
        h = jnp.exp(a) * h + jnp.sqrt(1 - jnp.exp(2 * a)) * x
        return h, h

    return lax.scan(step, h, (x, a))


PER_CHANNEL = -jnp.abs(normal(BATCH, TIME, HEADS, KEYS, seed=8))

NEAR_MISSES = {
    "output before the write": (looped(before_write), ARGS, "another value than the one"),
    "read of the undecayed state": (looped(undecayed_read), ARGS, "wanted broadcast_in_dim, found an input"),
    "nothing corrected (GLA, Mamba-2)": (looped(linear_attention), ARGS, "wanted sub, found"),
    "decay per channel (KDA)": (looped(decay_per_channel), (Q, K, V, PER_CHANNEL, BETA, STATE), "an axis (of size 4"),
    "no decay (DeltaNet)": (looped(without_decay), ARGS, "no carry of the loop"),
    "removed along another key (RWKV-7)": (looped(two_keys), ARGS, "another value than the one"),
    "strength per channel": (
        looped(strength_per_channel), (Q, K, V, G, jnp.repeat(BETA[..., None], VALUES, -1), STATE), "an axis (of size 5"
    ),
    "added, not corrected": (looped(added), ARGS, "no array of this region"),
    "a state without a matrix (RG-LRU)": (real_gated_lru, (V[0], G[0, :, :1], V[0, 0]), "wanted dot_general, found"),
    "single step, output before the write": (a_step(before_write), TOKEN, "wanted dot_general, found an input"),
    "single step, nothing corrected": (a_step(linear_attention), TOKEN, "wanted sub, found"),
}  # fmt: skip
