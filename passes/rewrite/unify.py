"""Unify: search for a way in which a program's term is an instance of a pattern's term.

Both sides are opened lazily through the views (passes/normalize). A pattern input is a variable; it binds a program
value at an index. The search backtracks over operand order and over the grouping of factors and addends, and yields
every solution in turn; the caller checks more and asks for the next if it is not content.

Two uses. *Finding* is lenient about numbers and axes: those are settled after (align.py) and proved (prove.py).
*Comparing* (`fixed`) has every pattern input tied to one program value and demands equal indices and equal numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from ..ir.jaxprs import Literal
from ..ir.region import Node, Value
from ..normalize import Cursor, chain
from ..normalize.flatten import open_head, whole_product, whole_sum
from ..normalize.functions import COMMUTATIVE, params_key, same_number
from ..normalize.index import Index, Label, fresh, labels_of, resolve
from ..normalize.terms import Add, Along, Const, Fn, Iota, Leaf, Prod, Result, Sum, Term
from . import groups, loops

STEPS = 20_000  # a search that needs more is given up; the report says so


class OutOfSteps(Exception):
    """The search space of one anchor was larger than `STEPS`."""


class Occurrence(NamedTuple):
    """A pattern variable met at a pattern index, and the program cursors (outermost first) it may stand for."""

    index: tuple[Index, ...]
    levels: tuple[Cursor, ...]


class Mismatch(NamedTuple):
    """Where a search stopped: what was wanted and what stood there; `depth` counts what had matched by then."""

    depth: int
    wanted: str
    found: str
    node: Node | None


class Unifier:
    """State of one search. All changes go through a trail, so that a dead end leaves nothing behind."""

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
        self.statics = statics or {}  # (primitive, parameter) -> captured name
        self.bindings: dict[int, list[Occurrence]] = {}
        self.captured: dict[str, Any] = {}
        self.evidence: list[tuple[list[Label], list[Label]]] = []
        self.pairs: dict[Any, Any] = {}  # program node read at an index -> pattern node read at an index
        self.scans: dict[int, loops.ScanPair] = {}  # id(pattern scan) -> pair
        self.partners: dict[int, Node] = {}  # id(pattern node) -> program node that plays it
        self.wholes: dict[tuple[int, int], bool] = {}  # node pairs compared as a whole
        self.labels: dict[Label, Label] = {}  # when comparing: pattern sum axis -> program sum axis
        self.trail: list = []
        self.steps = self.depth = 0
        self.best: Mismatch | None = None
        self._explain = explain

    # ------------------------------------------------------------ state
    def set(self, table: dict, k, value) -> None:
        self.trail.append((table, k, table.get(k, self)))
        table[k] = value

    def _undo(self, mark: int) -> None:
        while len(self.trail) > mark:
            table, k, old = self.trail.pop()
            if table is None:
                k.pop()
            elif old is self:
                del table[k]
            else:
                table[k] = old

    def _append(self, items: list, value) -> None:
        items.append(value)
        self.trail.append((None, items, None))

    def fail(self, p: Term, q: Term, why: str = "") -> None:
        if self._explain and (self.best is None or self.depth >= self.best.depth):
            self.best = Mismatch(self.depth, describe(p), why or describe(q), node_of(q))

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
        self._undo(mark)

    def all(self, pairs: list[tuple[Term, Term]]) -> Iterator[None]:
        """Every way to match a list of pairs together."""
        if not pairs:
            yield
            return
        for _ in self.unify(*pairs[0]):
            yield from self.all(pairs[1:])

    def _heads(self, p: Term, q: Term) -> Iterator[None]:
        ph = open_head(p, self.views)
        if type(ph) is Leaf and type(ph.cursor.atom) is Value and ph.cursor.atom.role[0] == "input":
            yield from self._leaf(ph.cursor, q)
            return
        qh = open_head(q, self.views)
        kind, other = type(ph), type(qh)
        if kind is Leaf:
            yield from self._constant_array(ph, qh)
        elif kind is Const:
            if other is Const and self.number(ph.value, qh.value):
                yield
            elif other is not Const:
                self.fail(p, q)
        elif kind is Prod or (other is Prod and kind is not Add):
            yield from self._product(p, q)
        elif kind is Add:
            if other in (Add, Prod):
                yield from self._sum_of(p, q)
            else:
                self.fail(p, q)
        elif kind is not other:
            self.fail(p, q)
        else:
            yield from _HEADS[kind](self, ph, qh)

    def number(self, wanted: float, found: float) -> bool:
        if self.fixed is not None:
            if not same_number(wanted, found):
                self.fail(Const(wanted), Const(found))
                return False
            return True
        return (wanted == 0) == (found == 0) and (wanted < 0) == (found < 0)

    # ------------------------------------------------------------ variables
    def _leaf(self, p: Cursor, q: Term) -> Iterator[None]:
        if p.frame is not None and p.atom.role[0] == "input":
            yield from loops.match_carry(self, p, q)
            return
        if p.atom in self.capture_names:
            head = open_head(q, self.views)
            if type(head) is Const and self.capture(self.capture_names[p.atom], head.value):
                yield
            else:
                self.fail(p, q, "a value where a literal number is captured")
            return
        slot = self.variables.get(p.atom)
        if slot is None or type(q) is not Cursor:
            self.fail(p, q, "a value that no single array of the program holds" if slot is not None else "")
            return
        if self.fixed is not None:
            yield from self._fixed_leaf(p, q)
        else:
            yield from self._bind(slot, p, q)

    def _constant_array(self, p: Leaf, q: Term) -> Iterator[None]:
        if type(q) is Leaf and same_array(array_of(p), array_of(q)) and self.note(p.cursor.index, q.cursor.index):
            yield
        else:
            self.fail(p, q)

    def capture(self, name: str, value) -> bool:
        old = self.captured.get(name, self)
        if old is self:
            self.set(self.captured, name, value)
            return True
        return old == value or (isinstance(value, float) and isinstance(old, float) and same_number(old, value))

    def _bind(self, slot: int, p: Cursor, q: Cursor) -> Iterator[None]:
        levels = tuple(c for c in _unrounded(chain(q, self.views)) if c.frame is None and type(c.atom) is Value)
        seen = self.bindings.setdefault(slot, [])
        if seen:
            first = {id(c.atom): c.index for c in seen[0].levels}
            levels = tuple(
                c for c in levels if id(c.atom) in first and _moved_alike(seen[0].index, p.index, first[id(c.atom)], c.index)
            )
        if not levels:
            self.fail(p, q, "another value than the one this argument is bound to" if seen else "")
            return
        self._append(seen, Occurrence(p.index, levels))
        yield
        # `unify` restores the trail

    def _fixed_leaf(self, p: Cursor, q: Cursor) -> Iterator[None]:
        assert self.fixed is not None
        wanted, mark = self.fixed[p.atom], len(self.trail)
        for level in chain(q, self.views):
            if level.atom is wanted and level.frame is None:
                if self._same_indices(p.index, level.index):
                    yield
                    return
                self._undo(mark)
        self.fail(p, q, "another element of the argument, or another argument")

    # ------------------------------------------------------------ indices
    def _same_indices(self, p_index, q_index) -> bool:
        return len(p_index) == len(q_index) and all(self._same_index(a, b) for a, b in zip(p_index, q_index))

    def _same_index(self, p: Index, q: Index) -> bool:
        """Equal indices, tying axes that are summed on both sides to each other, split alike."""
        for _ in range(16):
            p, q = resolve(p), resolve(q)
            if p[0] != q[0] or len(p[1]) > len(q[1]) + 16:
                return False
            p_terms = [(self._root(label), s) for label, s in p[1]]
            q_terms = list(q[1])
            rest_p = [t for t in p_terms if t not in q_terms]
            rest_q = [t for t in q_terms if t not in p_terms]
            if not rest_p and not rest_q:
                return True
            if not rest_p or not rest_q or not self._tie(min(rest_p, key=_stride), min(rest_q, key=_stride)):
                return False
        return False

    def _root(self, label: Label) -> Label:
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

    def note(self, p_index, q_index) -> bool:
        """Axes of these indices correspond, in some order: equal ones when comparing, evidence when finding."""
        if self.fixed is not None:
            return self._same_indices(p_index, q_index)
        self._append(self.evidence, (labels_of(p_index), labels_of(q_index)))
        return True

    def _claim(self, p_key, q_key) -> bool:
        """Two operations of a pattern are never one operation of the program."""
        old = self.pairs.get(q_key, self)
        if old is self:
            self.set(self.pairs, q_key, p_key)
            return True
        return old == p_key

    # ------------------------------------------------------------ heads
    def _sum(self, p: Sum, q: Sum) -> Iterator[None]:
        if not self._claim(_where(p), _where(q)):
            self.fail(p, q, "an operation that already plays another part of the pattern")
            return
        if not self._static(p.node, q.node):
            self.fail(p, q, "other parameters")
            return
        if self.fixed is None:
            self._append(self.evidence, (list(p.labels), list(q.labels)))
        elif _size(p.labels) != _size(q.labels):
            self.fail(p, q, "a sum over another number of elements")
            return
        yield from self.unify(p.body, q.body)

    def _fn(self, p: Fn, q: Fn) -> Iterator[None]:
        if p.name != q.name or p.params != q.params or len(p.args) != len(q.args):
            self.fail(p, q)
            return
        yield from self.all(list(zip(p.args, q.args)))
        if p.name in COMMUTATIVE and len(p.args) == 2:
            yield from self.all(list(zip(p.args, reversed(q.args))))

    def _along(self, p: Along, q: Along) -> Iterator[None]:
        same = p.name == q.name and p.result == q.result and len(p.args) == len(q.args)
        if not same or not self._params(p.name, p.params, q.params):
            self.fail(p, q)
            return
        if self.fixed is not None and p.inner.size != q.inner.size:
            self.fail(p, q, "another length")
            return
        self.set(self.partners, id(p.node), q.node)
        if p.outer is not None and not self.note((p.outer,), (q.outer,)):
            self.fail(p, q, "another element of the result")
            return
        if self.fixed is None:
            self._append(self.evidence, ([p.inner], [q.inner]))
        elif p.inner is not q.inner:
            self.set(self.labels, p.inner, q.inner)
        yield from self.all(list(zip(p.args, q.args)))

    def _iota(self, p: Iota, q: Iota) -> Iterator[None]:
        if self.note((p.index,), (q.index,)):
            yield
        else:
            self.fail(p, q, "another position")

    def _result(self, p: Result, q: Result) -> Iterator[None]:
        if p.node.primitive != q.node.primitive:
            self.fail(p, q)
        elif p.node.primitive == "scan":
            yield from loops.match_scan(self, p, q)
        elif p.result != q.result or not self._static(p.node, q.node, whole=True):
            self.fail(p, q, f"{describe(q)} with other parameters")
        elif not self._claim((id(p.node), None), (id(q.node), None)):
            self.fail(p, q, "an operation that already plays another part of the pattern")
        elif self._note_each(p.index, q.index):
            yield from self._whole(p, q)
        else:
            self.fail(p, q, "another element of the result")

    def _note_each(self, p_index, q_index) -> bool:
        return len(p_index) == len(q_index) and all(self.note((a,), (b,)) for a, b in zip(p_index, q_index))

    def _whole(self, p: Result, q: Result) -> Iterator[None]:
        """Operands of nodes that are compared as a whole correspond dimension by dimension."""
        if (id(p.node), id(q.node)) in self.wholes:
            yield
            return
        if len(p.node.inputs) != len(q.node.inputs) or p.node.children() or q.node.children():
            self.fail(p, q, "other operands")
            return
        self.set(self.wholes, (id(p.node), id(q.node)), True)
        self.set(self.partners, id(p.node), q.node)
        pairs = []
        for a, b in zip(p.node.inputs, q.node.inputs):
            if len(a.aval.shape) != len(b.aval.shape):
                self.fail(p, q, "an operand of another rank")
                return
            pc = Cursor(a, fresh(a.aval.shape), p.frame)
            qc = Cursor(b, pc.index if self._shares_axes(a, b) else fresh(b.aval.shape), q.frame)
            if self.fixed is None:
                for i, j in zip(pc.index, qc.index):
                    self._append(self.evidence, (labels_of((i,)), labels_of((j,))))
            elif a.aval.shape != b.aval.shape:
                self.fail(p, q, "an operand of another shape")
                return
            pairs.append((pc, qc))
        yield from self.all(pairs)

    def _shares_axes(self, a, b) -> bool:
        return self.fixed is not None and a.aval.shape == b.aval.shape

    def _static(self, p: Node | None, q: Node | None, whole: bool = False) -> bool:
        """Parameters of two nodes agree; those that the rule captures are noted instead."""
        if p is None or q is None:
            return True
        if hasattr(p.params.get("op"), "static") and p.primitive == q.primitive:
            return self._signatures(p, q)
        if not whole and p.primitive != q.primitive:
            return all(name != p.primitive for name, _ in self.statics)  # a sum written as another primitive
        if whole:
            return self._params(p.primitive, params_key(p.params), params_key(q.params))
        return all(
            self.capture(name, q.params.get(param)) for (prim, param), name in self.statics.items() if prim == q.primitive
        )

    def _signatures(self, p: Node, q: Node) -> bool:
        a, b = p.params["op"], q.params["op"]
        if (a.op, a.in_tree, a.vmaps) != (b.op, b.in_tree, b.vmaps):
            return False
        return self._params(p.primitive, a.static, b.static)

    def _params(self, primitive: str, p: tuple, q: tuple) -> bool:
        p_dict, q_dict = dict(p), dict(q)
        for param in p_dict.keys() | q_dict.keys():
            name = self.statics.get((primitive, param))
            if name is not None:
                if not self.capture(name, q_dict.get(param)):
                    return False
            elif p_dict.get(param) != q_dict.get(param):
                return False
        return True

    # ------------------------------------------------------------ products and sums
    def _product(self, p: Term, q: Term) -> Iterator[None]:
        yield from groups.match_product(self, whole_product(p, self.views), q)

    def _sum_of(self, p: Term, q: Term) -> Iterator[None]:
        yield from groups.match_sum(self, whole_sum(p, self.views), q)


_HEADS: dict[type, Any] = {
    Sum: Unifier._sum,
    Fn: Unifier._fn,
    Along: Unifier._along,
    Iota: Unifier._iota,
    Result: Unifier._result,
}


def _unrounded(levels: list[Cursor]) -> Iterator[Cursor]:
    """Levels of a chain up to the first cast that rounds: an argument is never read from behind a rounding."""
    for level in levels:
        yield level
        node = level.node
        if node is not None and is_rounding(node):
            return


def is_rounding(node: Node) -> bool:
    """Whether a node casts floats to a narrower type."""
    if node.primitive != "convert_element_type":
        return False
    old, new = node.inputs[0].aval.dtype, node.params["new_dtype"]
    return jnp.issubdtype(old, jnp.floating) and jnp.finfo(new).nmant < jnp.finfo(old).nmant


def _moved_alike(p_first, p_now, q_first, q_now) -> bool:
    """Two reads of one argument are apart by the same offsets, and as wide, in the pattern and in the program."""

    def apart(a, b):
        return sorted(j[0] - i[0] for i, j in zip(a, b) if j[0] != i[0])

    same_width = all(_span(a) == _span(b) for a, b in zip(q_first, q_now))
    return same_width and apart(p_first, p_now) == apart(q_first, q_now)


def _span(index: Index) -> int:
    return sum(stride * (label.size - 1) for label, stride in index[1])


def array_of(leaf: Leaf):
    """The array of a constant leaf; None when it is no constant."""
    atom = leaf.cursor.atom
    if type(atom) is Literal:
        return atom.val
    return atom.role[1] if atom.node is None and atom.role[0] == "const" else None


def same_array(a, b) -> bool:
    """Whether two constants are one array, or equal ones."""
    if a is None or b is None:
        return False
    return a is b or (np.shape(a) == np.shape(b) and bool(np.array_equal(np.asarray(a), np.asarray(b))))


def _stride(term: tuple[Label, int]) -> int:
    return term[1]


def _size(labels) -> int:
    total = 1
    for label in labels:
        total *= label.size
    return total


def _where(term: Sum):
    return (id(term.node), tuple(resolve(i) for i in term.index))


def node_of(term: Term) -> Node | None:
    """The program node a term ends in, for messages."""
    if type(term) is Cursor:
        return term.node
    return getattr(term, "node", None)


def describe(term: Term) -> str:
    """A term's head in a few words, for messages."""
    if type(term) is Cursor:
        node = term.node
        return node.primitive if node is not None else "an input"
    if type(term) is Const:
        return f"the number {term.value:g}"
    if type(term) in (Fn, Along):
        return term.name
    if type(term) is Result:
        return term.node.primitive
    return {Prod: "a product", Add: "a sum", Sum: "a sum over an axis", Iota: "a position", Leaf: "an input"}[type(term)]
