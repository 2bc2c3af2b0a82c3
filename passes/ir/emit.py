"""Region -> jaxpr. What no rewrite touched is emitted as the same objects: equations, calls, the whole jaxpr."""

from __future__ import annotations

import sys
from typing import Any

from ..errors import VerifyError
from . import jaxprs
from .check import same_aval
from .jaxprs import DropVar, Literal, Var
from .region import OUTPUT, Node, Region, Site, Value
from .walk import callees_last, looked_into


def emit(region: Region):
    """The jaxpr of a region: the very object it was read from when nothing in it, or below it, changed.

    Args:
        region: region to emit.

    Returns:
        A jaxpr of the same kind (open or closed), same inputs, same number of outputs.

    Raises:
        VerifyError: a rewrite made a cycle, or gave an equation an operand of another type.
    """
    done: dict[int, Any] = {}  # id(region) -> jaxpr: shared regions are emitted once
    for inner in reversed(callees_last(region, looked_into)):
        renewed = _renewed_children(inner, done)
        dirty = inner.changed or bool(renewed)
        done[id(inner)] = _Body(inner, renewed).jaxpr() if dirty else inner.jaxpr
    return done[id(region)]


def _renewed_children(region: Region, done: dict[int, Any]) -> dict[int, Any]:
    """Equations of nodes whose nested jaxprs changed, by node identity; their calls are touched."""
    renewed = {}
    for node in region.holders:
        if not node.live or not node.regions:
            continue
        inner = [done[id(r)] for r in node.regions]
        if any(new is not r.jaxpr for new, r in zip(inner, node.regions)):
            renewed[id(node)] = jaxprs.with_children(node.eqn, inner)
            if node.site is not None:
                node.site.touch()
    return renewed


class _Unordered(Exception):
    """Something is read before it is made: the program order does not hold here."""


