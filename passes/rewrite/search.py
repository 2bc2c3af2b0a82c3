"""Search: what the search for one rule met: counts, refusals, near misses."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from ..ir.region import Node
from .mismatch import Mismatch
from .rule import GraphRule, Rule


@dataclass
class Search:
    """What a search for one rule met: counts, and (when explaining) the nearest misses."""

    rule: Rule | GraphRule
    explain: bool = False
    tried: int = 0
    refusals: list[tuple[str, Node]] = field(default_factory=list)
    misses: list[tuple[Mismatch, Node]] = field(default_factory=list)

    def refuse(self, why: str, node: Node) -> None:
        """Note a lawful no."""
        self.refusals.append((why, node))

    def standing(self) -> Counter:
        """Reason -> places that are still there: what a rewrite took in the end was not missed."""
        places = {(why, id(node)) for why, node in self.refusals if node.live}
        return Counter(why for why, _ in places)
