"""Match: find the places where a rule's pattern occurs in a region, and say what each would replace."""

from __future__ import annotations

import functools
import heapq
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax

from ..errors import Refuse
from ..ir import jaxprs
from ..ir.jaxprs import SourceLine
from ..ir.region import OUTPUT, Node, Region, Value
from ..normalize import Cursor
from ..normalize.cursor import PEEL
from ..normalize.flatten import open_head
from ..normalize.index import Label
from .adapt import Plan, plan_argument, plan_result
from .align import align
from .pattern import SPELLED, Pattern, patterns_of, root_primitives
from .rule import Candidate, GraphRule, Rule
from .unify import Mismatch, Occurrence, OutOfSteps, Unifier, is_rounding

_COSTLY = {
    "dot_general", "ragged_dot_general", "conv_general_dilated", "scan", "while", "cond", "sort", "top_k", "cumsum",
    "reduce_sum", "reduce_max", "reduce_min", "argmax", "argmin", "gather", "scatter", "scatter-add", "all_gather", "psum",
    "psum_invariant", "reduce_scatter", "all_to_all", "ppermute", "pallas_call", "exp", "logistic", "tanh", "log",
}  # fmt: skip

MAX_WIDTH = 64  # users on one level of a climb
MAX_CHOICES = 64  # combinations of arrays that the arguments may be read from, tried per match


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

    @property
    def anchor(self) -> Node:
        """The node of the first root."""
        assert self.roots[0].node is not None
        return self.roots[0].node

    @property
    def source(self) -> SourceLine:
        """The user's line of the first root."""
        return self.anchor.source

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
            id(self.anchor.eqn.ctx),
        )  # fmt: skip


@dataclass
class Search:
    """What a search for one rule met: counts, and (when explaining) the nearest misses."""

    rule: Rule | GraphRule
    explain: bool = False
    tried: int = 0
    refusals: list[tuple[str, SourceLine]] = field(default_factory=list)
    misses: list[tuple[Mismatch, Node]] = field(default_factory=list)
    again: set[int] = field(default_factory=set)  # anchors (by id) that were refused: other rewrites may free them

    def refuse(self, why: str, node: Node) -> None:
        """Note a lawful no."""
        self.refusals.append((why, node.source))


def find(
    region: Region, rule: Rule | GraphRule, views: frozenset[str], search: Search, only: set[int] | None = None
) -> Iterator[Match]:
    """Matches of a rule in one region (not in those below it), in program order.

    The caller may rewrite the region between two matches. A place is tried once per pattern.

    Args:
        region: where to look.
        rule: what to look for.
        views: equations that may be used.
        search: records what was met.
        only: start from these nodes (by id) alone: those that came or were freed since the last look.
    """
    if isinstance(rule, GraphRule):
        yield from _find_candidates(region, rule, search)
        return
    for pattern in patterns_of(rule):
        anchors = [n for name in SPELLED.get(pattern.anchor, (pattern.anchor,)) for n in region.by_primitive.get(name, ())]
        if only is not None:
            anchors = [n for n in anchors if id(n) in only]
        tried: set[int] = set()
        for anchor in sorted(filter(pattern.plausible_anchor, anchors), key=lambda n: n.position):
            for root in _roots_above(anchor, pattern) if anchor.live else ():
                if id(root) in tried or not root.live or not anchor.live:
                    continue
                tried.add(id(root))
                refused = len(search.refusals)
                match = _match_at(root, pattern, region, views, search)
                if len(search.refusals) > refused:
                    search.again.add(id(anchor))
                if match is not None:
                    yield match


def _find_candidates(region: Region, rule: GraphRule, search: Search) -> Iterator[Match]:
    def refuse(why: str, node: Node) -> None:
        search.refuse(why, node)

    for candidate in rule.find(region, refuse):
        search.tried += 1
        avals = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in candidate.inputs]
        stay = Plan(None, None, None, None)
        match = Match(
            rule, candidate, region, list(candidate.roots), list(candidate.inputs), avals,
            [stay] * len(avals), [stay] * len(candidate.roots), {}, [],
        )  # fmt: skip
        if (admitted := _admitted(match, search)) is not None:
            yield admitted


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


def _match_at(root: Node, pattern: Pattern, region: Region, views, search: Search) -> Match | None:
    search.tried += 1
    for value in root.outputs:
        unifier = Unifier(
            pattern.variables, views, captures=pattern.capture_names, statics=pattern.statics, explain=search.explain
        )
        try:
            match = _first_settled(unifier, pattern, region, value, search)
        except OutOfSteps:
            search.refuse("the search here was given up: too many ways to group the operands", root)
            match = None
        if match is not None:
            return match
        if search.explain and unifier.best is not None:
            search.misses.append((unifier.best, root))
    return None


