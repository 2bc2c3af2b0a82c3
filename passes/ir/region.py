"""Region, Node, Value: use-def form of one jaxpr, with small calls seen through, that rewrites edit in place.

A Region is what the engine works on between two jaxprs. Values are keyed by (call instance, Var), so a sub-jaxpr that
JAX shares between two calls gives two sets of Values. A region nobody edited emits the very jaxpr it was read from.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from . import jaxprs
from .check import same_aval
from .jaxprs import Literal

INLINE_EQNS = 64  # calls up to this size are seen through wherever they occur; larger ones only when called once


class Value:
    """One array in a region: an input (`node` is None) or output `index` of a node."""

    __slots__ = ("aval", "index", "node", "role", "uses", "var")

    def __init__(self, aval, node: Node | None = None, index=0, var=None, role: Any = None):
        self.aval, self.node, self.index, self.var = aval, node, index, var
        self.role = role  # for inputs: ("input", i) or ("const", array)
        self.uses: list[Node] = []

    def __repr__(self) -> str:
        where = self.role[0] if self.node is None and self.role else getattr(self.node, "primitive", "?")
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
            site.touched, site = True, site.parent


class Node:
    """One equation of a region, operands resolved to Values and literals."""

    __slots__ = ("certificate", "eqn", "inputs", "live", "outputs", "position", "region", "regions", "site", "spliced")

    def __init__(self, eqn, region, inputs, position, site):
        self.eqn, self.region, self.inputs, self.position, self.site = eqn, region, inputs, position, site
        self.outputs: list[Value] = []
        self.live = True
        self.regions: list[Region] | None = None
        self.certificate: Any = None
        self.spliced = False  # put there by a rewrite

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


@dataclass(frozen=True)
class Surroundings:
    """What a region is inside of, as far as tracing and rules need to know.

    Args:
        shard_maps: (mesh, manual axes, check_vma) of each shard_map around it, outermost first.
        ambient: axes of a shard_map that the whole program is being traced in.
        remat_policy: policy of the innermost remat around it, or None.
    """

    shard_maps: tuple[tuple[Any, frozenset, bool], ...] = ()
    ambient: tuple[tuple[str, int], ...] = ()
    remat_policy: Any = None

    def inside_shard_map(self, params: dict[str, Any]) -> Surroundings:
        """The surroundings of a shard_map's body."""
        own = (params["mesh"], params["newly_manual_axes"], params["check_vma"])
        return replace(self, shard_maps=(*self.shard_maps, own))

    @property
    def axis_sizes(self) -> dict[str, int]:
        """Named axes that collectives may use here, with their sizes."""
        own = {name: mesh.shape[name] for mesh, axes, _ in self.shard_maps for name in mesh.axis_names if name in axes}
        return {**dict(self.ambient), **own}


class Program:
    """A root region and all regions below it; equal sub-jaxprs in equal surroundings share one region."""

    def __init__(self, jaxpr):
        self._regions: dict[Any, Region] = {}
        self._sizes: dict[int, int] = {}
        self.certified = False  # whether nodes had certificates when it was read (certified.py)
        self.root = Region(self, jaxpr, None, Surroundings(ambient=jaxprs.ambient_axes()))

    def region_of(self, child: jaxprs.Child, node: Node) -> Region:
        """The region of one nested jaxpr of a node."""
        around, kind = node.region.around, node.primitive
        if kind == "shard_map":
            around = around.inside_shard_map(node.params)
        elif kind in ("remat2", "checkpoint"):
            around = replace(around, remat_policy=node.params.get("policy"))
        key = (id(child.jaxpr), around)
        region = self._regions.get(key)
        if region is None:
            region = self._regions[key] = Region(self, child.jaxpr, node, around)
        region.callers.append((node, child))
        return region

    def flat_size(self, jaxpr) -> int:
        """Equations of a jaxpr with the calls in it counted as dissolved."""
        body = jaxprs.open_jaxpr(jaxpr)
        size = self._sizes.get(id(body))
        if size is None:
            self._sizes[id(body)] = 0  # jaxprs cannot recurse; guards against odd ones
            calls = (jaxprs.inlinable_call(e) for e in body.eqns if e.primitive.name in jaxprs.CALL_NAMES)
            size = len(body.eqns) + sum(self.flat_size(c) for c in calls if c is not None)
            self._sizes[id(body)] = size
        return size

    def regions(self) -> Iterator[Region]:
        """Every region reached so far, outermost first."""
        seen, queue = {id(self.root)}, [self.root]
        for region in queue:
            yield region
            for node in region.nodes:
                for child in node.regions or ():
                    if id(child) not in seen:
                        seen.add(id(child))
                        queue.append(child)


