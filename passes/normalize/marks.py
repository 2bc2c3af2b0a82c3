"""View `marks`: equations that say something about a value and leave its numbers alone.

Names for checkpointing, sharding constraints, barriers, varying-axes casts, copies; and two spellings inside every
softmax: `stop_gradient` on a maximum, and the maximum with minus infinity.
"""

from __future__ import annotations

import numpy as np

from ..ir.jaxprs import Literal
from ..ir.region import Node, Value
from .cursor import Cursor, peels

_MARKS = ("copy", "copy_p", "sharding_constraint", "reshard", "pvary", "pcast", "layout_constraint", "mesh_cast")


@peels("marks", *_MARKS)
def _mark(cursor: Cursor, node: Node) -> Cursor:
    return cursor.at(node.inputs[0], cursor.index)


@peels("marks", "name")
def _name(cursor: Cursor, node: Node) -> Cursor | None:
    """A checkpoint name is kept where a remat policy may read it."""
    return cursor.at(node.inputs[0], cursor.index) if node.region.around.remat_policy is None else None


@peels("marks", "optimization_barrier")
def _barrier(cursor: Cursor, node: Node) -> Cursor:
    return cursor.at(node.inputs[cursor.atom.index], cursor.index)


@peels("marks", "stop_gradient")
def _stop_gradient(cursor: Cursor, node: Node) -> Cursor | None:
    """Only on a maximum (the shift of a softmax), whose gradient cancels; elsewhere it changes derivatives."""
    atom = node.inputs[0]
    while type(atom) is Value and atom.node is not None:
        if atom.node.primitive == "reduce_max":
            return cursor.at(node.inputs[0], cursor.index)
        if atom.node.primitive not in (
            "broadcast_in_dim",
            "max",
            "reshape",
            "convert_element_type",
            "squeeze",
            *_MARKS,
        ):
            return None
        atom = next((a for a in atom.node.inputs if literal_number(a) is None), None)
    return None


@peels("marks", "max")
def _max_with_minus_infinity(cursor: Cursor, node: Node) -> Cursor | None:
    for i, a in enumerate(node.inputs):
        if literal_number(a) == -np.inf:
            other = node.inputs[1 - i]
            if other.aval.shape == cursor.atom.aval.shape:
                return cursor.at(other, cursor.index)
    return None


def literal_number(atom) -> float | None:
    """The number that a scalar literal, or a mark or broadcast of one, stands for; None for anything else."""
    while type(atom) is Value and atom.node is not None and atom.node.primitive in (*_MARKS, "broadcast_in_dim"):
        atom = atom.node.inputs[0]
    if type(atom) is not Literal or np.ndim(atom.val):
        return None
    return np.asarray(atom.val).item()
