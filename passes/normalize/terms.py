"""Terms: what a cursor's element computes, one level at a time.

`expand` peels a cursor and gives the head of its term; operands stay cursors until someone looks at them. Products and
sums are heads with any number of factors and addends, so that association, commutation and the choice between
multiply and divide, square and product, mean and sum do not matter to whoever compares two terms.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ..ir.jaxprs import Literal
from ..ir.region import Node
from .cursor import Cursor, peel_one
from .index import Index, Label, constant


class Const(NamedTuple):
    """A number."""

    value: float


class Prod(NamedTuple):
    """coefficient * product of term ** exponent."""

    coefficient: float
    factors: tuple[tuple[Any, float], ...]
    node: Node | None = None


class Add(NamedTuple):
    """constant + sum of coefficient * term."""

    constant: float
    addends: tuple[tuple[float, Any], ...]
    node: Node | None = None


class Sum(NamedTuple):
    """Sum of a term over axes; `index` is where the summing node's result is read."""

    labels: tuple[Label, ...]
    body: Any
    node: Node | None = None
    index: tuple[Index, ...] = ()


class Fn(NamedTuple):
    """An elementwise function that is neither a product nor a sum."""

    name: str
    params: tuple
    args: tuple[Any, ...]
    node: Node | None = None


class Along(NamedTuple):
    """A function along one axis (maximum, cumulative sum, top-k, sort): pointwise in all others.

    `inner` runs along the operand's axis, `outer` is the index of the result along it (None when the axis is gone).
    """

    name: str
    params: tuple
    result: int
    inner: Label
    outer: Index | None
    args: tuple[Any, ...]
    node: Node


class Iota(NamedTuple):
    """The position along an axis."""

    index: Index
    node: Node | None = None


class Leaf(NamedTuple):
    """A cursor that cannot be expanded: an input, a constant array, a loop's carry."""

    cursor: Cursor


class Result(NamedTuple):
    """Element of a result of a node that is compared as a whole: scans, Ops, gathers, everything unknown."""

    node: Node
    result: int
    index: tuple[Index, ...]
    frame: Any


Term = Any  # Cursor | Const | Prod | Add | Sum | Fn | Along | Iota | Leaf | Result

ExpandRule = Callable[[Cursor, Node], "Term | None"]
EXPAND: dict[str, tuple[str, ExpandRule]] = {}


def expands(view: str, *primitives: str):
    """Register the head of terms that end in the named primitives, as part of a view."""

    def register(rule: ExpandRule) -> ExpandRule:
        for name in primitives:
            EXPAND[name] = (view, rule)
        return rule

    return register


def operand(cursor: Cursor, atom) -> Term:
    """An elementwise operand at the cursor's index; scalars and dimensions of size 1 are read where they stand."""
    if type(atom) is Literal and np.ndim(atom.val) == 0:
        return Const(_number(atom.val))
    shape = np.shape(atom.val) if type(atom) is Literal else atom.aval.shape
    if shape == cursor.atom.aval.shape:
        return Cursor(atom, cursor.index, cursor.frame)
    return Cursor(atom, tuple(constant(0) if n == 1 else i for n, i in zip(shape, cursor.index)), cursor.frame)


def _number(value) -> Any:
    scalar = np.asarray(value).item()
    return scalar if isinstance(scalar, complex) else float(scalar)


def expand(term: Term, views: frozenset[str]) -> Term:
    """Head of a term: a cursor is peeled and opened by one equation; other terms are heads already."""
    if type(term) is not Cursor:
        return term
    if term.head is None or term.head[0] is not views:
        term.head = (views, _expand(term, views))
    return term.head[1]


def _expand(cursor: Cursor, views: frozenset[str]) -> Term:
    while (further := peel_one(cursor, views)) is not None:
        cursor = further
    atom = cursor.atom
    if type(atom) is Literal:
        return Const(_number(atom.val)) if np.ndim(atom.val) == 0 else Leaf(cursor)
    if atom.node is None:
        return _constant_leaf(cursor)
    name = atom.node.eqn.primitive.name
    entry = EXPAND.get(name)
    if entry is not None and entry[0] in views and not cursor.padded:
        head = entry[1](cursor, atom.node)
        if head is not None:
            return head
    return Result(atom.node, atom.index, cursor.index, cursor.frame)


def _constant_leaf(cursor: Cursor) -> Term:
    role, value = cursor.atom.role
    if role == "const" and value is not None and np.ndim(value) == 0 and not hasattr(value, "aval"):
        return Const(_number(value))
    return Leaf(cursor)


def key(term: Term) -> Any:
    """Hashable identity of where a term reads, for 'the same node at the same index'."""
    if type(term) is Cursor:
        return (id(term.atom), term.index, term.frame)
    if type(term) is Result:
        return (id(term.node), term.result, term.index, term.frame)
    return id(term)
