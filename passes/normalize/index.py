"""Index arithmetic: how the element of one array that a term reads follows from the axes of another.

An Index is a whole number plus axes times strides, `3 + 64*h + d`: a plain tuple `(offset, ((label, stride), ...))`.
A Label is one axis of a term; it can be split in two, once a reshape asks for it: `axis = high * low.size + low`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

Index = tuple  # (offset: int, terms: tuple[tuple[Label, int], ...])


class Label:
    """One axis: its size, and its two parts when a reshape split it."""

    __slots__ = ("parts", "size", "whole")

    def __init__(self, size: int, whole: Label | None = None):
        self.size = size
        self.whole: Label = self if whole is None else whole  # the axis it is a part of
        self.parts: tuple[Label, Label] | None = None

    def split(self, low_size: int) -> tuple[Label, Label] | None:
        """Split the axis `low_size` from its end: `axis = high * low_size + low`; None when the sizes do not divide.

        An axis that is split already is split further, where the border falls into one of its parts; the two halves of
        that part are given then, and `atoms` has all parts.
        """
        if self.size % low_size:
            return None
        if self.parts is None:
            self.parts = (Label(self.size // low_size, self.whole), Label(low_size, self.whole))
            return self.parts
        high, low = self.parts
        if low.size == low_size:
            return high, low
        if low_size > low.size and low_size % low.size == 0:
            return high.split(low_size // low.size)
        return low.split(low_size) if low.size % low_size == 0 else None

    def atoms(self) -> list[Label]:
        """The unsplit parts, most significant first; none for size 1."""
        if self.parts is None:
            return [self] if self.size != 1 else []
        return [*self.parts[0].atoms(), *self.parts[1].atoms()]

    def __repr__(self) -> str:
        return f"<axis of {self.size}>"


def constant(value: int) -> Index:
    """An index that is one number."""
    return (int(value), ())


def of_label(label: Label) -> Index:
    """The index that runs along one axis."""
    return (0, ((label, 1),)) if label.size != 1 else (0, ())


def fresh(shape: Sequence[int]) -> tuple[Index, ...]:
    """One new axis per dimension of a shape."""
    return tuple(of_label(Label(n)) for n in shape)


def resolve(index: Index) -> Index:
    """The same index over unsplit labels, equal labels merged."""
    offset, terms = index
    if all(label.parts is None for label, _ in terms):
        return index
    out: dict[Label, int] = {}
    for label, stride in terms:
        atoms = label.atoms()
        step = stride * math.prod(a.size for a in atoms)
        for atom in atoms:
            step //= atom.size
            out[atom] = out.get(atom, 0) + step
    return (offset, tuple((label, s) for label, s in out.items() if s))


def affine(parts: Iterable[tuple[Index, int]], offset: int = 0) -> Index:
    """Sum of indices times strides, plus an offset."""
    out: dict[Label, int] = {}
    for (base, terms), stride in parts:
        offset += base * stride
        for label, s in terms:
            out[label] = out.get(label, 0) + s * stride
    return (offset, tuple((label, s) for label, s in out.items() if s))


def shift(index: Index, by: int) -> Index:
    """The index plus a number."""
    return (index[0] + by, index[1])


def bounds(index: Index) -> tuple[int, int]:
    """Smallest and largest value."""
    low = high = index[0]
    for label, stride in index[1]:
        reach = stride * (label.size - 1)
        low, high = (low, high + reach) if reach >= 0 else (low + reach, high)
    return low, high


def inside(index: Index, size: int) -> bool:
    """Whether every value lies in `[0, size)`."""
    low, high = bounds(index)
    return low >= 0 and high < size


def labels_of(indices: Iterable[Index]) -> list[Label]:
    """The unsplit labels of several indices, in order of first appearance."""
    seen: dict[Label, None] = {}
    for index in indices:
        for label, _ in resolve(index)[1]:
            seen.setdefault(label)
    return list(seen)


def divide(index: Index, size: int) -> tuple[Index, Index] | None:
    """Quotient and remainder of an index by a size, splitting labels where that makes it exact.

    Returns:
        `(index // size, index % size)`, or None when they are not of the form this module can write.
    """
    for _ in range(8):
        index = resolve(index)
        offset, terms = index
        quotient = [(label, s // size) for label, s in terms if s % size == 0]
        rest = [(label, s) for label, s in terms if s % size]
        remainder = (offset % size, tuple(rest))
        if inside(remainder, size):
            return (offset // size, tuple(quotient)), remainder
        if not any(_split_for(label, stride, size) for label, stride in rest):
            return None
    return None


def _split_for(label: Label, stride: int, size: int) -> bool:
    """Split a label whose stride times size runs over the divisor."""
    if stride <= 0 or size % stride or stride * label.size <= size:
        return False
    return label.split(size // stride) is not None
