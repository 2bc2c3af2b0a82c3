"""Find: the places in a region where a rule's pattern occurs.

The search starts at the pattern's rarest primitive (or another spelling of it), climbs to the nodes that could be the
pattern's root, and unifies there. Where it starts, and where it need not because the outcome is known, is decided in
agenda.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import jax
from jax.errors import InconclusiveDimensionOperation

from ..errors import RuleError, first_line
from ..ir.region import OUTPUT, Node, Region, Value
from ..normalize import Cursor
from ..normalize.cursor import PEEL
from ..normalize.flatten import open_head
from .adapt import Plan
from .align import align
from .match import Match
from .pattern import SPELLED, Pattern, exclusions_of, patterns_of, root_primitives
from .rule import Candidate, GraphRule, Rule, code_of
from .search import Search
from .settle import admitted, settle
from .unify import OutOfSteps, Unifier

MAX_WIDTH = 64  # users on one level of a climb
MAX_STEPS_APART = 4  # equations between a node of one result and another result
MAX_OTHERS = 8  # solutions with other numbers than the pattern's that are looked at per place


def find_at(anchor: Node, pattern: Pattern, region: Region, views: frozenset[str], search: Search) -> Iterator[Match]:
    """Matches of a pattern around one anchor, the likeliest first.

    The caller may rewrite the region between two matches.

    Args:
        anchor: a node of the pattern's anchor primitive, or of another spelling of it.
        pattern: what to look for.
        region: where.
        views: equations that may be used.
        search: records what was met.
    """
    if not pattern.plausible_anchor(anchor):
        return
    for root in _roots_above(anchor, pattern):
        if not anchor.live:
            return
        if root.live:
            yield from _matches_at(root, pattern, region, views, search)


def find(region: Region, rule: Rule, views: frozenset[str], search: Search) -> Iterator[Match]:
    """Matches of a rule in one region (not in those below it), pattern by pattern in program order.

    Args:
        region: where to look.
        rule: what to look for.
        views: equations that may be used.
        search: records what was met.
    """
    for pattern in patterns_of(rule):
        names = SPELLED.get(pattern.anchor, (pattern.anchor,))
        anchors = [n for name in names for n in region.by_primitive.get(name, ())]
        for anchor in sorted(anchors, key=lambda n: n.position):
            if anchor.live:
                yield from find_at(anchor, pattern, region, views, search)


def find_candidates(region: Region, rule: GraphRule, search: Search) -> Iterator[Match]:
    """Matches of a graph rule in one region (not in those below it)."""

    def refuse(why: str, node: Node) -> None:
        search.refuse(why, node)

    for candidate in _proposed(region, rule, refuse, search):
        search.tried += 1
        avals = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in candidate.inputs]
        stay = Plan(None, None, None, None)
        match = Match(
            rule, candidate, region, list(candidate.roots), list(candidate.inputs), avals,
            [stay] * len(avals), [stay] * len(candidate.roots), {}, [],
        )  # fmt: skip
        if admitted(match, search) is not None:
            yield match


def _proposed(region: Region, rule: GraphRule, refuse, search: Search) -> Iterator[Candidate]:
    """What the rule's own search yields, until it fails."""
    try:
        with code_of(rule, "find"):
            found = iter(rule.find(region, refuse))
        while True:
            with code_of(rule, "find"):
                candidate = next(found, None)
            if candidate is None:
                return
            yield candidate
    except RuleError as failure:
        search.refuse(failure, None)


def _roots_above(anchor: Node, pattern: Pattern) -> Iterator[Node]:
    """Nodes that could be the pattern's root, upwards from the anchor, nearest first.

    Equations that only move or mark elements are free; of those that compute, as many are climbed as the pattern has
    between its anchor and its root, and two more for other spellings.
    """
    seen, level = {id(anchor)}, [anchor]
    for _ in range(pattern.climb + 1):
        above = []
        for node in level:  # grows by what is free to pass
            if node.primitive in pattern.roots and pattern.plausible(node):
                yield node
            for out in node.outputs:
                for user in out.uses:
                    if user is not OUTPUT and user.live and id(user) not in seen:
                        seen.add(id(user))
                        (level if user.primitive in PEEL else above).append(user)
        if len(above) > MAX_WIDTH:  # a value used everywhere leads nowhere in particular
            return
        level = above


