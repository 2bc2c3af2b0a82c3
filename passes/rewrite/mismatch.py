"""Mismatch: where a search stopped, in words a user can act on."""

from __future__ import annotations

from typing import NamedTuple

from ..ir.region import Node
from ..normalize import Cursor
from ..normalize.terms import Add, Along, Const, Fn, Iota, Leaf, Prod, Result, Sum, Term


class Mismatch(NamedTuple):
    """What was wanted and what stood there.

    Args:
        depth: terms that had matched by then.
        wanted: head of the pattern's term.
        found: head of the program's term, or why it does not do.
        node: where the program's term ends.
        argument: when the pattern's term is an argument of `before`, its position among the flat ones.
    """

    depth: int
    wanted: str
    found: str
    node: Node | None
    argument: int | None = None

    def __str__(self) -> str:
        where = f" ({self.node.source})" if self.node is not None else ""
        return f"after {self.depth} matching terms: wanted {self.wanted}, found {self.found}{where}"


_NAMES = {Prod: "a product", Add: "a sum", Sum: "a sum over an axis", Iota: "a position", Leaf: "an input"}


def describe(term: Term) -> str:
    """A term's head in a few words."""
    if type(term) is Cursor:
        return term.node.primitive if term.node is not None else "an input"
    if type(term) is Const:
        return f"the number {term.value:g}"
    if type(term) in (Fn, Along):
        return term.name
    if type(term) is Result:
        return term.node.primitive
    return _NAMES[type(term)]


def node_of(term: Term) -> Node | None:
    """The program node a term ends in."""
    return term.node if type(term) is Cursor else getattr(term, "node", None)
