"""x * rsqrt(mean(x²) + eps) * (w or 1 + w)  ->  rms_norm(x, w)

    x ─ square ─ mean ─ + eps ─ rsqrt ─ mul x ─ mul w        becomes one node

Pays: one read of x and one write in any surroundings, and a node that kernels can absorb (norm + projection).
Source: Zhang and Sennrich 2019; zero-centred weights are Gemma's and Qwen3.5's.
Limits: normalises the last axis; no bias; epsilon inside the root, added to the mean. A layer norm (the same of a
centred value) is left alone.
"""

from functools import partial

import jax.numpy as jnp
from jax import ShapeDtypeStruct as Shape
from jax import lax

from jaxsplice.kernels.rms_norm import rms_norm
from jaxsplice.passes.rewrite.rule import Case, NearMiss, Rule


def _normalise(x, eps):
    y = x.astype(jnp.float32)
    return y * lax.rsqrt(jnp.mean(jnp.square(y), axis=-1, keepdims=True) + eps)


def before(x, w, *, eps):
    """Weight around one."""
    return (_normalise(x, eps) * w.astype(jnp.float32)).astype(x.dtype)


def after(x, w, *, eps):
    """One Op."""
    return rms_norm(x, w, eps=eps, zero_centred=False)


def before_zero_centred(x, w, *, eps):
    """Weight around zero: one plus it is applied."""
    return (_normalise(x, eps) * (1.0 + w.astype(jnp.float32))).astype(x.dtype)


def after_zero_centred(x, w, *, eps):
    """One Op."""
    return rms_norm(x, w, eps=eps, zero_centred=True)


def layer_norm(x, w, *, eps):
    """The same of a centred value."""
    y = x.astype(jnp.float32)
    return before(y - jnp.mean(y, axis=-1, keepdims=True), w, eps=eps).astype(x.dtype)


X, W = Shape((8, 32), jnp.float32), Shape((32,), jnp.float32)
BX, BW = Shape((8, 32), jnp.bfloat16), Shape((32,), jnp.bfloat16)


def _l2_normalised(x, w):
    return x * lax.rsqrt(jnp.sum(x * x, -1, keepdims=True) + 1e-6) * w


def _layer_norm(x, w):
    y = x - jnp.mean(x, -1, keepdims=True)
    return y * lax.rsqrt(jnp.mean(y * y, -1, keepdims=True) + 1e-6) * w


def _other_axis(x, w):
    return x * lax.rsqrt(jnp.mean(x * x, 0, keepdims=True) + 1e-6) * w


def _weight_of_rows(x, w):
    return x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * w[:8, None]


_family = partial(
    Rule,
    "rms-norm",
    unless={"a layer norm": layer_norm},
    cases=[Case(X, W, eps=1e-6), Case(BX, BW, eps=1e-6)],
    benefit="one pass over x; kernels can absorb it",
)
rules = (
    _family(before=before_zero_centred, after=after_zero_centred, priority=2),
    _family(
        before=before,
        after=after,
        priority=1,
        near_misses=[
            NearMiss(_l2_normalised, X, W, reason="the number"),
            NearMiss(_layer_norm, X, W, reason="this is a layer norm"),
            NearMiss(_other_axis, X, W, reason="axis"),
            NearMiss(_weight_of_rows, X, W, reason="axis"),
        ],
    ),
)
