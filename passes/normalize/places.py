"""View `layout`, where the place that is read is computed: gather, stack, and reads of what a scatter wrote.

A gather whose indices are positions (`x[:, t + k]`, a vmapped dynamic_slice) reads like a slice; so does an element of
a stack. A read of an updated array meets either the update or what was there before. A place that may lie outside the
array is not seen through: clamping or filling would show.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..ir.jaxprs import Literal
from ..ir.region import Node, Value
from .cursor import Cursor, peels
from .flatten import open_head, whole_sum
from .index import Index, affine, bounds, constant, inside, shift
from .terms import Const, Fn, Iota, Term

_VIEWS = frozenset({"marks", "layout", "functions", "products", "contractions"})


@peels("layout", "stack")
def _stack(cursor: Cursor, node: Node) -> Cursor | None:
    index, axis = list(cursor.index), node.params["axis"]
    (which, terms), index = index[axis], index[:axis] + index[axis + 1 :]
    return None if terms or not 0 <= which < len(node.inputs) else cursor.at(node.inputs[which], index)


@peels("layout", "unstack")
def _unstack(cursor: Cursor, node: Node) -> Cursor:
    index, axis = list(cursor.index), node.params["axis"]
    return cursor.at(node.inputs[0], [*index[:axis], constant(cursor.atom.index), *index[axis:]])


@peels("layout", "gather")
def _gather(cursor: Cursor, node: Node) -> Cursor | None:
    indices = node.inputs[1]
    return read_gathered(cursor, node, lambda j, batch: place(cursor.at(indices, (*batch, constant(j)))))


def read_gathered(cursor: Cursor, node: Node, start_of: Callable[[int, list[Index]], Index | None]) -> Cursor | None:
    """Through a gather.

    Args:
        cursor: reads the gather's result.
        node: the gather.
        start_of: (j, place along the batch dimensions) -> the j-th start index there; None when it is not known.

    Returns:
        A cursor on the operand; None when a start is not known or a read may leave the operand.
    """
    operand, dims = node.inputs[0], node.params["dimension_numbers"]
    if cursor.padded:
        return None
    batch = [i for d, i in enumerate(cursor.index) if d not in dims.offset_dims]
    index: list[Index] = [constant(0)] * len(operand.aval.shape)
    for d, b in zip(dims.operand_batching_dims, dims.start_indices_batching_dims):
        index[d] = batch[b]
    gone = (*dims.collapsed_slice_dims, *dims.operand_batching_dims)
    kept = [d for d in range(len(index)) if d not in gone]
    for d, out in zip(kept, dims.offset_dims):
        index[d] = cursor.index[out]
    for j, d in enumerate(dims.start_index_map):
        start = start_of(j, batch)
        if start is None or not inside(start, operand.aval.shape[d] - node.params["slice_sizes"][d] + 1):
            return None
        index[d] = affine([(start, 1), (index[d], 1)])
    return cursor.at(operand, index)


@peels("layout", "scatter")
def _scatter(cursor: Cursor, node: Node) -> Cursor | None:
    """One window written over what was there."""
    (operand, indices, _), dims = node.inputs, node.params["dimension_numbers"]
    if len(indices.aval.shape) != 1 or dims.operand_batching_dims:
        return None
    starts: list[Index | None] = [constant(0)] * len(operand.aval.shape)
    for j, d in enumerate(dims.scatter_dims_to_operand_dims):
        starts[d] = place(cursor.at(indices, (constant(j),)))
    return _read_updated(cursor, node.inputs[0], node.inputs[2], starts, dims.inserted_window_dims)


@peels("layout", "dynamic_update_slice")
def _dynamic_update_slice(cursor: Cursor, node: Node) -> Cursor | None:
    operand, update, *at = node.inputs
    return _read_updated(cursor, operand, update, [place(cursor.at(a, ())) for a in at], ())


def _read_updated(cursor: Cursor, operand, update, starts: Sequence[Index | None], inserted) -> Cursor | None:
    """The update where a read lies in its window, the operand where it lies beside it."""
    sizes, index, beside = iter(update.aval.shape), [], False
    for d, (read, start, total) in enumerate(zip(cursor.index, starts, operand.aval.shape)):
        size = 1 if d in inserted else next(sizes)
        if start is None or start[1] or not 0 <= start[0] <= total - size:
            return None
        low, high = bounds(read)
        beside |= high < start[0] or low >= start[0] + size
        index.append((shift(read, -start[0]), size, d in inserted))
    if beside:
        return cursor.at(operand, cursor.index)
    if not all(inside(i, size) for i, size, _ in index):
        return None
    return cursor.at(update, [i for i, _, gone in index if not gone])


def place(term: Term) -> Index | None:
    """A whole number that follows from positions along axes, as an index; None for any other.

    Sums, multiples, and choices that the bounds decide: `i if i >= 0 else i + n`, maximum, minimum, clamp.
    """
    if type(term) is Cursor and (type(term.atom) not in (Value, Literal) or term.atom.aval.dtype.kind not in "iub"):
        return None
    number, addends = whole_sum(term, _VIEWS)
    parts = [(_position(open_head(t, _VIEWS)), c) for c, t in addends]
    if any(i is None or not float(c).is_integer() for i, c in parts) or not float(number).is_integer():
        return None
    return affine(((i, int(c)) for i, c in parts if i is not None), int(number))


def _position(head: Term) -> Index | None:
    if type(head) is Iota:
        return head.index
    return _decided(head) if type(head) is Fn else None


def _decided(head: Fn) -> Index | None:
    """A choice between two whole numbers that is the same at every position."""
    if head.name == "convert_element_type":
        return place(head.args[0])
    if head.name == "select_n" and len(head.args) == 3:
        truth = _truth(open_head(head.args[0], _VIEWS))
        return None if truth is None else place(head.args[1 + truth])
    args = [i for a in head.args if (i := place(a)) is not None]
    if len(args) < len(head.args):
        return None
    if head.name == "clamp":
        low, x, high = args
        return x if bounds(low)[1] <= bounds(x)[0] and bounds(x)[1] <= bounds(high)[0] else None
    if head.name in ("max", "min"):
        below, above = sorted(args, key=bounds)
        return (above if head.name == "max" else below) if bounds(below)[1] <= bounds(above)[0] else None
    return None


def _truth(head: Term) -> bool | None:
    """A comparison of two whole numbers that comes out alike at every position."""
    if type(head) is Const:
        return bool(head.value)
    if type(head) is not Fn or head.name not in ("lt", "ge"):
        return None
    a, b = (place(t) for t in head.args)
    if a is None or b is None:
        return None
    (low, high), (other_low, other_high) = bounds(a), bounds(b)
    less = True if high < other_low else False if low >= other_high else None
    return less if less is None or head.name == "lt" else not less
