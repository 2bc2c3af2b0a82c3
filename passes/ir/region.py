"""Region, Node, Value: use-def form of one jaxpr, with small calls seen through, that rewrites edit in place.

A Region is what the engine works on between two jaxprs. Values are keyed by (call instance, Var), so a sub-jaxpr that
JAX shares between two calls gives two sets of Values. A region nobody edited emits the very jaxpr it was read from.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from . import jaxprs
from .check import same_aval, same_signature
from .jaxprs import Literal
from .values import OUTPUT as OUTPUT
from .values import Atom as Atom
from .values import Node as Node
from .values import Site as Site
from .values import Value as Value

INLINE_EQNS = 64  # calls up to this size are seen through wherever they occur; larger ones only when called once


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
        sizes, stack = self._sizes, [jaxprs.open_jaxpr(jaxpr)]
        while stack:  # iterative: calls may be nested deeper than Python likes
            body = stack[-1]
            if id(body) in sizes:
                stack.pop()
                continue
            calls = [c for e in body.eqns if e.primitive.name in jaxprs.CALL_NAMES for c in _inlinable(e)]
            unknown = [c for c in calls if id(c) not in sizes]
            if unknown:
                stack += unknown
                continue
            sizes[id(body)] = len(body.eqns) + sum(sizes[id(c)] for c in calls)
        return sizes[id(jaxprs.open_jaxpr(jaxpr))]

    def regions(self) -> Iterator[Region]:
        """Every region reached so far, outermost first."""
        seen, queue = {id(self.root)}, [self.root]
        for region in queue:
            yield region
            for node in region.holders:
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
        self.by_primitive: defaultdict[str, list[Node]] = defaultdict(list)
        self.holders: list[Node] = []  # nodes with regions inside
        self.edited: set[Any] = set()  # nodes and values that rewrites changed, since somebody last took note
        self.inserted: dict[Node, list[Node]] = {}  # node -> spliced nodes that stand right before it
        self.changed = False
        self.ordered_below = sys.maxsize  # before this position, what a node needs never stands behind it
        body = jaxprs.open_jaxpr(jaxpr)
        env: dict[Any, Value] = {}
        self.inputs = [self._input(v, ("input", i), env) for i, v in enumerate(body.invars)]
        self.consts = self._consts(jaxpr, env)
        self.outputs = self._read(body, env)
        for out in self.outputs:
            if type(out) is Value:
                out.users.append(OUTPUT)

    # ------------------------------------------------------------ reading
    def _input(self, var, role, env) -> Value:
        value = env[var] = Value(var.aval, None, 0, var, role)
        return value

    def _consts(self, jaxpr, env) -> list[Value]:
        body, values = jaxprs.open_jaxpr(jaxpr), jaxprs.consts_of(jaxpr)
        values = list(values) if len(values) == len(body.constvars) else [None] * len(body.constvars)
        return [self._input(v, ("const", c), env) for v, c in zip(body.constvars, values)]

    def _read(self, body, env: dict) -> list[Atom]:
        """All equations as nodes, those of calls that are seen through among them; gives the results."""
        nodes, index, calls = self.nodes, self.by_primitive, jaxprs.CALL_NAMES
        around: list[tuple] = []  # the calls being read, outermost first: what was being read before each
        eqns, site, counts = iter(body.eqns), None, _Counts(body)
        while True:
            for eqn in eqns:
                inputs = [a if type(a) is Literal else env[a] for a in eqn.invars]
                name = eqn.primitive.name
                if name in calls:
                    jaxpr = self._seen_through(eqn, counts)
                    if jaxpr is not None:
                        around.append((eqns, env, site, counts, body))
                        body = jaxprs.open_jaxpr(jaxpr)
                        env = dict(zip(body.invars, inputs))
                        self.consts.extend(self._consts(jaxpr, env))
                        eqns, site, counts = iter(body.eqns), Site(eqn, jaxpr, inputs, site), _Counts(body)
                        break
                node = Node(eqn, self, inputs, len(nodes), site)
                for a in inputs:
                    if type(a) is Value:
                        a.users.append(node)
                outputs = node.outputs
                for i, v in enumerate(eqn.outvars):
                    env[v] = value = Value(v.aval, node, i, v)
                    outputs.append(value)
                nodes.append(node)
                index[name].append(node)
                if name in jaxprs.HOLDERS:
                    self.holders.append(node)
            else:
                results = [a if type(a) is Literal else env[a] for a in body.outvars]
                if site is None:
                    return results
                call = site
                call.outputs = results
                eqns, env, site, counts, body = around.pop()
                env.update(zip(call.eqn.outvars, results))

    def _seen_through(self, eqn, counts: _Counts):
        """The jaxpr of a call whose equations are read as this region's own; None for one that stays a node."""
        jaxpr = jaxprs.inlinable_call(eqn)
        if jaxpr is None:
            return None
        small = self.program.flat_size(jaxpr) <= INLINE_EQNS
        return jaxpr if small or counts.of(jaxpr) == 1 else None

    # ------------------------------------------------------------ editing
    def splice(self, closed, inputs: Sequence[Atom], before: Node) -> tuple[list[Atom], list[Node]]:
        """Insert the equations of a closed jaxpr right before a node, applied to `inputs`.

        Args:
            closed: the closed jaxpr to insert; its calls are kept as they are.
            inputs: one Value or literal per argument, of the types that the jaxpr takes.
            before: the node whose place the new ones take.

        Returns:
            The jaxpr's results as Values or literals, and the new nodes.

        Raises:
            VerifyError: an argument has another type than the jaxpr takes.
        """
        body, position = jaxprs.open_jaxpr(closed), before.position
        same_signature([v.aval for v in body.invars], [a.aval for a in inputs], "argument of a spliced jaxpr")
        env: dict[Any, Any] = dict(zip(body.invars, inputs, strict=True))
        self.consts.extend(self._consts(closed, env))
        self.edited.update(a for a in inputs if type(a) is Value)
        for a in inputs:
            self._expose(a)
            if type(a) is Value and a.maker is not None and a.maker.position > position:
                self.ordered_below = min(self.ordered_below, position)
        new = [self._spliced(eqn, env, position) for eqn in body.eqns]
        for node in new:
            self.by_primitive[node.primitive].append(node)
            if node.primitive in jaxprs.HOLDERS:
                self.holders.append(node)
        self.nodes.extend(new)
        self.inserted.setdefault(before, []).extend(new)
        self.changed = True
        return [a if type(a) is Literal else env[a] for a in body.outvars], new

    def _spliced(self, eqn, env: dict, position: int) -> Node:
        node = Node(eqn, self, [a if type(a) is Literal else env[a] for a in eqn.invars], position, None)
        for a in node.inputs:
            if type(a) is Value:
                a.users.append(node)
        for i, v in enumerate(eqn.outvars):
            env[v] = value = Value(v.aval, node, i)
            node.outputs.append(value)
        node.spliced = True
        return node

    def in_order(self) -> Iterator[Node]:
        """All nodes in program order, spliced ones where they stand, dead ones included."""
        inserted, expanded = self.inserted, set()
        for node in self.nodes:
            if node.spliced:
                return  # these stand behind all others, and were met where they belong
            stack = [node]
            while stack:
                top = stack.pop()
                if top in inserted and top not in expanded:
                    expanded.add(top)
                    stack += [top, *reversed(inserted[top])]
                else:
                    yield top

    def _expose(self, atom: Atom) -> None:
        """A value used from outside its call needs that call dissolved, unless the call returns it."""
        if type(atom) is not Value or atom.maker is None or atom.maker.site is None:
            return
        site, returned = atom.maker.site, True
        while site is not None:
            returned = returned and any(o is atom for o in site.outputs)
            if not returned:
                site.touch()
            site = site.parent

    def redirect(self, old: Value, new: Atom) -> None:
        """Let all users of `old` use `new`. Calls that `old` enters stay whole; those it is made in are dissolved."""
        self._expose(new)
        _rewire_calls(old, new)
        self.edited.update(old.users)
        if type(new) is Value:
            self.edited.add(new)
        for node in old.users:
            if node is OUTPUT:
                self.outputs = [new if o is old else o for o in self.outputs]
            elif node.live:
                node.inputs = [new if a is old else a for a in node.inputs]
                node.rewired = True
            if type(new) is Value:
                new.users.append(node)
        old.users = []
        self.changed = True

    def kill(self, node: Node) -> None:
        """Remove a node that nothing uses any more."""
        self.edited.add(node)
        node.live = False  # stays in its operands' `uses`; readers of `uses` look at `live`
        if node.site is not None:
            node.site.touch()
        self.changed = True

    def is_used(self, value: Value) -> bool:
        """Whether a live node or the region's result uses a value."""
        return any(u.live for u in value.users)

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


def _rewire_calls(old: Value, new: Atom) -> None:
    """Hand `new` to the calls that `old` enters, which so stay whole (relu keeps its derivative)."""
    seen: set[int] = set()
    for node in old.users:
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


class _Counts:
    """How often each called jaxpr occurs among the equations of one jaxpr; counted when first asked."""

    __slots__ = ("body", "counts")

    def __init__(self, body):
        self.body, self.counts = body, None

    def of(self, jaxpr) -> int:
        """Calls of a jaxpr."""
        if self.counts is None:
            eqns = (e for e in self.body.eqns if e.primitive.name in jaxprs.CALL_NAMES)
            self.counts = Counter(id(jaxprs.open_jaxpr(c.jaxpr)) for e in eqns for c in jaxprs.children(e))
        return self.counts[id(jaxprs.open_jaxpr(jaxpr))]


def _inlinable(eqn) -> list[Any]:
    jaxpr = jaxprs.inlinable_call(eqn)
    return [] if jaxpr is None else [jaxprs.open_jaxpr(jaxpr)]
