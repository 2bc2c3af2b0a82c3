"""Short sums over an axis, written out: `sum over k < 4 of f(k) = f(0) + f(1) + f(2) + f(3)`.

So an einsum over a window of tokens is the sum of products that a convolution is. It is done on demand, where a
pattern has a sum of addends and the program a sum over an axis.
"""

from __future__ import annotations

import itertools
import math

from .contractions import MAX_TAPS
from .cursor import Cursor, Frame
from .index import Index, Label, resolve
from .terms import Add, Along, Fn, Iota, Leaf, Prod, Result, Sum, Term

Places = dict[Label, int]  # unsplit axis -> where it stands


def written_out(head: Sum) -> Add | None:
    """A sum over axes as a sum of addends; None when it has more than `MAX_TAPS`."""
    if math.prod(label.size for label in head.labels) > MAX_TAPS:
        return None
    atoms = [atom for label in head.labels for atom in label.atoms()]
    places = itertools.product(*(range(atom.size) for atom in atoms))
    return Add(0.0, tuple((1.0, fixed_at(head.body, dict(zip(atoms, place)))) for place in places), head.node)


def fixed_at(term: Term, places: Places) -> Term:
    """A term with some axes fixed at one place each."""
    match term:
        case Cursor():
            return Cursor(term.atom, _indices(term.index, places), _frame(term.frame, places))
        case Prod():
            return term._replace(factors=tuple((fixed_at(t, places), e) for t, e in term.factors))
        case Add():
            return term._replace(addends=tuple((c, fixed_at(t, places)) for c, t in term.addends))
        case Sum():
            return term._replace(body=fixed_at(term.body, places), index=_indices(term.index, places))
        case Fn():
            return term._replace(args=tuple(fixed_at(t, places) for t in term.args))
        case Along():
            outer = None if term.outer is None else _index(term.outer, places)
            return term._replace(args=tuple(fixed_at(t, places) for t in term.args), outer=outer)
        case Iota():
            return term._replace(index=_index(term.index, places))
        case Leaf():
            return Leaf(fixed_at(term.cursor, places))
        case Result():
            return term._replace(index=_indices(term.index, places), frame=_frame(term.frame, places))
    return term


def _index(index: Index, places: Places) -> Index:
    offset, terms = resolve(index)
    offset += sum(stride * places[label] for label, stride in terms if label in places)
    return (offset, tuple((label, stride) for label, stride in terms if label not in places))


def _indices(indices, places: Places) -> tuple[Index, ...]:
    return tuple(_index(i, places) for i in indices)


def _frame(frame: Frame | None, places: Places) -> Frame | None:
    return None if frame is None else frame._replace(step=_index(frame.step, places), outer=_frame(frame.outer, places))
