"""Unify: search for a way in which a program's term is an instance of a pattern's term.

Both sides are opened lazily through the views (passes/normalize). A pattern input is a variable; it binds a program
array at an index. The search backtracks over operand order and over the grouping of factors and addends, and yields
every solution in turn; the caller checks more and asks for the next if it is not content.

Two uses. *Finding* is lenient about numbers and axes: those are settled after (align.py) and proved (prove.py).
*Comparing* (`fixed`) has every pattern input tied to one program value and demands equal indices and equal numbers.

The cases by kind of term: leaves.py, operations.py, groups.py (products and sums), loops.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..ir.region import Node, Value
from ..normalize import Cursor
from ..normalize.flatten import open_head, whole_product, whole_sum
from ..normalize.functions import same_number
from ..normalize.index import Index, Label, labels_of, resolve
from ..normalize.terms import Add, Along, Const, Fn, Iota, Leaf, Prod, Result, Sum, Term
from ..normalize.written_out import written_out
from . import groups, leaves, loops, operations
from .mismatch import Mismatch, describe, node_of

STEPS = 20_000  # a search that needs more is given up; the report says so


class OutOfSteps(Exception):
    """The search space of one anchor was larger than `STEPS`."""


class Unifier:
    """State of one search. All changes go through a trail, so that a dead end leaves nothing behind.

    Args:
        variables: pattern input -> position among the arguments.
        views: equations that may be used.
        captures: pattern input -> keyword whose number it stands for.
        statics: (primitive, parameter) -> keyword that captures it.
        fixed: when comparing, pattern input -> the program value it is.
        explain: keep the deepest mismatch.
    """

    def __init__(
        self,
        variables: dict[Value, int],
        views: frozenset[str],
        *,
        captures: dict[Value, str] | None = None,
        statics: dict[tuple[str, str], str] | None = None,
        fixed: dict[Value, Value] | None = None,
        explain: bool = False,
    ):
        self.variables, self.views, self.fixed = variables, views, fixed
        self.capture_names = captures or {}
        self.statics = statics or {}
        self.bindings: dict[int, list[leaves.Occurrence]] = {}
        self.captured: dict[str, Any] = {}
        self.evidence: list[tuple[list[Label], list[Label]]] = []
        self.pairs: dict[Any, Any] = {}  # program node read at an index -> pattern node read at an index
        self.scans: dict[int, loops.ScanPair] = {}  # id(pattern scan) -> pair
        self.partners: dict[int, Node] = {}  # id(pattern node) -> program node that plays it
        self.wholes: dict[tuple[int, int], bool] = {}  # node pairs compared as a whole
        self.other_numbers: list[tuple[float, float]] = []  # when finding: pattern's and program's, where they differ
        self.labels: dict[Label, Label] = {}  # when comparing: pattern sum axis -> program sum axis
        self.trail: list = []
        self.steps = self.depth = 0
        self.best: Mismatch | None = None
        self.explain = explain

    # ------------------------------------------------------------ state
    def set(self, table: dict, k, value) -> None:
        """Set a table's entry, to be undone when the search turns back."""
        self.trail.append((table, k, table.get(k, self)))
        table[k] = value

    def append(self, items: list, value) -> None:
        """Append to a list, to be undone when the search turns back."""
        items.append(value)
        self.trail.append((None, items, None))

    def undo(self, mark: int) -> None:
        """Take back all changes since the trail had this length."""
        while len(self.trail) > mark:
            table, k, old = self.trail.pop()
            if table is None:
                k.pop()
            elif old is self:
                del table[k]
            else:
                table[k] = old

    def fail(self, p: Term, q: Term, why: str = "") -> None:
        """Note a dead end, when explaining."""
        if self.explain and (self.best is None or self.depth > self.best.depth):
            argument = self.variables.get(p.atom) if type(p) is Cursor and type(p.atom) is Value else None
            wanted, found = describe(p), why or describe(q)
            found = f"{found} of another kind" if found == wanted else found
            self.best = Mismatch(self.depth, wanted, found, node_of(q), argument)

    # ------------------------------------------------------------ search
    def unify(self, p: Term, q: Term) -> Iterator[None]:
        """Yield once per way to match; state holds the match while suspended and is restored after."""
        self.steps += 1
        if self.steps > STEPS:
            raise OutOfSteps
        mark = len(self.trail)
        self.depth += 1
        for _ in self._heads(p, q):
            yield
        self.depth -= 1
        self.undo(mark)

    def all(self, pairs: list[tuple[Term, Term]]) -> Iterator[None]:
        """Every way to match a list of pairs together."""
        if not pairs:
            yield
            return
        for _ in self.unify(*pairs[0]):
            yield from self.all(pairs[1:])

    def _heads(self, p: Term, q: Term) -> Iterator[None]:
        ph = open_head(p, self.views)
        kind = type(ph)
        if self.fixed is None and kind in (Add, Prod) and ph.node is not None:
            self._pair_nodes(ph, q)
        if kind is Leaf and type(ph.cursor.atom) is Value and ph.cursor.atom.role[0] == "input":
            match = loops.match_carry if ph.cursor.frame is not None else leaves.match_argument
            yield from match(self, ph.cursor, q)
            return
        qh = open_head(q, self.views)
        other = type(qh)
        if kind is Leaf:
            yield from leaves.match_constant_array(self, ph, qh)
        elif kind is Const:
            if other is Const and self.number(ph.value, qh.value):
                yield
            elif other is not Const:
                self.fail(p, q)
        elif kind is Prod or (other is Prod and kind is not Add):
            yield from groups.match_product(self, whole_product(p, self.views), q)
        elif kind is Add and other in (Add, Prod):
            yield from groups.match_sum(self, whole_sum(p, self.views), q)
        elif kind is Add and other is Sum and (addends := written_out(qh)) is not None:
            yield from self._in_order(whole_sum(p, self.views), addends)
        elif kind is Add or kind is not other:
            self.fail(p, q)
        else:
            yield from _OPERATIONS[kind](self, ph, qh)

    def _in_order(self, pattern: tuple[float, list], q: Add) -> Iterator[None]:
        """A sum over an axis, written out: its addends stand in the order of the axis, as a convolution's taps do."""
        constant, addends = pattern
        if constant == 0.0 and len(addends) == len(q.addends) and all(c == 1.0 for c, _ in addends):
            yield from self.all([(p, t) for (_, p), (_, t) in zip(addends, q.addends)])

    def _pair_nodes(self, ph: Term, q: Term) -> None:
        """Note which node plays a sum or a product of the pattern: another result may lie there or near it."""
        node = node_of(open_head(q, self.views))
        if node is not None:
            self.set(self.partners, id(ph.node), node)

    # ------------------------------------------------------------ what the cases share
    def number(self, wanted: float, found: float) -> bool:
        """Equal numbers when comparing; when finding, of one sign and both zero or not: numbers may follow from sizes.

        It may write the trail: the caller takes that back.
        """
        if self.fixed is None:
            if (wanted == 0) != (found == 0) or (wanted < 0) != (found < 0):
                return False
            if not same_number(wanted, found):
                self.append(self.other_numbers, (wanted, found))
            return True
        if not same_number(wanted, found):
            self.fail(Const(wanted), Const(found))
            return False
        return True

    def capture(self, name: str, value) -> bool:
        """Bind a captured keyword; False when it is bound to something else."""
        old = self.captured.get(name, self)
        if old is self:
            self.set(self.captured, name, value)
            return True
        return old == value or (isinstance(value, float) and isinstance(old, float) and same_number(old, value))

    def claim(self, p_key, q_key) -> bool:
        """Two operations of a pattern are never one operation of the program."""
        old = self.pairs.get(q_key, self)
        if old is self:
            self.set(self.pairs, q_key, p_key)
            return True
        return old == p_key

    def note(self, p_index, q_index) -> bool:
        """Axes of these indices correspond, in some order: equal ones when comparing, evidence when finding."""
        if self.fixed is not None:
            return self.same_indices(p_index, q_index)
        self.append(self.evidence, (labels_of(p_index), labels_of(q_index)))
        return True

    # ------------------------------------------------------------ comparing indices
    def same_indices(self, p_index, q_index) -> bool:
        """Equal indices, dimension by dimension."""
        return len(p_index) == len(q_index) and all(self._same_index(a, b) for a, b in zip(p_index, q_index))

    def _same_index(self, p: Index, q: Index) -> bool:
        """Equal indices, tying axes that are summed on both sides to each other, split alike."""
        for _ in range(16):
            p, q = resolve(p), resolve(q)
            if p[0] != q[0]:
                return False
            p_terms, q_terms = [(self._tied(label), s) for label, s in p[1]], list(q[1])
            rest_p = [t for t in p_terms if t not in q_terms]
            rest_q = [t for t in q_terms if t not in p_terms]
            if not rest_p and not rest_q:
                return True
            if not rest_p or not rest_q or not self._tie(min(rest_p, key=_stride), min(rest_q, key=_stride)):
                return False
        return False

    def _tied(self, label: Label) -> Label:
        while label in self.labels and label.parts is None:
            label = self.labels[label]
        return label

    def _tie(self, p: tuple[Label, int], q: tuple[Label, int]) -> bool:
        (a, stride_a), (b, stride_b) = p, q
        if stride_a != stride_b:
            return False
        if a.size == b.size:
            if b in self.labels.values():
                return False
            self.set(self.labels, a, b)
            return True
        big, small = (a, b) if a.size > b.size else (b, a)
        return big.split(small.size) is not None


def _stride(term: tuple[Label, int]) -> int:
    return term[1]


_OPERATIONS: dict[type, Any] = {
    Sum: operations.match_sum_over_axes,
    Fn: operations.match_function,
    Along: operations.match_along,
    Iota: operations.match_position,
    Result: operations.match_result,
}