class Region:
    """One jaxpr in use-def form. `nodes` are in program order; dead ones stay in the list with `live` False."""

    def __init__(self, program: Program, jaxpr, parent: Node | None, around: Surroundings):
        self.program, self.jaxpr, self.parent, self.around = program, jaxpr, parent, around
        self.callers: list[tuple[Node, jaxprs.Child]] = []
        self.nodes: list[Node] = []
        self.by_primitive: dict[str, list[Node]] = {}
        self.changed = False
        self.ordered_below = sys.maxsize  # before this position, what a node needs never stands behind it
        body = jaxprs.open_jaxpr(jaxpr)
        env: dict[Any, Value] = {}
        self.inputs = [self._input(v, ("input", i), env) for i, v in enumerate(body.invars)]
        self.consts = self._consts(jaxpr, env)
        self.outputs = self._read(body, env, None)
        for out in self.outputs:
            if type(out) is Value:
                out.uses.append(OUTPUT)

    # ------------------------------------------------------------ reading
    def _input(self, var, role, env) -> Value:
        value = env[var] = Value(var.aval, None, 0, var, role)
        return value

    def _consts(self, jaxpr, env) -> list[Value]:
        body, values = jaxprs.open_jaxpr(jaxpr), jaxprs.consts_of(jaxpr)
        values = list(values) if len(values) == len(body.constvars) else [None] * len(body.constvars)
        return [self._input(v, ("const", c), env) for v, c in zip(body.constvars, values)]

    def _read(self, body, env: dict, site: Site | None) -> list[Atom]:
        nodes, index, calls, counts = self.nodes, self.by_primitive, jaxprs.CALL_NAMES, None
        for eqn in body.eqns:
            inputs = [a if type(a) is Literal else env[a] for a in eqn.invars]
            name = eqn.primitive.name
            if name in calls:
                counts = counts or _call_counts(body)
                if self._see_through(eqn, inputs, env, site, counts):
                    continue
            node = Node(eqn, self, inputs, len(nodes), site)
            for a in inputs:
                if type(a) is Value:
                    a.uses.append(node)
            for i, v in enumerate(eqn.outvars):
                env[v] = value = Value(v.aval, node, i, v)
                node.outputs.append(value)
            nodes.append(node)
            if name in index:
                index[name].append(node)
            else:
                index[name] = [node]
        return [a if type(a) is Literal else env[a] for a in body.outvars]

    def _see_through(self, eqn, inputs, env, site, counts) -> bool:
        jaxpr = jaxprs.inlinable_call(eqn)
        if jaxpr is None:
            return False
        body = jaxprs.open_jaxpr(jaxpr)
        if self.program.flat_size(jaxpr) > INLINE_EQNS and counts[id(body)] > 1:
            return False
        inner: dict[Any, Any] = dict(zip(body.invars, inputs))
        self.consts.extend(self._consts(jaxpr, inner))
        call = Site(eqn, jaxpr, inputs, site)
        call.outputs = self._read(body, inner, call)
        env.update(zip(eqn.outvars, call.outputs))
        return True

    # ------------------------------------------------------------ editing
    def splice(self, closed, inputs: Sequence[Atom], position: int) -> tuple[list[Atom], list[Node]]:
        """Insert the equations of a closed jaxpr before `position`, applied to `inputs`.

        Args:
            closed: the closed jaxpr to insert; its calls are kept as they are.
            inputs: one Value or literal per argument.
            position: program position that the new nodes take.

        Returns:
            The jaxpr's results as Values or literals, and the new nodes.
        """
        body = jaxprs.open_jaxpr(closed)
        env: dict[Any, Any] = dict(zip(body.invars, inputs, strict=True))
        self.consts.extend(self._consts(closed, env))
        for a in inputs:
            self._expose(a)
            if type(a) is Value and a.node is not None and a.node.position > position:
                self.ordered_below = min(self.ordered_below, position)
        new: list[Node] = []
        for eqn in body.eqns:
            node = Node(eqn, self, [a if type(a) is Literal else env[a] for a in eqn.invars], position, None)
            for a in node.inputs:
                if type(a) is Value:
                    a.uses.append(node)
            for i, v in enumerate(eqn.outvars):
                env[v] = value = Value(v.aval, node, i)
                node.outputs.append(value)
            node.spliced = True
            new.append(node)
            self.by_primitive.setdefault(node.primitive, []).append(node)
        self.nodes.extend(new)
        self.changed = True
        return [a if type(a) is Literal else env[a] for a in body.outvars], new

    def _expose(self, atom: Atom) -> None:
        """A value used from outside its call needs that call dissolved, unless the call returns it."""
        if type(atom) is not Value or atom.node is None or atom.node.site is None:
            return
        site, returned = atom.node.site, True
        while site is not None:
            returned = returned and any(o is atom for o in site.outputs)
            if not returned:
                site.touch()
            site = site.parent

    def redirect(self, old: Value, new: Atom) -> None:
        """Let all users of `old` use `new`. Calls that `old` enters stay whole; those it is made in are dissolved."""
        self._expose(new)
        _rewire_calls(old, new)
        for node in old.uses:
            if node is OUTPUT:
                self.outputs = [new if o is old else o for o in self.outputs]
            elif node.live:
                node.inputs = [new if a is old else a for a in node.inputs]
            if type(new) is Value:
                new.uses.append(node)
        old.uses = []
        self.changed = True

    def kill(self, node: Node) -> None:
        """Remove a node that nothing uses any more."""
        node.live = False  # stays in its operands' `uses`; readers of `uses` look at `live`
        if node.site is not None:
            node.site.touch()
        self.changed = True

    def is_used(self, value: Value) -> bool:
        """Whether a live node or the region's result uses a value."""
        return any(u is OUTPUT or u.live for u in value.uses)

    @property
    def axis_sizes(self) -> dict[str, int]:
        """Named axes that collectives in this region may use."""
        return self.around.axis_sizes

    @property
    def trips(self) -> int | None:
        """Times this region runs per run of the root region; None when not known."""
        return _times(self, lambda child: child.trips, {})

    @property
    def sites(self) -> int:
        """Places in the program where this region's text stands, loops counted once."""
        return _times(self, lambda child: 1, {}) or 0


