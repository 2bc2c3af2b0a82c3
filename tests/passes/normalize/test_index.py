"""Index arithmetic against brute force: every place of every axis."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxsplice.passes.normalize import index as ix
from jaxsplice.passes.normalize.index import Label
from jaxsplice.passes.normalize.layout import reshape_index

from .numpy_reading import Labels

EXAMPLES = settings(max_examples=200, deadline=None, derandomize=True, database=None)
SIZES = st.sampled_from([1, 2, 3, 4, 6, 8, 12])
STRIDES = st.integers(-6, 6) | st.sampled_from([8, 12, 24, 36])


def everywhere(labels):
    """All ways to place some whole axes."""
    for places in itertools.product(*(range(label.size) for label in labels)):
        yield Labels().at(labels, places)


@st.composite
def indices(draw, most_labels: int = 3):
    """An index over fresh axes, some of them split, and those axes."""
    labels = [Label(n) for n in draw(st.lists(SIZES, max_size=most_labels))]
    for label in labels:
        for low in draw(st.lists(SIZES, max_size=2)):
            label.split(low)
    terms = tuple((label, draw(STRIDES)) for label in labels)
    return (draw(st.integers(-20, 20)), terms), labels


@given(indices())
@EXAMPLES
def test_resolve_keeps_the_value_and_leaves_unsplit_labels(drawn):
    index, labels = drawn
    resolved = ix.resolve(index)
    assert all(label.parts is None for label, _ in resolved[1]) or resolved is index
    assert all(places.number(resolved) == places.number(index) for places in everywhere(labels))


@given(indices())
@EXAMPLES
def test_bounds_are_the_smallest_and_largest_value(drawn):
    index, labels = drawn
    values = [places.number(index) for places in everywhere(labels)]
    assert ix.bounds(index) == (min(values), max(values))
    assert ix.inside(index, 9) == all(0 <= v < 9 for v in values)


@given(indices(2), indices(2), st.integers(-5, 5), st.integers(-5, 5), st.integers(-5, 5))
@EXAMPLES
def test_affine_and_shift_are_sums(one, other, a, b, offset):
    (first, labels), (second, more) = one, other
    both, moved = ix.affine([(first, a), (second, b)], offset), ix.shift(first, offset)
    for places in everywhere([*labels, *more]):
        assert places.number(both) == a * places.number(first) + b * places.number(second) + offset
        assert places.number(moved) == places.number(first) + offset


@given(indices(), st.integers(1, 12))
@EXAMPLES
def test_divide_gives_quotient_and_remainder(drawn, size):
    index, labels = drawn
    both = ix.divide(index, size)
    for places in everywhere(labels) if both is not None else ():
        expected = divmod(places.number(index), size)
        assert (places.number(both[0]), places.number(both[1])) == expected


@pytest.mark.parametrize("size", [1, 2, 3, 4, 6, 12, 24])
def test_divide_always_succeeds_on_one_whole_axis(size):
    label = Label(24)
    quotient, remainder = ix.divide(ix.of_label(label), size)
    for i in range(24):
        places = Labels({label: i})
        assert (places.number(quotient), places.number(remainder)) == divmod(i, size)


def test_divide_gives_up_where_it_would_need_a_carry():
    label = Label(6)
    assert ix.divide((2, ((label, 1),)), 4) is None
    assert ix.divide((5, ((label, -1),)), 4) is None


@given(SIZES, st.lists(SIZES, min_size=1, max_size=4))
@EXAMPLES
def test_the_parts_of_a_label_are_its_digits(size, cuts):
    label = Label(size)
    for low in cuts:
        parts = label.split(low)
        assert (parts is None) or size % low == 0
    atoms = label.atoms()
    assert math.prod(a.size for a in atoms) == size
    assert all(a.whole is label and a.parts is None for a in atoms)
    for i in range(size):
        places = Labels({label: i})
        digits = np.unravel_index(i, [a.size for a in atoms]) if atoms else ()
        assert tuple(places[a] for a in atoms) == tuple(map(int, digits))


def test_a_label_is_split_at_several_places():
    label = Label(24)
    for low in (6, 2, 12):
        assert label.split(low) is not None
    assert [a.size for a in label.atoms()] == [2, 2, 3, 2]
    assert label.split(5) is None  # 5 does not divide 24
    assert label.split(8) is None  # nor does 6 divide 8


def test_axes_of_size_one_are_no_labels():
    assert ix.of_label(Label(1)) == ix.constant(0)
    assert Label(1).atoms() == []
    assert [i[1] == () for i in ix.fresh((1, 3, 1))] == [True, False, True]


def test_labels_of_lists_each_once_in_order_of_appearance():
    a, b = Label(2), Label(6)
    high, low = b.split(3)
    assert ix.labels_of([(0, ((b, 1), (a, 6))), (1, ((a, 1),))]) == [high, low, a]


# ---------------------------------------------------------------- reshapes
def shapes_of(size: int):
    """All shapes of so many elements with at most three dimensions."""
    numbers = [n for n in range(1, size + 1) if size % n == 0]
    return [s for r in (0, 1, 2, 3) for s in itertools.product(numbers, repeat=r) if math.prod(s) == size]


@pytest.mark.parametrize("size", [1, 6, 8, 12])
def test_reshape_index_is_numpys_reshape(size):
    array = np.arange(size)
    for new, old in itertools.product(shapes_of(size), repeat=2):
        index = ix.fresh(new)
        found = reshape_index(index, new, old)
        for places in everywhere([label for i in index for label, _ in i[1]]) if found is not None else ():
            wanted = array.reshape(new)[tuple(places.number(i) for i in index)]
            assert array.reshape(old)[tuple(places.number(i) for i in found)] == wanted


@pytest.mark.parametrize(
    ("new", "old"),
    [
        ((24,), (2, 3, 4)),
        ((2, 3, 4), (24,)),
        ((6, 4), (2, 12)),
        ((2, 12), (6, 4)),
        ((1, 6, 1), (6,)),
        ((4, 6), (2, 2, 3, 2)),
        ((), (1, 1)),
        ((1,), ()),
        ((5, 4, 6), (5, 24)),
        ((8, 3), (2, 4, 3)),
    ],
)
def test_reshapes_that_split_or_merge_axes_are_always_seen_through(new, old):
    assert reshape_index(ix.fresh(new), new, old) is not None


def test_reshapes_without_elements_and_of_padded_reads_are_not_seen_through():
    assert reshape_index(ix.fresh((0, 3)), (0, 3), (3, 0)) is None
    outside = [ix.shift(ix.of_label(Label(6)), -1)]
    assert reshape_index(outside, (6,), (2, 3)) is None
