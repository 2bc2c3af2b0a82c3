"""Reading collectives in a region: what is gathered and summed over which axis, and which shard an index picks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from .ir import jaxprs
from .ir.jaxprs import Literal
from .ir.region import OUTPUT, Node, Value

_MARKS = {"pvary", "pcast", "optimization_barrier", "copy", "name", "sharding_constraint"}
MAX_INDEX_NODES = 64  # an index computed by more equations than this is left alone


def axis_names(node: Node) -> tuple[str, ...] | None:
    """The named axes of a collective; None when it works on groups of an axis, or on positional axes."""
    params = node.params
    names = params["axis_name"] if "axis_name" in params else params["axes"]
    names = (names,) if isinstance(names, str) else tuple(names)
    if params.get("axis_index_groups") is not None or not all(isinstance(n, str) for n in names):
        return None
    return names


def users(value: Value) -> Iterator[tuple[Node | Any, Value]]:
    """Live users of a value, seen through equations that only mark it; each with the value it uses."""
    for user in value.uses:
        if user is OUTPUT:
            yield user, value
        elif user.live and user.primitive in _MARKS and len(user.outputs) == 1:
            yield from users(user.outputs[0])
        elif user.live:
            yield user, value


def index_of_shard(atom, axis: str, size: int) -> list[int] | None:
    """The value of a scalar index on every shard of an axis, when it depends on nothing but the shard's position.

    However it is written (times, clamp, remainder, negative wrap-around, a table), the equations behind it are
    evaluated once per shard.

    Args:
        atom: a scalar Value or literal.
        axis: name of the axis.
        size: its size.

    Returns:
        One whole number per shard, or None when it depends on anything else.
    """
    if type(atom) is Literal:
        return [int(atom.val)] * size
    nodes = _behind(atom, axis)
    if nodes is None:
        return None
    return [int(_evaluate(nodes, atom, shard)) for shard in range(size)]


def _behind(atom: Value, axis: str) -> list[Node] | None:
    """Nodes that an index is computed by, in program order; None when it has other inputs than the axis' position."""
    seen: dict[int, Node] = {}
    stack = [atom]
    while stack:
        value = stack.pop()
        node = value.node
        if node is None:
            if value.role[0] != "const":
                return None
            continue
        if id(node) in seen:
            continue
        seen[id(node)] = node
        if node.primitive == "axis_index":
            if axis_names(node) != (axis,):
                return None
            continue
        if len(seen) > MAX_INDEX_NODES or node.eqn.effects or jaxprs.children(node.eqn):
            return None
        stack.extend(a for a in node.inputs if type(a) is Value)
    return sorted(seen.values(), key=lambda n: n.position)


def _evaluate(nodes: list[Node], wanted: Value, shard: int) -> Any:
    env: dict[Value, Any] = {}

    def read(atom):
        if type(atom) is Literal:
            return jaxprs.literal_array(atom)
        return env[atom] if atom in env else atom.role[1]

    with jax.ensure_compile_time_eval():
        for node in nodes:
            if node.primitive == "axis_index":
                env[node.outputs[0]] = np.int32(shard)
            elif node.primitive in _MARKS:
                env[node.outputs[0]] = read(node.inputs[0])
            else:
                out = node.eqn.primitive.bind(*map(read, node.inputs), **node.params)
                env.update(zip(node.outputs, out if node.eqn.primitive.multiple_results else [out]))
    return env[wanted]


def depends_on(value: Value, others: set[int], first: int) -> bool:
    """Whether a value depends on any of some Values (by id) that are made at position `first` or later."""
    stack, seen = [value], set()
    while stack:
        current = stack.pop()
        if id(current) in others:
            return True
        if current.node is None or id(current.node) in seen or current.node.position < first:
            continue
        seen.add(id(current.node))
        stack.extend(a for a in current.node.inputs if type(a) is Value)
    return False
