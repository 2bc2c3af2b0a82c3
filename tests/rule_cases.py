"""Programs made from rules' own cases, for the tests that every rule must pass."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxsplice import patterns
from jaxsplice.passes.rewrite.rule import Case, GraphRule, Rule

PATTERN_RULES = [r for r in patterns.rules() if isinstance(r, Rule)]
GRAPH_RULES = [r for r in patterns.rules() if isinstance(r, GraphRule)]


class Program(NamedTuple):
    """A rule's `before` at one of its cases, as a function of the case's arrays."""

    rule: Rule
    case: Case
    name: str

    def fn(self, *args):
        """The rule's before."""
        return self.rule.before(*args, **self.case.params)

    def after(self, *args):
        """The rule's after."""
        return self.rule.after(*args, **self.case.params)

    def arrays(self, seed: int = 0):
        """Valid arguments."""
        flat, tree = jax.tree.flatten(self.case.args)
        rng = np.random.default_rng(seed)
        if self.rule.sample is not None:
            return tuple(self.rule.sample(rng, *self.case.args, **self.case.params))
        made = [_random(rng, a) for a in flat]
        return jax.tree.unflatten(tree, made)


def _random(rng, aval):
    if jnp.issubdtype(aval.dtype, jnp.floating):
        return jnp.asarray(rng.standard_normal(aval.shape), aval.dtype)
    return jnp.asarray(rng.integers(0, 4, aval.shape), aval.dtype)


def first_programs() -> list[Program]:
    """One program per rule: its first case."""
    return [Program(r, r.cases[0], f"{r.name}-{_index(r)}") for r in PATTERN_RULES]


def all_programs() -> list[Program]:
    """One program per rule and case."""
    return [Program(r, c, f"{r.name}-{_index(r)}-{i}") for r in PATTERN_RULES for i, c in enumerate(r.cases)]


def _index(rule: Rule) -> int:
    return [r for r in PATTERN_RULES if r.name == rule.name].index(rule)


def family(rule: Rule) -> list[Rule]:
    """All rules of the same name."""
    return [r for r in PATTERN_RULES if r.name == rule.name]


def random_arrays(shapes, seed: int = 0):
    """Random arguments of some shapes."""
    rng = np.random.default_rng(seed)
    return [_random(rng, a) for a in shapes]


@functools.cache
def pipeline_of(rule: Rule | GraphRule):
    """A pipeline of a rule's whole family."""
    return tuple(family(rule)) if isinstance(rule, Rule) else (rule,)