def _first_settled(u: Unifier, pattern: Pattern, region: Region, value: Value, search: Search) -> Match | None:
    q = Cursor.whole(value)
    for _ in u.unify(pattern.outputs[0], q):
        for roots in _other_outputs(u, pattern, [q]):
            match = _settle(u, pattern, region, roots, search)
            if match is not None:
                return match
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
    return [v for n in sorted(found.values(), key=lambda n: n.position) for v in n.outputs]


# ---------------------------------------------------------------- from a solution to a match
def _settle(u: Unifier, pattern: Pattern, region: Region, roots: list[Cursor], search: Search) -> Match | None:
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
        return _admitted(min(matches, key=_reads), search)
    why = next((w for w in found if isinstance(w, str)), "no slice, reshape and transpose of its values gives the arguments")
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


def _admitted(match: Match, search: Search) -> Match | None:
    """The rule's own conditions, the cover of the match, and what else uses its inside."""
    try:
        if isinstance(match.variant, Pattern) and match.rule.where is not None:
            match.rule.where(*match.variant.arguments(match.avals), **match.params)
        match.nodes = covered(match.roots, match.inputs)
        refuse_escapes(match)
    except Refuse as refusal:
        search.refuse(str(refusal), match.anchor)
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
                made = plan_argument(
                    occurrences[0].index, shape, level.index, level.atom.aval.shape, alignment, expand_first
                )
                if made is not None:
                    reads.append(Read(level.atom, *made))
        out.append(reads)
    return out


def _choices(plans: list[list[Read]]) -> Iterator[list[Read]]:
    """One read per argument, in order of the steps they take together; outermost first among equals."""
    ordered = [sorted(reads, key=lambda r: r.steps) for reads in plans]
    if not all(ordered):
        return

    def steps(picks):
        return sum(ordered[slot][i].steps for slot, i in enumerate(picks)), sum(picks)

    start = (0,) * len(ordered)
    heap, seen = [(steps(start), start)], {start}
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
        return f"`before` does not accept these arguments: {str(error).splitlines()[0] if str(error) else error!r}"


def _types(avals) -> str:
    return ", ".join(a.str_short(True) for a in avals)


def _pairs(wanted) -> str:
    return ", ".join(f"{d}{list(s)}" for s, d in wanted)


# ---------------------------------------------------------------- the cover of a match
def covered(roots: Sequence[Value], inputs: Sequence[Value]) -> list[Node]:
    """Nodes between the bound values and the roots.

    Raises:
        Refuse: something in between is neither bound nor computed from what is bound; or a bound value depends on a
            root (the region is not convex).
    """
    bound, seen, stack = {id(v) for v in inputs}, {}, [v.node for v in roots if v.node is not None]
    while stack:
        node = stack.pop()
        if id(node) in seen:
            continue
        seen[id(node)] = node
        if node.eqn.effects and jaxprs.ordering_effects(node.eqn):
            raise Refuse(f"{node.primitive} inside it has an effect that must keep its place")
        for a in node.inputs:
            if type(a) is not Value or id(a) in bound:
                continue
            if a.node is None and a.role[0] != "const":
                raise Refuse("it reads a value that no argument of `before` stands for")
            if a.node is not None:
                stack.append(a.node)
    nodes = sorted(seen.values(), key=lambda n: n.position)
    if len(roots) > 1 or len(nodes) > 1:
        _refuse_cycle(nodes, roots, inputs)
    return nodes


def _refuse_cycle(nodes: list[Node], roots, inputs) -> None:
    inside, root_ids = {id(n) for n in nodes}, {id(v) for v in roots}
    first = nodes[0].position
    stack = [v for v in inputs if v.node is not None and v.node.position >= first]
    seen: set[int] = set()
    while stack:
        value = stack.pop()
        if id(value) in root_ids or (id(value.node) in inside and id(value) in root_ids):
            raise Refuse("an input of it depends on one of its results")
        for a in value.node.inputs:
            if type(a) is Value and a.node is not None and id(a) not in seen and a.node.position >= first:
                seen.add(id(a))
                stack.append(a)


def refuse_escapes(match: Match) -> None:
    """Refuse when something outside uses an inner value that would be costly to compute twice."""
    inside, roots = {id(n) for n in match.nodes}, {id(v) for v in match.roots}
    stack = []
    for node in match.nodes:
        for out in node.outputs:
            users = [u for u in out.uses if u is OUTPUT or (u.live and id(u) not in inside)]
            if users and id(out) not in roots:
                stack.append((node, users[0]))
    kept: set[int] = set()
    while stack:
        node, user = stack.pop()
        if id(node) in kept or id(node) not in inside:
            continue
        kept.add(id(node))
        if node.primitive in _COSTLY or "op" in node.params:
            who = "the result" if user is OUTPUT else f"{user.primitive} at {user.source}"
            raise Refuse(f"its inner {node.primitive} at {node.source} is also used by {who}")
        stack += [(a.node, user) for a in node.inputs if type(a) is Value and a.node is not None]
