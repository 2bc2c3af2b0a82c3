"""Loops in patterns: a scan matches a scan by its body; carries, constants and scanned inputs bind by dataflow.

A scan's result is read at a step. Scanned inputs and constants are transparent (normalize/cursor.py follows them to the
operand outside). A carry is met inside the body; meeting it pairs one carry of the pattern's loop with one of the
program's, and demands that their updates and their starting values match as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..ir.jaxprs import scan_parts
from ..ir.region import Node
from ..normalize import Cursor, Frame
from ..normalize.flatten import open_head
from ..normalize.index import Label, of_label
from ..normalize.terms import Leaf, Result, Term

if TYPE_CHECKING:
    from .unify import Unifier


class ScanPair:
    """A pattern loop matched to a program loop: which carry is which."""

    def __init__(self, node: Node):
        self.node = node
        self.carries: dict[int, int] = {}


def match_scan(u: Unifier, p: Result, q: Result) -> Iterator[None]:
    """Two results of scans."""
    parts_p, parts_q = scan_parts(p.node.eqn), scan_parts(q.node.eqn)
    if parts_p.reverse != parts_q.reverse or (u.fixed is not None and parts_p.length != parts_q.length):
        u.fail(p, q, "a loop of another length or direction")
        return
    pair = u.scans.get(id(p.node))
    if pair is None:
        pair = ScanPair(q.node)
        u.set(u.scans, id(p.node), pair)
        u.set(u.partners, id(p.node), q.node)
    if pair.node is not q.node or (p.result < parts_p.carry) != (q.result < parts_q.carry):
        u.fail(p, q, "a result of another loop")
        return
    if p.result < parts_p.carry:
        yield from _final_carry(u, pair, p, q)
        return
    if not u.note((p.index[0],), (q.index[0],)):
        u.fail(p, q, "another step of the loop")
        return
    p_frame, q_frame = _frame(p, p.index[0]), _frame(q, q.index[0])
    pc = Cursor(p_frame.body.outputs[p.result], p.index[1:], p_frame)
    yield from u.unify(pc, Cursor(q_frame.body.outputs[q.result], q.index[1:], q_frame))


def _frame(result: Result, step) -> Frame:
    return Frame(result.node, result.node.children()[0], step, result.frame)


def _final_carry(u: Unifier, pair: ScanPair, p: Result, q: Result) -> Iterator[None]:
    known = pair.carries.get(p.result)
    if (known is None and q.result in pair.carries.values()) or known not in (None, q.result):
        u.fail(p, q, "another carry of the loop")
        return
    step = of_label(Label(scan_parts(p.node.eqn).length))
    other = step if u.fixed is not None else of_label(Label(scan_parts(q.node.eqn).length))
    if known is None:
        u.set(pair.carries, p.result, q.result)
    if u.note((step,), (other,)):
        yield from _update_and_start(u, _frame(p, step), _frame(q, other), (p.result, q.result), p.index, q.index)


def _update_and_start(u: Unifier, p: Frame, q: Frame, carry: tuple[int, int], p_index, q_index) -> Iterator[None]:
    i, j = carry
    n_p, n_q = scan_parts(p.node.eqn).consts, scan_parts(q.node.eqn).consts
    update = (Cursor(p.body.outputs[i], p_index, p), Cursor(q.body.outputs[j], q_index, q))
    start = (Cursor(p.node.inputs[n_p + i], p_index, p.outer), Cursor(q.node.inputs[n_q + j], q_index, q.outer))
    yield from u.all([update, start])


def match_carry(u: Unifier, p: Cursor, q: Term) -> Iterator[None]:
    """A carry read in the body: the same carry of the paired loop and, at first sight, its update and its start."""
    pair = u.scans.get(id(p.frame.node))
    i = p.atom.role[1] - scan_parts(p.frame.node.eqn).consts
    head = open_head(q, u.views)
    leaf = head.cursor if type(head) is Leaf else None
    if pair is None or leaf is None or leaf.frame is None or leaf.frame.node is not pair.node:
        u.fail(p, q, "no carry of the loop")
        return
    j = leaf.atom.role[1] - scan_parts(leaf.frame.node.eqn).consts
    known = pair.carries.get(i)
    taken = j in pair.carries.values() if known is None else known != j
    if taken or not u.note(p.index, leaf.index):
        u.fail(p, q, "another carry of the loop")
        return
    if known is not None:
        yield
        return
    u.set(pair.carries, i, j)
    yield from _update_and_start(u, p.frame, leaf.frame, (i, j), p.index, leaf.index)
