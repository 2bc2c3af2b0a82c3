"""How jaxprs are nested: each distinct one once, without recursion, however deep and however often it is held."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Generator, Iterator
from dataclasses import dataclass, field
from typing import Any

from . import jaxprs

WRITTEN_OUT_EQNS = 64  # a shared jaxpr up to this size is printed and drawn wherever it is held


@dataclass
class Nesting:
    """The jaxprs inside one, itself included.

    Attributes:
        bodies: each open jaxpr once, before those that hold it.
        holders: id of a body -> equations that hold it.
        sizes: id of a body -> its equations, with those of nested jaxprs as often as they are held.
        depths: id of a body -> levels of nesting below it.
    """

    bodies: list[Any] = field(default_factory=list)
    holders: Counter = field(default_factory=Counter)
    sizes: dict[int, int] = field(default_factory=dict)
    depths: dict[int, int] = field(default_factory=dict)

    @property
    def depth(self) -> int:
        """Levels of nesting of the whole."""
        return self.depths[id(self.bodies[-1])]

    @property
    def repeats(self) -> float:
        """How much longer the whole gets when every shared jaxpr is written out at each of its holders."""
        return self.sizes[id(self.bodies[-1])] / max(1, sum(len(body.eqns) for body in self.bodies))

    def shared(self) -> set[int]:
        """Ids of the large bodies that more than one equation holds."""
        return {b for b, count in self.holders.items() if count > 1 and self.sizes[b] > WRITTEN_OUT_EQNS}


def nesting(jaxpr, holders: Collection[str] = jaxprs.HOLDERS) -> Nesting:
    """Look through a jaxpr (open or closed) and all that is inside it.

    Args:
        jaxpr: where to begin.
        holders: primitives whose nested jaxprs are looked into.
    """
    found, root = Nesting(), jaxprs.open_jaxpr(jaxpr)
    stack = [(root, iter(_held(root, holders)))]
    while stack:
        body, rest = stack[-1]
        inner = next(rest, None)
        if inner is None:
            held = _held(body, holders)
            found.bodies.append(body)
            found.sizes[id(body)] = len(body.eqns) + sum(found.sizes[id(b)] for b in held)
            found.depths[id(body)] = max((found.depths[id(b)] + 1 for b in held), default=0)
            stack.pop()
            continue
        found.holders[id(inner)] += 1
        if found.holders[id(inner)] == 1:
            stack.append((inner, iter(_held(inner, holders))))
    return found


def _held(body, holders: Collection[str]) -> list[Any]:
    eqns = (eqn for eqn in body.eqns if eqn.primitive.name in holders)
    return [jaxprs.open_jaxpr(child.jaxpr) for eqn in eqns for child in jaxprs.children(eqn)]


def unrolled(steps: Generator) -> Iterator[Any]:
    """What a generator gives, where it may give generators to stand for what they give: recursion of any depth."""
    stack = [steps]
    while stack:
        try:
            given = next(stack[-1])
        except StopIteration:
            stack.pop()
            continue
        if isinstance(given, Generator):
            stack.append(given)
        else:
            yield given


def returned(steps: Generator[Any, Any, Any]) -> Any:
    """What a generator returns, where `yield other(...)` in it stands for what that returns: recursion of any depth."""
    stack: list[Generator[Any, Any, Any]] = [steps]
    value = None
    while stack:
        try:
            stack.append(stack[-1].send(value))
            value = None
        except StopIteration as stop:
            stack.pop()
            value = stop.value
    return value
