"""Value numbering: two programs with equal numbers do the same operations, so give the same bits.

Operand order of commutative operations, calls, names and no-ops do not count. Everything else does.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import numpy as np

from ..ir import jaxprs
from ..ir.jaxprs import Literal
from ..ir.nesting import returned
from ..normalize.functions import params_key

_COMMUTATIVE = {"add", "mul", "max", "min", "and", "or", "xor", "eq", "ne", "add_any"}
_TRANSPARENT = {"copy", "copy_p", "pvary", "pcast", "sharding_constraint", "reshard", "name", "layout_constraint"}
_CALLS = {"jit", "pjit", "closed_call", "core_call", "eval_jaxpr", "custom_jvp_call"}


class Numbering:
    """One table of numbers, shared by the programs to be compared."""

    def __init__(self, inline_ops: bool = False):
        self._table: dict[Any, int] = {}
        self.inline_ops = inline_ops

    def inputs(self, count: int) -> list[int]:
        """Numbers of the shared inputs."""
        return [self._number(("input", i)) for i in range(count)]

    def _number(self, key) -> int:
        return self._table.setdefault(key, len(self._table))

    def outputs(self, jaxpr, operands: Sequence[int]) -> list[int]:
        """Numbers of a jaxpr's results, given the numbers of its arguments."""
        return returned(self._outputs(jaxpr, operands, {}))

    def closed(self, jaxpr) -> tuple[int, ...]:
        """A nested jaxpr by itself: its results' numbers over inputs of its own."""
        return tuple(self.outputs(jaxpr, self._own_inputs(jaxpr)))

    def _own_inputs(self, jaxpr) -> list[int]:
        invars = jaxprs.open_jaxpr(jaxpr).invars
        return [self._number(("inner input", i, str(v.aval))) for i, v in enumerate(invars)]

    def _outputs(self, jaxpr, operands: Sequence[int], known: dict) -> Generator[Any, Any, list[int]]:
        """The same; `known` has the results of nested jaxprs by their arguments, so that shared ones are read once."""
        body = jaxprs.open_jaxpr(jaxpr)
        env: dict[Any, int] = dict(zip(body.invars, operands, strict=True))
        for var, value in zip(body.constvars, jaxprs.consts_of(jaxpr)):
            env[var] = self._constant(value)
        for eqn in body.eqns:
            ids = [self._atom(a, env) for a in eqn.invars]
            if _is_seen_through(eqn, self.inline_ops):
                inner = jaxprs.children(eqn)[0].jaxpr if eqn.primitive.name in _CALLS else eqn.params["jaxpr"]
                numbers = yield self._nested(inner, ids, known)
            else:
                held = []
                for child in jaxprs.children(eqn):
                    held.append(tuple((yield self._nested(child.jaxpr, self._own_inputs(child.jaxpr), known))))
                numbers = self._equation(eqn, ids, tuple(held))
            env.update(zip(eqn.outvars, numbers))
        return [self._atom(a, env) for a in body.outvars]

    def _nested(self, jaxpr, operands: list[int], known: dict) -> Generator[Any, Any, list[int]]:
        key = (id(jaxpr), *operands)
        if key not in known:
            known[key] = yield self._outputs(jaxpr, operands, known)
        return known[key]

    def _atom(self, atom, env) -> int:
        if type(atom) is Literal:
            return self._constant(jaxprs.literal_array(atom))
        return env[atom]

    def _constant(self, value) -> int:
        array = np.asarray(value)
        return self._number(("constant", str(array.dtype), array.shape, array.tobytes()))

    def _equation(self, eqn, ids: list[int], inner: tuple) -> list[int]:
        name, params = eqn.primitive.name, eqn.params
        if name in _TRANSPARENT or _is_noop(eqn):
            return [ids[0]]
        if name == "optimization_barrier":
            return ids
        if name in _COMMUTATIVE:
            ids = sorted(ids)
        if hasattr(params.get("op"), "static"):
            own: Any = params["op"]  # an Op means its reference, whichever implementation it may name
        else:
            own = params_key({k: v for k, v in params.items() if not _holds_jaxpr(v)})
        key = (name, own, inner, tuple(ids))
        return [self._number((key, i)) for i in range(len(eqn.outvars))]


def _is_seen_through(eqn, inline_ops: bool) -> bool:
    return eqn.primitive.name in _CALLS or (inline_ops and hasattr(eqn.params.get("op"), "static"))


def _is_noop(eqn) -> bool:
    if len(eqn.invars) < 1 or len(eqn.outvars) != 1 or type(eqn.invars[0]) is Literal:
        return False
    old, new = eqn.invars[0].aval, eqn.outvars[0].aval
    name = eqn.primitive.name
    if name not in ("convert_element_type", "reshape", "broadcast_in_dim", "transpose", "slice", "squeeze"):
        return False
    if old.shape != new.shape or old.dtype != new.dtype:
        return False
    if name == "reshape":
        return eqn.params.get("dimensions") is None
    return name != "transpose" or tuple(eqn.params["permutation"]) == tuple(range(len(old.shape)))


def _holds_jaxpr(value) -> bool:
    items = value if isinstance(value, tuple) else (value,)
    return any(isinstance(v, jaxprs.Jaxpr | jaxprs.ClosedJaxpr) for v in items)


def same_program(a, b, inline_ops: bool = False) -> bool:
    """Whether two closed jaxprs do the same operations on the same inputs.

    Args:
        a, b: closed jaxprs with as many inputs.
        inline_ops: read Ops as their references.

    Returns:
        True when every result has the same value number.
    """
    numbering = Numbering(inline_ops)
    inputs = numbering.inputs(len(jaxprs.open_jaxpr(a).invars))
    return numbering.outputs(a, inputs) == numbering.outputs(b, inputs)
