"""Settle: from a solution of the search to a match: which arrays, which reads, which types.

Axes are aligned first. Then each argument may be read from several arrays (before or after a cast, a transpose) and
each result may stand for several (the root, or a cast of it); of those whose types agree, the combination with the
fewest reads wins.
"""

from __future__ import annotations

import functools
import heapq
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax

from ..errors import Refuse, first_line
from ..ir import jaxprs
from ..ir.region import OUTPUT, Region, Value
from ..normalize import Cursor
from ..normalize.cursor import PEEL
from ..normalize.index import Label
from .adapt import Moves, Plan, offsets, plan_argument, plan_result
from .align import align
from .cover import covered, refuse_escapes
from .leaves import Occurrence, is_rounding
from .match import Match
from .pattern import Pattern
from .search import Search
from .unify import Unifier

MAX_CHOICES = 64  # combinations of arrays that the arguments may be read from, tried per match


def settle(u: Unifier, pattern: Pattern, region: Region, roots: list[Cursor], search: Search) -> Match | None:
    """Decide axes, levels and types for a solution; None when they do not work out."""
    node = roots[0].node
    assert node is not None
    indices = [(p.index, q.index) for p, q in zip(pattern.outputs, roots)]
    alignment = align(u, indices)
    if isinstance(alignment, str):
        search.refuse(alignment, node)
        return None
    if len(u.bindings) < len(pattern.variables) or not all(u.bindings.values()):
        search.refuse("an argument of `before` is not used by its results, so nothing binds to it", node)
        return None
    params = {**pattern.case.params, **u.captured}
    found = [_first_typed(u, pattern, region, alignment, roots, params, e) for e in _expansions(pattern)]
    matches = [m for m in found if isinstance(m, Match)]
    if matches:
        return admitted(min(matches, key=_reads), search)
    why = next(
        (w for w in found if isinstance(w, str)), "no slice, reshape and transpose of its values gives the arguments"
    )
    search.refuse(why, node)
    return None


def _first_typed(u, pattern, region, alignment, roots, params, expand_first) -> Match | str | None:
    why = None
    plans = _plans(u.bindings, pattern, alignment, expand_first)
    results = [_result_plans(p, r, alignment, expand_first) for p, r in zip(pattern.outputs, roots)]
    for outs in itertools.product(*results):
        for arguments in _choices(plans):
            match = _typed(pattern, region, arguments, list(outs), params)
            if isinstance(match, Match):
                return match
            why = match or why
    return why


def _reads(match: Match) -> int:
    """Slices, reshapes and transposes that a match needs around the rule's function."""
    return sum(step is not None for plan in (*match.arguments, *match.results) for step in plan)


def admitted(match: Match, search: Search) -> Match | None:
    """The rule's own conditions, the cover of the match, and what else uses its inside."""
    try:
        match.require_where(match.avals)
    except Refuse as refusal:
        search.declined.append(match)
        search.refuse(refusal, match.anchor)
        return None
    try:
        match.nodes = covered(match.roots, match.inputs)
        refuse_escapes(match)
    except Refuse as refusal:
        search.refuse(refusal, match.anchor)
        return None
    return match


def _expansions(pattern: Pattern) -> list[frozenset[Label]]:
    """First keep the leading axis' program axes apart (x[B,T,D] stays so), else merge them."""
    first = pattern.outputs[0].index
    leading = frozenset(label for label, _ in first[0][1]) if first else frozenset()
    atoms = frozenset(a for label in leading for a in label.atoms())
    return [atoms, frozenset()] if atoms else [frozenset()]


class Read(NamedTuple):
    """One way to have an argument: a program array, how it is read, and what that gives."""

    value: Value
    plan: Plan
    shape: tuple[int, ...]

    @property
    def steps(self) -> int:
        """Slices, reshapes and transposes it takes."""
        return sum(step is not None for step in self.plan)


def _plans(bindings: dict[int, list[Occurrence]], pattern: Pattern, alignment, expand_first) -> list[list[Read]]:
    """For each argument, every array it can be read from, outermost first."""
    out = []
    for slot in range(len(pattern.variables)):
        occurrences, reads = bindings[slot], []
        shared = set.intersection(*({id(c.atom) for c in o.levels} for o in occurrences))
        shape = pattern.region.inputs[slot].aval.shape
        for level in occurrences[0].levels:
            if id(level.atom) in shared:
                again = [_at_level(o, level) for o in occurrences]
                moves = Moves(offsets([o.index for o in occurrences]), offsets(again))
                made = plan_argument(
                    occurrences[0].index, shape, level.index, level.atom.aval.shape, alignment, expand_first, moves
                )
                if made is not None:
                    reads.append(Read(level.atom, *made))
        out.append(reads)
    return out


