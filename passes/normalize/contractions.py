"""View `contractions`: dot_general, sums, depthwise convolutions, additions and concatenations in index notation.

A dot_general is the sum of a product over its contracted axes, whatever its operand order and layout; with nothing to
contract it is a product. A short depthwise convolution is a sum of shifted products, as is the same thing written with
slices. A concatenation read across its pieces is the sum of the pieces, each zero outside itself.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..ir.region import Node
from .cursor import Cursor
from .index import Index, Label, affine, bounds, constant, of_label
from .layout import pieces_read
from .terms import Add, Prod, Sum, Term, expands, operand

MAX_TAPS = 16  # convolutions up to this length are written out tap by tap


@expands("contractions", "dot_general")
def _dot_general(cursor: Cursor, node: Node) -> Term:
    lhs, rhs = node.inputs
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = node.params["dimension_numbers"]
    lhs_index: list[Index | None] = [None] * len(lhs.aval.shape)
    rhs_index: list[Index | None] = [None] * len(rhs.aval.shape)
    out = iter(cursor.index)
    for i, j in zip(lhs_batch, rhs_batch):
        lhs_index[i] = rhs_index[j] = next(out)
    labels = []
    for i, j in zip(lhs_contract, rhs_contract):
        label = Label(lhs.aval.shape[i])
        lhs_index[i] = rhs_index[j] = of_label(label)
        if label.size != 1:
            labels.append(label)
    lhs_index = [next(out) if i is None else i for i in lhs_index]
    rhs_index = [next(out) if i is None else i for i in rhs_index]
    body = Prod(1.0, ((cursor.at(lhs, lhs_index), 1.0), (cursor.at(rhs, rhs_index), 1.0)), node)
    return Sum(tuple(labels), body, node, cursor.index) if labels else body


@expands("contractions", "reduce_sum")
def _reduce_sum(cursor: Cursor, node: Node) -> Term:
    source, labels, rest, index = node.inputs[0], [], iter(cursor.index), []
    for d, size in enumerate(source.aval.shape):
        if d in node.params["axes"]:
            labels.append(Label(size))
            index.append(of_label(labels[-1]))
        else:
            index.append(next(rest))
    labels = [label for label in labels if label.size != 1]
    body = cursor.at(source, index)
    return Sum(tuple(labels), body, node, cursor.index) if labels else Prod(1.0, ((body, 1.0),), node)


@expands("contractions", "add", "add_any")
def _add(cursor: Cursor, node: Node) -> Add:
    a, b = node.inputs
    return Add(0.0, ((1.0, operand(cursor, a)), (1.0, operand(cursor, b))), node)


@expands("contractions", "sub")
def _sub(cursor: Cursor, node: Node) -> Add:
    a, b = node.inputs
    return Add(0.0, ((1.0, operand(cursor, a)), (-1.0, operand(cursor, b))), node)


@expands("contractions", "concatenate")
def _concatenate(cursor: Cursor, node: Node) -> Add | None:
    if node.outputs[0].aval.dtype.kind == "b":
        return None
    addends = tuple((1.0, cursor.at(piece, index)) for piece, index in pieces_read(cursor, node))
    return Add(0.0, addends, node)


@expands("contractions", "conv_general_dilated")
def _depthwise_convolution(cursor: Cursor, node: Node) -> Add | None:
    space = _depthwise(node)
    if space is None:
        return None
    lhs, rhs = node.inputs
    spec, rank = node.params["dimension_numbers"], len(cursor.index)
    at_batch, at_channel, at_time = (cursor.index[spec.out_spec[d]] for d in (0, 1, space + 2))
    addends = []
    for k, time in _taps_at(node, space, at_time):
        lhs_index, rhs_index = [constant(0)] * rank, [constant(0)] * rank
        lhs_index[spec.lhs_spec[0]], lhs_index[spec.lhs_spec[1]] = at_batch, at_channel
        lhs_index[spec.lhs_spec[space + 2]] = time
        rhs_index[spec.rhs_spec[0]], rhs_index[spec.rhs_spec[space + 2]] = at_channel, constant(k)
        addends.append((1.0, Prod(1.0, ((cursor.at(lhs, lhs_index), 1.0), (cursor.at(rhs, rhs_index), 1.0)), node)))
    return Add(0.0, tuple(addends), node)


def taps_met(node: Node) -> int:
    """Taps of a short depthwise convolution that do not only meet padding; 0 for any other convolution."""
    space = _depthwise(node)
    if space is None:
        return 0
    time = of_label(Label(node.outputs[0].aval.shape[node.params["dimension_numbers"].out_spec[space + 2]]))
    return sum(1 for _ in _taps_at(node, space, time))


def _depthwise(node: Node) -> int | None:
    """The one spatial dimension that a depthwise convolution works along, the others being of size 1; else None."""
    (lhs, rhs), p = node.inputs, node.params
    spec = p["dimension_numbers"]
    channels = lhs.aval.shape[spec.lhs_spec[1]]
    sizes = [(lhs.aval.shape[i], rhs.aval.shape[j]) for i, j in zip(spec.lhs_spec[2:], spec.rhs_spec[2:])]
    idle = [pair == (1, 1) and padding == (0, 0) for pair, padding in zip(sizes, p["padding"])]
    if len(idle) > 1 and sum(idle) != len(idle) - 1:
        return None
    space = 0 if len(idle) == 1 else idle.index(False)
    plain = (
        p["feature_group_count"] == channels == rhs.aval.shape[spec.rhs_spec[0]]
        and p["batch_group_count"] == 1
        and all(d == 1 for d in p["lhs_dilation"])
        and sizes[space][1] <= MAX_TAPS
    )
    return space if plain else None


def _taps_at(node: Node, space: int, at_time: Index) -> Iterator[tuple[int, Index]]:
    """Each tap with where in time it reads, without those that always read padding."""
    (lhs, rhs), p = node.inputs, node.params
    spec = p["dimension_numbers"]
    taps, length = rhs.aval.shape[spec.rhs_spec[space + 2]], lhs.aval.shape[spec.lhs_spec[space + 2]]
    stride, dilation = p["window_strides"][space], p["rhs_dilation"][space]
    for k in range(taps):
        time = affine([(at_time, stride)], k * dilation - p["padding"][space][0])
        low, high = bounds(time)
        if high >= 0 and low < length:
            yield k, time
