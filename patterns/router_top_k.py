"""softmax over all experts, top k, divide by their sum  ->  router_top_k(logits)

    logits ─ softmax ─ top_k ─┬─ weights / sum(weights)
                              └─ ids                        becomes one node with two results

The same numbers come from top_k of the logits and a softmax over the k chosen; both orders are recognised.

Pays: E exponentials and a division per row less; on TPU one kernel instead of a full sort (4.3 us per layer at 512).
Source: the router of Qwen3 and Qwen3.5 (weights always normalised), Mixtral.
Limits: weights are normalised; no bias, no groups, no scaling factor.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import ShapeDtypeStruct as Shape
from jax import lax

from jaxsplice.kernels.router_top_k import router_top_k
from jaxsplice.passes.rewrite.rule import Case, NearMiss, Rule


def before(logits, *, k):
    """Softmax first."""
    weights, ids = lax.top_k(jax.nn.softmax(logits.astype(jnp.float32), axis=-1), k)
    return weights / jnp.sum(weights, axis=-1, keepdims=True), ids


def before_chosen(logits, *, k):
    """Softmax over the chosen."""
    chosen, ids = lax.top_k(logits.astype(jnp.float32), k)
    return jax.nn.softmax(chosen, axis=-1), ids


def after(logits, *, k):
    """One Op."""
    return router_top_k(logits, k=k)


X, B = Shape((8, 16), jnp.float32), Shape((8, 16), jnp.bfloat16)


def _not_normalised(logits):
    return lax.top_k(jax.nn.softmax(logits, axis=-1), 4)


def _sigmoid_scores(logits):
    weights, ids = lax.top_k(jax.nn.sigmoid(logits), 4)
    return weights / jnp.sum(weights, -1, keepdims=True), ids


def _biased_choice(logits):
    p = jax.nn.softmax(logits, axis=-1)
    _, ids = lax.top_k(p + 0.1 * logits, 4)
    weights = jnp.take_along_axis(p, ids, -1)
    return weights / jnp.sum(weights, -1, keepdims=True), ids


def _scaled(logits):
    weights, ids = lax.top_k(jax.nn.softmax(logits, axis=-1), 4)
    return 2.5 * weights / jnp.sum(weights, -1, keepdims=True), ids


_family = partial(
    Rule,
    "router-top-k",
    after=after,
    captures={"k": ("top_k", "k")},
    cases=[Case(x, k=k) for k in (4, 1) for x in (X, B)],
    benefit="a softmax over k numbers instead of E",
)
rules = (
    _family(
        before=before,
        near_misses=[
            NearMiss(_not_normalised, X, reason="wanted top_k"),
            NearMiss(_sigmoid_scores, X, reason="wanted exp, found logistic"),
            NearMiss(_biased_choice, X, reason="wanted top_k"),
            NearMiss(_scaled, X, reason="the number 2.5"),
        ],
    ),
    _family(before=before_chosen),
)
