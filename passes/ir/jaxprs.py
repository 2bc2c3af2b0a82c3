"""All that depends on JAX's own jaxpr classes and on JAX's version. No other file touches `jax.extend.core`.

JAX differences handled here (0.10.2 to the newest): `ClosedJaxpr` and `Jaxpr` became one class in 0.11; a scan's
`num_consts`/`num_carry` became `ft_in`/`ft_out`; `jit` was named `pjit` before 0.7.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jex
from jax.extend import source_info_util
from jax.sharding import NamedSharding, PartitionSpec

Var = jex.Var
Literal = jex.Literal
DropVar = jex.DropVar
Primitive = jex.Primitive
Jaxpr = jex.Jaxpr
ClosedJaxpr: Any = getattr(jex, "ClosedJaxpr", Jaxpr)  # one class from 0.11 on
Eqn = jex.JaxprEqn
ONE_JAXPR_CLASS = Jaxpr is ClosedJaxpr
JaxprTypeError = jex.JaxprTypeError

_JAX_FOLDER = os.path.dirname(os.path.abspath(jax.__file__))
_ORDINARY_EFFECTS = ("NamedAxisEffect",)  # these name an axis; they order nothing


# ---------------------------------------------------------------- closed and open jaxprs
def open_jaxpr(jaxpr) -> Any:
    """The jaxpr itself, without its constants' values."""
    return jaxpr.jaxpr if isinstance(jaxpr, ClosedJaxpr) else jaxpr


def consts_of(jaxpr) -> Sequence[Any]:
    """Values of `constvars`; empty for an open jaxpr of old JAX."""
    return getattr(jaxpr, "consts", ())


def close(jaxpr: Any, consts: Sequence[Any]) -> Any:
    """A closed jaxpr from an open one and the values of its constvars."""
    if ONE_JAXPR_CLASS:
        return jaxpr.with_consts(tuple(consts)) if consts or jaxpr.consts else jaxpr
    return ClosedJaxpr(jaxpr, consts)


def rebuild(jaxpr, *, eqns, outvars=None, new_consts: Sequence[tuple[Var, Any]] = ()):
    """`jaxpr` with other equations and outputs, of the same kind (open or closed), effects included.

    Args:
        jaxpr: open or closed jaxpr to copy.
        eqns: its new equations.
        outvars: its new outputs; the old ones when None.
        new_consts: constvars to add, with their values; only a closed jaxpr can take them.

    Returns:
        The new jaxpr; invars, debug info and names are kept.
    """
    body = open_jaxpr(jaxpr)
    inputs = {*body.invars, *body.constvars}
    effects = body.effects.union(*(visible_effects(e.effects, inputs) for e in eqns if e.effects))
    changes: dict[str, Any] = {"eqns": list(eqns), "effects": effects}
    if outvars is not None:
        changes["outvars"] = list(outvars)
    if new_consts:
        changes["constvars"] = [*body.constvars, *(v for v, _ in new_consts)]
    consts = [*consts_of(jaxpr), *(c for _, c in new_consts)]
    if ONE_JAXPR_CLASS:
        return body.replace(**changes, consts=consts) if new_consts else body.replace(**changes)
    body = body.replace(**changes)
    return ClosedJaxpr(body, consts) if is_closed(jaxpr) else body


def new_primitive(name: str, types) -> Primitive:
    """A primitive that is never run, for checking only: `types(*avals, **params)` gives its results and effects."""
    primitive = Primitive(name)
    primitive.multiple_results = True
    primitive.def_effectful_abstract_eval(types)
    return primitive


def new_eqn(invars, outvars, primitive, params, effects, source_info=None, ctx=None) -> Eqn:
    """A new equation."""
    return jex.new_jaxpr_eqn(invars, outvars, primitive, params, effects, source_info, ctx)


def check(jaxpr) -> None:
    """JAX's own type check of a jaxpr and all inside it. Raises JaxprTypeError."""
    jex.check_jaxpr(open_jaxpr(jaxpr))


