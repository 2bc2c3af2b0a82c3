"""Reads at computed places, and short sums written out: each view's equation, checked numerically."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from jaxsplice.passes.ir.region import Program
from jaxsplice.passes.normalize import ALL, Cursor, chain
from jaxsplice.passes.normalize.flatten import open_head
from jaxsplice.passes.normalize.index import resolve
from jaxsplice.passes.normalize.terms import Add, Sum
from jaxsplice.passes.normalize.written_out import written_out

EXAMPLES = settings(deadline=None, max_examples=15, derandomize=True, database=None)
N = 12
DATA = np.arange(1.0, N + 1, dtype=np.float32)


def end_of(fn, *args):
    """The last cursor a function's result can be peeled to, and the index it started from."""
    whole = Cursor.whole(Program(jax.make_jaxpr(fn)(*args)).root.outputs[0])
    return chain(whole, ALL)[-1], whole.index


def read(cursor, start, shape, array):
    """What a cursor reads, evaluated at every element of its start."""
    labels = [terms[0][0] if terms else None for _, terms in start]
    out = np.zeros(shape, np.float32)
    for at in np.ndindex(*shape):
        places = {}
        for label, i in zip(labels, at):
            for atom in reversed(label.atoms() if label is not None else []):
                i, places[atom] = divmod(i, atom.size)
        index = [off + sum(s * places[label] for label, s in terms) for off, terms in map(resolve, cursor.index)]
        inside = all(0 <= i < n for i, n in zip(index, array.shape))
        out[at] = array[tuple(index)] if inside else 0.0
    return out


@EXAMPLES
@given(st.integers(0, 3), st.integers(1, 2), st.integers(1, 4), st.integers(1, 3))
def test_a_gather_at_positions_reads_like_a_slice(first, stride, rows, columns):
    def windows(x):
        return x[first + stride * jnp.arange(rows)[:, None] + jnp.arange(columns)]

    cursor, start = end_of(windows, DATA)
    assert cursor.node is None
    np.testing.assert_array_equal(read(cursor, start, (rows, columns), DATA), windows(DATA))


def test_a_vmapped_dynamic_slice_reads_like_a_slice():
    def windows(x):
        return jax.vmap(lambda t: lax.dynamic_slice(x, (t,), (3,)))(jnp.arange(5))

    cursor, start = end_of(windows, DATA)
    np.testing.assert_array_equal(read(cursor, start, (5, 3), DATA), windows(DATA))


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x[jnp.arange(5) + 8],  # leaves the array: JAX would clamp
        lambda x: x[jnp.arange(5) ** 2 // 3],
        lambda x: jax.vmap(lambda t: lax.dynamic_slice(x, (t,), (9,)))(jnp.arange(5)),
    ],
)
def test_a_gather_that_leaves_the_array_or_is_no_position_is_not_seen_through(fn):
    cursor, _ = end_of(fn, DATA)
    assert cursor.node is not None and cursor.node.primitive == "gather"


@EXAMPLES
@given(st.integers(0, 9), st.integers(1, 3), st.integers(0, 11))
def test_an_updated_array_is_read_in_or_beside_the_update(at, size, place):
    def updated(x, u):
        return lax.dynamic_update_slice(x, u, (at,))[place : place + 1]

    update = -np.arange(1.0, size + 1, dtype=np.float32)
    cursor, start = end_of(updated, DATA, update)
    if at + size > N:  # clamped
        assert cursor.node is not None
        return
    array = (DATA, update)[cursor.atom.role[1]]
    np.testing.assert_array_equal(read(cursor, start, (1,), array), updated(DATA, update))


@pytest.mark.parametrize("place", [0, 2, 3])
def test_one_element_set_is_read_in_or_beside_it(place):
    def updated(x, u):
        return jnp.asarray(x).at[:, 2].set(u)[:, place]

    x, u = DATA.reshape(3, 4), -DATA[:3]
    cursor, start = end_of(updated, x, u)
    np.testing.assert_array_equal(read(cursor, start, (3,), (x, u)[cursor.atom.role[1]]), updated(x, u))


def test_a_read_across_the_update_and_what_is_beside_it_is_not_seen_through():
    cursor, _ = end_of(lambda x, u: lax.dynamic_update_slice(x, u, (3,)), DATA, DATA[:2])
    assert cursor.node is not None


@pytest.mark.parametrize("which", [0, 1])
def test_an_element_of_a_stack_is_one_of_what_was_stacked(which):
    cursor, start = end_of(lambda x, y: jnp.stack([x, y], 1)[:, which], DATA, -DATA)
    np.testing.assert_array_equal(read(cursor, start, (N,), DATA), DATA)
    assert cursor.atom.role[1] == which


@EXAMPLES
@given(st.integers(1, 8))
def test_a_short_sum_is_the_sum_of_its_addends(size):
    def total(x, w):
        return jnp.einsum("kn,k->n", x, w)

    x, w = np.outer(DATA[:size], DATA), DATA[:size]
    head = open_head(Cursor.whole(Program(jax.make_jaxpr(total)(x, w)).root.outputs[0]), ALL)
    if size == 1:
        assert type(head) is not Sum
        return
    written = written_out(head)
    assert type(written) is Add and len(written.addends) == size
    places = [[cursor.index[0] for cursor, _ in product.factors] for _, product in written.addends]
    assert sorted(p[0] for pair in places for p in pair if not p[1]) == sorted([*range(size)] * 2)


def test_a_long_sum_is_left_alone():
    head = open_head(Cursor.whole(Program(jax.make_jaxpr(lambda x: x.sum(0))(np.ones((17, 2)))).root.outputs[0]), ALL)
    assert written_out(head) is None
