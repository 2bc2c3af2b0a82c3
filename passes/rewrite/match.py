"""Match: find the places where a rule's pattern occurs in a region, and say what each would replace."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

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
from .align import Alignment, align
from .pattern import SPELLED, Pattern, patterns_of, root_primitives
from .rule import Rule
from .unify import Mismatch, Occurrence, OutOfSteps, Unifier

_COSTLY = {
    "dot_general", "ragged_dot_general", "conv_general_dilated", "scan", "while", "cond", "sort", "top_k", "cumsum",
    "reduce_sum", "reduce_max", "reduce_min", "argmax", "argmin", "gather", "scatter", "scatter-add", "all_gather", "psum",
    "psum_invariant", "reduce_scatter", "all_to_all", "ppermute", "pallas_call", "exp", "logistic", "tanh", "log",
}  # fmt: skip


@dataclass(eq=False)
class Match:
    """One place where a rule applies.

    Attributes:
        rule, pattern: what matched.
        region: where.
        roots: the program's values that the rule's results replace.
        inputs: the program's values that are bound to the rule's flat arguments.
        arguments: how each argument is read from its value.
        results: how each root is made from a result.
        params: captured and static keyword parameters.
        nodes: the nodes of the region that the match covers, in program order.
    """

    rule: Rule
    pattern: Pattern
    region: Region
    roots: list[Value]
    inputs: list[Value]
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

    def applied(self, fn):
        """A rule's function applied to the bound values: flat function of `inputs` that returns the roots."""
        inner = self.pattern.function(fn, self.params)

        def composed(*values):
            out = inner(*(plan(v) for plan, v in zip(self.arguments, values)))
            return [plan(x) for plan, x in zip(self.results, out)]

        return composed

    def argument_avals(self) -> list[Any]:
        """Types of the rule's flat arguments here."""
        with jaxprs.context_of(self.anchor.eqn):
            return [jax.eval_shape(plan, _struct(v.aval)) for plan, v in zip(self.arguments, self.inputs)]

    def key(self) -> tuple:
        """Equal for matches that are replaced by the same jaxpr."""
        return (
            self.rule, id(self.pattern), tuple(self.arguments), tuple(self.results), tuple(v.aval for v in self.inputs),
            tuple(sorted((k, str(v)) for k, v in self.params.items())), tuple(self.region.axis_sizes.items()),
            id(self.anchor.eqn.ctx),
        )  # fmt: skip


@dataclass
class Search:
    """What a search for one rule met: counts, and (when explaining) the nearest misses."""

    rule: Rule
    explain: bool = False
    tried: int = 0
    refusals: list[tuple[str, SourceLine]] = field(default_factory=list)
    misses: list[tuple[Mismatch, Node]] = field(default_factory=list)

    def refuse(self, why: str, node: Node) -> None:
        """Note a lawful no."""
        self.refusals.append((why, node.source))


def find(region: Region, rule: Rule, views: frozenset[str], search: Search) -> Iterator[Match]:
    """Matches of a rule in one region (not in those below it), in program order.

    The caller may rewrite the region between two matches. A place is tried once per pattern.
    """
    for pattern in patterns_of(rule):
        anchors = [n for name in SPELLED.get(pattern.anchor, (pattern.anchor,)) for n in region.by_primitive.get(name, ())]
        tried: set[int] = set()
        for anchor in sorted(anchors, key=lambda n: n.position):
            for root in _roots_above(anchor, pattern) if anchor.live else ():
                if id(root) in tried or not root.live or not anchor.live:
                    continue
                tried.add(id(root))
                match = _match_at(root, pattern, region, views, search)
                if match is not None:
                    yield match


