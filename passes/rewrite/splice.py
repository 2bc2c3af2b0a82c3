"""Splice: trace a rule's functions at a match, and put `after` where the match was."""

from __future__ import annotations

from typing import Any

import jax

from ..errors import Refuse, VerifyError
from ..ir import jaxprs
from ..ir.check import same_signature
from ..ir.region import Node, Value
from .match import Match
from .rule import code_of


def trace_at(match: Match, side: str, scope: str | None = None):
    """One side of a rule as a closed jaxpr of the bound values, at the match's place.

    Args:
        match: where.
        side: "before" or "after".
        scope: named scope for the new equations, so that profiles show where they come from.

    Returns:
        The closed jaxpr: flat function of `match.inputs` that gives `match.roots`.

    Raises:
        Refuse: the function gives other types than the program has.
    """
    applied = match.applied(side)

    def scoped(*values):
        with jax.named_scope(scope or match.rule.name):
            return applied(*values)

    types = [v.aval for v in match.inputs]
    traced, around = scoped if scope else applied, match.region.around.shard_maps
    with code_of(match.rule, side):
        closed = jaxprs.trace_at(match.anchor.origin, traced, types, around)
    try:
        same_signature([v.aval for v in match.roots], closed.out_avals, f"result of {match.rule.name}")
    except VerifyError as error:
        raise Refuse(str(error)) from error
    return as_reference(closed)


def as_reference(closed):
    """Ops called by a rule stand for their references until `lower` proves and chooses an implementation."""
    body = jaxprs.open_jaxpr(closed)
    eqns = [
        e.replace(params={**e.params, "implementation": None}) if e.params.get("implementation") == "auto" else e
        for e in body.eqns
    ]
    return jaxprs.rebuild(closed, eqns=eqns)


def splice(match: Match, after, first: jaxprs.Eqn | None = None) -> list[Node]:
    """Replace a match by the closed jaxpr of `after`.

    Args:
        match: what to replace; its region is edited.
        after: closed jaxpr of the bound values.
        first: the equation it was traced at; its equations move from there to the match's source. None leaves them.

    Returns:
        The new nodes. Covered nodes that something else still uses stay.
    """
    region, here = match.region, match.anchor.origin
    makers = [v.maker for v in match.roots if v.maker is not None]
    results, new = region.splice(after, match.inputs, min(makers, key=lambda n: n.position))
    if first is not None:
        for node in new:
            node.eqn = jaxprs.at_source(node.eqn, first, here, match.anchor.spliced)
    for root, result in zip(match.roots, results):
        _keep_name(root, result, new)
        region.redirect(root, result)
    for node in reversed(match.nodes):
        if not any(region.is_used(v) for v in node.outputs):
            region.kill(node)
    return new


def _keep_name(root: Value, result: Any, new: list[Node]) -> None:
    """The value that takes a root's place keeps its variable where it can, so that dumps line up."""
    own = type(result) is Value and result.maker is not None and result.maker in new
    if own and root.maker is not None and root.maker.site is None and not root.maker.spliced:
        result.var = root.var
