"""View `contractions`: dot_general, sums, depthwise convolutions, additions and concatenations in index notation.

A dot_general is the sum of a product over its contracted axes, whatever its operand order and layout; with nothing to
contract it is a product. A short depthwise convolution is a sum of shifted products, as is the same thing written with
slices. A concatenation read across its pieces is the sum of the pieces, each zero outside itself.
"""

from __future__ import annotations

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
    lhs, rhs = node.inputs
    p = node.params
    spec = p["dimension_numbers"]
    (batch, channel, space), (out_channel, _, tap), out_spec = spec.lhs_spec[:3], spec.rhs_spec[:3], spec.out_spec
    channels, taps = lhs.aval.shape[channel], rhs.aval.shape[tap]
    plain = (
        len(lhs.aval.shape) == 3
        and p["feature_group_count"] == channels == rhs.aval.shape[out_channel]
        and p["batch_group_count"] == 1
        and p["lhs_dilation"] == (1,)
        and taps <= MAX_TAPS
    )
    if not plain:
        return None
    at_batch, at_channel, at_time = (cursor.index[d] for d in out_spec)
    stride, dilation, (before, _) = p["window_strides"][0], p["rhs_dilation"][0], p["padding"][0]
    addends = []
    for k in range(taps):
        time = affine([(at_time, stride)], k * dilation - before)
        low, high = bounds(time)
        if high < 0 or low >= lhs.aval.shape[space]:
            continue  # this tap always reads padding
        lhs_index, rhs_index = [constant(0)] * 3, [constant(0)] * 3
        lhs_index[batch], lhs_index[channel], lhs_index[space] = at_batch, at_channel, time
        rhs_index[out_channel], rhs_index[tap] = at_channel, constant(k)
        addends.append((1.0, Prod(1.0, ((cursor.at(lhs, lhs_index), 1.0), (cursor.at(rhs, rhs_index), 1.0)), node)))
    return Add(0.0, tuple(addends), node)
