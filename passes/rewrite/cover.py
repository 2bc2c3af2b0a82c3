"""Cover: the nodes that a match would replace, and what makes replacing them unlawful."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import Refuse
from ..ir import jaxprs
from ..ir.region import OUTPUT, Node, Value
from .match import Match

_COSTLY = {
    "dot_general", "ragged_dot_general", "conv_general_dilated", "scan", "while", "cond", "sort", "top_k", "cumsum",
    "reduce_sum", "reduce_max", "reduce_min", "argmax", "argmin", "gather", "scatter", "scatter-add", "all_gather",
    "psum", "psum_invariant", "reduce_scatter", "all_to_all", "ppermute", "pallas_call", "exp", "logistic", "tanh",
    "log",
}  # fmt: skip


def covered(roots: Sequence[Value], inputs: Sequence[Value]) -> list[Node]:
    """Nodes between the bound values and the roots.

    Raises:
        Refuse: something in between is neither bound nor computed from what is bound; or a bound value depends on a
            root (the region is not convex).
    """
    bound, done, stack = {id(v) for v in inputs}, {}, [v.node for v in reversed(roots) if v.node is not None]
    open_nodes: set[int] = set()
    while stack:  # depth first: a node is done after all it needs
        node = stack[-1]
        if id(node) in done or id(node) in open_nodes:
            done.setdefault(id(node), stack.pop())
            continue
        open_nodes.add(id(node))
        if node.eqn.effects and jaxprs.ordering_effects(node.eqn):
            raise Refuse(f"{node.primitive} inside it has an effect that must keep its place")
        for a in node.inputs:
            if type(a) is not Value or id(a) in bound:
                continue
            if a.node is None and a.role[0] != "const":
                raise Refuse("it reads a value that no argument of `before` stands for")
            if a.node is not None and id(a.node) not in done:
                stack.append(a.node)
    nodes = list(done.values())
    if len(roots) > 1 or len(nodes) > 1:
        refuse_cycle(nodes, roots, inputs)
    return nodes


def refuse_cycle(nodes: Sequence[Node], roots: Sequence[Value], inputs: Sequence[Value]) -> None:
    """Refuse when a bound value depends on a result: the region is not convex."""
    inside, root_ids = {id(n) for n in nodes}, {id(v) for v in roots}
    first = min(nodes[0].region.ordered_below, *(n.position for n in nodes))
    stack = [v for v in inputs if v.maker is not None and v.maker.position >= first]
    seen: set[int] = set()
    while stack:
        value = stack.pop()
        if id(value) in root_ids or (id(value.maker) in inside and id(value) in root_ids):
            raise Refuse("an input of it depends on one of its results")
        for a in value.maker.inputs if value.maker is not None else ():
            if type(a) is Value and a.maker is not None and id(a) not in seen and a.maker.position >= first:
                seen.add(id(a))
                stack.append(a)


def refuse_escapes(match: Match) -> None:
    """Refuse when something outside uses an inner value that would be costly to compute twice."""
    inside, roots = {id(n) for n in match.nodes}, {id(v) for v in match.roots}
    stack = []
    for node in match.nodes:
        for out in node.outputs:
            if id(out) not in roots:
                outside = next((u for u in out.users if u.live and id(u) not in inside), None)
                if outside is not None:
                    stack.append((node, outside))
    kept: set[int] = set()
    while stack:
        node, user = stack.pop()
        if id(node) in kept or id(node) not in inside:
            continue
        kept.add(id(node))
        if node.primitive in _COSTLY or "op" in node.params:
            who = "the result" if user is OUTPUT else f"{user.primitive} at {user.source}"
            raise Refuse(f"its inner {node.primitive} at {node.source} is also used by {who}")
        stack += [(a.maker, user) for a in node.inputs if type(a) is Value and a.maker is not None]
