"""Steps of the gated delta rule over one token, and arguments for them; gated_delta_rule.py puts them into loops."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

bf16, f32 = jnp.bfloat16, jnp.float32
BATCH, TIME, HEADS, KEYS, VALUES, CHUNK = 2, 6, 3, 4, 5, 4


def normal(*shape, seed=0, dtype=f32):
    """Seeded standard normals."""
    return jnp.asarray(np.random.default_rng([seed, *shape]).standard_normal(shape), dtype)


def unit(x, eps=1e-6):
    """Vectors of length one."""
    return x * lax.rsqrt(jnp.sum(x * x, -1, keepdims=True) + eps)


def arguments(time):
    """Queries and keys of length one, values, log decays below 0, strengths between 0 and 1, a state."""
    gate = normal(BATCH, time, HEADS)
    return (
        unit(normal(BATCH, time, HEADS, KEYS)) * KEYS**-0.5,
        unit(normal(BATCH, time, HEADS, KEYS, seed=1)),
        normal(BATCH, time, HEADS, VALUES),
        -jnp.abs(gate),
        jax.nn.sigmoid(gate),
        normal(BATCH, HEADS, KEYS, VALUES),
    )


ARGS = Q, K, V, G, BETA, STATE = arguments(TIME)
RAW = (*(normal(BATCH, TIME, HEADS, n, seed=s) for n, s in ((KEYS, 2), (KEYS, 3), (VALUES, 4))),)
GATES = (normal(BATCH, TIME, HEADS, seed=5), normal(BATCH, TIME, HEADS, seed=6), normal(HEADS), normal(HEADS, seed=1))
einsum = functools.partial(jnp.einsum, precision=lax.Precision.HIGHEST)
outer = lambda a, b: a[..., :, None] * b[..., None, :]


def over_time(step, q, k, v, g, beta, state, **options):
    """A scan over tokens of [B, T, ...] arrays."""
    state, o = lax.scan(step, state, tuple(jnp.moveaxis(x, 1, 0) for x in (q, k, v, g, beta)), **options)
    return jnp.moveaxis(o, 0, 1), state


def looped(step, **options):
    return functools.partial(over_time, step, **options)


# ---------------------------------------------------------------- steps: (state, token) -> (state, output)
def plain(state, token):
    q, k, v, g, beta = token
    state = state * jnp.exp(g)[..., None, None]
    state = state + einsum("bhk,bhv->bhkv", k, beta[..., None] * (v - einsum("bhkv,bhk->bhv", state, k)))
    return state, einsum("bhkv,bhk->bhv", state, q)


def sums(state, token):
    """G4, and the recurrent form of transformers."""
    q, k, v, g, beta = token
    state = state * jnp.exp(g)[..., None, None]
    memory = (state * k[..., None]).sum(-2)
    delta = (v - memory) * beta[..., None]
    state = state + k[..., None] * delta[..., None, :]
    return state, (state * q[..., None]).sum(-2)


def values_first(state, token):
    q, k, v, g, beta = token
    state = state * jnp.exp(g)[..., None, None]
    delta = beta[..., None] * (v - einsum("bhvk,bhk->bhv", state, k))
    state = state + einsum("bhv,bhk->bhvk", delta, k)
    return state, einsum("bhvk,bhk->bhv", state, q)


def rows_of_matrices(state, token):
    q, k, v, g, beta = token
    state = state * jnp.exp(g)[..., None, None]
    read = (k[..., None, :] @ state)[..., 0, :]
    state = state + k[..., :, None] @ (beta[..., None] * (v - read))[..., None, :]
    return state, (q[..., None, :] @ state)[..., 0, :]


def strength_with_key(state, token):
    q, k, v, g, beta = token
    state = state * jnp.exp(g)[..., None, None]
    state = state + outer(k * beta[..., None], v - einsum("bhkv,bhk->bhv", state, k))
    return state, einsum("bhkv,bhk->bhv", state, q)


def strength_in_read(state, token):
    q, k, v, g, beta = token
    state = state * jnp.exp(g)[..., None, None]
    state = state + outer(k, v * beta[..., None] - einsum("bhkv,bhk->bhv", state, k * beta[..., None]))
    return state, einsum("bhkv,bhk->bhv", state, q)


def decay_in_read(state, token):
    q, k, v, g, beta = token
    decay = jnp.exp(g)[..., None]
    new = beta[..., None] * (v - decay * einsum("bhk,bhkv->bhv", k, state))
    state = decay[..., None] * state + outer(k, new)
    return state, einsum("bhk,bhkv->bhv", q, state)


def identity(state, token):
    """G5: the output from the old state."""
    q, k, v, g, beta = token
    decay = jnp.exp(g)[..., None]
    new = beta[..., None] * (v - decay * einsum("bhk,bhkv->bhv", k, state))
    o = decay * einsum("bhk,bhkv->bhv", q, state) + (q * k).sum(-1, keepdims=True) * new
    return decay[..., None] * state + outer(k, new), o


def householder(state, token):
    q, k, v, g, beta = token
    shrink = jnp.eye(KEYS) - beta[..., None, None] * outer(k, k)
    state = jnp.exp(g)[..., None, None] * einsum("bhij,bhjv->bhiv", shrink, state)
    state = state + beta[..., None, None] * outer(k, v)
    return state, einsum("bhkv,bhk->bhv", state, q)


def one_head(state, token):
    """A step of one sequence and one head."""
    q, k, v, g, beta = token
    state = jnp.exp(g) * state
    state = state + jnp.outer(k, beta * (v - state.T @ k))
    return state, state.T @ q
