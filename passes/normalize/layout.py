"""View `layout`: transpose, reshape, broadcast, slice, split, reverse, pad, concatenate only move elements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..ir.jaxprs import Literal
from ..ir.region import Node, Value
from .cursor import Cursor, peels
from .index import Index, affine, bounds, constant, divide, inside, shift
from .marks import literal_number


@peels("layout", "transpose")
def _transpose(cursor: Cursor, node: Node) -> Cursor:
    index = [constant(0)] * len(cursor.index)
    for out_dim, in_dim in enumerate(node.params["permutation"]):
        index[in_dim] = cursor.index[out_dim]
    return cursor.at(node.inputs[0], index)


@peels("layout", "broadcast_in_dim")
def _broadcast(cursor: Cursor, node: Node) -> Cursor | None:
    operand = node.inputs[0]
    shape, kept = operand.aval.shape, node.params["broadcast_dimensions"]
    index, used = [], set()
    for size, out_dim in zip(shape, kept):
        stretched = size == 1
        index.append(constant(0) if stretched else cursor.index[out_dim])
        if not stretched:
            used.add(out_dim)
    lost = [d for d in range(len(cursor.index)) if d not in used]
    return cursor.at(operand, index) if _in_bounds(cursor, lost) else None


@peels("layout", "squeeze")
def _squeeze(cursor: Cursor, node: Node) -> Cursor:
    rank = len(node.inputs[0].aval.shape)
    dropped = {d % rank for d in node.params["dimensions"]}
    rest = iter(cursor.index)
    return cursor.at(node.inputs[0], [constant(0) if d in dropped else next(rest) for d in range(rank)])


@peels("layout", "reshape")
def _reshape(cursor: Cursor, node: Node) -> Cursor | None:
    if node.params.get("dimensions") is not None:
        return None
    operand = node.inputs[0]
    index = reshape_index(cursor.index, cursor.atom.aval.shape, operand.aval.shape)
    return None if index is None else cursor.at(operand, index)


def reshape_index(index: Sequence[Index], new: Sequence[int], old: Sequence[int]) -> list[Index] | None:
    """Index into an array of shape `old` of the element that its reshape to `new` has at `index`."""
    if 0 in new:
        return None
    out: list[Index] = []
    for new_dims, old_dims in _blocks(new, old):
        sizes_new, sizes_old = [new[d] for d in new_dims], [old[d] for d in old_dims]
        if sizes_new == sizes_old:
            out.extend(index[d] for d in new_dims)
            continue
        if not all(inside(index[d], new[d]) for d in new_dims):
            return None
        flat = affine((index[d], math.prod(sizes_new[k + 1 :])) for k, d in enumerate(new_dims))
        part: list[Index] = []
        for size in reversed(sizes_old[1:]):
            both = divide(flat, size)
            if both is None:
                return None
            flat, low = both
            part.append(low)
        out.extend([flat, *reversed(part)] if sizes_old else [])
    return out


def _blocks(new: Sequence[int], old: Sequence[int]):
    """Smallest groups of neighbouring dimensions with equal products on both sides."""
    i = j = 0
    while i < len(new) or j < len(old):
        i0, j0 = i, j
        a = b = 1
        if i < len(new):
            a, i = new[i], i + 1
        if j < len(old):
            b, j = old[j], j + 1
        while a != b:
            if a < b and i < len(new):
                a, i = a * new[i], i + 1
            elif j < len(old):
                b, j = b * old[j], j + 1
            else:
                a, i = a * new[i], i + 1
        if i == len(new) or j == len(old):  # trailing ones go with the last group
            tail_new, tail_old = math.prod(new[i:]), math.prod(old[j:])
            if tail_new == tail_old == 1:
                i, j = len(new), len(old)
        yield range(i0, i), range(j0, j)


@peels("layout", "slice")
def _slice(cursor: Cursor, node: Node) -> Cursor | None:
    p = node.params
    strides = p["strides"] or (1,) * len(cursor.index)
    return _cut(cursor, node.inputs[0], p["start_indices"], strides)


@peels("layout", "split")
def _split(cursor: Cursor, node: Node) -> Cursor | None:
    axis, sizes = node.params["axis"], node.params["sizes"]
    start = [0] * len(cursor.index)
    start[axis] = sum(int(n) for n in sizes[: cursor.atom.index])
    return _cut(cursor, node.inputs[0], start, [1] * len(start))


@peels("layout", "dynamic_slice")
def _dynamic_slice(cursor: Cursor, node: Node) -> Cursor | None:
    starts = node.inputs[1:]
    if not all(type(s) is Literal for s in starts):
        return None
    operand = node.inputs[0]
    limits = [n - m for n, m in zip(operand.aval.shape, node.params["slice_sizes"])]
    clamped = [min(max(int(s.val), 0), limit) for s, limit in zip(starts, limits)]
    return _cut(cursor, operand, clamped, [1] * len(clamped))


def _cut(cursor: Cursor, operand, start: Sequence[int], strides: Sequence[int]) -> Cursor | None:
    """Through a slice. A read that may leave the slice (and be zero) must then leave the operand as well."""
    out = []
    for index, size, first, stride, total in zip(
        cursor.index, cursor.atom.aval.shape, start, strides, operand.aval.shape
    ):
        low, high = bounds(index)
        if (low < 0 and first != 0) or (high >= size and (first + size != total or stride != 1)):
            return None
        out.append(affine([(index, stride)], int(first)))
    return cursor.at(operand, out)


@peels("layout", "rev")
def _rev(cursor: Cursor, node: Node) -> Cursor:
    index = list(cursor.index)
    for d in node.params["dimensions"]:
        index[d] = affine([(index[d], -1)], cursor.atom.aval.shape[d] - 1)
    return cursor.at(node.inputs[0], index)


@peels("layout", "pad")
def _pad(cursor: Cursor, node: Node) -> Cursor | None:
    operand, value = node.inputs
    if not is_zero(value):
        return None
    out = []
    for index, (low, high, interior), size in zip(cursor.index, node.params["padding_config"], cursor.atom.aval.shape):
        first, last = bounds(index)
        if interior or (low < 0 and first < 0) or (high < 0 and last >= size):
            return None
        out.append(shift(index, -low))
    return cursor.at(operand, out)


@peels("layout", "concatenate")
def _one_piece(cursor: Cursor, node: Node) -> Cursor | None:
    """A read of one piece, or of one with zeros beside it; other reads across pieces are sums (contractions.py)."""
    met = pieces_read(cursor, node)
    if len(met) != 1 or (node.outputs[0].aval.dtype.kind == "b" and cursor.at(*met[0]).padded):
        return None
    piece, index = met[0]
    return cursor.at(piece, index)


def pieces_read(cursor: Cursor, node: Node) -> list[tuple[Any, list[Index]]]:
    """The pieces of a concatenation that a read meets and that are not zero, each with its own index."""
    axis, first, found = node.params["dimension"], 0, []
    low, high = bounds(cursor.index[axis])
    for piece in node.inputs:
        size = piece.aval.shape[axis]
        inner = low >= first and high < first + size
        if inner or (low < first + size and high >= first and not is_zero(piece)):
            index = list(cursor.index)
            index[axis] = shift(index[axis], -first)
            found.append((piece, index))
        first += size
    return found


def is_zero(atom) -> bool:
    """Whether a value is zero everywhere: a literal, or a broadcast of one."""
    moved = ("reshape", "convert_element_type", "transpose", "slice", "squeeze", "broadcast_in_dim")
    while type(atom) is Value and atom.node is not None and atom.node.primitive in moved:
        atom = atom.node.inputs[0]
    return literal_number(atom) == 0


def _in_bounds(cursor: Cursor, dims: Sequence[int]) -> bool:
    return all(inside(cursor.index[d], cursor.atom.aval.shape[d]) for d in dims)
