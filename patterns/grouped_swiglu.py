"""silu(x w_gate[e]) * (x w_up[e]) for every expert e  ->  grouped_swiglu(x, w_gate, w_up, group_sizes)

    rows sorted by expert ─┬─ ragged_dot w_gate ─ silu ─┐
                           └─ ragged_dot w_up ──────────┴─ mul        becomes one node

or the same with batched products, one batch per expert.

Pays: on CPU `ragged_dot` multiplies every row with every expert's weights, so E times less work; on TPU one grouped
matrix product with packed weights and the activation inside its loop (10,240 rows of 64 experts: 592 -> 303 us).
Source: the experts of Qwen3.5; vLLM's fused mixture of experts.
Limits: rows already sorted; no bias; silu.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import ShapeDtypeStruct as Shape
from jax import lax

from jaxsplice.kernels.grouped_swiglu import grouped_swiglu
from jaxsplice.kernels.grouped_swiglu.shapes import sample
from jaxsplice.passes.rewrite.rule import Case, NearMiss, Refuse, Rule


def before(x, w_gate, w_up, group_sizes, *, precision):
    """Two ragged products of the same rows, one through silu."""
    gate = lax.ragged_dot(x, w_gate, group_sizes, precision=precision)
    return jax.nn.silu(gate) * lax.ragged_dot(x, w_up, group_sizes, precision=precision)


def after(x, w_gate, w_up, group_sizes, *, precision):
    """One Op."""
    return grouped_swiglu(x, w_gate, w_up, group_sizes, precision=precision)


def before_batched(x, w_gate, w_up, *, precision):
    """Two batched products of the same rows, one through silu."""
    gate = jnp.einsum("etd,edf->etf", x, w_gate, precision=precision)
    return jax.nn.silu(gate) * jnp.einsum("etd,edf->etf", x, w_up, precision=precision)


def after_batched(x, w_gate, w_up, *, precision):
    """One Op."""
    return grouped_swiglu(x, w_gate, w_up, precision=precision)


def several(x, w_gate, w_up, *, precision):
    """More than one expert."""
    if x.shape[0] == 1:
        raise Refuse("one expert is a plain swiglu")


X, W, SIZES = Shape((24, 16), jnp.float32), Shape((4, 16, 32), jnp.float32), Shape((4,), jnp.int32)
XE = Shape((4, 8, 16), jnp.float32)


def _other_groups(x, a, b, n):
    return jax.nn.silu(lax.ragged_dot(x, a, n)) * lax.ragged_dot(x, b, n[::-1])


def _masked(x, a, b, n):
    gate = jnp.where(x[:, :1] > 0, lax.ragged_dot(x, a, n), 0.0)
    return jax.nn.silu(gate) * lax.ragged_dot(x, b, n)


_family = partial(Rule, "grouped-swiglu", benefit="no product with other experts' weights; activation in the loop")
rules = (
    _family(
        before=before,
        after=after,
        captures={"precision": ("ragged_dot_general", "precision")},
        cases=[Case(X, W, W, SIZES, precision=None)],
        sample=sample,
        near_misses=[
            NearMiss(_other_groups, X, W, W, SIZES, reason="another value"),
            NearMiss(_masked, X, W, W, SIZES, reason="wanted ragged_dot_general, found select_n"),
        ],
    ),
    _family(
        before=before_batched,
        after=after_batched,
        where=several,
        captures={"precision": ("dot_general", "precision")},
        cases=[Case(XE, W, W, precision=None)],
        near_misses=[
            NearMiss(
                lambda x, a, b: jax.nn.silu(jnp.einsum("etd,edf->etf", x, a)) * jnp.einsum("etd,edf->etf", x[::-1], b),
                XE,
                W,
                W,
                reason="another value",
            )
        ],
    ),
)
