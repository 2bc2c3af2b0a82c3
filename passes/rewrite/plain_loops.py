"""Loops written plainly: what no carry reaches is computed for all steps before, what a step writes is stacked.

Three equations of a scan, each exact:

    a value that no carry reaches        = the same for every step at once (`vmap` over the steps), scanned in
    a counter that each step adds one to = the step's number
    a buffer that step t writes at t     = the stacked results of the steps

so that `fori_loop` with reads and writes at its counter, a scan over positions, and gates or norms computed inside the
loop all become a scan over tokens. Nothing is rewritten for its own sake: a rule looks for its loop in the plain form.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..ir import jaxprs
from ..ir.extract import extract
from ..ir.region import OUTPUT, Node, Region, Value
from ..normalize.cursor import PEEL, Cursor
from ..normalize.index import Label, of_label
from ..normalize.marks import literal_number
from ..normalize.places import place

MAX_BODY = 400  # equations in a body; longer ones are left alone


@dataclass
class _Parts:
    """A scan's body, taken apart.

    Args:
        body: its region.
        consts: number of constants.
        carry: number of carries.
        length: number of steps.
        counters: inputs of the body that are the step's number plus a first number: carries, and scanned positions.
        buffers: carry -> what a step writes into it, and the dimension that it counts along.
        carries: the carries that are neither.
        early: nodes that no carry but counters reaches, in order.
        late: the other nodes, without writes into buffers.
    """

    body: Region
    consts: int
    carry: int
    length: int
    counters: dict[Value, int]
    buffers: dict[int, tuple[Value, int]]
    carries: list[int]
    early: list[Node]
    late: list[Node]

    @property
    def fixed(self) -> list[Value]:
        """Inputs that are the same at every step."""
        return self.body.inputs[: self.consts]

    @property
    def scanned(self) -> list[Value]:
        """Scanned inputs that are not positions."""
        return [v for v in self.body.inputs[self.consts + self.carry :] if v not in self.counters]

    @property
    def written(self) -> list[Any]:
        """What a step gives: carries, writes into buffers, stacked results."""
        outputs = self.body.outputs
        return [*(outputs[c] for c in self.carries), *(new for new, _ in self.buffers.values()), *outputs[self.carry :]]

    def carried(self, c: int) -> Value:
        """A carry as the body reads it."""
        return self.body.inputs[self.consts + c]


def plainly(scan: Node):
    """A scan in plain form.

    Args:
        scan: the node.

    Returns:
        A closed jaxpr with the scan's operands and results; None when it is plain already, or of another kind.
    """
    parts = _taken_apart(scan)
    if parts is None or not (parts.counters or any(n.primitive not in PEEL for n in parts.early)):
        return None
    if any(type(a) is not Value for a in parts.written):
        return None
    frontier = _frontier(parts)
    carries = [parts.carried(c) for c in parts.carries]
    early = jaxprs.as_function(extract(parts.early, [*parts.fixed, *parts.counters, *parts.scanned], frontier))
    late = jaxprs.as_function(extract(parts.late, [*parts.fixed, *carries, *frontier], parts.written))
    return jaxprs.trace_flat(lambda *operands: _run(parts, early, late, operands), [a.aval for a in scan.inputs])


def _run(parts: _Parts, early, late, operands: Sequence[Any]) -> list[Any]:
    """The plain loop, as a function to trace."""
    given = dict(zip(parts.body.inputs, operands))
    fixed = [given[v] for v in parts.fixed]
    steps = [(first + jnp.arange(parts.length)).astype(v.aval.dtype) for v, first in parts.counters.items()]
    moving = [*steps, *(given[v] for v in parts.scanned)]
    at_step = lambda *values: early(*fixed, *values[: len(moving)])
    ready = jax.vmap(at_step)(*(moving or [jnp.arange(parts.length)]))
    n = len(parts.carries)

    def step(carry, ready):
        out = late(*fixed, *carry, *ready)
        return tuple(out[:n]), tuple(out[n:])

    carry, stacked = lax.scan(step, tuple(given[parts.carried(c)] for c in parts.carries), tuple(ready), parts.length)
    results: dict[int, Any] = dict(zip(parts.carries, carry))
    for (c, (_, dim)), rows in zip(parts.buffers.items(), stacked):
        shape = parts.carried(c).aval.shape
        results[c] = jnp.moveaxis(rows.reshape(parts.length, *shape[:dim], *shape[dim + 1 :]), 0, dim)
    for c in range(parts.carry):
        if parts.carried(c) in parts.counters:
            last = parts.counters[parts.carried(c)] + parts.length
            results[c] = jnp.asarray(last, parts.carried(c).aval.dtype)
    return [*(results[c] for c in range(parts.carry)), *stacked[len(parts.buffers) :]]


# ---------------------------------------------------------------- taking a body apart
def _taken_apart(scan: Node) -> _Parts | None:
    found = jaxprs.scan_parts(scan.eqn)
    (body,) = scan.children()
    if found.reverse or len(body.nodes) > MAX_BODY or any(n.eqn.effects for n in body.nodes):
        return None
    counters = _counters(scan, body)
    reached = {id(v) for v in body.inputs[found.consts : found.consts + found.carry] if v not in counters}
    early, late = [], []
    for node in (n for n in body.nodes if n.live):
        is_late = any(type(a) is Value and id(a) in reached for a in node.inputs)
        (late if is_late else early).append(node)
        if is_late:
            reached.update(id(v) for v in node.outputs)
    parts = _Parts(body, found.consts, found.carry, found.length, counters, {}, [], early, late)
    for c in range(found.carry):
        if parts.carried(c) not in counters and not _note_buffer(parts, c):
            parts.carries.append(c)
    return parts


def _counters(scan: Node, body: Region) -> dict[Value, int]:
    """Carries to which each step adds one, and scanned positions, with their first number."""
    found, out = jaxprs.scan_parts(scan.eqn), {}
    for i, (value, operand) in enumerate(zip(body.inputs, scan.inputs)):
        c = i - found.consts
        if value.aval.dtype.kind not in "iu" or value.aval.shape != () or c < 0:
            continue
        first = _counts_from(operand, value, body.outputs[c]) if c < found.carry else positions_from(operand)
        if first is not None:
            out[value] = first
    return out


def _counts_from(start, value: Value, update) -> int | None:
    number = literal_number(start)
    if number is None or type(update) is not Value or update.node is None or update.node.primitive != "add":
        return None
    added = [literal_number(a) for a in update.node.inputs if a is not value]
    return int(number) if added == [1] else None


def positions_from(operand) -> int | None:
    """The first of consecutive whole numbers that a one-dimensional array holds; None when it holds anything else."""
    if operand.aval.dtype.kind not in "iu" or len(operand.aval.shape) != 1:
        return None
    label = Label(operand.aval.shape[0])
    index = place(Cursor(operand, (of_label(label),)))
    return index[0] if index is not None and (index[1] == ((label, 1),) or label.size == 1) else None


def _note_buffer(parts: _Parts, c: int) -> bool:
    """Whether a carry is only written to, by step t at place t of one dimension, until it is full."""
    value, update = parts.carried(c), parts.body.outputs[c]
    node = update.node if type(update) is Value else None
    if node is None or node.primitive not in ("dynamic_update_slice", "scatter") or node.inputs[0] is not value:
        return False
    if any(u is not node for u in value.uses) or update.uses != [OUTPUT]:
        return False
    written = node.inputs[2 if node.primitive == "scatter" else 1]
    dim = (_set_along if node.primitive == "scatter" else _updated_along)(parts, node)
    if dim is None or type(written) is not Value or value.aval.shape[dim] != parts.length:
        return False
    parts.buffers[c] = (written, dim)
    parts.late.remove(node)
    return True


def _updated_along(parts: _Parts, node: Node) -> int | None:
    operand, update, *starts = node.inputs
    moving = [d for d, (n, m) in enumerate(zip(operand.aval.shape, update.aval.shape)) if n != m]
    if len(moving) != 1 or update.aval.shape[moving[0]] != 1:
        return None
    counted = [_is_step(parts, a) if d == moving[0] else literal_number(a) == 0 for d, a in enumerate(starts)]
    return moving[0] if all(counted) else None


def _set_along(parts: _Parts, node: Node) -> int | None:
    operand, indices, update = node.inputs
    dims = node.params["dimension_numbers"]
    if len(dims.inserted_window_dims) != 1 or dims.scatter_dims_to_operand_dims != dims.inserted_window_dims:
        return None
    others = tuple(n for d, n in enumerate(operand.aval.shape) if d not in dims.inserted_window_dims)
    whole = update.aval.shape == others and dims.update_window_dims == tuple(range(len(others)))
    return dims.inserted_window_dims[0] if whole and _is_step(parts, indices) else None


def _is_step(parts: _Parts, atom) -> bool:
    """Whether an index is the step's number: it is evaluated at every step."""
    nodes = _behind(parts, atom) if type(atom) is Value else None
    if nodes is None:
        return False
    steps = np.arange(parts.length)
    counted = [jnp.asarray(first + steps, v.aval.dtype) for v, first in parts.counters.items()]
    with jax.ensure_compile_time_eval():
        (places,) = jax.vmap(jaxprs.as_function(extract(nodes, list(parts.counters), [atom])))(*counted)
    return bool(np.array_equal(np.asarray(places).reshape(parts.length, -1)[:, 0], steps)) and atom.aval.size == 1


def _behind(parts: _Parts, atom: Value) -> list[Node] | None:
    """Early nodes that compute a value from counters alone; None when it needs anything else."""
    seen, stack = set(), [atom]
    while stack:
        value = stack.pop()
        if value in parts.counters or (value.node is None and value.role[0] == "const"):
            continue
        if value.node is None:
            return None
        if id(value.node) not in seen:
            seen.add(id(value.node))
            stack += [a for a in value.node.inputs if type(a) is Value]
    return [n for n in parts.early if id(n) in seen]


def _frontier(parts: _Parts) -> list[Value]:
    """What late nodes and results read of early nodes, counters and scanned inputs."""
    own = {id(v) for n in parts.late for v in n.outputs}
    own |= {id(v) for v in [*parts.fixed, *(parts.carried(c) for c in parts.carries)]}
    read = [*(a for n in parts.late for a in n.inputs), *parts.written]
    wanted = dict.fromkeys(a for a in read if type(a) is Value and id(a) not in own)
    return [a for a in wanted if a.node is not None or a.role[0] == "input"]
