"""Search: what the search for one rule met: counts, refusals, near misses."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from ..errors import RuleError, first_line
from ..ir.region import Node
from .mismatch import Mismatch
from .rule import GraphRule, Rule


@dataclass
class Search:
    """What a search for one rule met: counts, and (when explaining) the nearest misses.

    Args:
        rule: what is searched for.
        explain: keep near misses.
        strict: raise when the rule's own code fails, instead of noting it.
    """

    rule: Rule | GraphRule
    explain: bool = False
    strict: bool = False
    tried: int = 0
    refusals: list[tuple[str, Node | None]] = field(default_factory=list)
    misses: list[tuple[Mismatch, Node]] = field(default_factory=list)
    declined: list[Any] = field(default_factory=list)  # matches that a rule's own `where` refused; it may think again
    failures: list[str] = field(default_factory=list)  # of the rule's own code

    def refuse(self, why: str | Exception, node: Node | None) -> None:
        """Note a lawful no, or that the rule's own code failed, at a node or (None) everywhere.

        Raises:
            RuleError: it failed, and `strict` is set.
        """
        sentence = first_line(why)
        if isinstance(why, RuleError):
            if self.strict:
                raise why
            self.failures.append(sentence)
        self.refusals.append((sentence, node))

    def standing(self) -> Counter:
        """Reason -> places that are still there: what a rewrite took in the end was not missed."""
        places = {(why, id(node)) for why, node in self.refusals if node is None or node.live}
        return Counter(why for why, _ in places)
