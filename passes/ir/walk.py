"""Walks over the regions of a program: each region once, however often it is called, and without recursion."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from .region import Node, Region


def walk(root: Region) -> Iterator[Node]:
    """All live nodes of a region and of those below it, nested ones after the node that holds them."""
    seen, stack = {id(root)}, [iter(root.nodes)]
    while stack:  # regions may be nested deeper than Python likes
        node = next(stack[-1], None)
        if node is None:
            stack.pop()
        elif node.live:
            yield node
            new = [child for child in node.children() if id(child) not in seen]
            seen.update(map(id, new))
            stack += [iter(child.nodes) for child in reversed(new)]


def below(region: Region) -> Iterator[Region]:
    """The regions inside the live nodes of a region, once per node that holds them."""
    return (child for node in region.holders if node.live for child in node.children())


def looked_into(region: Region) -> Iterator[Region]:
    """Those of them that somebody looked into; the others are as they were read."""
    return (child for node in region.holders if node.live for child in node.regions or ())


def callees_last(root: Region, inside: Callable[[Region], Iterator[Region]] = below) -> list[Region]:
    """A region and all below it, each before those that it calls.

    Args:
        root: where to begin.
        inside: which regions of a region to go into.
    """
    done, seen, stack = [], {id(root)}, [(root, inside(root))]
    while stack:
        region, rest = stack[-1]
        child = next(rest, None)
        if child is None:
            done.append(region)
            stack.pop()
        elif id(child) not in seen:
            seen.add(id(child))
            stack.append((child, inside(child)))
    return done[::-1]


def places_of(root: Region) -> dict[int, int]:
    """Region (by id) -> places in the program where its text stands, loops counted once."""
    places = {id(root): 1}
    for region in callees_last(root):
        for child in below(region):
            places[id(child)] = places.get(id(child), 0) + places[id(region)]
    return places
