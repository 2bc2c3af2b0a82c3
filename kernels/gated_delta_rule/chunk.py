"""The gated delta rule for a whole chunk of tokens as matrix products.

Within a chunk of C tokens let c_i = g_1 + ... + g_i, and D_ij = exp(c_i - c_j) for j <= i, else 0. With S the state
before the chunk, K and Q its keys and queries, A = strictly lower part of diag(beta) (K K^T * D):

    (I + A) U = diag(beta) (V - diag(e^c) K S)          the corrections of all C tokens
    O   = diag(e^c) Q S + ((Q K^T) * D) U               their outputs
    S'  = e^(c_C) S + K^T (U scaled by D's last row)    the state after the chunk

Value heads that share a key head share K K^T and Q K^T, and K S and Q S are one product with all their states side by
side. Everything is float32 at the highest precision.
"""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

# Largest triangular block that is inverted by a series; larger ones are put together from two inverses.
SERIES_BLOCK = 8


def chunk_step(
    state: Float[Array, "B HK DK R DV"],
    qk: Float[Array, "B HK 2*C DK"],
    v: Float[Array, "B HK R C DV"],
    g: Float[Array, "B HK R C"],
    beta: Float[Array, "B HK R C"],
) -> tuple[Float[Array, "B HK DK R DV"], Float[Array, "B HK R C DV"]]:
    """Advance the state by C tokens.

    Args:
        state: float32; the R value heads of a key head stand side by side, so that one product reads them all.
        qk: the C queries and below them the C keys, float32, so that one product serves both.
        v: values, float32; R value heads per key head.
        g: logarithm of the decay, finite and at most 0.
        beta: strength of the write.

    Returns:
        The new state, and the outputs.

    Cost: per key head 4 C C DK + R (6 C DK DV + 4 C C DV + about C^3) FLOPs.
    """
    tokens = g.shape[-1]
    k = qk[:, :, tokens:]
    to_start = jnp.exp(jnp.cumsum(g, axis=-1))[..., None]
    decay = jnp.exp(segment_sums(g))
    q_k, k_k = jnp.split(_product(qk, _transposed(k))[:, :, None], 2, axis=-2)
    q_state, k_state = jnp.split(_read(state, qk), 2, axis=-2)

    strictly_lower = jnp.tril(jnp.ones((tokens, tokens), bool), -1)
    a = jnp.where(strictly_lower, k_k * decay * beta[..., None], 0.0)
    u = _product(unit_lower_inverse(a) * beta[..., None, :], v - to_start * k_state)
    o = _product(q_k * decay, u) + to_start * q_state
    end = jnp.moveaxis(to_start[..., -1:, :], 2, 3) * state
    return end + _write(k, u * decay[..., -1, :, None]), o


def segment_sums(g: Float[Array, "*lead C"]) -> Float[Array, "*lead C C"]:
    """Sums g_(j+1) + ... + g_i for j <= i, and -inf above the diagonal.

    Each sum adds only its own terms. Differences of one running sum would lose digits to an earlier large term: after
    a jump of -300 every later decay in the chunk would be off by 2e-5.
    """
    tokens = g.shape[-1]
    lower = jnp.tril(jnp.ones((tokens, tokens), bool))
    after_j = jnp.where(jnp.tril(lower, -1), g[..., :, None], 0.0)
    return jnp.where(lower, _product(lower.astype(g.dtype), after_j), -jnp.inf)


def unit_lower_inverse(a: Float[Array, "*lead C C"]) -> Float[Array, "*lead C C"]:
    """(I + a)^-1 for a strictly lower triangular a, with C a power of two.

    Blocks of 8 by a finite series, then pairs of blocks by two products each. The series may not go further: where all
    keys are equal, its powers hold binomial coefficients (35 in blocks of 8, 9e17 in blocks of 64) that must cancel.

    On two CPU cores, 256 systems of 64 x 64 with 256 right-hand sides take 8 to 14 ms this way (6 to 11 of them the
    product with the inverse), and 28 to 47 with `triangular_solve`.
    """
    size = a.shape[-1]
    if size <= SERIES_BLOCK:
        return _series_inverse(a)
    half = size // 2
    upper, lower = unit_lower_inverse(jnp.stack([a[..., :half, :half], a[..., half:, half:]]))
    corner = -_product(_product(lower, a[..., half:, :half]), upper)
    top = jnp.concatenate([upper, jnp.zeros_like(corner)], axis=-1)
    return jnp.concatenate([top, jnp.concatenate([corner, lower], axis=-1)], axis=-2)


def _series_inverse(a):
    """(I - a)(I + a^2)(I + a^4)..., up to the power that vanishes."""
    inverse = jnp.eye(a.shape[-1], dtype=a.dtype) - a
    power, terms = a, 2
    while terms < a.shape[-1]:
        power, terms = _product(power, power), 2 * terms
        inverse += _product(inverse, power)
    return inverse


def _read(state, x):
    """x S for every value head of x's key head: [B, HK, C, DK] -> [B, HK, R, C, DV]."""
    *lead, key_features, repeats, value_features = state.shape
    side_by_side = _product(x, state.reshape(*lead, key_features, repeats * value_features))
    return jnp.swapaxes(side_by_side.reshape(*lead, x.shape[2], repeats, value_features), 2, 3)


def _write(k, u):
    """K^T U for every value head of k's key head: [B, HK, R, C, DV] -> [B, HK, DK, R, DV]."""
    batch, heads, repeats, tokens, value_features = u.shape
    side_by_side = jnp.swapaxes(u, 2, 3).reshape(batch, heads, tokens, repeats * value_features)
    return _product(_transposed(k), side_by_side).reshape(batch, heads, k.shape[-1], repeats, value_features)


def _transposed(x):
    return jnp.swapaxes(x, -1, -2)


def _product(a, b):
    return jnp.matmul(a, b, precision=lax.Precision.HIGHEST)


def scan_chunks(step, state, tokens: tuple[Float[Array, "B T ..."], ...], chunk: int):
    """Run `step` over T tokens, `chunk` at a time; the last chunk is filled up with zeros.

    A chunk of zeros with g = 0 and beta = 0 changes no state.

    Args:
        step: `step(state, chunk_of_each) -> (state, out)`, each [B, chunk, ...].
        state: what the first step receives.
        tokens: arrays with the same B and T.
        chunk: tokens per step.

    Returns:
        The last state, and the outs joined to [B, T, ...].
    """
    batch, count = tokens[0].shape[:2]
    chunks = -(-count // chunk)

    def split(x):
        fill = [(0, 0), (0, chunks * chunk - count)] + [(0, 0)] * (x.ndim - 2)
        return jnp.moveaxis(jnp.pad(x, fill).reshape(batch, chunks, chunk, *x.shape[2:]), 1, 0)

    state, out = lax.scan(step, state, tuple(split(x) for x in tokens))
    return state, jnp.moveaxis(out, 0, 1).reshape(batch, chunks * chunk, *out.shape[3:])[:, :count]