def as_function(closed) -> Callable[..., list]:
    """A function of flat values that evaluates the closed jaxpr."""
    return jex.jaxpr_as_fun(closed)


# ---------------------------------------------------------------- nested jaxprs of an equation
class Child(NamedTuple):
    """One jaxpr held by an equation's params, and how values enter it."""

    key: str  # parameter that holds it
    position: int | None  # index when the parameter is a tuple (cond's branches)
    jaxpr: Any
    operands: slice  # which of the equation's operands are its arguments
    trips: int | None  # times it runs per run of the equation; None when not known

    @property
    def label(self) -> str:
        """Its place in the equation's parameters: `jaxpr`, `branches[1]`."""
        return self.key if self.position is None else f"{self.key}[{self.position}]"


_SINGLE = {  # primitive name -> parameter that holds its only jaxpr, called once with all operands
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "eval_jaxpr": "call_jaxpr",
    "remat2": "jaxpr",
    "checkpoint": "jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vmap_call": "call",
    "shard_map": "jaxpr",
}


HOLDERS = frozenset({*_SINGLE, "scan", "cond", "while"})  # primitives whose equations may have children


def children(eqn: Eqn) -> list[Child]:
    """The regions of an equation that the engine enters. Kernels' bodies and unknown primitives give none."""
    name, params = eqn.primitive.name, eqn.params
    if name in _SINGLE and _SINGLE[name] in params:
        return [Child(_SINGLE[name], None, params[_SINGLE[name]], slice(0, None), 1)]
    if name == "scan":
        return [Child("jaxpr", None, params["jaxpr"], slice(0, None), params["length"])]
    if name == "cond":
        return [Child("branches", i, b, slice(1, None), 1) for i, b in enumerate(params["branches"])]
    if name == "while":
        n_cond, n_body = params["cond_nconsts"], params["body_nconsts"]
        return [
            Child("cond_jaxpr", None, params["cond_jaxpr"], slice(0, 0), None),
            Child("body_jaxpr", None, params["body_jaxpr"], slice(n_cond, n_cond + n_body), None),
        ]
    return []


def with_children(eqn: Eqn, jaxprs: Sequence[Any]) -> Eqn:
    """The equation with its nested jaxprs replaced, in the order of `children`."""
    params = dict(eqn.params)
    for child, jaxpr in zip(children(eqn), jaxprs, strict=True):
        if child.position is None:
            params[child.key] = jaxpr
        else:
            params[child.key] = tuple(jaxpr if i == child.position else b for i, b in enumerate(params[child.key]))
    return eqn.replace(params=params)


class ScanParts(NamedTuple):
    """How a scan's operands and results divide."""

    consts: int
    carry: int
    length: int
    reverse: bool


def scan_parts(eqn: Eqn) -> ScanParts:
    """Numbers of constants and carries of a scan equation, its length and direction."""
    p = eqn.params
    if "num_consts" in p:
        return ScanParts(p["num_consts"], p["num_carry"], p["length"], p["reverse"])
    consts, carry, _ = (len(part) for part in p["ft_in"].unpack())
    return ScanParts(consts, carry, p["length"], p["reverse"])


def all_jaxprs(eqn: Eqn) -> Iterator[Any]:
    """Every jaxpr in an equation's params, also those the engine does not enter."""
    return iter(jex.jaxprs_in_params(eqn.params))


# ---------------------------------------------------------------- calls that matching may see through
CALL_NAMES = {"jit", "pjit", "closed_call", "core_call", "eval_jaxpr", "custom_jvp_call"}


