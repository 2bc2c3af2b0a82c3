"""The verifier: every invariant a graph must keep, checked after rewriting."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from ..errors import VerifyError
from . import jaxprs
from .jaxprs import DropVar, Literal
from .nesting import nesting


def verify_graph(jaxpr, what: str = "the graph") -> None:
    """Check a jaxpr and everything inside it.

    Checks: each value has one definition, before its uses, in its own scope; every equation's types follow from its
    operands (JAX's own check); constants have values; no effect of an equation is missing on its jaxpr.

    Args:
        jaxpr: open or closed jaxpr.
        what: named in the message.

    Raises:
        VerifyError: with the first broken invariant and the equation's source line.
    """
    _verify_scopes(jaxpr, what)
    try:
        for part in _parts(jaxpr):
            jaxprs.check(part)
    except (jaxprs.JaxprTypeError, TypeError, ValueError) as error:
        raise VerifyError(f"{what}: types do not agree: {str(error).splitlines()[0]}") from error


_CUT = jaxprs.HOLDERS - {"shard_map"}  # what is inside a shard_map is only lawful there


def _parts(jaxpr) -> list[Any]:
    """What to hand to JAX's check: each jaxpr once, the jaxprs that it holds replaced by their mere signatures.

    By itself that check does not look into the bodies of loops and branches, recurses into calls, and looks at shared
    jaxprs wherever they are held.
    """
    inside = nesting(jaxpr, _CUT)
    if len(inside.bodies) == 1:
        return [jaxpr]
    signatures: dict[int, Any] = {}

    def signature(inner):
        body = jaxprs.open_jaxpr(inner)
        if id(body) not in signatures:
            signatures[id(body)] = _signature(body)
        return jaxprs.close(signatures[id(body)], ()) if jaxprs.is_closed(inner) else signatures[id(body)]

    def cut(eqn):
        inner = [child.jaxpr for child in jaxprs.children(eqn)] if eqn.primitive.name in _CUT else []
        on_references = any(map(jaxprs.is_on_reference, {*eqn.effects, *_effects(inner)}))  # they name arguments
        return eqn if not inner or on_references else jaxprs.with_children(eqn, list(map(signature, inner)))

    return [jaxprs.rebuild(body, eqns=list(map(cut, body.eqns))) if _held_in(body) else body for body in inside.bodies]


def _held_in(body) -> bool:
    return any(eqn.primitive.name in _CUT for eqn in body.eqns)


def _effects(inner: list[Any]) -> set[Any]:
    return set().union(*(jaxprs.open_jaxpr(j).effects for j in inner))


_INSIDE = jaxprs.new_primitive("inside", lambda *avals, results, effects: (list(results), set(effects)))


def _signature(body) -> Any:
    """A jaxpr of one equation with the arguments, results and effects of another."""
    invars = [jaxprs.Var(v.aval) for v in body.invars]
    outvars = [jaxprs.Var(v.aval) for v in body.outvars]
    params = {"results": tuple(v.aval for v in body.outvars), "effects": frozenset(body.effects)}
    eqn = jaxprs.new_eqn(invars, outvars, _INSIDE, params, set(body.effects))
    return jaxprs.new_jaxpr([], invars, outvars, [eqn], body.effects)


def same_signature(old: Iterable, new: Iterable, what: str) -> None:
    """Raise VerifyError unless two lists of abstract values agree in shape, dtype and weak type."""
    old, new = list(old), list(new)
    if len(old) != len(new):
        raise VerifyError(f"{what}: {len(old)} values before, {len(new)} after")
    for i, (a, b) in enumerate(zip(old, new)):
        if not same_aval(a, b):
            raise VerifyError(f"{what} {i}: {a} before, {b} after")


def same_aval(a, b, weak_type: bool = True) -> bool:
    """Equal shape, dtype, weak type (where that is asked for), sharding and varying axes."""
    if a is b:
        return True
    if not hasattr(a, "shape"):
        return a == b
    return (
        a.shape == b.shape
        and a.dtype == b.dtype
        and (not weak_type or getattr(a, "weak_type", False) == getattr(b, "weak_type", False))
        and getattr(a, "sharding", None) == getattr(b, "sharding", None)
        and jaxprs.varying_axes(a) == jaxprs.varying_axes(b)
    )


def _verify_scopes(jaxpr, what: str) -> None:
    stack, seen = [jaxpr], {id(jaxpr)}
    while stack:  # iterative: regions may be nested deeper than Python likes
        _verify_constants(stack[-1], what)
        current = jaxprs.open_jaxpr(stack.pop())
        inputs, defined = {*current.constvars, *current.invars}, set()
        for var in [*current.constvars, *current.invars]:
            _define(var, defined, what, "argument")
        effects = {type(e) for e in current.effects}
        for eqn in current.eqns:
            for atom in eqn.invars:
                if type(atom) is not Literal and atom not in defined:
                    raise VerifyError(
                        f"{what}: {eqn.primitive.name} at {jaxprs.source_line(eqn)} reads undefined {atom}"
                    )
            for var in eqn.outvars:
                if not isinstance(var, DropVar):
                    _define(var, defined, what, f"{eqn.primitive.name} at {jaxprs.source_line(eqn)}")
            if any(type(e) not in effects for e in jaxprs.visible_effects(eqn.effects, inputs)):
                raise VerifyError(f"{what}: an effect of {eqn.primitive.name} is missing on its jaxpr")
            inner = [c.jaxpr for c in jaxprs.children(eqn)]
            stack += [j for j in inner if id(j) not in seen]  # JAX shares jaxprs between calls
            seen.update(map(id, inner))
        for atom in current.outvars:
            if type(atom) is not Literal and atom not in defined:
                raise VerifyError(f"{what}: the result reads undefined {atom}")


def _verify_constants(jaxpr, what: str) -> None:
    if not jaxprs.is_closed(jaxpr):
        return
    variables, values = jaxprs.open_jaxpr(jaxpr).constvars, jaxprs.consts_of(jaxpr)
    if len(variables) != len(values):
        raise VerifyError(f"{what}: {len(variables)} constants but {len(values)} values")
    for var, value in zip(variables, values):
        if value is None or np.shape(value) != getattr(var.aval, "shape", np.shape(value)):
            raise VerifyError(f"{what}: constant {var.aval} has the value {value!r:.40}")


def _define(var, defined: set, what: str, who: str) -> None:
    if var in defined:
        raise VerifyError(f"{what}: {var} is defined twice, the second time by {who}")
    defined.add(var)