def _at_level(occurrence: Occurrence, level: Cursor) -> Sequence[Any]:
    """Where another occurrence reads the array of a level."""
    return next(c.index for c in occurrence.levels if c.atom is level.atom)


def _choices(plans: list[list[Read]]) -> Iterator[list[Read]]:
    """One read per argument, in order of the steps they take together; outermost first among equals."""
    ordered = [sorted(reads, key=lambda r: r.steps) for reads in plans]
    if not all(ordered):
        return

    def steps(picks: tuple[int, ...]) -> tuple[int, int]:
        return sum(ordered[slot][i].steps for slot, i in enumerate(picks)), sum(picks)

    start: tuple[int, ...] = (0,) * len(ordered)
    heap: list[tuple[tuple[int, int], tuple[int, ...]]] = [(steps(start), start)]
    seen: set[tuple[int, ...]] = {start}
    for _ in range(MAX_CHOICES):
        if not heap:
            return
        _, picks = heapq.heappop(heap)
        yield [ordered[slot][i] for slot, i in enumerate(picks)]
        for slot, i in enumerate(picks):
            after = (*picks[:slot], i + 1, *picks[slot + 1 :])
            if i + 1 < len(ordered[slot]) and after not in seen:
                seen.add(after)
                heapq.heappush(heap, (steps(after), after))


def _result_plans(p_out: Cursor, root: Cursor, alignment, expand_first) -> list[Read]:
    """The root's array, and what casts, marks and transposes make of it, as places for a result; shortest first."""
    out, value, index = [], root.atom, list(root.index)
    while True:
        made = plan_result(p_out.index, index, value.aval.shape, alignment, expand_first)
        if made is not None:
            out.insert(0, Read(value, *made))
        users = [n for n in value.uses if n is OUTPUT or n.live]
        if len(users) != 1 or users[0] is OUTPUT or len(users[0].outputs) != 1:
            break
        if value.node is not None and is_rounding(value.node):
            break  # what comes behind a rounding is another value
        node = users[0]
        if node.primitive == "transpose":
            index = [index[d] for d in node.params["permutation"]]
        elif PEEL.get(node.primitive, ("",))[0] not in ("casts", "marks"):
            break
        value = node.outputs[0]
        if len(value.aval.shape) != len(index):
            break
    return sorted(out, key=lambda r: r.steps)


def _typed(
    pattern: Pattern, region: Region, arguments: list[Read], results: list[Read], params: dict[str, Any]
) -> Match | str:
    """A match with these reads; a sentence when `before` gives other types there than the program has."""
    structs = tuple(
        jax.ShapeDtypeStruct(r.shape, r.value.aval.dtype, weak_type=r.value.aval.weak_type) for r in arguments
    )
    found = before_types(pattern, structs, tuple(sorted(params.items(), key=str)), _axes(region))
    if isinstance(found, str):
        return found
    wanted = [(r.shape, r.value.aval.dtype) for r in results]
    if [(a.shape, a.dtype) for a in found] != wanted:
        return f"`before` would give {_types(found)} here, the program has {_pairs(wanted)}"
    return Match(
        pattern.rule, pattern, region, [r.value for r in results], [r.value for r in arguments], list(structs),
        [r.plan for r in arguments], [r.plan for r in results], params, [],
    )  # fmt: skip


def _axes(region: Region) -> tuple:
    return tuple(region.axis_sizes.items())


@functools.lru_cache(maxsize=8192)
def before_types(pattern: Pattern, structs: tuple, params: tuple, axis_sizes: tuple) -> Any:
    """Result types of `before` at given types; a sentence when it does not accept them."""
    fn = pattern.function(pattern.rule.before, dict(params))
    try:
        return jaxprs.trace_flat(fn, structs, dict(axis_sizes)).out_avals
    except (TypeError, ValueError, AssertionError, ZeroDivisionError, IndexError) as error:
        return f"`before` does not accept these arguments: {first_line(error)}"


def _types(avals) -> str:
    return ", ".join(a.str_short(True) for a in avals)


def _pairs(wanted) -> str:
    return ", ".join(f"{d}{list(s)}" for s, d in wanted)