def inlinable_call(eqn: Eqn):
    """The jaxpr of a call-like equation whose border means nothing, else None.

    A jit with shardings, donation or compiler options keeps its border. A custom_jvp_call is dissolved only when it is
    JAX's own (softplus, relu): a user's derivative may differ on purpose. custom_vjp_call always keeps its border, and
    so does a call that works on references: its effects name its own variables.
    """
    name = eqn.primitive.name
    if name not in CALL_NAMES or any(is_on_reference(e) for e in eqn.effects):
        return None
    params = eqn.params
    if name in ("jit", "pjit"):
        pinned = any(not _unspecified(s) for key in ("in_shardings", "out_shardings") for s in params.get(key, ()))
        pinned |= any(layout is not None for key in ("in_layouts", "out_layouts") for layout in params.get(key, ()))
        if pinned or any(params.get("donated_invars", ())) or params.get("compiler_options_kvs"):
            return None
        return params["jaxpr"]
    jaxpr = params.get("call_jaxpr")
    if name == "custom_jvp_call" and not (_is_jax_own(jaxpr) and _is_jax_own(params["jvp_jaxpr_fun"])):
        return None
    return jaxpr


def _unspecified(sharding) -> bool:
    return type(sharding).__name__ == "UnspecifiedValue"


def _is_jax_own(traced) -> bool:
    info = getattr(traced, "debug_info", None) or getattr(open_jaxpr(traced), "debug_info", None)
    return info is not None and f" at {_JAX_FOLDER}{os.sep}" in str(info.func_src_info)


# ---------------------------------------------------------------- effects, names, sources
def ordering_effects(eqn: Eqn) -> bool:
    """Whether the equation has an effect that must keep its place (prints, callbacks, refs, ordered tokens)."""
    return any(type(e).__name__ not in _ORDINARY_EFFECTS for e in eqn.effects)


def visible_effects(effects, inputs) -> set[Any]:
    """Effects that show on a jaxpr with these inputs: all but those on references that are made inside it."""
    return {e for e in effects if getattr(e, "input", None) is None or e.input in inputs}


def is_on_reference(effect) -> bool:
    """Whether an effect is one of reading or writing a mutable reference."""
    return hasattr(effect, "input") or type(effect).__name__ == "InternalMutableArrayEffect"


def is_ref(aval) -> bool:
    """Whether a value is a mutable reference."""
    return type(aval).__name__ in ("AbstractRef", "AvalMutableQDD")


class SourceLine(NamedTuple):
    """Where the user wrote an equation."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} ({self.function})" if self.file else "unknown"


def source_line(eqn: Eqn) -> SourceLine:
    """The user's own file, line and function that made the equation."""
    return _source_line(eqn.source_info.traceback)


@functools.lru_cache(maxsize=1 << 16)
def _source_line(traceback) -> SourceLine:
    info = source_info_util.SourceInfo(traceback, source_info_util.new_name_stack())
    text = source_info_util.summarize(info)  # "path:line:column (function)"
    place, _, function = text.partition(" (")
    parts = place.rsplit(":", 2)
    if len(parts) != 3 or not parts[1].isdigit():
        return SourceLine("", 0, "")
    return SourceLine(parts[0], int(parts[1]), function.rstrip(")"))


@contextmanager
def context_of(eqn: Eqn):
    """Trace inside this as if at the equation's place: its mesh, its compute type, its name stack."""
    with (
        eqn.ctx.manager,
        source_info_util.user_context(eqn.source_info.traceback, name_stack=eqn.source_info.name_stack),
    ):
        yield


def at_source(eqn: Eqn, first: Eqn, here: Eqn, made: bool = False) -> Eqn:
    """An equation that was traced at one equation's source, moved to another's: its line and its name stack.

    Args:
        eqn: the equation.
        first: the equation it was traced at.
        here: the equation whose source it gets.
        made: a rewrite made `here`: its scope, the last of the stack, gives way.

    Returns:
        The same equation when both sources are one.
    """
    old, new = first.source_info, here.source_info
    if not made and (first is here or (old.traceback is new.traceback and old.name_stack == new.name_stack)):
        return eqn
    around = new.name_stack[: len(new.name_stack) - 1] if made and len(new.name_stack) else new.name_stack
    own = around + eqn.source_info.name_stack[len(old.name_stack) :]
    return eqn.replace(source_info=eqn.source_info.replace(traceback=new.traceback, name_stack=own))


