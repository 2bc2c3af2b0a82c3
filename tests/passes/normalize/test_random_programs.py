"""Property tests of every view: whatever a term is rewritten to, it stands for the same number.

Random programs are evaluated in NumPy. From every value, terms are opened step by step; after each step the element
that the new term stands for must be the element that the program has. An element that the program itself computes as
infinite or not a number stands for no real number and proves nothing.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsplice.passes.ir import jaxprs
from jaxsplice.passes.ir.region import Program
from jaxsplice.passes.normalize import ALL, VIEWS, WITHOUT_ROUNDING, Cursor, Frame, chain
from jaxsplice.passes.normalize.flatten import open_head, whole_product, whole_sum
from jaxsplice.passes.normalize.index import labels_of
from jaxsplice.passes.normalize.terms import Add, Along, Fn, Prod, Result, Sum, expand

from . import random_programs
from .numpy_reading import Labels, Reading, evaluate, product, total

SEEDS_PER_TEST, BATCHES = 20, 20
WALKS = 4  # terms followed below each value
EQUAL = 1e-8


def drawn(seed: int, length: int, rounds: bool):
    """A random program and its run."""
    fn, types = random_programs.program(seed, length)
    closed = jax.make_jaxpr(fn)(*types)
    rng = np.random.default_rng(seed)
    args = [rng.choice([-1.0, 1.0], t.shape) * rng.uniform(0.5, 1.5, t.shape) for t in types]
    return closed, Reading(Program(closed).root, args, rounds), args


class Checker:
    """Follows terms at random and compares each with what it came from."""

    def __init__(self, reading: Reading, views: frozenset[str], rng):
        self.reading, self.views, self.rng = reading, views, rng
        self.checked = 0

    def value(self, value) -> None:
        """One random element of a value, and terms below it."""
        cursor = Cursor.whole(value)
        self.term(cursor, self._placed(Labels(), labels_of(cursor.index)), WALKS)

    def _placed(self, labels: Labels, new) -> Labels:
        return labels.at(new, [int(self.rng.integers(label.size)) for label in new])

    def term(self, term, labels: Labels, walks: int) -> None:
        """All ways to open a term agree; then the same for a part of it."""
        with np.errstate(all="ignore"):
            wanted = evaluate(self.reading, term, labels)
            if np.isfinite(wanted):
                self.checked += 1
                for how, found in self._openings(term, labels):
                    close = abs(complex(found) - complex(wanted)) <= EQUAL * (1 + abs(wanted))
                    assert close, f"{how} gives {found} where the program has {wanted}: {term}"
        below = list(self._below(open_head(term, self.views), labels))
        if below and walks:
            self.term(*below[self.rng.integers(len(below))], walks - 1)

    def _openings(self, term, labels: Labels):
        reading, views = self.reading, self.views
        if type(term) is Cursor:
            for level in chain(term, views)[1:]:
                yield "peeling", evaluate(reading, level, labels)
        yield "expand", evaluate(reading, expand(term, views), labels)
        yield "open_head", evaluate(reading, open_head(term, views), labels)
        yield "whole_product", product(reading, *whole_product(term, views), labels)
        yield "whole_sum", total(reading, *whole_sum(term, views), labels)

    def _below(self, head, labels: Labels):
        """Parts of a term, with the axes they add placed at random."""
        kind = type(head)
        if kind is Prod:
            yield from ((t, labels) for t, _ in head.factors)
        elif kind is Add:
            yield from ((t, labels) for _, t in head.addends)
        elif kind is Sum:
            yield head.body, self._placed(labels, head.labels)
        elif kind is Fn:
            yield from ((t, labels) for t in head.args)
        elif kind is Along:
            yield from ((t, self._placed(labels, [head.inner])) for t in head.args)
        elif kind is Result and head.node.primitive == "scan" and self._inside(head, labels):
            yield from self._step(head, labels)

    def _inside(self, head: Result, labels: Labels) -> bool:
        shape = head.node.outputs[head.result].aval.shape
        return all(0 <= labels.number(i) < n for i, n in zip(head.index, shape))

    def _step(self, head: Result, labels: Labels):
        """A result that a scan stacks is, at one step, a value of its body."""
        carries = jaxprs.scan_parts(head.node.eqn).carry
        if head.result >= carries:
            body = head.node.children()[0]
            frame = Frame(head.node, body, head.index[0], head.frame)
            yield Cursor(body.outputs[head.result], head.index[1:], frame), labels


@pytest.mark.parametrize("batch", range(BATCHES))
def test_terms_stand_for_the_programs_numbers(batch):
    checked = 0
    for seed in range(batch * SEEDS_PER_TEST, (batch + 1) * SEEDS_PER_TEST):
        rng = np.random.default_rng(seed)
        some = frozenset(v for v in VIEWS if rng.integers(2))
        views = [ALL, WITHOUT_ROUNDING, some][seed % 3]
        _, reading, _ = drawn(seed, 10, rounds="casts" not in views)
        checker = Checker(reading, views, rng)
        for node in reading.region.nodes:
            for value in node.outputs:
                checker.value(value)
        checked += checker.checked
    assert checked > 20 * SEEDS_PER_TEST


@pytest.mark.parametrize("seed", range(24))
def test_the_numpy_reading_is_what_jax_computes(seed):
    closed, reading, args = drawn(seed, 8, rounds=True)
    expected = jax.jit(jaxprs.as_function(closed))(*[jnp.asarray(a, jnp.float32) for a in args])
    for array, value in zip(reading.results, expected, strict=True):
        assert array.shape == value.shape
        tame = np.isfinite(array) & (np.abs(array) < 100)
        np.testing.assert_allclose(np.asarray(value)[tame], array[tame], rtol=1e-2, atol=1e-2)
