"""Operations in patterns: sums over axes, elementwise functions, functions along an axis, nodes compared as a whole."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from jax import lax

from ..ir.region import Node
from ..normalize import Cursor
from ..normalize.functions import COMMUTATIVE, params_key
from ..normalize.index import fresh, labels_of, resolve
from ..normalize.terms import Along, Fn, Iota, Result, Sum
from . import loops

if TYPE_CHECKING:
    from .unify import Unifier

_TAKEN = "an operation that already plays another part of the pattern"


def match_sum_over_axes(u: Unifier, p: Sum, q: Sum) -> Iterator[None]:
    """Two sums over axes; which axis is which follows from their bodies."""
    if not u.claim(_part(p), _where(q)):
        u.fail(p, q, _TAKEN)
    elif not _same_static(u, p.node, q.node):
        u.fail(p, q, "other parameters")
    elif u.fixed is None:
        u.append(u.evidence, (list(p.labels), list(q.labels)))
        yield from u.unify(p.body, q.body)
    elif math.prod(a.size for a in p.labels) != math.prod(a.size for a in q.labels):
        u.fail(p, q, "a sum over another number of elements")
    elif _precision(p.node) < _precision(q.node):
        u.fail(p, q, "a product in higher precision")
    else:
        yield from u.unify(p.body, q.body)


def _part(term: Sum) -> tuple:
    """A sum of the pattern, by its offsets: each result reads it along axes of its own."""
    return id(term.node), tuple(offset for offset, _ in term.index)


def _where(term: Sum) -> tuple:
    return id(term.node), tuple(resolve(i) for i in term.index)


def _precision(node: Node | None) -> int:
    """How precise a matrix product is asked to be: 0 default, 1 high, 2 highest."""
    found = node.params.get("precision") if node is not None else None
    ranks: dict[Any, int] = {lax.Precision.DEFAULT: 0, lax.Precision.HIGH: 1, lax.Precision.HIGHEST: 2}
    both = found if isinstance(found, tuple) else (found,)
    return min(ranks.get(p, 0) for p in both)


def match_function(u: Unifier, p: Fn, q: Fn) -> Iterator[None]:
    """Two elementwise functions."""
    if p.name != q.name or p.params != q.params or len(p.args) != len(q.args):
        u.fail(p, q)
        return
    yield from u.all(list(zip(p.args, q.args)))
    if p.name in COMMUTATIVE and len(p.args) == 2:
        yield from u.all(list(zip(p.args, reversed(q.args))))


def match_along(u: Unifier, p: Along, q: Along) -> Iterator[None]:
    """Two functions along an axis (maximum, sort, top-k)."""
    same = p.name == q.name and p.result == q.result and len(p.args) == len(q.args)
    if not same or not _same_params(u, p.name, p.params, q.params):
        u.fail(p, q)
        return
    if u.fixed is not None and p.inner.size != q.inner.size:
        u.fail(p, q, "another length")
        return
    u.set(u.partners, id(p.node), q.node)
    if p.outer is not None and not u.note((p.outer,), (q.outer,)):
        u.fail(p, q, "another element of the result")
        return
    if u.fixed is None:
        u.append(u.evidence, ([p.inner], [q.inner]))
    elif p.inner is not q.inner:
        u.set(u.labels, p.inner, q.inner)
    yield from u.all(list(zip(p.args, q.args)))


def match_position(u: Unifier, p: Iota, q: Iota) -> Iterator[None]:
    """Two positions along an axis."""
    if u.note((p.index,), (q.index,)):
        yield
    else:
        u.fail(p, q, "another position")


# ---------------------------------------------------------------- nodes compared as a whole
def match_result(u: Unifier, p: Result, q: Result) -> Iterator[None]:
    """Results of loops, Ops and everything that is not opened."""
    if p.node.primitive != q.node.primitive:
        u.fail(p, q)
    elif p.node.primitive == "scan":
        yield from loops.match_scan(u, p, q)
    elif p.result != q.result or not _same_whole(u, p.node, q.node):
        u.fail(p, q, f"{q.node.primitive} with other parameters")
    elif not u.claim((id(p.node), None), (id(q.node), None)):
        u.fail(p, q, _TAKEN)
    elif len(p.index) != len(q.index) or not all(u.note((a,), (b,)) for a, b in zip(p.index, q.index)):
        u.fail(p, q, "another element of the result")
    elif (id(p.node), id(q.node)) in u.wholes:
        yield
    else:
        yield from _match_operands(u, p, q)


def _match_operands(u: Unifier, p: Result, q: Result) -> Iterator[None]:
    """Operands of nodes that are compared as a whole correspond dimension by dimension."""
    if len(p.node.inputs) != len(q.node.inputs) or p.node.children() or q.node.children():
        u.fail(p, q, "other operands")
        return
    u.set(u.wholes, (id(p.node), id(q.node)), True)
    u.set(u.partners, id(p.node), q.node)
    pairs = []
    for a, b in zip(p.node.inputs, q.node.inputs):
        if len(a.aval.shape) != len(b.aval.shape) or (u.fixed is not None and a.aval.shape != b.aval.shape):
            u.fail(p, q, "an operand of another shape")
            return
        index = fresh(a.aval.shape)
        other = index if u.fixed is not None else fresh(b.aval.shape)
        if u.fixed is None:
            for i, j in zip(index, other):
                u.append(u.evidence, (labels_of((i,)), labels_of((j,))))
        pairs.append((Cursor(a, index, p.frame), Cursor(b, other, q.frame)))
    yield from u.all(pairs)


# ---------------------------------------------------------------- parameters
def _same_static(u: Unifier, p: Node | None, q: Node | None) -> bool:
    """Parameters that the rule captures are noted; the others of a sum are settled by its index notation."""
    if p is None or q is None:
        return True
    if p.primitive != q.primitive:
        return all(primitive != p.primitive for primitive, _ in u.statics)  # the parameter has nowhere to come from
    return all(
        u.capture(name, q.params.get(param))
        for (primitive, param), name in u.statics.items()
        if primitive == q.primitive
    )


def _same_whole(u: Unifier, p: Node, q: Node) -> bool:
    a, b = p.params.get("op"), q.params.get("op")
    if a is not None and b is not None and hasattr(a, "static") and hasattr(b, "static"):
        same = (a.op, a.in_tree, a.vmaps) == (b.op, b.in_tree, b.vmaps)
        return same and _same_params(u, p.primitive, a.static, b.static)
    return _same_params(u, p.primitive, params_key(p.params), params_key(q.params))


def _same_params(u: Unifier, primitive: str, p: tuple, q: tuple) -> bool:
    ours, theirs = dict(p), dict(q)
    for param in ours.keys() | theirs.keys():
        name: Any = u.statics.get((primitive, param))
        if name is not None:
            if not u.capture(name, theirs.get(param)):
                return False
        elif ours.get(param) != theirs.get(param):
            return False
    return True
