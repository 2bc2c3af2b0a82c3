"""Graph: what a user holds. An immutable wrapper of one closed jaxpr and the pytrees of its arguments and results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax

from ..errors import JaxspliceError
from . import jaxprs
from .certified import Certificates, certify
from .region import Node, Program
from .walk import places_of, walk

if TYPE_CHECKING:
    import networkx


class Graph:
    """A JAX program as a graph: nodes (equations) and values (arrays), regions nested inside nodes.

    Made by `jaxsplice.trace` (call it with the same pytrees) or `Graph.from_jaxpr` (call it with flat values). It is
    immutable; passes give new graphs. Reading and writing loses nothing: `Graph.from_jaxpr(j).to_jaxpr() is j`.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> graph = Graph.from_jaxpr(jax.make_jaxpr(lambda x: jnp.sin(x) * 2.0)(1.0))
        >>> graph.primitives()
        {'sin': 1, 'mul': 1}
        >>> print(graph)
        graph(%0: f32[]~) {
          %1: f32[]~ = sin(%0)
          %2: f32[]~ = mul(%1, 2.0)
          return %2
        }
    """

    __slots__ = ("__weakref__", "_closed", "_in_tree", "_out_tree", "_program", "certificates", "name")

    def __init__(
        self, closed, in_tree=None, out_tree=None, name: str = "graph", certificates: Certificates | None = None
    ):
        self._closed, self._in_tree, self._out_tree, self.name = closed, in_tree, out_tree, name
        self.certificates: Certificates = certificates or {}
        self._program: Program | None = None

    @classmethod
    def from_jaxpr(cls, jaxpr, name: str = "graph") -> Graph:
        """A graph over a closed jaxpr (or an open one without constants); called with flat values.

        Args:
            jaxpr: what `jax.make_jaxpr(fn)(*args)` returns.
            name: printed in dumps.

        Returns:
            A Graph that holds that very object.

        Raises:
            JaxspliceError: the jaxpr is open and has constvars, or is no jaxpr at all.
        """
        body = jaxprs.open_jaxpr(jaxpr)
        if not isinstance(body, jaxprs.Jaxpr):
            raise JaxspliceError(
                f"Graph.from_jaxpr needs a jaxpr and was given a {type(jaxpr).__name__}. "
                "Use jaxsplice.trace(fn, *args) for a function."
            )
        if len(jaxprs.consts_of(jaxpr)) != len(body.constvars):
            raise JaxspliceError(
                f"this jaxpr is open: it has {len(body.constvars)} constants without values. "
                "Give the closed jaxpr that jax.make_jaxpr returns."
            )
        return cls(jaxpr if jaxprs.is_closed(jaxpr) else jaxprs.close(jaxpr, ()), name=name)

    def to_jaxpr(self):
        """The closed jaxpr. For a graph nothing changed in, the object it was made from."""
        return self._closed

    def with_jaxpr(self, closed, certificates: Certificates | None = None) -> Graph:
        """The same arguments, results and name over another closed jaxpr (what a Pass returns).

        Args:
            closed: the closed jaxpr.
            certificates: of its equations, by the variables they make; this graph's own when None.
        """
        kept = self.certificates if certificates is None else certificates
        if closed is self._closed and kept == self.certificates:
            return self
        return Graph(closed, self._in_tree, self._out_tree, self.name, kept)

    # ------------------------------------------------------------ running
    def __call__(self, *args, **kwargs):
        """Run the program: with the pytrees it was traced with, or flat values when made from a jaxpr."""
        run = jaxprs.as_function(self._closed)
        if self._in_tree is None:
            if kwargs or len(args) != len(self.in_avals):
                raise JaxspliceError(
                    f"this graph takes {len(self.in_avals)} flat values "
                    f"and was called with {len(args)} and {len(kwargs)} keywords."
                )
            out = run(*args)
            return out[0] if len(out) == 1 else tuple(out)
        flat, tree = jax.tree.flatten((args, kwargs))
        if tree != self._in_tree:
            raise JaxspliceError(
                f"called with arguments of structure {tree}; the graph was traced with {self._in_tree}. "
                "Leave out static arguments, and give the same pytrees otherwise."
            )
        return jax.tree.unflatten(self._out_tree, run(*flat))

    # ------------------------------------------------------------ reading
    @property
    def in_avals(self) -> list[Any]:
        """Abstract values of the flat arguments."""
        return list(self._closed.in_avals)

    @property
    def out_avals(self) -> list[Any]:
        """Abstract values of the flat results."""
        return list(self._closed.out_avals)

    @property
    def program(self) -> Program:
        """Use-def form, for reading. Passes that edit must build their own Program from `to_jaxpr()`."""
        if self._program is None:
            self._program = Program(self._closed)
            certify(self._program, self.certificates)
        return self._program

    @property
    def nodes(self) -> Iterator[Node]:
        """All nodes, small calls seen through, nested regions after the node that holds them; a shared one once."""
        return walk(self.program.root)

    def primitives(self) -> dict[str, int]:
        """How often each primitive occurs; a loop's body counts once, one that is called twice counts twice."""
        places, out = places_of(self.program.root), Counter()
        for node in self.nodes:
            out[node.primitive] += places[id(node.region)]
        return dict(out)

    def to_networkx(self) -> networkx.MultiDiGraph:
        """A networkx graph for analysis; see `passes/ir/files.py` for the attributes."""
        from .files import to_networkx

        return to_networkx(self)

    def save(self, path: str | Path) -> Path:
        """Write the graph; the suffix chooses: .txt .json .dot .graphml .svg (needs Graphviz' `dot`).

        Args:
            path: file to write. Its folder is made when missing; a failure leaves no partial file.

        Returns:
            The path.

        Raises:
            JaxspliceError: unknown suffix, or Graphviz is not installed.
        """
        from .files import save

        return save(self, Path(path))

    def __str__(self) -> str:
        from .text import to_text

        return to_text(self)

    def __repr__(self) -> str:
        eqns = len(jaxprs.open_jaxpr(self._closed).eqns)
        return f"<Graph {self.name}: {len(self.in_avals)} inputs, {eqns} equations, {len(self.out_avals)} outputs>"
