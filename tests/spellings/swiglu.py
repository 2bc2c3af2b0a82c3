"""Ways in which people write SwiGLU in JAX, and programs that only look like it.

The first table is a baseline that must not be lost, the second how published models and libraries spell it: name ->
(function, arguments, hits). The third must not match at all: name -> (function, arguments, part of the reason).
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.ad_checkpoint import checkpoint_name

silu = jax.nn.silu
bf16, f32 = jnp.bfloat16, jnp.float32
TOKENS, MODEL, HIDDEN, EXPERTS = 8, 16, 32, 3
Spellings = dict[str, tuple[Any, tuple, int]]
NearMisses = dict[str, tuple[Any, tuple, str]]


def normal(*shape, seed=0, dtype=f32):
    """Seeded standard normals, as small as weights are."""
    rng = np.random.default_rng([seed, *shape])
    return jnp.asarray(0.5 * rng.standard_normal(shape), dtype)


X, A, B = normal(TOKENS, MODEL), normal(MODEL, HIDDEN), normal(MODEL, HIDDEN, seed=1)
DOWN = normal(HIDDEN, MODEL)
PLAIN = (X, A, B)
X16, A16, B16 = (t.astype(bf16) for t in PLAIN)
BANK_A, BANK_B = normal(EXPERTS, MODEL, HIDDEN), normal(EXPERTS, MODEL, HIDDEN, seed=1)


def swiglu(x, a, b):
    return silu(x @ a) * (x @ b)


# ---------------------------------------------------------------- the baseline
def sigmoid_by_hand(x, a, b):
    gate = x @ a
    return gate * jax.nn.sigmoid(gate) * (x @ b)


def exponential_by_hand(x, a, b):
    gate = x @ a
    return gate / (1 + jnp.exp(-gate)) * (x @ b)


def packed_split(x, w):
    gate, up = jnp.split(x @ w, 2, axis=-1)
    return silu(gate) * up


def packed_leading(x, w):
    both = jnp.einsum("bd,cdf->cbf", x, w)
    return silu(both[0]) * both[1]


def accumulated_in_f32(x, a, b):
    gate, up = (jnp.matmul(x, w, preferred_element_type=f32) for w in (a, b))
    return silu(gate).astype(bf16) * up.astype(bf16)


def named(x, a, b):
    return silu(checkpoint_name(x @ a, "gate")) * checkpoint_name(x @ b, "up")


def highest(x, a, b):
    return silu(jnp.matmul(x, a, precision="highest")) * jnp.matmul(x, b, precision="highest")


def scanned_experts(x, a, b):
    return lax.scan(lambda carry, w: (carry, swiglu(x, *w)), 0, (a, b))[1]


def einsum(spec):
    return lambda x, a, b: silu(jnp.einsum(spec, x, a)) * jnp.einsum(spec, x, b)


BASELINE: Spellings = {
    "silu(x@a)*(x@b)": (swiglu, PLAIN, 1),
    "g*sigmoid(g)*u": (sigmoid_by_hand, PLAIN, 1),
    "g/(1+exp(-g))*u": (exponential_by_hand, PLAIN, 1),
    "einsum bd,df->bf": (einsum("bd,df->bf"), PLAIN, 1),
    "x @ a.T": (lambda x, a, b: silu(x @ a.T) * (x @ b.T), (X, A.T, B.T), 1),
    "packed weight, jnp.split": (packed_split, (X, jnp.concatenate([A, B], 1)), 1),
    "packed weight, leading axis of two": (packed_leading, (X, jnp.stack([A, B])), 1),
    "bf16, accumulated in f32, cast back": (accumulated_in_f32, (X16, A16, B16), 1),
    "f32 weights cast to bf16 at use": (lambda x, a, b: swiglu(x, a.astype(bf16), b.astype(bf16)), (X16, A, B), 1),
    "x flattened and back": (
        lambda x, a, b: swiglu(x.reshape(-1, MODEL), a, b).reshape(2, 4, HIDDEN), (X.reshape(2, 4, MODEL), A, B), 1
    ),
    "vmap over rows": (lambda x, a, b: jax.vmap(lambda row: swiglu(row, a, b))(x), PLAIN, 1),
    "precision highest": (highest, PLAIN, 1),
    "checkpoint_name on both": (named, PLAIN, 1),
    "scan over experts": (scanned_experts, (X, BANK_A, BANK_B), 1),
    "one expert ecd,edf->ecf": (einsum("ecd,edf->ecf"), (X[None], A[None], B[None]), 1),
}  # fmt: skip


# ---------------------------------------------------------------- as models and libraries spell it
def upcast(x, a, b):
    return silu((x @ a).astype(f32)).astype(bf16) * (x @ b)


def packed_slices(x, w):
    both = lax.dot_general(x, w, (((1,), (0,)), ((), ())))
    return silu(both[:, :HIDDEN]) * both[:, HIDDEN:]


def packed_middle(x, w):
    both = jnp.einsum("...f,nhf->...nh", x, w)
    return silu(both[..., 0, :]) * both[..., 1, :]


def packed_interleaved(x, w):
    both = x @ w
    return silu(both[..., 0::2]) * both[..., 1::2]


def packed_bank(x, w):
    both = jnp.einsum("edm,td->emt", w, x).transpose(0, 2, 1)
    gate, up = jnp.split(both, 2, axis=-1)
    return silu(gate) * up


def loop_over_experts(x, a, b):
    return jnp.stack([swiglu(x, a[e], b[e]) for e in range(EXPERTS)])


def with_dropout(x, a, b):
    keep = jax.random.bernoulli(jax.random.key(0), 0.9, (TOKENS, HIDDEN))
    return jnp.where(keep, swiglu(x, a, b) / 0.9, 0.0)


def scanned_layers(x, a, b, down):
    return lax.scan(lambda h, w: (h + swiglu(h, w[0], w[1]) @ w[2], None), x, (a, b, down))[0]


@jax.custom_vjp
def with_own_derivative(x, a, b):
    return swiglu(x, a, b)


with_own_derivative.defvjp(lambda *args: (swiglu(*args), args), lambda args, dy: jax.vjp(swiglu, *args)[1](dy))


def through_tanh(x, a, b):
    gate = x @ a
    return 0.5 * gate * (1 + jnp.tanh(0.5 * gate)) * (x @ b)


LIBRARIES: Spellings = {
    "S1 with the down product": (lambda x, a, b, d: swiglu(x, a, b) @ d, (*PLAIN, DOWN), 1),
    "S1 swish, 3-D x": (lambda x, a, b: jax.nn.swish(x @ a) * (x @ b), (X.reshape(2, 4, MODEL), A, B), 1),
    "S2 up first": (lambda x, a, b: (x @ b) * silu(x @ a), PLAIN, 1),
    "S3 silu in f32": (upcast, (X16, A16, B16), 1),
    "S4 names and a barrier": (lambda *t: lax.optimization_barrier(named(*t)), PLAIN, 1),
    "S5 weight left, rows by vmap": (
        lambda x, a, b: jax.vmap(lambda row: silu(a @ row) * (b @ row))(x), (X, A.T, B.T), 1
    ),
    "S5 weight left, [F,T]": (lambda x, a, b: (silu(a @ x.T) * (b @ x.T)).T, (X, A.T, B.T), 1),
    "S6 packed, two slices": (packed_slices, (X, jnp.concatenate([A, B], 1)), 1),
    "S7 packed, axis of two in the middle": (packed_middle, (X, jnp.stack([A.T, B.T])), 1),
    "packed, interleaved": (packed_interleaved, (X, jnp.stack([A, B], -1).reshape(MODEL, 2 * HIDDEN)), 1),
    "S12 bank of experts, packed": (packed_bank, (X, jnp.concatenate([BANK_A, BANK_B], 2)), 1),
    "S17 loop over experts": (loop_over_experts, (X, BANK_A, BANK_B), EXPERTS),
    "S19 gate times one": (lambda x, a, b: silu((x @ a) * 1.0) * (x @ b), PLAIN, 1),
    "S20 dropout behind it": (with_dropout, PLAIN, 1),
    "in jit, twice": (lambda *t: jax.jit(jax.jit(swiglu))(*t), PLAIN, 1),
    "in remat": (lambda *t: jax.checkpoint(swiglu)(*t), PLAIN, 1),
    "in custom_vjp": (with_own_derivative, PLAIN, 1),
    "in cond": (lambda x, a, b: lax.cond(x[0, 0] > 0, swiglu, lambda *t: 0 * swiglu(*t), x, a, b), PLAIN, 2),
    "in fori_loop": (
        lambda x, a, b, d: lax.fori_loop(0, 3, lambda _, h: swiglu(h, a, b) @ d, x), (*PLAIN, DOWN), 1
    ),
    "in scan over layers": (scanned_layers, (X, BANK_A, BANK_B, jnp.stack([DOWN] * EXPERTS)), 1),
    "vmap over experts": (lambda x, a, b: jax.vmap(swiglu, (None, 0, 0))(x, a, b), (X, BANK_A, BANK_B), 1),
    "silu through tanh": (through_tanh, PLAIN, 1),
    "tensordot": (lambda x, a, b: silu(jnp.tensordot(x, a, 1)) * jnp.tensordot(x, b, 1), PLAIN, 1),
    "two of them, weights exchanged": (lambda x, a, b: swiglu(x, a, b) + swiglu(x, b, a), PLAIN, 2),
}  # fmt: skip


# ---------------------------------------------------------------- not SwiGLU
def gate_of_1702(x, a, b):
    gate = x @ a
    return gate * jax.nn.sigmoid(1.702 * gate) * (x @ b)


def clamped(x, a, b):
    return silu(jnp.minimum(x @ a, 7.0)) * jnp.clip(x @ b, -7.0, 7.0)


def masked(x, a, b):
    return silu(jnp.where(x[:, :1] > 0, x @ a, 0.1)) * (x @ b)


def gate_also_returned(x, a, b):
    gate = x @ a
    return silu(gate) * (x @ b), gate


NEAR_MISSES: NearMisses = {
    "gelu gate": (lambda x, a, b: jax.nn.gelu(x @ a) * (x @ b), PLAIN, "wanted dot_general, found add"),
    "different inputs": (
        lambda x, a, b: silu(x @ a) * ((x + 1) @ b), PLAIN,
        "another value than the one this argument is bound to",
    ),
    "sigmoid of 1.702 g": (gate_of_1702, PLAIN, "the program has the number 1.702"),
    "sigmoid gate (GLU)": (
        lambda x, a, b: jax.nn.sigmoid(x @ a) * (x @ b), PLAIN,
        "another value than the one this argument is bound to",
    ),
    "relu squared": (
        lambda x, a, b: jnp.square(jax.nn.relu(x @ a)) * (x @ b), PLAIN,
        "wanted logistic, found max",
    ),
    "bias on the gate": (
        lambda x, a, b, c: silu(x @ a + c) * (x @ b), (*PLAIN, normal(HIDDEN)),
        "wanted dot_general, found add",
    ),
    "up plus one (gpt-oss)": (lambda x, a, b: silu(x @ a) * (x @ b + 1), PLAIN, "wanted dot_general, found add"),
    "clamped gate and up": (clamped, PLAIN, "wanted dot_general, found"),
    "masked gate": (masked, PLAIN, "wanted dot_general, found select_n"),
    "gate also returned": (gate_also_returned, PLAIN, "is also used by the result"),
    "y * silu(z), one product (Mamba)": (
        lambda x, a, y: y * silu(x @ a), (X, A, normal(TOKENS, HIDDEN)),
        "wanted dot_general, found an input",
    ),
    "silu on both": (lambda x, a, b: silu(x @ a) * silu(x @ b), PLAIN, "a product with more factors"),
    "gate scaled before silu": (lambda x, a, b: silu(2.0 * (x @ a)) * (x @ b), PLAIN, "the program has the number 2"),
    "rows of the up half shifted": (
        lambda x, a, b: silu(x @ a) * jnp.roll(x @ b, 1, 0), PLAIN,
        "wanted dot_general, found concatenate",
    ),
}  # fmt: skip
