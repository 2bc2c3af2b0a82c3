"""Rules that look for their loop in the plain form of a program's loops (plain_loops.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..ir import jaxprs
from ..ir.emit import emit
from ..ir.region import Node, Program, Value
from ..normalize import ALL
from .find import find
from .match import Match
from .pattern import Pattern
from .plain_loops import plainly, positions_from
from .rule import Candidate, Rule
from .search import Search
from .splice import splice


def in_plain_form(rules: Sequence[Rule]) -> Callable[..., Any]:
    """The `find` of a graph rule: scans in whose plain form one of some rules matches.

    Args:
        rules: rules whose pattern is a loop.

    Returns:
        A function of a region and `refuse` that yields Candidates. Both sides compute in plain form what was computed
        inside the loop; one side holds the rule's `before`, the other its `after`.
    """

    def find_loops(region, refuse):
        for node in list(region.by_primitive.get("scan", ())):
            closed = plainly(node) if node.live else None
            if closed is not None:
                candidate = _candidate(region, node, closed, rules)
                if candidate is not None:
                    yield candidate

    return find_loops


def _first_match(closed, rules: Sequence[Rule]) -> Match | None:
    root = Program(closed).root
    for rule in sorted(rules, key=lambda r: -r.priority):
        for match in find(root, rule, ALL, Search(rule)):
            if match.anchor.primitive == "scan" or any(n.primitive == "scan" for n in match.nodes):
                return match
    return None


def _candidate(region, scan: Node, closed, rules: Sequence[Rule]) -> Candidate | None:
    match = _first_match(closed, rules)
    if match is None:
        return None
    assert isinstance(match.variant, Pattern)
    used = [i for i, o in enumerate(scan.outputs) if region.is_used(o)]
    sides = {"before": _with(match, "before"), "after": _with(_first_match(closed, rules), "after")}
    bound = [type(a) is Value and positions_from(a) is None for a in scan.inputs]
    inputs = [a for a, is_bound in zip(scan.inputs, bound) if is_bound]
    shapes = [a.aval.shape for a in inputs]

    def one(side: str) -> Callable[..., list]:
        whole, alone = jaxprs.as_function(sides[side]), match.flat(side)

        def run(*values):
            if [v.shape for v in values] != shapes:
                return alone(*values)  # measured at a small size: the rule's own equation
            rest = iter(values)
            out = whole(*(next(rest) if is_bound else _unread(a) for a, is_bound in zip(scan.inputs, bound)))
            return [out[i] for i in used]

        return run

    small = [jax.ShapeDtypeStruct(c.shape, a.dtype) for c, a in zip(match.variant.flat_args, match.avals, strict=True)]
    key = (match.rule, tuple(used), str(sides["before"]), str(sides["after"]))
    roots = [scan.outputs[i] for i in used]
    operands = [i for i, is_bound in enumerate(bound) if is_bound]
    return Candidate(roots, inputs, one("before"), one("after"), key, small, _sampler(match, operands, shapes))


def _unread(atom):
    """A literal operand; or something in the place of positions, which the plain form does not read."""
    return jnp.zeros(atom.aval.shape, atom.aval.dtype) if type(atom) is Value else jaxprs.literal_array(atom)


def _with(match: Match | None, side: str):
    """The plain form with one side of the matched rule in the place of its loop."""
    assert match is not None
    splice(match, jaxprs.trace_flat(match.applied(side), [v.aval for v in match.inputs]))
    return emit(match.region)


def _sampler(match: Match, operands: list[int], shapes):
    """Standard normals, with the rule's own samples where an argument of it is read from an operand as it stands."""

    def sample(rng, axis_sizes, *avals):
        drawn = _draw(match, rng, list(avals) if [a.shape for a in avals] != shapes else match.avals)
        if [a.shape for a in avals] != shapes:
            return drawn
        given = {id(v): i for i, v in enumerate(match.region.inputs)}
        out = [rng.standard_normal(a.shape).astype(a.dtype) for a in avals]
        for value, plan, x in zip(match.inputs, match.arguments, drawn):
            if id(value) in given and given[id(value)] in operands:
                place = operands.index(given[id(value)])
                (out[place],) = jax.linear_transpose(plan, value.aval)(np.asarray(x, value.aval.dtype))
        return [np.asarray(x) for x in out]

    return sample


def _draw(match: Match, rng, avals) -> list[np.ndarray]:
    rule, variant = match.rule, match.variant
    assert isinstance(rule, Rule) and isinstance(variant, Pattern)
    if rule.sample is None:
        return [rng.standard_normal(a.shape).astype(a.dtype) for a in avals]
    return jax.tree.leaves(list(rule.sample(rng, *variant.arguments(avals), **match.params)))
