"""View `products`: multiply, divide, negate, squares, roots and powers are one product of powers."""

from __future__ import annotations

import numpy as np

from ..ir.jaxprs import Literal
from ..ir.region import Node
from .cursor import Cursor
from .terms import Prod, expands, operand


@expands("products", "mul")
def _mul(cursor: Cursor, node: Node) -> Prod:
    a, b = node.inputs
    return Prod(1.0, ((operand(cursor, a), 1.0), (operand(cursor, b), 1.0)), node)


@expands("products", "div")
def _div(cursor: Cursor, node: Node) -> Prod | None:
    if node.outputs[0].aval.dtype.kind in "iu":
        return None  # integer division is no product
    a, b = node.inputs
    return Prod(1.0, ((operand(cursor, a), 1.0), (operand(cursor, b), -1.0)), node)


@expands("products", "neg")
def _neg(cursor: Cursor, node: Node) -> Prod:
    return Prod(-1.0, ((operand(cursor, node.inputs[0]), 1.0),), node)


_EXPONENTS = {"square": 2.0, "sqrt": 0.5, "rsqrt": -0.5}


@expands("products", "square", "sqrt", "rsqrt")
def _fixed_power(cursor: Cursor, node: Node) -> Prod:
    return Prod(1.0, ((operand(cursor, node.inputs[0]), _EXPONENTS[node.primitive]),), node)


@expands("products", "integer_pow")
def _integer_pow(cursor: Cursor, node: Node) -> Prod:
    return Prod(1.0, ((operand(cursor, node.inputs[0]), float(node.params["y"])),), node)


@expands("products", "pow")
def _pow(cursor: Cursor, node: Node) -> Prod | None:
    base, exponent = node.inputs
    if type(exponent) is not Literal or np.ndim(exponent.val):
        return None
    return Prod(1.0, ((operand(cursor, base), float(np.asarray(exponent.val).item())),), node)
