"""silu(x w_gate) * (x w_up)  ->  swiglu(x, w_gate, w_up)

    x ──┬─ dot w_gate ── silu ──┐
        └─ dot w_up ────────────┴─ mul        becomes one node

Pays: the two products' results never reach HBM (397B shared expert, 1,024 tokens: 4 of 24 MiB), and one kernel reads x
once. XLA does not merge the two products reliably on TPU.
Source: Shazeer 2020; the dense feed-forward of Llama, Qwen, Mistral, the shared expert of Qwen MoE.
Limits: no bias; the gate's activation must be silu (see geglu for others); both products in one precision.
"""

import jax
import jax.numpy as jnp
from jax import ShapeDtypeStruct as Shape

from jaxsplice.kernels.swiglu import swiglu
from jaxsplice.passes.rewrite.rule import Case, NearMiss, Rule


def before(x, w_gate, w_up, *, precision):
    """Two products of the same rows, one through silu."""
    return jax.nn.silu(jnp.dot(x, w_gate, precision=precision)) * jnp.dot(x, w_up, precision=precision)


def after(x, w_gate, w_up, *, precision):
    """One Op."""
    return swiglu(x, w_gate, w_up, precision=precision)


def _one_product(x, a):
    gate = x @ a
    return jax.nn.silu(gate) * gate


def _gate_returned(x, a, b):
    gate = x @ a
    return jax.nn.silu(gate) * (x @ b), gate


X, W = Shape((8, 16), jnp.float32), Shape((16, 32), jnp.float32)

rule = Rule(
    "swiglu",
    before,
    after,
    captures={"precision": ("dot_general", "precision")},
    cases=[Case(X, W, W, precision=None)],
    near_misses=[
        NearMiss(lambda x, a, b: jax.nn.gelu(x @ a) * (x @ b), X, W, W, reason="dot_general"),
        NearMiss(lambda x, a, b: jax.nn.silu(x @ a) * ((x + 1) @ b), X, W, W, reason="another value"),
        NearMiss(
            lambda x, a, b: (x @ a) * jax.nn.sigmoid(1.702 * (x @ a)) * (x @ b), X, W, W, reason="the number 1.702"
        ),
        NearMiss(
            lambda x, a, b: jax.nn.silu(x @ a) * (x @ b).sum(-1, keepdims=True), X, W, W, reason="other parameters"
        ),
        NearMiss(_one_product, X, W, reason="already plays another part"),
        NearMiss(_gate_returned, X, W, W, reason="also used by the result"),
    ],
    benefit="HBM: both projections' results stay on chip",
)
