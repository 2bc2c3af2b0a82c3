"""Drive: apply rules to every region of a program until nothing more matches; prove each rewrite; keep the records."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from jax.errors import InconclusiveDimensionOperation

from ..errors import JaxspliceError, Refuse, RuleError
from ..instrument import Instruments
from ..ir.region import Node, Program, Region
from ..normalize import ALL
from ..report import Report, Row
from .admit import admit
from .agenda import Agenda, Place
from .find import find_candidates
from .lineage import descend
from .match import Match
from .pattern import Pattern, patterns_of
from .rule import GraphRule, Rule, code_of
from .search import Search
from .splice import splice

SPARE_GENERATIONS, MAX_GENERATIONS = 16, 5_000  # how often rules may feed on what rules made, without shrinking it


@dataclass
class Context:
    """What all passes of one pipeline run share.

    Args:
        target: hardware to lower for.
        verify: "off" (structure only), "auto" (all three claims) or "strict" (nothing below `reassociated`).
        views: equations that matching may use.
        stop_after: stop after this many rewrites; None for all.
        explain: keep near misses.
        instruments: told of every stage and rewrite.
        report: what happened.
    """

    target: Any = None
    verify: str = "auto"
    views: frozenset[str] = ALL
    stop_after: int | None = None
    explain: bool = False
    instruments: Instruments = field(default_factory=Instruments)
    report: Report = field(default_factory=Report)
    searches: dict[str, Search] = field(default_factory=dict)
    sites: list[tuple[Row, Region]] = field(default_factory=list)

    @property
    def exhausted(self) -> bool:
        """Whether `stop_after` rewrites have been made."""
        return self.stop_after is not None and len(self.report.rows) >= self.stop_after

    def search(self, rule: Rule | GraphRule) -> Search:
        """Records of the searches for rules of one name."""
        found = self.searches.get(rule.name)
        if found is None:
            found = self.searches[rule.name] = Search(rule, self.explain, self.verify == "strict")
        return found

    def finish(self) -> Report:
        """Count sites and trips, now that all callers are known, and fill the statistics."""
        counted: dict[int, tuple[int, int | None]] = {}
        for row, region in self.sites:
            if id(region) not in counted:
                counted[id(region)] = region.sites, region.trips
            row.sites, row.trips = counted[id(region)]
        matched = Counter(row.rule for row in self.report.rows)
        for name, search in self.searches.items():
            statistics = self.report.statistics_of(name)
            statistics.tried = search.tried
            statistics.matched = matched[name]
            statistics.refusals = search.standing()
            for failure in dict.fromkeys(search.failures):
                self.report.warn(failure)
        return self.report


def apply_rules(program: Program, rules: Sequence[Rule | GraphRule], context: Context, stage: str) -> None:
    """Apply rules to all regions, outermost first, until nothing more matches.

    Raises:
        JaxspliceError: rules kept producing each other's patterns; the message names them.
    """
    ordered = sorted(rules, key=lambda r: -r.priority)
    queue, seen = [program.root], {id(program.root)}
    for region in queue:
        _Driver(region, ordered, context, stage).run()
        for node in region.holders:
            for child in node.children() if node.live else ():
                if id(child) not in seen:
                    seen.add(id(child))
                    queue.append(child)


class _Driver:
    """Rules applied to one region: rule after rule, and again where rewrites changed something."""

    def __init__(self, region: Region, rules: Sequence[Rule | GraphRule], context: Context, stage: str):
        self.region, self.context, self.stage = region, context, stage
        self.rules = [r for r in rules if _is_sound(r, context)]
        self.agenda = Agenda(region, [r for r in self.rules if isinstance(r, Rule)], context.views, context.explain)
        self.followed: set[str] = set()  # rules whose first result, no smaller than what it took, was followed
        self.bound = min(len(region.nodes) + SPARE_GENERATIONS, MAX_GENERATIONS)

    def run(self) -> None:
        """Sweep until nothing fires. That ends: only so often may rules feed on what they made (`_generation`)."""
        while sum(self._sweep(rule) for rule in self.rules) and not self.context.exhausted:
            pass

    def _sweep(self, rule: Rule | GraphRule) -> int:
        context, started, count = self.context, time.perf_counter(), 0
        if context.exhausted:
            return 0
        if isinstance(rule, GraphRule):
            for match in find_candidates(self.region, rule, context.search(rule)):
                new = rewrite_match(match, context, self.stage)
                if new is not None:
                    count += 1 + self._follow(new, rule.name)
                if context.exhausted:
                    break
            if count:
                self.agenda.refresh()
        else:
            count = sum(self._look_for(pattern) for pattern in patterns_of(rule))
        context.report.statistics_of(rule.name).seconds += time.perf_counter() - started
        return count

    def _look_for(self, pattern: Pattern) -> int:
        """One pattern at all places that wait for it."""
        count = 0
        for place in self.agenda.take(pattern):
            for new in self._made_at(place, pattern):
                count += 1 + self._follow(new, pattern.rule.name)
        if count:
            self.agenda.refresh()
        return count

    def _made_at(self, place: Place, pattern: Pattern) -> Iterator[list[Node]]:
        """Rewrite the matches of a pattern at one place; gives what each rewrite made."""
        if not place.anchor.live or self.context.exhausted:
            return
        for match in self.agenda.matches(place, pattern, self.context.search(pattern.rule)):
            new = rewrite_match(match, self.context, self.stage)
            if new is not None:
                yield new
            if self.context.exhausted:
                return

    def _follow(self, new: list[Node], name: str) -> int:
        """Where rules feed on what rules made, see at once where that leads, before it is done everywhere.

        What shrank the program needs no such look, and the first result of each rule that did not is enough of one.
        """
        generation = self._generation(new)
        if generation == 0 or (generation == 1 and name in self.followed):
            return 0
        self.followed.add(name)
        count, stack = 0, list(new)
        while stack:
            node = stack.pop()
            for pattern in self.agenda.table.get(node.primitive, ()):
                for made in self._made_at(Place(node), pattern):
                    self._generation(made)
                    stack += made
                    count += 1
        return count

    def _generation(self, new: list[Node]) -> int:
        lineage = new[0].lineage if new else None
        if lineage is None:
            return 0
        if lineage.generation > self.bound:
            raise JaxspliceError(lineage.diagnosis())
        return lineage.generation


def _is_sound(rule: Rule | GraphRule, context: Context) -> bool:
    """Whether a rule's patterns can be made; when not, that is noted."""
    try:
        if isinstance(rule, Rule):
            patterns_of(rule)
    except RuleError as failure:
        context.search(rule).refuse(failure, None)
        return False
    return True


