"""A program's meaning in NumPy: every value of its regions, and the number a term of `passes/normalize` stands for.

Floats are float64 throughout, so that an equation between terms holds to the last digits or not at all. Only casts
round, and only when asked to. Reading outside an array gives zero, as the views define it.
"""

import dataclasses
import itertools
import math

import ml_dtypes
import numpy as np

from jaxsplice.passes.ir.jaxprs import Literal, scan_parts
from jaxsplice.passes.normalize import Cursor
from jaxsplice.passes.normalize.terms import Add, Along, Const, Fn, Iota, Leaf, Prod, Result, Sum

from . import numpy_primitives


def stored(value) -> np.ndarray:
    """An array with its floats as float64."""
    array = np.asarray(value)
    return array.astype(np.float64) if array.dtype.kind == "f" or array.dtype == ml_dtypes.bfloat16 else array


@dataclasses.dataclass
class Reading:
    """All values of one run of a region, and one Reading per step of each scan in it.

    Args:
        region: the region.
        args: its arguments.
        rounds: whether casts between floats round.
    """

    region: object
    args: list
    rounds: bool

    def __post_init__(self):
        self.values = dict(zip(self.region.inputs, map(stored, self.args), strict=True))
        self.values.update({v: stored(v.role[1]) for v in self.region.consts})
        self.steps: dict[int, dict[int, Reading]] = {}
        self.inside: dict[int, Reading] = {}
        for node in self.region.nodes:
            out = self._run(node, [self.of(a) for a in node.inputs])
            self.values.update(zip(node.outputs, out, strict=True))

    def of(self, atom) -> np.ndarray:
        """Array of a value or literal."""
        return stored(atom.val) if type(atom) is Literal else self.values[atom]

    @property
    def results(self) -> list:
        """Arrays that the region returns."""
        return [self.of(o) for o in self.region.outputs]

    def _run(self, node, inputs) -> list:
        if node.primitive == "scan":
            return self._scan(node, inputs)
        if node.children():
            self.inside[id(node)] = inner = Reading(node.children()[0], inputs, self.rounds)
            return inner.results
        return numpy_primitives.run(node.primitive, node.params, inputs, self.rounds)

    def _scan(self, node, inputs) -> list:
        parts, body = scan_parts(node.eqn), node.children()[0]
        consts, carry = inputs[: parts.consts], inputs[parts.consts : parts.consts + parts.carry]
        xs, steps = inputs[parts.consts + parts.carry :], self.steps.setdefault(id(node), {})
        for i in reversed(range(parts.length)) if parts.reverse else range(parts.length):
            steps[i] = Reading(body, [*consts, *carry, *(x[i] for x in xs)], self.rounds)
            carry = steps[i].results[: parts.carry]
        stacked = zip(*(steps[i].results[parts.carry :] for i in range(parts.length)))
        return [*carry, *map(np.stack, stacked)]


class Labels(dict):
    """The place of each axis; a part of a split axis follows from the whole."""

    def __missing__(self, label):
        if label.whole is label:
            raise KeyError(label)
        self._spread(label.whole, self[label.whole])
        return self[label]

    def _spread(self, label, place: int) -> None:
        self[label] = place
        if label.parts is not None:
            high, low = label.parts
            self._spread(high, place // low.size)
            self._spread(low, place % low.size)

    def number(self, index) -> int:
        """Value of an index."""
        return index[0] + sum(stride * self[label] for label, stride in index[1])

    def at(self, labels, places) -> "Labels":
        """The same with some whole axes placed."""
        out = Labels(self)
        for label, place in zip(labels, places):
            out._spread(label, place)
        return out


def read(reading: Reading, cursor: Cursor, labels: Labels):
    """The element a cursor points at; zero outside the array."""
    array = _frame(reading, cursor.frame, labels).of(cursor.atom)
    return element(array, [labels.number(i) for i in cursor.index])


def element(array, index):
    """An element of an array; zero outside."""
    assert len(index) == array.ndim
    inside = all(0 <= i < n for i, n in zip(index, array.shape))
    return array[tuple(index)] if inside else array.dtype.type(0)


def _frame(reading: Reading, frame, labels: Labels) -> Reading:
    if frame is None:
        return reading
    return _frame(reading, frame.outer, labels).steps[id(frame.node)][labels.number(frame.step)]


def evaluate(reading: Reading, term, labels: Labels):
    """The number a term stands for."""
    return _EVALUATE[type(term)](reading, term, labels)


def power(base, exponent):
    """A real power; not a number where there is none."""
    return base if exponent == 1.0 else np.power(np.float64(base), exponent)


def product(reading: Reading, coefficient, factors, labels: Labels):
    """coefficient * product of factor ** exponent."""
    return coefficient * math.prod(power(evaluate(reading, t, labels), e) for t, e in factors)


def total(reading: Reading, constant, addends, labels: Labels):
    """constant + sum of coefficient * addend."""
    return constant + sum(c * evaluate(reading, t, labels) for c, t in addends)


def _sum(reading, term, labels):
    places = itertools.product(*(range(label.size) for label in term.labels))
    return sum(evaluate(reading, term.body, labels.at(term.labels, p)) for p in places)


def _function(reading, term, labels):
    args = [np.asarray(evaluate(reading, a, labels)) for a in term.args]
    return numpy_primitives.run(term.name, dict(term.params), args, reading.rounds)[0][()]


def _along(reading, term, labels):
    lines = [
        np.asarray([evaluate(reading, a, labels.at([term.inner], [i])) for i in range(term.inner.size)])
        for a in term.args
    ]
    params = {**dict(term.params), **dict(term.node.params), **numpy_primitives.axis_zero(term.name)}
    line = numpy_primitives.run(term.name, params, lines, reading.rounds)[term.result]
    return line[()] if term.outer is None else element(line, [labels.number(term.outer)])


def _result(reading, term, labels):
    return read(reading, Cursor(term.node.outputs[term.result], term.index, term.frame), labels)


_EVALUATE = {
    Cursor: read,
    Const: lambda reading, term, labels: term.value,
    Prod: lambda reading, term, labels: product(reading, term.coefficient, term.factors, labels),
    Add: lambda reading, term, labels: total(reading, term.constant, term.addends, labels),
    Sum: _sum,
    Fn: _function,
    Along: _along,
    Iota: lambda reading, term, labels: labels.number(term.index),
    Leaf: lambda reading, term, labels: read(reading, term.cursor, labels),
    Result: _result,
}