class _Output:
    """Stands in a Value's `uses` for the region's result."""

    live = True


OUTPUT: Any = _Output()


def _rewire_calls(old: Value, new: Atom) -> None:
    """Hand `new` to the calls that `old` enters, which so stay whole (relu keeps its derivative)."""
    seen: set[int] = set()
    for node in old.uses:
        site = node.site if node is not OUTPUT and node.live else None
        while site is not None and id(site) not in seen:
            seen.add(id(site))
            if same_aval(old.aval, new.aval) and any(a is old for a in site.inputs):
                site.inputs = [new if a is old else a for a in site.inputs]
            else:
                site.touch()
            site = site.parent


def _times(region: Region, of_call: Callable[[jaxprs.Child], int | None], known: dict[int, int | None]) -> int | None:
    """Sum over all ways from the root to a region of the product over their calls; each region is summed up once."""
    if region.parent is None:
        return 1
    if id(region) not in known:
        total: int | None = 0
        for node, child in region.callers:
            outer, own = _times(node.region, of_call, known), of_call(child)
            total = None if total is None or outer is None or own is None else total + outer * own
        known[id(region)] = total
    return known[id(region)]


def _call_counts(body) -> dict[int, int]:
    """How often each called jaxpr occurs among the equations of one jaxpr."""
    counts: dict[int, int] = {}
    for eqn in body.eqns:
        if eqn.primitive.name in jaxprs.CALL_NAMES:
            for inner in jaxprs.children(eqn):
                key = id(jaxprs.open_jaxpr(inner.jaxpr))
                counts[key] = counts.get(key, 0) + 1
    return counts
