"""Neighbourhood: the part of a program that a search looked at, in a form that is found again around other nodes.

A model repeats its layers. What a search gave at a node it gives again at every node whose neighbourhood is the same:
the same equations with the same parameters and literals, joined in the same way, over values of the same types. Looking
costs a fraction of a microsecond per equation, searching a thousand times more.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..ir import jaxprs
from ..ir.jaxprs import Literal
from ..ir.region import OUTPUT, Node, Value
from ..ir.values import Reads
from .numbering import Numbering

MAX_USERS = 128  # a value that is used more often is not followed: its neighbourhood is no neighbourhood
MAX_NODES = 2048


class Step(NamedTuple):
    """One equation of a neighbourhood; operands are places among the values met so far, or literals."""

    primitive: Any
    params: dict[str, Any]
    ctx: Any
    nested: bool
    inputs: tuple[Any, ...]
    outputs: tuple[int, ...]


class Met(NamedTuple):
    """What must hold of a value when it is met.

    Args:
        maker: (place among the nodes, index) of the equation that makes it; None where nobody looked at that.
        role: what it is when no equation makes it: ("input", None) or ("const", array); None otherwise.
        aval: its type, where that does not follow from its maker.
        users: places of the nodes that read it, -1 for the region's result; None where nobody looked at that.
    """

    maker: tuple[int, int] | None
    role: tuple[str, Any] | None
    aval: Any
    users: tuple[int, ...] | None


class Found(NamedTuple):
    """A neighbourhood in a program: its nodes and values, in the order in which they are met."""

    nodes: list[Node]
    values: list[Value]
    everything: frozenset[Any]


class Neighbourhood:
    """What lies around an anchor, as far as a search looked.

    Attributes:
        steps: the equations, the anchor's first.
        met: what holds of each value.
    """

    __slots__ = ("met", "steps")

    def __init__(self, steps: list[Step], met: list[Met]):
        self.steps, self.met = steps, met

    def around(self, anchor: Node) -> Found | None:
        """The same neighbourhood around another node; None when that has another one."""
        nodes, values = [anchor], []
        for node, (primitive, params, ctx, nested, inputs, outputs) in zip(nodes, self.steps):  # nodes grow
            eqn = node.eqn
            if eqn.primitive is not primitive or len(node.inputs) != len(inputs) or eqn.ctx != ctx:
                return None
            if eqn.params is not params and not _same_params(eqn.params, params):
                return None
            if nested and not is_pristine(node):
                return None
            for atom, wanted in zip(node.inputs, inputs):
                if type(wanted) is not int:
                    if type(atom) is not Literal or not _same_literal(atom, wanted):
                        return None
                elif wanted < len(values):
                    if values[wanted] is not atom:
                        return None
                elif type(atom) is not Value or not self._meet(atom, wanted, nodes, values):
                    return None
            for out, wanted in zip(node.outputs, outputs):
                if wanted < len(values):
                    if values[wanted] is not out:
                        return None
                elif not self._meet(out, wanted, nodes, values):
                    return None
        everything = frozenset((*nodes, *values))
        return Found(nodes, values, everything) if len(everything) == len(nodes) + len(values) else None

    def _meet(self, value: Value, place: int, nodes: list[Node], values: list[Value]) -> bool:
        made, role, aval, users = self.met[place]
        maker = value.maker
        if made is not None:
            at, index = made
            if maker is None or value.index != index:
                return False
            if at == len(nodes):
                nodes.append(maker)
            elif nodes[at] is not maker:
                return False
        elif value.aval != aval or (role is not None and not (maker is None and _same_role(value.role, role))):
            return False
        values.append(value)
        return users is None or _meet_users(value, users, nodes)

    def reads(self, found: Found) -> Reads:
        """What was looked at, in terms of a place where the neighbourhood was found."""
        reads = Reads()
        for met, value in zip(self.met, found.values):
            if met.maker is not None or met.role is not None:
                reads.makers.add(value)
            if met.users is not None:
                reads.users.add(value)
        return reads


def _meet_users(value: Value, users: tuple[int, ...], nodes: list[Node]) -> bool:
    live = [u for u in value.users if u.live]
    if len(live) != len(users):
        return False
    for user, at in zip(live, users):
        if (user is OUTPUT) != (at < 0):
            return False
        if at == len(nodes):
            nodes.append(user)
        elif at >= 0 and nodes[at] is not user:
            return False
    return True


# ---------------------------------------------------------------- making one
def neighbourhood_of(anchor: Node, reads: Reads) -> tuple[Neighbourhood, Found] | None:
    """What was looked at around an anchor; None when it cannot be told from others.

    Args:
        anchor: where the search started.
        reads: the values whose makers and users were looked at; only those count that a way from the anchor leads to.
    """
    return _Survey(anchor, reads).result()


class _Survey:
    def __init__(self, anchor: Node, reads: Reads):
        self.reads = reads
        self.nodes, self.places = [anchor], {anchor: 0}
        self.values: list[Value] = []
        self.index: dict[Value, int] = {}
        self.met: list[Met] = []
        self.wide = False

    def result(self) -> tuple[Neighbourhood, Found] | None:
        steps = []
        for node in self.nodes:  # grows
            if self.wide or len(self.nodes) > MAX_NODES or not is_pristine(node):
                return None
            inputs = tuple(a if type(a) is Literal else self._value(a) for a in node.inputs)
            outputs = tuple(self._value(out) for out in node.outputs)
            nested = node.primitive in jaxprs.HOLDERS
            steps.append(Step(node.eqn.primitive, node.eqn.params, node.eqn.ctx, nested, inputs, outputs))
        found = Found(self.nodes, self.values, frozenset((*self.nodes, *self.values)))
        return Neighbourhood(steps, self.met), found

    def _value(self, value: Value) -> int:
        if value not in self.index:
            self.index[value] = len(self.values)
            self.values.append(value)
            self.met.append(self._meet(value))
        return self.index[value]

    def _meet(self, value: Value) -> Met:
        maker, seen, made, role = value.maker, value in self.reads.makers, None, None
        if maker is not None and (seen or maker in self.places):
            made = (self._node(maker), value.index)
        elif maker is None and seen:
            role = (value.role[0], value.role[1] if value.role[0] == "const" else None)
        users = None
        if value in self.reads.users:
            live = [u for u in value.users if u.live]
            self.wide |= len(live) > MAX_USERS
            users = tuple(-1 if u is OUTPUT else self._node(u) for u in live[: MAX_USERS + 1])
        return Met(made, role, None if made is not None else value.aval, users)

    def _node(self, node: Node) -> int:
        if node not in self.places:
            self.places[node] = len(self.nodes)
            self.nodes.append(node)
        return self.places[node]


# ---------------------------------------------------------------- equal parts
def is_pristine(node: Node) -> bool:
    """Whether no rewrite reached into the regions of a node, so that its parameters tell what is in them."""
    stack = list(node.regions or ())
    while stack:
        region = stack.pop()
        if region.changed:
            return False
        stack += [r for n in region.holders for r in n.regions or ()]
    return True


def _same_literal(a: Literal, b: Literal) -> bool:
    x, y = a.val, b.val
    if a is b or x is y:
        return a.aval == b.aval
    if type(x) is not type(y) or a.aval != b.aval:
        return False
    if hasattr(x, "tobytes"):
        return x.tobytes() == y.tobytes()  # 0.0 is not -0.0
    return bool(x == y) and str(x) == str(y)


def _same_role(a: tuple, b: tuple) -> bool:
    if a[0] != b[0]:
        return False
    return a[0] != "const" or a[1] is b[1] or _same_small_array(a[1], b[1])


def _same_small_array(a: Any, b: Any) -> bool:
    small = isinstance(a, np.ndarray | np.generic) and isinstance(b, np.ndarray | np.generic) and a.nbytes <= 1 << 16
    return small and a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def _same_params(a: dict[str, Any], b: dict[str, Any]) -> bool:
    try:
        if a == b:
            return True
    except ValueError:  # arrays among them
        pass
    return a.keys() == b.keys() and all(_same_param(v, b[k]) for k, v in a.items())


def _same_param(a: Any, b: Any) -> bool:
    if a is b:
        return True
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(_same_param(x, y) for x, y in zip(a, b))
    if isinstance(a, jaxprs.Jaxpr | jaxprs.ClosedJaxpr):
        return isinstance(b, jaxprs.Jaxpr | jaxprs.ClosedJaxpr) and structure(a) == structure(b)
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return _same_small_array(a, b)
    return bool(a == b) or is_function(a, b)


def is_function(*values: Any) -> bool:
    """Whether parameters are functions (derivatives of custom_vjp, say), of which nothing but that can be told."""
    return all(callable(v) and not hasattr(v, "static") and not isinstance(v, type) for v in values)


_NUMBERING = Numbering()
_STRUCTURES: dict[int, tuple[Any, tuple[int, ...]]] = {}


def structure(jaxpr) -> tuple[int, ...]:
    """Equal for jaxprs that do the same operations."""
    known = _STRUCTURES.get(id(jaxpr))
    if known is None or known[0] is not jaxpr:
        if len(_STRUCTURES) > 4096:
            _STRUCTURES.clear()
        known = _STRUCTURES[id(jaxpr)] = (jaxpr, _NUMBERING.closed(jaxpr))
    return known[1]