# ---------------------------------------------------------------- tracing
def trace_flat(fn: Callable, avals: Sequence[Any], axis_sizes: dict[str, int] | None = None) -> Any:
    """The closed jaxpr of a function of flat values that returns flat values.

    Args:
        fn: function of `len(avals)` arrays; returns a list of arrays.
        avals: abstract values (shape, dtype, weak type) of its arguments.
        axis_sizes: named axes that collectives in it may use.

    Returns:
        A closed jaxpr.
    """
    axis_env = list(axis_sizes.items()) if axis_sizes else None
    return jax.make_jaxpr(fn, axis_env=axis_env)(*(_argument(a) for a in avals))


def trace_at(eqn: Eqn, fn: Callable, avals: Sequence[Any], shard_maps: Sequence[tuple[Any, frozenset, bool]]) -> Any:
    """As `trace_flat`, at an equation's place: its mesh and name stack, inside the shard_maps around it.

    Args:
        eqn: the equation.
        fn: function of flat arrays.
        avals: types of its arguments as they are there.
        shard_maps: (mesh, manual axes, check_vma), outermost first.

    Returns:
        A closed jaxpr.
    """
    if not shard_maps:
        with context_of(eqn):
            return trace_flat(fn, avals)
    mesh, axes, check_vma = shard_maps[0]
    traced = None

    def body():
        nonlocal traced
        traced = trace_at(eqn, fn, avals, shard_maps[1:])
        return jnp.zeros(())

    inside = jax.shard_map(
        body, mesh=mesh, in_specs=(), out_specs=PartitionSpec(), axis_names=set(axes), check_vma=check_vma
    )
    jax.eval_shape(inside)
    return traced


def ambient_axes() -> tuple[tuple[str, int], ...]:
    """Manual mesh axes of the shard_map that is being traced right now, with their sizes."""
    mesh = jax.sharding.get_abstract_mesh()
    return tuple((name, mesh.shape[name]) for name in mesh.manual_axes)


def _argument(aval):
    """What make_jaxpr accepts for an abstract value; one whose type knows a mesh is passed as it is."""
    sharding = getattr(aval, "sharding", None)
    if varying_axes(aval) is not None or (isinstance(sharding, NamedSharding) and not sharding.mesh.empty):
        return aval
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=getattr(aval, "weak_type", False))


def varying_axes(aval):
    """Over which manual mesh axes a value varies (shard_map with check_vma); None for none."""
    varying = getattr(aval, "manual_axis_type", None)
    return None if varying is None or varying.empty else varying


def literal(value, aval) -> Literal:
    """A literal operand."""
    return Literal(value, aval)


def literal_array(atom) -> np.ndarray:
    """A literal operand's value, at its exact type."""
    return np.asarray(atom.val, atom.aval.dtype)


def is_scalar_literal(atom) -> bool:
    """Whether an operand is a literal number."""
    return type(atom) is Literal and np.ndim(atom.val) == 0


def is_closed(jaxpr) -> bool:
    """Whether a jaxpr can hold constants' values."""
    return ONE_JAXPR_CLASS or isinstance(jaxpr, ClosedJaxpr)


def takes_consts(jaxpr, owners: set[str]) -> bool:
    """Whether constvars may be added to a jaxpr that equations of these primitives hold (none: a whole program)."""
    return is_closed(jaxpr) and owners.isdisjoint({"shard_map", "remat2", "checkpoint"})


def new_jaxpr(constvars, invars, outvars, eqns, effects) -> Jaxpr:
    """An open jaxpr from its parts."""
    info = jex.DebugInfo("splice", "region", tuple("" for _ in invars), tuple("" for _ in outvars))
    if ONE_JAXPR_CLASS:
        consts: dict[str, Any] = {"consts": [None] * len(constvars)}
        return Jaxpr(constvars, invars, outvars, eqns, frozenset(effects), info, **consts)
    return Jaxpr(constvars, invars, outvars, eqns, frozenset(effects), info)
