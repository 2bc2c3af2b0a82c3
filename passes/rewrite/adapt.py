"""Adapt: the reads that turn program arrays into a rule's arguments, and its results into the program's arrays.

An argument's plan is slice, reshape, transpose, reshape: what it takes to have the pattern's axes in the pattern's
order. Most often it is nothing at all.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
from jax import lax

from ..normalize.index import Index, Label, resolve
from .align import Alignment


class Plan(NamedTuple):
    """slice -> reverse -> reshape -> transpose -> reshape; None where a step does nothing."""

    cut: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]] | None  # start, limit, stride
    parts: tuple[int, ...] | None
    order: tuple[int, ...] | None
    shape: tuple[int, ...] | None
    turned: tuple[int, ...] | None = None  # dimensions read backwards

    def __call__(self, array: jax.Array) -> jax.Array:
        """Apply the plan to an array."""
        if self.cut is not None:
            array = lax.slice(array, *self.cut)
        if self.turned is not None:
            array = lax.rev(array, self.turned)
        if self.parts is not None:
            array = lax.reshape(array, self.parts)
        if self.order is not None:
            array = lax.transpose(array, self.order)
        return array if self.shape is None else lax.reshape(array, self.shape)


class Moves(NamedTuple):
    """Per dimension of an argument, and of the program's array: how far each occurrence is from the first."""

    pattern: list[tuple[int, ...]]
    program: list[tuple[int, ...]]


def offsets(indices: Sequence[Sequence[Index]]) -> list[tuple[int, ...]]:
    """Per dimension, the offsets of several reads from the first of them."""
    return [tuple(i[0] - column[0][0] for i in column) for column in zip(*indices)]


class Dim(NamedTuple):
    """One dimension read by an index: its axes (most significant first) with offset and stride, or None when opaque."""

    atoms: list[Label] | None
    offset: int = 0
    stride: int = 1

    @property
    def size(self) -> int:
        """Elements it spans."""
        return math.prod(a.size for a in self.atoms or [])


def read_dim(index: Index) -> Dim:
    """Understand an index as axes in mixed radix: `offset + stride * (a0 * |a1| * ... + a1 * ... + ...)`."""
    offset, terms = resolve(index)
    terms = sorted(terms, key=lambda t: t[1])
    if not terms:
        return Dim([], offset)
    stride = step = terms[0][1]
    atoms: list[Label] = []
    for label, s in terms:
        if s != step:
            return Dim(None, offset)
        atoms.insert(0, label)
        step *= label.size
    return Dim(atoms, offset, stride) if stride > 0 else Dim(None, offset)


def is_whole(dim: Dim, size: int) -> bool:
    """Whether a dimension is read entirely, once, in order."""
    return dim.atoms is not None and dim.offset == 0 and dim.stride == 1 and dim.size == size


def plan_argument(
    p_index: Sequence[Index],
    p_shape: Sequence[int],
    q_index: Sequence[Index],
    q_shape: Sequence[int],
    alignment: Alignment,
    expand_first: frozenset[Label],
    moves: Moves,
) -> tuple[Plan, tuple[int, ...]] | None:
    """Plan from a program array to a pattern argument.

    Args:
        p_index: where the pattern reads the argument.
        p_shape: the argument's shape in the pattern.
        q_index: where the program reads its array at the same occurrence.
        q_shape: that array's shape.
        alignment: pattern axis -> program axes.
        expand_first: pattern axes whose program axes stay separate dimensions.
        moves: how the other occurrences of the argument differ from this one.

    Returns:
        The plan and the argument's shape, or None when no plan of this form exists.
    """
    p_dims = [read_dim(i) for i in p_index]
    q_dims = [read_dim(i) for i in q_index]
    opaque = [k for k, (d, n) in enumerate(zip(p_dims, p_shape)) if not is_whole(d, n)]
    images = [_image(d, alignment) for d in p_dims]
    partners = _partners(opaque, p_index, q_index, alignment, moves)
    if partners is None:
        return None
    turned = tuple(q for p, q in partners.items() if moves.program[q] != moves.pattern[p])
    cut, axes = _cut_and_axes(q_dims, q_shape, p_dims, {q: p for p, q in partners.items()}, turned)
    if cut is None:
        return None
    groups: list[list[object]] = []
    for k, image in enumerate(images):
        atoms: list[object] = [("dim", k)] if k in partners else list(image or [])
        split = any(a in expand_first for a in p_dims[k].atoms or [])
        groups += [[a] for a in atoms] if split and len(atoms) > 1 else [atoms]
    made = _arrange(axes, groups, q_shape, cut)
    return made if made is None or not turned else (made[0]._replace(turned=turned), made[1])


def _image(dim: Dim, alignment: Alignment) -> list[Label] | None:
    return None if dim.atoms is None else [q for a in dim.atoms for q in alignment.get(a, [])]


def _partners(opaque, p_index, q_index, alignment, moves: Moves) -> dict[int, int] | None:
    """For pattern dimensions not read plainly (a convolution's time): the program dimension with the same axes, and
    the same way from one occurrence to the next; the opposite way where there are no axes (taps, counted backwards)."""
    out: dict[int, int] = {}
    for k in opaque:
        wanted = {q for label, _ in resolve(p_index[k])[1] for q in alignment.get(label, [])}
        fitting = [
            j
            for j, i in enumerate(q_index)
            if j not in out.values()
            and (moves.program[j] == moves.pattern[k] or _opposite(p_index[k], moves.program[j], moves.pattern[k]))
            and {a for a, _ in resolve(i)[1]} == wanted
        ]
        if not fitting:
            return None
        out[k] = min(fitting, key=lambda j: moves.program[j] != moves.pattern[k])
    return out