class _Body:
    """Emission of one changed region: in program order; where that does not hold, operands before users.

    An equation that no rewrite reached is taken as it is, without a look at its operands.
    """

    def __init__(self, region: Region, renewed: dict[int, Any]):
        self.region, self.renewed = region, renewed
        self.names: dict[Value, Any] = {}
        self.eqns: list[Any] = []
        self.emitted: set[int] = set()
        self.before: dict[int, Node | Site] = {}  # unit with an effect -> the one that must come first

    def jaxpr(self):
        region = self.region
        nodes = [n for n in region.in_order() if n.live]
        self._dissolve_stale_calls(nodes)
        new_consts = self._name_consts()
        named = dict(self.names)
        try:
            if region.ordered_below != sys.maxsize:
                raise _Unordered
            self._emit_in_order(nodes)
        except _Unordered:
            self.names, self.eqns, self.emitted = named, [], set()
            self._chain_effects(nodes)
            for node in nodes:
                self._visit(node)
        outvars = [self._atom(o) for o in region.outputs]
        return jaxprs.rebuild(region.jaxpr, eqns=self.eqns, outvars=outvars, new_consts=new_consts)

    def _emit_in_order(self, nodes: list[Node]) -> None:
        eqns, renewed, emitted = self.eqns, self.renewed, self.emitted
        for node in nodes:
            if node.site is None and not node.rewired and not node.spliced and id(node) not in renewed:
                eqns.append(node.eqn)
                continue
            unit = self._unit(node)
            if id(unit) not in emitted:
                emitted.add(id(unit))
                self._emit(unit)

    def _name_consts(self) -> list[tuple[Any, Any]]:
        """Constants keep their constvar; those of dissolved calls become constvars or, where none may be, literals."""
        own = set(jaxprs.open_jaxpr(self.region.jaxpr).constvars)
        takes = jaxprs.takes_consts(self.region.jaxpr, {n.primitive for n, _ in self.region.callers})
        new = []
        for value in self.region.consts:
            if value.var in own:
                continue
            if takes and self._is_read(value):
                self.names[value] = var = Var(value.aval)
                new.append((var, value.role[1]))
            else:
                self.names[value] = jaxprs.literal(value.role[1], value.aval)
        return new

    def _is_read(self, value: Value) -> bool:
        """Whether an equation that is emitted by itself reads a value, or the region returns it."""
        return any(u is OUTPUT or (u.live and self._unit(u) is u) for u in value.users)

    def _dissolve_stale_calls(self, nodes: list[Node]) -> None:
        """A call that would still be handed the result of a removed node, which nothing in it reads, is taken apart."""
        seen: set[int] = set()
        for node in nodes:
            site = node.site
            while site is not None and id(site) not in seen:
                seen.add(id(site))
                if any(type(a) is Value and a.maker is not None and not a.maker.live for a in site.inputs):
                    site.touch()
                site = site.parent

    def _chain_effects(self, nodes: list[Node]) -> None:
        last, chained = None, set()
        for node in nodes:
            if node.eqn.effects and jaxprs.ordering_effects(node.eqn):
                unit = self._unit(node)
                if id(unit) in chained:
                    continue
                if last is not None:
                    self.before[id(unit)] = last
                chained.add(id(unit))
                last = unit

    # ------------------------------------------------------------ order
    def _visit(self, node: Node) -> None:
        """Emit a node after all it needs; iterative, for chains of any depth."""
        stack, open_units = [self._unit(node)], set()
        while stack:
            unit = stack[-1]
            if id(unit) in self.emitted:
                stack.pop()
                continue
            needed = [u for u in self._needs(unit) if id(u) not in self.emitted]
            if not needed:
                self.emitted.add(id(stack.pop()))
                self._emit(unit)
                continue
            open_units.add(id(unit))
            if any(id(u) in open_units for u in needed):
                raise VerifyError(f"a rewrite made a cycle through {unit}")
            stack.extend(reversed(needed))

    def _unit(self, node: Node) -> Node | Site:
        """What is emitted as one: the outermost untouched call around a node, or the node."""
        unit: Node | Site = node
        site = node.site
        while site is not None:
            if not site.touched:
                unit = site
            site = site.parent
        return unit

    def _needs(self, unit):
        for a in unit.inputs:
            if type(a) is Value and a.maker is not None:
                yield self._unit(a.maker)
        if id(unit) in self.before:
            yield self.before[id(unit)]

    # ------------------------------------------------------------ equations
    def _atom(self, a):
        if type(a) is Literal:
            return a
        name = self.names.get(a)
        if name is not None:
            return name
        maker = a.maker
        if maker is None or (maker.live and maker.site is None and not maker.spliced):
            return a.var
        raise _Unordered

    def _emit(self, unit) -> None:
        eqn = unit.eqn if type(unit) is Site else self.renewed.get(id(unit), unit.eqn)
        invars = [self._atom(a) for a in unit.inputs]
        outvars = [self._outvar(v, i, unit) for i, v in enumerate(eqn.outvars)]
        for value, var in zip(unit.outputs, outvars):
            if type(value) is Value and not isinstance(var, DropVar) and value not in self.names:
                self.names[value] = var
        other = [(a, b) for a, b in zip(invars, eqn.invars) if a is not b]
        for a, b in other:
            if a.aval is not b.aval and not same_aval(a.aval, b.aval, weak_type=False):
                raise VerifyError(f"{eqn.primitive.name} at {jaxprs.source_line(eqn)} reads {a.aval} and took {b.aval}")
        same = not other and all(a is b for a, b in zip(outvars, eqn.outvars))
        self.eqns.append(eqn if same else eqn.replace(invars=invars, outvars=outvars))

    @staticmethod
    def _outvar(var, i: int, unit):
        """Equations of dissolved calls and of spliced jaxprs get fresh names: their Vars may occur again.

        A spliced value that took the place of one of the jaxpr's own keeps that one's name (rewrite/splice.py), and
        every spliced value the name it was given first (ir/certified.py finds certificates by it).
        """
        if isinstance(var, DropVar):
            return var
        if type(unit) is Node and unit.spliced:
            value = unit.outputs[i]
            value.var = value.var or Var(var.aval)
            return value.var
        own = unit.parent is None if type(unit) is Site else unit.site is None
        return var if own else Var(var.aval)
