"""Cursor: a value read at an index; and `peel`, which walks through equations that only move, rename or cast elements.

Peeling is the engine's way to match modulo a normal form: nothing is rewritten, the cursor just points at where the
element comes from. Reading outside an array's bounds means zero: that is how padding and concatenation are seen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ..ir.jaxprs import Literal
from ..ir.region import Node, Region, Value
from .index import Index, fresh, inside


class Frame(NamedTuple):
    """One step of a loop that a cursor is inside of."""

    node: Node  # the scan
    body: Region
    step: Index  # which step, as an index
    outer: Any  # Frame | None


class Cursor:
    """`atom[index]`, an element of a Value or literal; `frame` tells the loop step when the value is in a loop body."""

    __slots__ = ("atom", "frame", "head", "index")

    def __init__(self, atom, index: tuple[Index, ...], frame: Any = None):
        self.atom, self.index, self.frame = atom, index, frame
        self.head: Any = None  # memo of `terms.expand`: (views, term)

    @classmethod
    def whole(cls, value, frame: Frame | None = None) -> Cursor:
        """A cursor over every element of a value, one new axis per dimension."""
        return cls(value, fresh(value.aval.shape), frame)

    @property
    def node(self) -> Node | None:
        """The node that makes the value."""
        return self.atom.node if type(self.atom) is Value else None

    @property
    def padded(self) -> bool:
        """Whether it can read outside the array (and get zero)."""
        return any(not inside(i, n) for i, n in zip(self.index, self.atom.aval.shape))

    def at(self, atom, index) -> Cursor:
        """Another atom and index in the same loop step."""
        return Cursor(atom, tuple(index), self.frame)

    def __repr__(self) -> str:
        return f"<Cursor {self.atom!r}>"


PeelRule = Callable[[Cursor, Node], "Cursor | None"]

# Primitive name -> (view it belongs to, rule). Filled by the view files, in the order of `views.VIEWS`.
PEEL: dict[str, tuple[str, PeelRule]] = {}


def peels(view: str, *primitives: str):
    """Register a rule that follows a cursor through equations of the named primitives, as part of a view."""

    def register(rule: PeelRule) -> PeelRule:
        for name in primitives:
            PEEL[name] = (view, rule)
        return rule

    return register


def peel_one(cursor: Cursor, views: frozenset[str]) -> Cursor | None:
    """The cursor one equation further back, or None at something that computes."""
    if type(cursor.atom) is Literal:
        return None
    node = cursor.atom.node
    if node is None:
        return _enter_loop(cursor)
    entry = PEEL.get(node.eqn.primitive.name)
    if entry is None or entry[0] not in views:
        return None
    return entry[1](cursor, node)


def unmoved(atom):
    """The value or literal that an atom has its elements from, before all that only moves, renames or casts them."""
    while type(atom) is Value and atom.node is not None and atom.node.primitive in PEEL and atom.node.inputs:
        atom = atom.node.inputs[0]
    return atom


def chain(cursor: Cursor, views: frozenset[str]) -> list[Cursor]:
    """The cursor and all it can be peeled to, outermost first."""
    out = [cursor]
    while (cursor := peel_one(cursor, views)) is not None:  # type: ignore[assignment]
        out.append(cursor)
    return out


def _enter_loop(cursor: Cursor) -> Cursor | None:
    """A scan body's constants and scanned inputs are the scan's operands; its carries are not."""
    frame = cursor.frame
    if frame is None or cursor.atom.role[0] != "input":
        return None
    from ..ir.jaxprs import scan_parts

    parts, i = scan_parts(frame.node.eqn), cursor.atom.role[1]
    operand = frame.node.inputs[i]
    if i < parts.consts:
        return Cursor(operand, cursor.index, frame.outer)
    if i < parts.consts + parts.carry:
        return None
    return Cursor(operand, (frame.step, *cursor.index), frame.outer)