def rewrite_match(match: Match, context: Context, stage: str) -> list[Node] | None:
    """Prove one match and splice it in; a refusal is recorded and leaves the program as it was.

    Returns:
        The new nodes; None for a refusal.
    """
    try:
        with code_of(match.rule, "proof"):
            admission = admit(match, context)
    except (Refuse, InconclusiveDimensionOperation) as refusal:
        context.search(match.rule).refuse(refusal, match.anchor)
        return None
    context.instruments.tell("before_rewrite", match, admission.certificate, program=match.region.program)
    what, alive, source = _what(match), sum(n.live for n in match.nodes), match.source
    new = splice(match, admission.after, admission.first)
    gone = alive - sum(n.live for n in match.nodes)
    descend(match, new, gone)
    for node in new:
        node.certificate = admission.certificate
    row = Row(match.rule.name, stage, source, gone, len(new), admission.certificate, what=what)
    context.report.rows.append(row)
    context.sites.append((row, match.region))
    context.instruments.tell("after_rewrite", row, new, program=match.region.program)
    return new


def _what(match: Match) -> str:
    """The primitives a match covers, most telling first, with counts."""
    if match.recipe is not None and match.recipe.what:
        return match.recipe.what
    counts = Counter(n.primitive for n in match.nodes)
    plain = {"broadcast_in_dim", "reshape", "convert_element_type", "squeeze", "transpose", "slice", "mul", "add"}
    names = sorted(counts, key=lambda name: (name in plain, -counts[name], name))
    what = " ".join(name if counts[name] == 1 else f"{counts[name]}x{name}" for name in names)
    if match.recipe is not None:
        match.recipe.what = what
    return what
