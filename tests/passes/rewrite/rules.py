"""Small rules and Ops for the engine's tests, each right or wrong in one respect."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import ShapeDtypeStruct as Shape

from jaxsplice import Case, Op, Rule

X = Shape((4, 8), jnp.float32)


def damped(x):
    """What most rules here recognise: tanh(x) * exp(-x)."""
    return jnp.tanh(x) * jnp.exp(-x)


def other_order(x):
    """The same, operands exchanged."""
    return jnp.exp(-x) * jnp.tanh(x)


def by_exponentials(x):
    """The same value by other functions: equal when measured, and only then."""
    square = jnp.exp(2.0 * jnp.clip(x, -10.0, 10.0))
    return (square - 1.0) / (square + 1.0) * jnp.exp(-x)


def slightly_wrong(x):
    """Off by a thousandth."""
    return damped(x) * 1.001


def half_wrong(x):
    """Right for negative x only."""
    return jnp.where(x < 0, damped(x), 0.0)


def model(x):
    """A program with one place for the rules, between equations of its own."""
    return jnp.sin(damped(x + 1.0)) @ jax.nn.relu(x).T


def rule_for(op: Op, before=damped, *cases, **options) -> Rule:
    """`before` -> one call of an Op; a new rule, so that nothing about it has been proved yet."""

    @functools.wraps(before)
    def after(*args):
        return op(*args)

    return Rule(op.name, before, after, cases=[Case(*args) for args in cases or [(X,)]], **options)


def rule_of(before, *args, name: str = "found", **options) -> Rule:
    """A rule that only puts an Op's frame around what it finds."""
    return rule_for(Op(name, before), before, args or (X,), **options)


def normal(*shape, seed: int = 0) -> np.ndarray:
    """Seeded standard normals."""
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)
