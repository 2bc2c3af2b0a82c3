"""optimize: like jax.jit, with rewriting in between."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
from jax.core import Tracer
from jax.sharding import get_abstract_mesh

from jaxsplice.passes.errors import JaxspliceError
from jaxsplice.passes.instrument import Instrument, as_instruments
from jaxsplice.passes.ir import jaxprs

from .library import library
from .rewrite import Result, rewrite, verify_level
from .target import Target
from .tracing import positions_given, static_positions, trace


class Optimized:
    """A function that rewrites itself once per abstract signature and then runs compiled.

    Call it as the function it wraps; it composes with jit, grad, vmap, remat, scan, shard_map and jax.export. `lower`
    gives the Result for some arguments without executing anything.
    """

    def __init__(self, fn: Callable, options: dict[str, Any], static_argnums, static_argnames, donate_argnums):
        functools.update_wrapper(self, fn, updated=())
        self._fn, self._options = fn, options
        self._static_argnums, self._static_argnames = static_positions(fn, static_argnums, static_argnames)
        self._donate_argnums = donate_argnums
        self._cache: dict[Any, tuple[Result, Callable]] = {}

    def __call__(self, *args, **kwargs):
        """Run the optimised program."""
        result, run, flat, _ = self._prepare(args, kwargs)
        return jax.tree.unflatten(result.after._out_tree, run(*flat))

    def lower(self, *args, **kwargs) -> Result:
        """Rewrite for these arguments (arrays or `jax.ShapeDtypeStruct`s); nothing is executed."""
        return self._prepare(args, kwargs)[0]

    def _prepare(self, args, kwargs):
        statics, dynamic_args, dynamic_kwargs = self._split(args, kwargs)
        flat, tree = jax.tree.flatten((dynamic_args, dynamic_kwargs))
        try:
            types = tuple(map(_type_key, flat))
            key = (self._pipeline_hash, statics, tree, types, get_abstract_mesh(), _jax_settings())
        except TypeError:
            self._trace(args, kwargs)  # says which argument is no array, and the way out
            raise
        found = self._cache.get(key)
        if found is None:
            found, cachable = self._rewrite(args, kwargs)
            if cachable:
                self._cache[key] = found
        return (*found, flat, tree)

    @functools.cached_property
    def _pipeline_hash(self) -> str:
        return self._options["passes"].hash

    def _rewrite(self, args, kwargs) -> tuple[tuple[Result, Callable], bool]:
        graph = self._trace(args, kwargs)
        result = rewrite(graph, **self._options)
        run = jaxprs.as_function(result.after.to_jaxpr())
        donated = self._donated(args)
        # consts that are tracers belong to an outer transformation: such a program is good for one call only
        open_over = any(isinstance(c, Tracer) for c in jaxprs.consts_of(graph.to_jaxpr()))
        return (result, run if open_over else jax.jit(run, donate_argnums=donated)), not open_over

    def _trace(self, args, kwargs):
        return trace(
            self._fn, *args, static_argnums=self._static_argnums, static_argnames=self._static_argnames, **kwargs
        )

    def _split(self, args, kwargs):
        static = positions_given(self._static_argnums, args)
        names = set(self._static_argnames or ())
        statics = (
            tuple((i, args[i]) for i in sorted(static)),
            tuple((k, kwargs[k]) for k in sorted(kwargs) if k in names),
        )
        dynamic_args = tuple(a for i, a in enumerate(args) if i not in static)
        return statics, dynamic_args, {k: v for k, v in kwargs.items() if k not in names}

    def _donated(self, args) -> tuple[int, ...]:
        """Flat positions of donated arguments."""
        wanted, static = positions_given(self._donate_argnums, args), positions_given(self._static_argnums, args)
        out, at = [], 0
        for i, arg in enumerate(args):
            if i in static:
                continue
            size = len(jax.tree.leaves(arg))
            if i in wanted:
                out += range(at, at + size)
            at += size
        return tuple(out)

    def __repr__(self) -> str:
        return f"<optimized {getattr(self._fn, '__name__', self._fn)!s}: {len(self._cache)} signatures>"


def optimize(
    fn: Callable | None = None,
    target: str | Target | None = None,
    passes: Any = "default",
    verify: str = "auto",
    *,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Sequence[str] | None = None,
    donate_argnums: int | Sequence[int] = (),
    dump_dir: str | Path | None = None,
    stop_after: int | None = None,
    instruments: Instrument | Sequence[Instrument] = (),
) -> Any:
    """A function that does what `fn` does, with subgraphs replaced by better ones. Use it like `jax.jit`.

    Args:
        fn: any function JAX can trace; when None, a decorator is returned.
        target: hardware to choose implementations for ("cpu", "gpu", "tpu7x", "tpu7x:2x2x1"); None: this machine's.
        passes: pipeline: a name, text, or a list of names, Rules and Passes.
        verify: "auto", "strict" or "off"; see `jaxsplice.rewrite`.
        static_argnums: as in `jax.jit`.
        static_argnames: as in `jax.jit`.
        donate_argnums: as in `jax.jit`; for caches that are updated in place.
        dump_dir: folder for dumps of every stage.
        stop_after: stop after this many rewrites.
        instruments: told of every stage and rewrite, once per abstract signature.

    Returns:
        An Optimized function; `.lower(*args)` gives the Result without running.

    Raises:
        JaxspliceError: bad options, now; or, when called, a function that cannot be traced.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> @optimize
        ... def gate(x, a, b):
        ...     return jax.nn.silu(x @ a) * (x @ b)
        >>> x, w = jnp.ones((4, 8)), jnp.ones((8, 16))
        >>> gate(x, w, w).shape, gate.lower(x, w, w).report.counts
        ((4, 16), {'swiglu': 1})
    """
    if fn is None:
        return functools.partial(
            optimize, target=target, passes=passes, verify=verify, static_argnums=static_argnums,
            static_argnames=static_argnames, donate_argnums=donate_argnums, dump_dir=dump_dir, stop_after=stop_after,
            instruments=instruments,
        )  # fmt: skip
    if not callable(fn):
        raise JaxspliceError(f"optimize needs a function and was given {fn!r}")
    options = {
        "target": Target.parse(target),
        "passes": library().pipeline(passes),  # unknown names fail here, not at the first call
        "verify": verify_level(verify),
        "dump_dir": dump_dir,
        "stop_after": stop_after,
        "instruments": as_instruments(instruments),
    }
    return Optimized(fn, options, static_argnums, static_argnames, donate_argnums)


def _type_key(x) -> tuple:
    """Shape, dtype, weak type and, where types carry them, sharding and varying axes; equal for arrays and structs."""
    aval = x if isinstance(x, jax.ShapeDtypeStruct) else jax.typeof(x)
    sharding = getattr(aval, "sharding", None)
    typed = sharding if sharding is not None and not sharding.mesh.empty and sharding.mesh._any_axis_explicit else None
    return aval.shape, aval.dtype, getattr(aval, "weak_type", False), typed, jaxprs.varying_axes(aval)


_TRACING_SETTINGS = ("jax_enable_x64", "jax_default_matmul_precision", "jax_numpy_dtype_promotion")


def _jax_settings() -> tuple:
    """JAX settings that change what is traced."""
    return tuple(getattr(jax.config, name) for name in _TRACING_SETTINGS)
