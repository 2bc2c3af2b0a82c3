"""View `functions`: elementwise functions by name, functions along an axis, positions."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from ..ir.region import Node
from .cursor import Cursor
from .index import Label, of_label
from .marks import literal_number
from .terms import Along, Const, Fn, Iota, Term, expands, operand

COMMUTATIVE = frozenset({"max", "min", "and", "or", "xor", "eq", "ne"})
_NUMBER_FREE = {
    "sharding",
    "out_sharding",
    "out_dtype",
    "weak_type",
    "is_stable",
    "accuracy",
    "update_jaxpr",
    "update_consts",
}


def params_key(params: dict[str, Any], without: tuple[str, ...] = ()) -> tuple:
    """Parameters that decide the numbers, in a form that compares equal on every JAX version."""
    return tuple(
        sorted(
            (k, v if _hashable(v) else str(v))
            for k, v in params.items()
            if k not in _NUMBER_FREE and k not in without and v is not None
        )
    )


def _hashable(value) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


@expands(
    "functions",
    "exp", "exp2", "log", "log1p", "expm1", "sin", "cos", "tan", "asin", "acos", "atan", "atan2", "sinh", "cosh",
    "tanh", "asinh", "acosh", "atanh", "logistic", "erf", "erfc", "erf_inv", "abs", "sign", "floor", "ceil", "round",
    "is_finite", "cbrt", "not", "max", "min", "and", "or", "xor", "eq", "ne", "lt", "le", "gt", "ge", "select_n",
    "clamp", "rem", "nextafter", "pow", "convert_element_type", "stop_gradient", "reduce_precision", "real", "imag",
    "shift_left", "shift_right_logical", "shift_right_arithmetic", "population_count", "lgamma", "digamma",
)  # fmt: skip
def _elementwise(cursor: Cursor, node: Node) -> Term:
    if node.primitive == "convert_element_type" and (number := _converted_number(node)) is not None:
        return Const(number)
    return Fn(node.primitive, params_key(node.params), tuple(operand(cursor, a) for a in node.inputs), node)


def _converted_number(node: Node) -> float | None:
    """What a cast makes of a number, rounding included; None when that is no real number or out of the type's range."""
    number, dtype = literal_number(node.inputs[0]), np.dtype(node.params["new_dtype"])
    if number is None or isinstance(number, complex) or dtype.kind == "c":
        return None
    if jnp.issubdtype(dtype, jnp.integer) and not jnp.iinfo(dtype).min <= number <= jnp.iinfo(dtype).max:
        return None
    with np.errstate(over="ignore"):  # a narrow float takes it to infinity, as JAX does
        return float(np.asarray(number).astype(dtype))


_AXIS = {  # primitive -> (parameter that names the axis, whether the result keeps that axis)
    "reduce_max": ("axes", False), "reduce_min": ("axes", False), "reduce_prod": ("axes", False),
    "reduce_and": ("axes", False), "reduce_or": ("axes", False), "argmax": ("axes", False), "argmin": ("axes", False),
    "cumsum": ("axis", True), "cumprod": ("axis", True), "cummax": ("axis", True), "cummin": ("axis", True),
    "cumlogsumexp": ("axis", True), "sort": ("dimension", True), "top_k": ("axis", True),
}  # fmt: skip


@expands("functions", *_AXIS)
def _along(cursor: Cursor, node: Node) -> Term | None:
    name, keeps = _AXIS[node.primitive]
    axis = node.params.get(name, -1)
    if isinstance(axis, tuple):
        if len(axis) != 1:
            return None
        axis = axis[0]
    rank = len(node.inputs[0].aval.shape)
    axis %= rank
    inner = Label(node.inputs[0].aval.shape[axis])
    rest = list(cursor.index)
    outer = rest.pop(axis) if keeps else None
    rest.insert(axis, of_label(inner))
    args = tuple(cursor.at(a, rest) for a in node.inputs)
    return Along(node.primitive, params_key(node.params, (name,)), cursor.atom.index, inner, outer, args, node)


@expands("functions", "iota")
def _iota(cursor: Cursor, node: Node) -> Iota | None:
    return Iota(cursor.index[node.params["dimension"]], node) if not node.inputs else None


def same_number(a: float, b: float, tolerance: float = 1e-6) -> bool:
    """Equal up to the rounding of a float32 literal."""
    return a == b or (np.isfinite(a) and np.isfinite(b) and abs(a - b) <= tolerance * max(abs(a), abs(b)))
