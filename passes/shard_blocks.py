"""Which block of an array each shard reads, however the read is written.

A read (slice, gather, index into blocks) is followed back to the array once per shard, with every index evaluated for
that shard. What comes out is index arithmetic, so it is decided, not sampled.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .collectives import on_every_shard
from .ir.region import Node, Value
from .normalize import Cursor
from .normalize.cursor import peel_one
from .normalize.index import Index, affine, resolve, shift
from .normalize.places import read_gathered
from .rewrite.adapt import is_whole, read_dim

CUTS = ("dynamic_slice", "gather")
_VIEWS = frozenset({"marks", "layout", "casts"})
_SCALES = ("mul", "div", "neg")


class Block(NamedTuple):
    """Shard i reads block i of an array along one dimension.

    Args:
        axes: named axes whose shards are counted, slowest first.
        dim: the dimension that is cut.
        order: dimensions of the block in the order of the read's own, those of size 1 at the end.
    """

    axes: tuple[str, ...]
    dim: int
    order: tuple[int, ...]


def block_read(read: Value, source: Value, axis_sizes: dict[str, int]) -> Block | None:
    """How the shards divide an array among them by one read.

    Args:
        read: what every shard has read.
        source: the array.
        axis_sizes: axes that the place may depend on.

    Returns:
        The Block; None when the shards do not read one whole block each.
    """
    whole = Cursor.whole(read)
    positions = itertools.product(*(range(n) for n in axis_sizes.values()))
    places = [_followed(whole, source, axis_sizes, number) for number, _ in enumerate(positions)]
    if any(p is None for p in places):
        return None
    found = [[resolve(i) for i in p] for p in places if p is not None]
    if any([i[1] for i in p] != [i[1] for i in found[0]] for p in found):
        return None
    offsets = [np.array([p[d][0] for p in found]).reshape(tuple(axis_sizes.values())) for d in range(len(found[0]))]
    moving = [d for d, o in enumerate(offsets) if np.ptp(o)]
    if len(moving) != 1 or any(o.flat[0] for o in offsets):
        return None
    (dim,) = moving
    counted = _counted(offsets[dim], axis_sizes)
    if counted is None:
        return None
    axes, block = counted
    shape = [n if d != dim else block for d, n in enumerate(source.aval.shape)]
    covers = block * math.prod(axis_sizes[a] for a in axes) == source.aval.shape[dim]
    whole_dims = all(is_whole(read_dim((0, i[1])), n) for i, n in zip(found[0], shape))
    order = _order(found[0], whole.index) if covers and whole_dims else None
    return None if order is None else Block(axes, dim, order)


def _counted(offsets: np.ndarray, axis_sizes: dict[str, int]) -> tuple[tuple[str, ...], int] | None:
    """Axes (slowest first) and block size such that the offset is the shard's number times the block size."""
    steps = {
        a: int(np.diff(offsets.take([0, 1], i), axis=i).flat[0]) for i, a in enumerate(axis_sizes) if axis_sizes[a] > 1
    }
    axes = sorted((a for a in steps if steps[a]), key=lambda a: -steps[a])
    block = step = steps[axes[-1]]
    for a in reversed(axes):
        if steps[a] != step:
            return None
        step *= axis_sizes[a]
    numbers = np.indices(offsets.shape)
    expected = sum(steps[a] * numbers[i] for i, a in enumerate(axis_sizes) if a in steps)
    return (tuple(axes), block) if np.array_equal(offsets, expected) else None


def _order(source: Sequence[Index], read: Sequence[Index]) -> tuple[int, ...] | None:
    """The source's dimensions in the order in which the read has them; None when it divides or merges some."""
    runs = [tuple(map(id, read_dim((0, i[1])).atoms or [])) for i in source]
    wanted = [tuple(map(id, read_dim(i).atoms or [])) for i in read]
    wanted = [run for run in wanted if run]
    if sorted(wanted) != sorted(run for run in runs if run):
        return None
    return (*(runs.index(run) for run in wanted), *(d for d, run in enumerate(runs) if not run))


def _followed(cursor: Cursor, source: Value, axis_sizes: dict[str, int], shard: int) -> tuple[Index, ...] | None:
    """Where in the source one shard's read stands; a factor in between changes nothing about that."""
    while cursor.atom is not source:
        node = cursor.node
        if node is None:
            return None
        if node.primitive in CUTS:
            further = _through_cut(cursor, node, axis_sizes, shard)
        elif node.primitive in _SCALES:
            further = cursor.at(next(a for a in node.inputs if type(a) is Value), cursor.index)
        else:
            further = peel_one(cursor, _VIEWS)
        if further is None:
            return None
        cursor = further
    return None if cursor.padded else cursor.index


def _through_cut(cursor: Cursor, node: Node, axis_sizes: dict[str, int], shard: int) -> Cursor | None:
    values = [on_every_shard(a, axis_sizes) for a in node.inputs[1:]]
    if any(v is None for v in values):
        return None
    here = [v[shard] for v in values if v is not None]
    if node.primitive == "gather":
        return read_gathered(cursor, node, lambda j, batch: _linear(here[0][..., j], batch))
    limits = [n - m for n, m in zip(node.inputs[0].aval.shape, node.params["slice_sizes"])]
    starts = [min(max(int(s), 0), limit) for s, limit in zip(here, limits)]
    return cursor.at(node.inputs[0], [shift(i, s) for i, s in zip(cursor.index, starts)])


def _linear(values: np.ndarray, batch: Sequence[Index]) -> Index | None:
    """An array of whole numbers as an index over its dimensions; None when it is not linear in them."""
    first = int(values.flat[0])
    steps = [int(np.diff(values.take([0, 1], d), axis=d).flat[0]) if n > 1 else 0 for d, n in enumerate(values.shape)]
    grid = np.indices(values.shape)
    linear = first + sum((s * grid[d] for d, s in enumerate(steps)), np.zeros(values.shape, int))
    return affine(list(zip(batch, steps)), first) if np.array_equal(values, linear) else None


def scaled_by(node: Node) -> bool:
    """Whether a node multiplies one array by a number, or casts it: it may as well do so to a block."""
    if node.primitive == "convert_element_type":
        return True
    arrays = [a for a in node.inputs if type(a) is Value]
    numbers = all(np.ndim(a.val) == 0 for a in node.inputs if type(a) is not Value)
    dividend = node.primitive != "div" or type(node.inputs[0]) is Value
    return node.primitive in _SCALES and len(arrays) == 1 and numbers and dividend
