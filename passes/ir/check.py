"""The verifier: every invariant a graph must keep, checked after rewriting."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ..errors import VerifyError
from . import jaxprs
from .jaxprs import DropVar, Literal


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
        jaxprs.check(jaxpr)
    except (jaxprs.JaxprTypeError, TypeError, ValueError) as error:
        raise VerifyError(f"{what}: types do not agree: {str(error).splitlines()[0]}") from error


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