def _roots_above(anchor: Node, pattern: Pattern) -> Iterator[Node]:
    """Nodes that could be the pattern's root, upwards from the anchor, nearest first."""
    seen, level = {id(anchor)}, [anchor]
    for _ in range(pattern.height):
        for node in level:
            if node.primitive in pattern.roots:
                yield node
        above = []
        for node in level:
            for out in node.outputs:
                for user in out.uses:
                    if user is not OUTPUT and user.live and id(user) not in seen:
                        seen.add(id(user))
                        above.append(user)
        if len(above) > 64:  # a value used everywhere leads nowhere in particular
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
    why = "its types differ from what `before` gives at these arguments"
    for expand_first in _expansions(pattern):
        for levels in _level_choices(u.bindings):
            for values in itertools.product(*(_with_casts(r) for r in roots)):
                match = _typed(pattern, region, alignment, levels, list(values), roots, params, expand_first)
                if isinstance(match, str):
                    why = match
                    continue
                if match is not None:
                    return _admitted(match, search)
    search.refuse(why, node)
    return None


def _admitted(match: Match, search: Search) -> Match | None:
    """The rule's own conditions, the cover of the match, and what else uses its inside."""
    try:
        if match.rule.where is not None:
            args = match.pattern.arguments(match.argument_avals())
            match.rule.where(*args, **match.params)
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


Level = tuple[Any, Cursor]  # where the pattern reads an argument, and the program array it is read from there


def _level_choices(bindings: dict[int, list[Occurrence]]) -> Iterator[dict[int, Level]]:
    """Which array each argument is: all outermost, all innermost, then one by one."""
    options: dict[int, list[Level]] = {}
    for slot, occurrences in bindings.items():
        common = occurrences[0].levels
        for o in occurrences[1:]:
            ids = {id(c.atom) for c in o.levels}
            common = tuple(c for c in common if id(c.atom) in ids)
        options[slot] = [(occurrences[0].index, c) for c in common]
    if not all(options.values()):
        return
    outer = {k: v[0] for k, v in options.items()}
    yield outer
    inner = {k: v[-1] for k, v in options.items()}
    yield inner
    for slot, levels in options.items():
        for level in levels[1:]:
            yield {**outer, slot: level}
        for level in levels[:-1]:
            yield {**inner, slot: level}


def _with_casts(root: Cursor) -> list[Value]:
    """The root's value and, outermost first, what single casts and marks make of it."""
    out, value = [root.atom], root.atom
    while len(users := [n for n in value.uses if n is OUTPUT or n.live]) == 1 and users[0] is not OUTPUT:
        node = users[0]
        entry = PEEL.get(node.primitive)
        if entry is None or entry[0] not in ("casts", "marks") or len(node.outputs) != 1:
            break
        value = node.outputs[0]
        if value.aval.shape != root.atom.aval.shape:
            break
        out.insert(0, value)
    return out


def _typed(
    pattern: Pattern,
    region: Region,
    alignment: Alignment,
    levels: dict[int, Level],
    values: list[Value],
    roots: Sequence[Cursor],
    params: dict[str, Any],
    expand_first: frozenset[Label],
) -> Match | str | None:
    """A match with these choices; None when no reads of this form exist, a sentence when types disagree."""
    plans, inputs, structs = [], [], []
    for slot in range(len(pattern.variables)):
        p_index, q = levels[slot]
        shape = pattern.region.inputs[slot].aval.shape
        made = plan_argument(p_index, shape, q.index, q.atom.aval.shape, alignment, expand_first)
        if made is None:
            return None
        plans.append(made[0])
        inputs.append(q.atom)
        structs.append(jax.ShapeDtypeStruct(made[1], q.atom.aval.dtype, weak_type=q.atom.aval.weak_type))
    results, shapes = [], []
    for p_out, q_out in zip(pattern.outputs, roots):
        made = plan_result(p_out.index, q_out.index, q_out.atom.aval.shape, alignment, expand_first)
        if made is None:
            return None
        results.append(made[0])
        shapes.append(made[1])
    found = before_types(pattern, tuple(structs), tuple(sorted(params.items(), key=str)), _axes(region))
    if isinstance(found, str):
        return found
    wanted = [(s, v.aval.dtype) for s, v in zip(shapes, values)]
    if [(a.shape, a.dtype) for a in found] != wanted:
        return f"`before` would give {_types(found)} here, the program has {_pairs(wanted)}"
    return Match(pattern.rule, pattern, region, values, inputs, plans, results, params, [])


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


def _struct(aval) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=getattr(aval, "weak_type", False))


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
