"""Lineage: which rewrites led to a node, so that rules which feed on their own results are found out and named."""

from __future__ import annotations

from dataclasses import dataclass

from ..ir.region import Node
from .match import Match

_RECENT = 32  # rewrites that a diagnosis looks back over


@dataclass(frozen=True)
class Lineage:
    """The rewrites that led to a node, the last one first.

    Args:
        rule: name of the rule that made it.
        parent: lineage of what that rule took.
        generation: rewrites on the way that did not shrink the program. Those that do come to an end by themselves.
    """

    rule: str
    parent: Lineage | None
    generation: int

    def diagnosis(self) -> str:
        """What to tell the user when it does not end."""
        names, at = [], self
        while at is not None and len(names) < _RECENT:
            names.append(at.rule)
            at = at.parent
        distinct = sorted(set(names))
        if len(distinct) == 1:
            who = f"rule {distinct[0]} matches what it makes itself: its `after` holds its own `before`"
        else:
            who = f"rules {', '.join(distinct)} match what the others make: they undo each other"
        return (
            f"{who}. After {self.generation} rewrites, each of the result of the last, the program is no smaller. "
            "Take one of them out of the pipeline, or let its `where` refuse what it made."
        )


def descend(match: Match, new: list[Node], gone: int) -> None:
    """Give the nodes that a rewrite made their lineage.

    Args:
        match: what was taken.
        new: what was made.
        gone: nodes that the rewrite removed.
    """
    parents = [n.lineage for n in match.nodes if n.lineage is not None]
    parent = max(parents, key=lambda p: p.generation, default=None)
    generation = (parent.generation if parent is not None else 0) + (len(new) >= gone)
    lineage = Lineage(match.rule.name, parent, generation)
    for node in new:
        node.lineage = lineage
