"""Leaves of patterns: arguments bind program arrays, captured parameters bind numbers, constants are compared."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import jax.numpy as jnp
import numpy as np

from ..ir.jaxprs import Literal
from ..ir.region import Node, Value
from ..normalize import Cursor, chain
from ..normalize.flatten import open_head
from ..normalize.index import Index
from ..normalize.terms import Const, Leaf, Term

if TYPE_CHECKING:
    from .unify import Unifier


class Occurrence(NamedTuple):
    """An argument met at a pattern index, and the program cursors (outermost first) it may be read from."""

    index: tuple[Index, ...]
    levels: tuple[Cursor, ...]


def match_argument(u: Unifier, p: Cursor, q: Term) -> Iterator[None]:
    """An input of the pattern: a captured number, or an argument."""
    name = u.capture_names.get(p.atom)
    if name is not None:
        head = open_head(q, u.views)
        if type(head) is Const and u.capture(name, head.value):
            yield
        else:
            u.fail(p, q, "a value where a literal number is captured")
    elif type(q) is not Cursor:
        u.fail(p, q, "a value that no single array of the program holds")
    elif u.fixed is not None:
        yield from _compare(u, p, q, u.fixed[p.atom])
    else:
        yield from _bind(u, u.variables[p.atom], p, q)


def _bind(u: Unifier, slot: int, p: Cursor, q: Cursor) -> Iterator[None]:
    levels = tuple(
        c
        for c in _unrounded(chain(q, u.views))
        if c.frame is None and type(c.atom) is Value and (c.padded or not p.padded)
    )
    seen = u.bindings.setdefault(slot, [])
    if seen:
        first = {id(c.atom): c.index for c in seen[0].levels}
        levels = tuple(
            c
            for c in levels
            if id(c.atom) in first and _moved_alike(seen[0].index, p.index, first[id(c.atom)], c.index)
        )
    if not levels:
        if seen:
            made = q if q.node is not None else seen[0].levels[0]  # whichever of the two is computed
            u.fail(p, made, "another value than the one this argument is bound to")
        else:
            u.fail(p, q, "no array of this region")
        return
    u.append(seen, Occurrence(p.index, levels))
    yield


def _compare(u: Unifier, p: Cursor, q: Cursor, wanted: Value) -> Iterator[None]:
    mark = len(u.trail)
    for level in chain(q, u.views):
        if level.atom is wanted and level.frame is None:
            if u.same_indices(p.index, level.index):
                yield
                return
            u.undo(mark)
    u.fail(p, q, "another element of the argument, or another argument")


def match_constant_array(u: Unifier, p: Leaf, q: Term) -> Iterator[None]:
    """A constant array in the pattern: an equal one, read alike."""
    same = type(q) is Leaf and _same_array(_array_of(p), _array_of(q))
    if same and u.note(p.cursor.index, q.cursor.index):
        yield
    else:
        u.fail(p, q)


def _array_of(leaf: Leaf):
    atom = leaf.cursor.atom
    if type(atom) is Literal:
        return atom.val
    return atom.role[1] if atom.node is None and atom.role[0] == "const" else None


def _same_array(a, b) -> bool:
    if a is None or b is None:
        return False
    return a is b or (np.shape(a) == np.shape(b) and bool(np.array_equal(np.asarray(a), np.asarray(b))))


# ---------------------------------------------------------------- what an argument may be read from
def _unrounded(levels: list[Cursor]) -> Iterator[Cursor]:
    """Levels of a chain up to the first cast that rounds: an argument is never read from behind a rounding."""
    for level in levels:
        yield level
        if level.node is not None and is_rounding(level.node):
            return


def is_rounding(node: Node) -> bool:
    """Whether a node casts floats to a narrower type."""
    if node.primitive != "convert_element_type":
        return False
    old, new = node.inputs[0].aval.dtype, node.params["new_dtype"]
    both = jnp.issubdtype(old, jnp.floating) and jnp.issubdtype(new, jnp.floating)
    return both and jnp.finfo(new).nmant < jnp.finfo(old).nmant


def _moved_alike(p_first, p_now, q_first, q_now) -> bool:
    """Two reads of one argument are apart by the same offsets, and as wide, in the pattern and in the program.

    Where no axis runs (taps), the program may count backwards: adapt.py turns the argument round.
    """

    def apart(a, b, sign=1):
        return sorted(sign * (j[0] - i[0]) for i, j in zip(a, b) if j[0] != i[0])

    same_width = all(_span(a) == _span(b) for a, b in zip(q_first, q_now))
    backwards = all(not j[1] for i, j in zip(q_first, q_now) if j[0] != i[0])
    steps = apart(p_first, p_now)
    return same_width and (steps == apart(q_first, q_now) or (backwards and steps == apart(q_first, q_now, -1)))


def _span(index: Index) -> int:
    return sum(stride * (label.size - 1) for label, stride in index[1])
