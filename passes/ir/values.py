"""Value, Node, Site: what a region is made of; and a watch on who looks at what."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from . import jaxprs

if TYPE_CHECKING:
    from .region import Region


class Reads:
    """What of a program was looked at while it was `watch`ed: whose makers, whose users."""

    __slots__ = ("makers", "users")

    def __init__(self):
        self.makers: set[Value] = set()
        self.users: set[Value] = set()


_reads: Reads | None = None


_one_watcher = threading.RLock()


@contextmanager
def watched(reads: Reads) -> Iterator[None]:
    """Note all looks at `Value.node` and `Value.uses` inside this. One thread at a time; looks of others do no harm."""
    global _reads
    with _one_watcher:
        before, _reads = _reads, reads
        try:
            yield
        finally:
            _reads = before


class Value:
    """One array in a region: an input (`node` is None) or output `index` of a node.

    `maker` and `users` are `node` and `uses` for the engine itself, unwatched.
    """

    __slots__ = ("aval", "index", "maker", "role", "users", "var")

    def __init__(self, aval, node: Node | None = None, index=0, var=None, role: Any = None):
        self.aval, self.maker, self.index, self.var = aval, node, index, var
        self.role = role  # for inputs: ("input", i) or ("const", array)
        self.users: list[Node] = []

    @property
    def node(self) -> Node | None:
        """The node that makes it; None for an input or a constant of the region."""
        if _reads is not None:
            _reads.makers.add(self)
        return self.maker

    @property
    def uses(self) -> list[Node]:
        """The nodes that read it, once per operand, dead ones included; OUTPUT for the region's result."""
        if _reads is not None:
            _reads.users.add(self)
        return self.users

    def __repr__(self) -> str:
        where = self.role[0] if self.maker is None and self.role else getattr(self.maker, "primitive", "?")
        return f"<Value {self.aval.str_short(True)} of {where}>"


Atom = Any  # Value | Literal


class Site:
    """One call seen through: its equation, its place, and whether a rewrite reached inside."""

    __slots__ = ("eqn", "inputs", "jaxpr", "outputs", "parent", "touched")

    def __init__(self, eqn, jaxpr, inputs, parent):
        self.eqn, self.jaxpr, self.inputs, self.parent = eqn, jaxpr, inputs, parent
        self.outputs: list[Atom] = []
        self.touched = False

    def touch(self) -> None:
        """Mark this call and those around it as no longer whole: they are dissolved when emitted."""
        site: Site | None = self
        while site is not None and not site.touched:
            for out in site.outputs:  # their users read the call's own variables no more
                for user in out.users if type(out) is Value else ():
                    user.rewired = True
            site.touched, site = True, site.parent


class Node:
    """One equation of a region, operands resolved to Values and literals."""

    __slots__ = (
        "certificate", "eqn", "inputs", "lineage", "live", "outputs", "position", "region", "regions", "rewired",
        "site", "spliced",
    )  # fmt: skip

    def __init__(self, eqn, region, inputs, position, site):
        self.eqn, self.region, self.inputs, self.position, self.site = eqn, region, inputs, position, site
        self.outputs: list[Value] = []
        self.live = True
        self.regions: list[Region] | None = None
        self.certificate: Any = None  # of a spliced node: its proof
        self.lineage: Any = None  # of a spliced node: the rewrites that led to it
        self.spliced = self.rewired = False  # put there by a rewrite; reads other variables than its equation names

    @property
    def primitive(self) -> str:
        """Name of the JAX primitive."""
        return self.eqn.primitive.name

    @property
    def params(self) -> dict[str, Any]:
        """Parameters of the equation."""
        return self.eqn.params

    @property
    def origin(self) -> Any:
        """The equation whose source is the user's: its own, or that of the call around it when it is a library's."""
        eqn, site = self.eqn, self.site
        while site is not None and not jaxprs.source_line(eqn).file:
            eqn, site = site.eqn, site.parent
        return eqn

    @property
    def source(self) -> jaxprs.SourceLine:
        """The user's line that made it."""
        return jaxprs.source_line(self.origin)

    def children(self) -> list[Region]:
        """The regions inside this node (scan body, branches, shard_map body, ...), built when first asked for."""
        if self.regions is None:
            self.regions = [self.region.program.region_of(c, self) for c in jaxprs.children(self.eqn)]
        return self.regions

    def __repr__(self) -> str:
        return f"<Node {self.primitive} at {self.source}>"


class _Output:
    """Stands in a Value's `uses` for the region's result."""

    live = rewired = True


OUTPUT: Any = _Output()
