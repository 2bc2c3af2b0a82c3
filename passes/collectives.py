"""Reading collectives in a region: what is gathered and summed over which axis, and which shard an index picks."""

from __future__ import annotations

import itertools
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


def on_every_shard(atom, axis_sizes: dict[str, int]) -> list[np.ndarray] | None:
    """The value of an index on every shard, when it depends on nothing but the shard's position.

    However it is written (times, clamp, remainder, negative wrap-around, a table), the equations behind it are
    evaluated once per shard.

    Args:
        atom: a Value or literal of whole numbers.
        axis_sizes: the axes it may depend on, with their sizes.

    Returns:
        One array per shard, the last axis running fastest; None when it depends on anything else.
    """
    positions = list(itertools.product(*(range(n) for n in axis_sizes.values())))
    if type(atom) is Literal:
        return [np.asarray(atom.val)] * len(positions)
    nodes = _behind(atom, axis_sizes)
    if nodes is None:
        return None
    return [np.asarray(_evaluate(nodes, atom, dict(zip(axis_sizes, position)))) for position in positions]


def tables_behind(atom, axis_sizes: dict[str, int]) -> list[Value]:
    """Arguments of the region that an index is computed from: constants from outside."""
    nodes = _behind(atom, axis_sizes) if type(atom) is Value else None
    read = [atom, *(a for n in nodes or () for a in n.inputs)]
    return list(dict.fromkeys(a for a in read if type(a) is Value and a.node is None and a.role[0] == "input"))


def constant_of(value: Value) -> Any:
    """The array that an argument of a region always is: a constant that every caller passes on whole; else None."""
    role, which = value.role
    if role == "const":
        return which
    region = next((u.region for u in value.uses if u is not OUTPUT), None)
    found = [_passed(node, child, which) for node, child in region.callers] if region is not None else []
    if not found or any(a is None or a is not found[0] for a in found):
        return None
    return found[0]


def _passed(node: Node, child: jaxprs.Child, which: int) -> Any:
    """The constant that a call passes as one argument of its body; None when it is not the same whole one each time."""
    if node.primitive == "scan" and which >= jaxprs.scan_parts(node.eqn).consts:
        return None
    if node.primitive == "shard_map" and any(entry is not None for entry in node.params["in_specs"][which]):
        return None
    atom = node.inputs[child.operands][which]
    if type(atom) is Literal:
        return atom.val
    return constant_of(atom) if atom.node is None and node.primitive not in ("while", "cond") else None


def _behind(atom: Value, axis_sizes: dict[str, int]) -> list[Node] | None:
    """Nodes that an index is computed by, in program order; None when it has other inputs than positions."""
    seen: dict[int, Node] = {}
    stack = [atom]
    while stack:
        value = stack.pop()
        node = value.node
        if node is None:
            if constant_of(value) is None:
                return None
            continue
        if id(node) in seen:
            continue
        seen[id(node)] = node
        if node.primitive == "axis_index":
            names = axis_names(node)
            if names is None or len(names) != 1 or names[0] not in axis_sizes:
                return None
            continue
        if len(seen) > MAX_INDEX_NODES or node.eqn.effects or jaxprs.children(node.eqn):
            return None
        stack.extend(a for a in node.inputs if type(a) is Value)
    return sorted(seen.values(), key=lambda n: n.position)


def _evaluate(nodes: list[Node], wanted: Value, position: dict[str, int]) -> Any:
    env: dict[Value, Any] = {}

    def read(atom):
        if type(atom) is Literal:
            return jaxprs.literal_array(atom)
        return env[atom] if atom in env else constant_of(atom)

    with jax.ensure_compile_time_eval():
        for node in nodes:
            if node.primitive == "axis_index":
                (name,) = axis_names(node) or ("",)
                env[node.outputs[0]] = np.int32(position[name])
            elif node.primitive in _MARKS:
                env[node.outputs[0]] = read(node.inputs[0])
            else:
                out = node.eqn.primitive.bind(*map(read, node.inputs), **node.params)
                env.update(zip(node.outputs, out if node.eqn.primitive.multiple_results else [out]))
        return env[wanted] if wanted in env else read(wanted)


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
