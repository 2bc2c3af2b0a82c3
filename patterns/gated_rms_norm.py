"""rms_norm(x) * w * silu(z)  ->  gated_rms_norm(x, w, z)

The output norm of Gated DeltaNet. It looks like a gated linear unit and is none: the norm comes first, then the gate.

Pays: x and z are read once and the normalised value is never written (6 -> 3 passes over [tokens, HV*DV] in bfloat16).
Source: Yang, Kautz and Hatamizadeh 2024.
Limits: plain (not zero-centred) weight; the gate's activation is silu.
"""

import jax
import jax.numpy as jnp
from jax import ShapeDtypeStruct as Shape
from jax import lax

from jaxsplice.kernels.gated_rms_norm import gated_rms_norm
from jaxsplice.passes.rewrite.rule import Case, NearMiss, Rule


def before(x, w, z, *, eps):
    """Norm in float32, weight in the model's type, gate in float32."""
    y = x.astype(jnp.float32)
    y = y * lax.rsqrt(jnp.mean(jnp.square(y), axis=-1, keepdims=True) + eps)
    y = y.astype(x.dtype) * w
    return (y * jax.nn.silu(z.astype(jnp.float32))).astype(x.dtype)


def after(x, w, z, *, eps):
    """One Op."""
    return gated_rms_norm(x, w, z, eps=eps)


def _gate_first(x, w, z):
    y = x * jax.nn.silu(z)
    return y * lax.rsqrt(jnp.mean(y * y, -1, keepdims=True) + 1e-6) * w


def _sigmoid_gate(x, w, z):
    return x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * w * jax.nn.sigmoid(z)


X, W = Shape((8, 32), jnp.float32), Shape((32,), jnp.float32)
BX = Shape((8, 32), jnp.bfloat16)

rule = Rule(
    "gated-rms-norm",
    before,
    after,
    cases=[Case(X, W, X, eps=1e-6), Case(BX, W, BX, eps=1e-6)],
    near_misses=[
        NearMiss(_gate_first, X, W, X, reason="another value"),
        NearMiss(_sigmoid_gate, X, W, X, reason="another value"),
    ],
    benefit="one pass over x and z",
    priority=3,
)