def _opposite(index: Index, program: tuple[int, ...], pattern: tuple[int, ...]) -> bool:
    return not index[1] and program == tuple(-step for step in pattern)


def _cut_and_axes(q_dims, q_shape, p_dims, opaque: dict[int, int], turned: tuple[int, ...]):
    """Slice bounds per program dimension, and the (axis, size) list after cutting; None when it cannot be cut."""
    start, limit, stride, axes = [], [], [], []
    for j, (dim, size) in enumerate(zip(q_dims, q_shape)):
        if j in turned:
            last = dim.offset + p_dims[opaque[j]].offset  # read at the pattern's 0
            if last >= size:
                return None, []
            start, limit, stride = [*start, 0], [*limit, last + 1], [*stride, 1]
            axes.append([(("dim", opaque[j]), last + 1)])
            continue
        if j in opaque:
            first = dim.offset - p_dims[opaque[j]].offset
            if first < 0 or first >= size:
                return None, []
            start, limit, stride = [*start, first], [*limit, size], [*stride, 1]
            axes.append([(("dim", opaque[j]), size - first)])
            continue
        if dim.atoms is None or dim.offset < 0:
            return None, []
        last = dim.offset + dim.stride * (dim.size - 1) + 1
        if last > size:
            return None, []
        start, limit, stride = [*start, dim.offset], [*limit, last], [*stride, dim.stride]
        axes.append([(a, a.size) for a in dim.atoms])
    return (tuple(start), tuple(limit), tuple(stride)), axes


def _arrange(axes, groups, q_shape, cut) -> tuple[Plan, tuple[int, ...]] | None:
    flat = [a for dim in axes for a in dim]
    names, sizes = [a for a, _ in flat], dict(flat)
    wanted = [a for group in groups for a in group]
    if sorted(map(id, _ids(names))) != sorted(map(id, _ids(wanted))):
        return None
    start, limit, stride = cut
    cut_shape = tuple(-(-(b - a) // s) for a, b, s in zip(start, limit, stride))
    plan, shape = _moves(axes, groups, sizes, cut_shape)
    return plan._replace(cut=None if cut_shape == tuple(q_shape) else (start, limit, stride)), shape


def _moves(source, target, sizes, shape: tuple[int, ...]) -> tuple[Plan, tuple[int, ...]]:
    """Reshape, transpose, reshape from axes grouped as `source` (dimensions of `shape`) to axes grouped as `target`.

    Neighbouring axes that stay neighbours are moved as one, so that what needs no step gets none.
    """
    runs = _runs([[a for a, _ in dim] for dim in source], target)
    flat = [a for dim in source for a, _ in dim if a in runs]
    parts = tuple(math.prod(sizes[a] for a in runs[head]) for head in flat)
    heads = [a for group in target for a in group if a in runs]
    order = tuple(flat.index(a) for a in heads)
    moved = tuple(parts[i] for i in order)
    final = tuple(math.prod(sizes[a] for a in group) for group in target)
    if order == tuple(range(len(order))):
        return Plan(None, None, None, None if final == shape else final), final
    return Plan(None, None if parts == shape else parts, order, None if final == moved else final), final


def _runs(source: list[list], target: list[list]) -> dict:
    """First axis of each longest run that lies together both in a source and in a target dimension -> the run."""
    after = {a: b for group in target for a, b in itertools.pairwise(group)}
    runs: dict = {}
    for dim in source:
        head = None
        for i, axis in enumerate(dim):
            if head is not None and after.get(dim[i - 1]) is axis:
                runs[head].append(axis)
            else:
                head = axis
                runs[head] = [axis]
    return runs


_INTERNED: dict = {}


def _ids(names):
    """Axes and ("dim", k) marks as objects that compare by identity."""
    return [_INTERNED.setdefault(a, a) if isinstance(a, tuple) else a for a in names]


def plan_result(
    p_index: Sequence[Index], q_index: Sequence[Index], q_shape: Sequence[int], alignment: Alignment, expand_first
) -> tuple[Plan, tuple[int, ...]] | None:
    """Plan from a rule's result to the program's array, and the shape the result must have."""
    groups: list[list[Label]] = []
    for i in p_index:
        dim = read_dim(i)
        if dim.atoms is None:
            return None
        image = [q for a in dim.atoms for q in alignment.get(a, [])]
        split = any(a in expand_first for a in dim.atoms)
        groups += [[a] for a in image] if split and len(image) > 1 else [image]
    atoms = [a for group in groups for a in group]
    wanted = [read_dim(i).atoms for i in q_index]
    if any(w is None for w in wanted):
        return None
    target = [a for w in wanted for a in w or []]
    if set(map(id, atoms)) != set(map(id, target)) or len(atoms) != len(target):
        return None
    result_shape = tuple(math.prod(a.size for a in group) for group in groups)
    sizes = {a: a.size for a in atoms}
    source = [[(a, a.size) for a in group] for group in groups]
    plan, final = _moves(source, [w or [] for w in wanted], sizes, result_shape)
    if final != tuple(q_shape):
        return None
    return plan, result_shape
