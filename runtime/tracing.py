"""trace: a function to a Graph."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax

from jaxsplice.passes.errors import JaxspliceError, TraceError
from jaxsplice.passes.ir.graph import Graph


def trace(
    fn: Callable,
    *args,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Sequence[str] | None = None,
    **kwargs,
) -> Graph:
    """Trace a function to a Graph; nothing is executed.

    Args:
        fn: any function JAX can trace (jitted or not).
        *args: arrays or `jax.ShapeDtypeStruct`s, in any pytree.
        static_argnums: as in `jax.jit`.
        static_argnames: as in `jax.jit`.
        **kwargs: keyword arguments of `fn`.

    Returns:
        The Graph; call it with the same pytrees, static arguments left out.

    Raises:
        TraceError: JAX could not trace the function with these arguments.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> graph = trace(lambda x: jnp.tanh(x["a"]), {"a": jax.ShapeDtypeStruct((2,), jnp.float32)})
        >>> graph.primitives()
        {'tanh': 1}
    """
    if not callable(fn):
        raise TraceError(f"trace needs a function and was given {fn!r}")
    name = getattr(fn, "__name__", type(fn).__name__)
    try:
        traced = jax.jit(fn, static_argnums=static_argnums, static_argnames=static_argnames).trace(*args, **kwargs)
        closed = traced.jaxpr
        flat = jax.tree.leaves(traced.args_info)
        if len(closed.in_avals) != len(flat):  # jit makes arguments of tracers that fn closes over; we want constants
            closed = _with_closed_over(fn, args, kwargs, static_argnums, static_argnames)
    except JaxspliceError:
        raise
    except Exception as error:
        given = ", ".join(_short(a) for a in jax.tree.leaves((args, kwargs))[:8])
        reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        static = positions_given(static_argnums, args), (static_argnames or ())
        raise TraceError(
            f"{name} could not be traced with arguments ({given}): {type(error).__name__}: {reason.rstrip('.')}."
            + (f" {_static_hint(args, kwargs, *static)}" if isinstance(error, TypeError) else "")
        ) from error
    in_tree = traced.in_tree if hasattr(traced, "in_tree") else jax.tree.structure(traced.args_info)
    out_tree = jax.tree.structure(traced.out_info)
    return Graph(closed, in_tree, out_tree, _graph_name(name))


def _with_closed_over(fn: Callable, args, kwargs, static_argnums, static_argnames):
    """The closed jaxpr of a function that closes over values of an outer transformation, which are its constants."""
    argnums, argnames = static_positions(fn, static_argnums, static_argnames)
    static = positions_given(argnums, args)
    fixed = {k: v for k, v in kwargs.items() if k in (argnames or ())}

    def of_arrays(arrays, keywords):
        rest = iter(arrays)
        return fn(*(a if i in static else next(rest) for i, a in enumerate(args)), **fixed, **keywords)

    arrays = [a for i, a in enumerate(args) if i not in static]
    return jax.make_jaxpr(of_arrays)(arrays, {k: v for k, v in kwargs.items() if k not in fixed})


def positions_given(argnums: int | Sequence[int] | None, args: Sequence[Any]) -> set[int]:
    """Those of some argument numbers, negative ones counted from the end, that were given by position."""
    wanted = (argnums,) if isinstance(argnums, int) else argnums or ()
    return {i % len(args) for i in wanted if -len(args) <= i < len(args)}


def static_positions(fn: Callable, argnums, argnames):
    """Static arguments by position and by name, each completed from the other, as jax.jit does."""
    argnums = (argnums,) if isinstance(argnums, int) else tuple(argnums or ())
    argnames = (argnames,) if isinstance(argnames, str) else tuple(argnames or ())
    try:
        names = [
            p.name
            for p in inspect.signature(fn).parameters.values()
            if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
    except (TypeError, ValueError):
        return argnums or None, argnames or None
    from_names = [names.index(n) for n in argnames if n in names]
    from_nums = [names[i] for i in argnums if -len(names) <= i < len(names)]
    positions = tuple(dict.fromkeys([*(i % len(names) if names else i for i in argnums), *from_names]))
    return positions or None, tuple(dict.fromkeys([*argnames, *from_nums])) or None


def _static_hint(args, kwargs, argnums, argnames) -> str:
    """How to mark as static what is no array."""
    rule = "A function to be traced takes arrays, and may not look at their values; "

    def is_array(value) -> bool:
        return all(isinstance(a, int | float | complex) or hasattr(a, "dtype") for a in jax.tree.leaves(value))

    if names := tuple(k for k, v in kwargs.items() if k not in argnames and not is_array(v)):
        return f"{rule}static_argnames={names} marks those that are none."
    if places := tuple(i for i, a in enumerate(args) if i not in argnums and not is_array(a)):
        return f"{rule}static_argnums={places} marks those that are none."
    return f"{rule}mark others as static (static_argnums=, static_argnames=)."


def _graph_name(name: str) -> str:
    return name if name.isidentifier() else "graph"


def _short(leaf: Any) -> str:
    shape, dtype = getattr(leaf, "shape", None), getattr(leaf, "dtype", None)
    return repr(leaf)[:40] if shape is None or dtype is None else f"{dtype}{list(shape)}"
