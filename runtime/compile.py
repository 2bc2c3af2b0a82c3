"""compile: an optimised program for one device or a sharded mesh, ahead of time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

from jaxsplice.passes.errors import JaxspliceError

from .rewrite import Result, rewrite
from .target import Target
from .tracing import trace


class Compiled:
    """A compiled program: call it with the pytrees it was compiled for.

    Attributes:
        result: the rewrite behind it (before, after, report).
        executable: JAX's own `jax.stages.Compiled`.
    """

    def __init__(self, result: Result, executable):
        self.result, self.executable = result, executable

    def __call__(self, *args, **kwargs):
        """Run it."""
        return self.executable(*args, **kwargs)

    @property
    def memory(self) -> Any:
        """Bytes of arguments, results, temporaries and code, as the compiler reports them."""
        return self.executable.memory_analysis()

    def as_text(self) -> str:
        """The optimised HLO."""
        return self.executable.as_text()

    def __repr__(self) -> str:
        return f"<Compiled {self.result.before.name}: {self.result.report.counts}>"


def compile(
    program: Callable | Result,
    *args,
    mesh: Mesh | None = None,
    in_shardings: Any = None,
    out_shardings: Any = None,
    donate_argnums: int | Sequence[int] = (),
    passes: Any = "default",
    target: str | Target | None = None,
    verify: str = "auto",
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Sequence[str] | None = None,
    **kwargs,
) -> Compiled:
    """Rewrite a function and compile it for its devices.

    Args:
        program: a function, or the Result of an earlier rewrite.
        *args: arrays or `jax.ShapeDtypeStruct`s (none are needed for a Result).
        mesh: devices; PartitionSpecs in the shardings refer to it.
        in_shardings: one Sharding or PartitionSpec per argument, or a pytree prefix, as in `jax.jit`; replicated over
            the mesh when None.
        out_shardings: likewise for the result; chosen by the compiler when None.
        donate_argnums: arguments whose memory may be reused (caches).
        passes: pipeline, as in `jaxsplice.optimize`.
        target: hardware, as in `jaxsplice.optimize`.
        verify: as in `jaxsplice.optimize`.
        static_argnums: as in `jax.jit`; static arguments are left out when the compiled program is called.
        static_argnames: as in `jax.jit`.
        **kwargs: keyword arguments of the function.

    Returns:
        A Compiled.

    Raises:
        JaxspliceError: a PartitionSpec without a mesh, or axes the mesh has not.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> x, w = jnp.ones((4, 8)), jnp.ones((8, 16))
        >>> compiled = compile(lambda x, a, b: jax.nn.silu(x @ a) * (x @ b), x, w, w)
        >>> compiled(x, w, w).shape
        (4, 16)
    """
    if isinstance(program, Result):
        result = program
        args, kwargs = _arguments_of(result) if not args else (args, kwargs)
    else:
        graph = trace(program, *args, static_argnums=static_argnums, static_argnames=static_argnames, **kwargs)
        result = rewrite(graph, passes, target, verify)
        args, kwargs = _arguments_of(result)
    options: dict[str, Any] = {"donate_argnums": donate_argnums}
    if in_shardings is not None or mesh is not None:
        options["in_shardings"] = _shardings(in_shardings if in_shardings is not None else PartitionSpec(), mesh)
    if out_shardings is not None:
        options["out_shardings"] = _shardings(out_shardings, mesh)
    if kwargs and "in_shardings" in options:
        raise JaxspliceError("with shardings, give all arguments by position: jax.jit shards positional arguments only")
    return Compiled(result, jax.jit(result.after, **options).lower(*args, **kwargs).compile())


def _arguments_of(result: Result) -> tuple[tuple, dict]:
    """The abstract arguments a Result was traced with."""
    graph = result.before
    flat = [jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=a.weak_type) for a in graph.in_avals]
    return jax.tree.unflatten(graph._in_tree, flat) if graph._in_tree is not None else (tuple(flat), {})


def _shardings(tree: Any, mesh: Mesh | None) -> Any:
    def one(leaf):
        if leaf is None or isinstance(leaf, Sharding):
            return leaf
        if not isinstance(leaf, PartitionSpec):
            raise JaxspliceError(f"a sharding is a jax.sharding.Sharding or a PartitionSpec, not {leaf!r}")
        if mesh is None:
            raise JaxspliceError(f"{leaf} refers to mesh axes: give mesh= as well, or a NamedSharding")
        unknown = [
            n for part in leaf for n in (part if isinstance(part, tuple) else (part,)) if n and n not in mesh.shape
        ]
        if unknown:
            raise JaxspliceError(f"{leaf} names axes {unknown}; the mesh has {tuple(mesh.shape)}")
        return NamedSharding(mesh, leaf)

    return jax.tree.map(one, tree, is_leaf=lambda x: x is None or isinstance(x, PartitionSpec | Sharding))
