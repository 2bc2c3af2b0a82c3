"""Match: one place where a rule applies, and what it would replace."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from ..ir.jaxprs import SourceLine
from ..ir.region import Node, Region, Value
from .adapt import Plan
from .pattern import Pattern
from .rule import Candidate, GraphRule, Rule, code_of


@dataclass(eq=False)
class Match:
    """One place where a rule applies.

    Attributes:
        rule: what matched.
        variant: the rule's Pattern, or the Candidate of a graph rule.
        region: where.
        roots: the program's values that the rule's results replace.
        inputs: the program's values that are bound to the rule's flat arguments.
        avals: types of those arguments, once read.
        arguments: how each argument is read from its value.
        results: how each root is made from a result.
        params: captured and static keyword parameters.
        nodes: the nodes of the region that the match covers, in program order.
        recipe: what is remembered of it (recall.py); None when nothing is.
    """

    rule: Rule | GraphRule
    variant: Pattern | Candidate
    region: Region
    roots: list[Value]
    inputs: list[Value]
    avals: list[jax.ShapeDtypeStruct]
    arguments: list[Plan]
    results: list[Plan]
    params: dict[str, Any]
    nodes: list[Node]
    recipe: Any = None

    @property
    def anchor(self) -> Node:
        """The node of the first root."""
        assert self.roots[0].maker is not None
        return self.roots[0].maker

    @property
    def source(self) -> SourceLine:
        """The user's line of the first root."""
        return self.anchor.source

    def require_where(self, avals) -> None:
        """Hold the rule's `where` against argument types; Refuse when it does not hold."""
        if isinstance(self.variant, Pattern) and isinstance(self.rule, Rule) and self.rule.where is not None:
            with code_of(self.rule, "where"):
                self.rule.where(*self.variant.arguments(avals), **self.params)

    def flat(self, side: str) -> Callable[..., list]:
        """The rule's "before" or "after" as a function of flat arguments."""
        if isinstance(self.variant, Candidate):
            return getattr(self.variant, side)
        return self.variant.function(getattr(self.rule, side), self.params)

    def applied(self, side: str) -> Callable[..., list]:
        """The same applied to the bound values: flat function of `inputs` that returns the roots."""
        inner = self.flat(side)

        def composed(*values):
            out = inner(*(plan(v) for plan, v in zip(self.arguments, values)))
            return [plan(x) for plan, x in zip(self.results, out)]

        return composed

    def key(self) -> tuple:
        """Equal for matches that are replaced by the same jaxpr."""
        variant = self.variant.key if isinstance(self.variant, Candidate) else id(self.variant)
        return (
            self.rule, variant, tuple(self.arguments), tuple(self.results), tuple(v.aval for v in self.inputs),
            tuple(sorted((k, str(v)) for k, v in self.params.items())), tuple(self.region.axis_sizes.items()),
            self.anchor.eqn.ctx,
        )  # fmt: skip