def _matches_at(root: Node, pattern: Pattern, region: Region, views, search: Search) -> Iterator[Match]:
    """Matches at a node, the likeliest first; the caller takes the first whose proof succeeds."""
    search.tried += 1
    for value in root.outputs:
        unifier = Unifier(
            pattern.variables, views, captures=pattern.capture_names, statics=pattern.statics, explain=search.explain
        )
        found = False
        for match in _ranked(_settled(unifier, pattern, region, value, search), search, root):
            found = True
            yield match
            if not root.live:
                return
        if search.explain and not found and unifier.best is not None:
            search.misses.append((unifier.best, root))


def _ranked(candidates: Iterator[tuple[int, Match]], search: Search, root: Node) -> Iterator[Match]:
    """Those with the pattern's own numbers as they come; of the others (numbers may follow from sizes) the best."""
    others: list[tuple[int, Match]] = []
    try:
        for differing, match in candidates:
            if differing == 0:
                yield match
            else:
                others.append((differing, match))
            if len(others) >= MAX_OTHERS:
                break
    except OutOfSteps:
        search.refuse("the search here was given up: too many ways to group the operands", root)
    except InconclusiveDimensionOperation as error:
        search.refuse(f"symbolic sizes cannot be compared: {first_line(error)}", root)
    others.sort(key=lambda pair: pair[0])
    for _, match in others[:2]:
        if root.live:
            yield match


def _settled(u: Unifier, pattern: Pattern, region: Region, value: Value, search: Search) -> Iterator[tuple[int, Match]]:
    q = Cursor.whole(value)
    for _ in u.unify(pattern.outputs[0], q):
        for roots in _other_outputs(u, pattern, [q]):
            match = settle(u, pattern, region, roots, search)
            if match is None:
                continue
            try:
                known_as = _excluded(pattern, q, u.views)
            except RuleError as failure:
                search.refuse(failure, match.anchor)
                continue
            if known_as is None:
                yield len(u.other_numbers), match
            else:
                search.refuse(f"this is {known_as}", match.anchor)


def _excluded(pattern: Pattern, root: Cursor, views) -> str | None:
    """What the rule leaves alone and this place is; None when it is nothing of the kind."""
    for name, other in exclusions_of(pattern.rule):
        unifier = Unifier(other.variables, views, captures=other.capture_names, statics=other.statics)
        try:
            for _ in unifier.unify(other.outputs[0], root):
                if not isinstance(align(unifier, [(other.outputs[0].index, root.index)]), str):
                    return name
        except (OutOfSteps, InconclusiveDimensionOperation):
            continue
    return None


def _other_outputs(u: Unifier, pattern: Pattern, roots: list[Cursor]) -> Iterator[list[Cursor]]:
    """Roots for the remaining results: results of nodes already paired, or users of bound values."""
    k = len(roots)
    if k == len(pattern.outputs):
        yield roots
        return
    for value in _candidates(u, pattern, pattern.outputs[k]):
        if any(value is r.atom for r in roots):
            continue
        q = Cursor.whole(value)
        for _ in u.unify(pattern.outputs[k], q):
            yield from _other_outputs(u, pattern, [*roots, q])


def _candidates(u: Unifier, pattern: Pattern, output: Cursor) -> list[Value]:
    head = open_head(output, u.views)
    node = getattr(head, "node", None)
    partner = u.partners.get(id(node)) if node is not None else None
    if partner is not None:
        return list(partner.outputs)
    wanted, found = root_primitives(output), {}
    level = [o.levels[0].atom for occurrences in u.bindings.values() for o in occurrences]
    for _ in range(pattern.height):
        users = [n for v in level for n in v.uses if n is not OUTPUT and n.live]
        found.update({id(n): n for n in users if n.primitive in wanted})
        level = [v for n in users for v in n.outputs if n.primitive in PEEL]
    level = [v for n in u.partners.values() for v in n.outputs]
    for _ in range(MAX_STEPS_APART):
        users = [n for v in level for n in v.uses if n is not OUTPUT and n.live][:MAX_WIDTH]
        found.update({id(n): n for n in users if n.primitive in wanted})
        level = [v for n in users for v in n.outputs]
    return [v for n in sorted(found.values(), key=lambda n: n.position) for v in n.outputs]
