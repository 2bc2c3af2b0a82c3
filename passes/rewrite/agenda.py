"""Agenda: which places of a region are still to be looked at, for which patterns.

A place is an anchor. What is known about it from places that look the same (recall.py) decides for which patterns it is
waiting; one glance serves all rules. After a rewrite only the places that it changed are looked at again.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ..errors import Refuse
from ..ir.region import Node, Region
from ..ir.values import Reads, watched
from .find import find_at
from .match import Match
from .pattern import SPELLED, Pattern, could_be_taps, patterns_of
from .recall import Declined, Found, Memory, Outcome, Recipe, Refused, Template, bare, memory_of, recipe_of
from .rule import Rule
from .search import Search


class Place:
    """An anchor, and what is known about it.

    Attributes:
        anchor: the node.
        template, found: what is remembered of places like it; None for a new kind of place.
    """

    __slots__ = ("anchor", "found", "template")

    def __init__(self, anchor: Node):
        self.anchor = anchor
        self.template: Template | None = None
        self.found: Found | None = None


class Anchored(NamedTuple):
    """Where the patterns of some rules can be found from.

    Args:
        patterns: primitive -> patterns, in the order in which they are tried.
        taps: primitives at which all of them are convolutions, written out.
    """

    patterns: dict[str, tuple[Pattern, ...]]
    taps: frozenset[str]


@functools.lru_cache(maxsize=256)
def anchored(rules: tuple[Rule, ...]) -> Anchored:
    """Where to look for the patterns of some rules."""
    table: dict[str, list[Pattern]] = {}
    for rule in rules:
        for pattern in patterns_of(rule):
            for name in dict.fromkeys(SPELLED.get(pattern.anchor, (pattern.anchor,))):
                table.setdefault(name, []).append(pattern)
    taps = (name for name, patterns in table.items() if all(p.addends and p.anchor != name for p in patterns))
    return Anchored({name: tuple(patterns) for name, patterns in table.items()}, frozenset(taps))


class Agenda:
    """The places of one region that wait for the patterns of some rules.

    Args:
        region: where to look.
        rules: what to look for.
        views: equations that matching may use.
        explain: search everywhere, so that every near miss is met.
    """

    def __init__(self, region: Region, rules: Sequence[Rule], views: frozenset[str], explain: bool = False):
        self.region, self.views, self.explain = region, views, explain
        self.table, self.taps = anchored(tuple(rules))
        self.memory: Memory = memory_of(views, region.around)
        self.places: dict[Node, Place] = {}
        self.waiting: dict[Pattern, dict[Node, Place]] = {}
        self.held: dict[Pattern, dict[Node, Place]] = {}  # a match was found there and not made
        region.edited.clear()
        for name in self.table:
            for node in region.by_primitive.get(name, ()):
                if node.live:
                    self._look(Place(node))
        self._seen = len(region.nodes)

    def _look(self, place: Place) -> None:
        """See what is known about a place, and let it wait for the patterns that may have something there."""
        anchor = place.anchor
        if anchor.primitive in self.taps and not self.explain and not could_be_taps(anchor):
            return
        place.template, place.found = (None, None) if self.explain else self.memory.recall(anchor)
        self.places[anchor] = place
        patterns = self.table[anchor.eqn.primitive.name]
        for pattern in patterns if place.template is None else place.template.open_among(patterns):
            self.waiting.setdefault(pattern, {})[anchor] = place

    def _know(self, place: Place) -> None:
        """See whether something is known by now about a place that waits for all patterns."""
        if self.explain:
            return
        was_known = place.template is not None
        place.template, place.found = self.memory.recall(place.anchor)
        patterns = self.table[place.anchor.eqn.primitive.name]
        if place.template is None:
            for pattern in patterns if was_known else ():  # it became a new kind of place
                self.waiting.setdefault(pattern, {})[place.anchor] = place
            return
        still = set(place.template.open_among(patterns))
        for pattern in patterns:
            if pattern not in still and pattern in self.waiting:
                self.waiting[pattern].pop(place.anchor, None)

    def take(self, pattern: Pattern) -> list[Place]:
        """The places that wait for a pattern, in program order; they wait no longer."""
        waiting = self.waiting.pop(pattern, None)
        if waiting is None:
            return []
        return sorted((p for p in waiting.values() if p.anchor.live), key=lambda p: p.anchor.position)

    def refresh(self) -> None:
        """After rewrites: look at new nodes, and again at all places that were changed or held back."""
        edited = self.region.edited
        if not edited:
            return
        for anchor, place in list(self.places.items()):
            if not anchor.live:
                del self.places[anchor]
            elif place.found is None:
                self._know(place)
            elif not place.found.everything.isdisjoint(edited):
                self._look(place)
        for node in self.region.nodes[self._seen :]:
            if node.live and node.primitive in self.table and node not in self.places:
                self._look(Place(node))
        for node in edited:
            if type(node) is Node and node.live and node.primitive in self.taps and node not in self.places:
                self._look(Place(node))
        self._seen = len(self.region.nodes)
        for pattern, places in self.held.items():
            self.waiting.setdefault(pattern, {}).update({a: p for a, p in places.items() if a.live})
        self.held.clear()
        edited.clear()

    # ------------------------------------------------------------ one place
    def matches(self, place: Place, pattern: Pattern, search: Search) -> Iterator[Match]:
        """Matches of a pattern at a place, remembered or searched for; the caller may rewrite between two of them."""
        if self._outcome(place, pattern) is None or self._is_stale(place):
            self._know(place)
        outcome = self._outcome(place, pattern)
        if outcome is None or place.found is None:
            yield from self._searched(place, pattern, search)
        else:
            yield from self._remembered(place, place.found, pattern, outcome, search)

    def _outcome(self, place: Place, pattern: Pattern) -> Outcome | None:
        return place.template.outcomes.get(pattern) if place.template is not None else None

    def _is_stale(self, place: Place) -> bool:
        edited = self.region.edited
        return bool(edited) and place.found is not None and not place.found.everything.isdisjoint(edited)

    def _remembered(
        self, place: Place, found: Found, pattern: Pattern, outcome: Outcome, search: Search
    ) -> Iterator[Match]:
        anchor = place.anchor
        search.tried += outcome.tried
        for event in outcome.events:
            if isinstance(event, Refused):
                search.refuse(event.why, found.nodes[event.node])
                continue
            if isinstance(event, Declined):
                if event.holds():
                    continue
                yield from find_at(anchor, pattern, self.region, self.views, search)
                return
            try:
                match = event.at(found, self.region)
            except Refuse as refusal:
                search.refuse(refusal, found.values[event.roots[0]].maker)
                self._hold(place, pattern)
                continue
            yield match
            if not anchor.live or not match.anchor.live:
                return
            self._hold(place, pattern)
        if not outcome.complete:
            yield from find_at(anchor, pattern, self.region, self.views, search)

    def _hold(self, place: Place, pattern: Pattern) -> None:
        self.held.setdefault(pattern, {})[place.anchor] = place

    def _searched(self, place: Place, pattern: Pattern, search: Search) -> Iterator[Match]:
        """Search, and remember what was found; what was looked at is noted while the search itself runs."""
        reads, tried, refusals = Reads(), search.tried, len(search.refusals)
        failures, declined = len(search.failures), len(search.declined)
        lesson = _Lesson(self.memory, place, pattern, None if self.explain else reads)
        running = find_at(place.anchor, pattern, self.region, self.views, search)
        while True:
            with watched(reads):
                match = next(running, None)
            if len(search.failures) > failures:
                lesson.reads = None  # the rule's own code failed, which says nothing of the place
            lesson.note(search.declined[declined:], search.refusals[refusals:], match, search.tried - tried)
            declined, refusals = len(search.declined), len(search.refusals)
            if match is None:
                return
            yield match
            refusals = len(search.refusals)  # those of the proof are not the search's
            if not match.anchor.live:
                return
            self._hold(place, pattern)


class _Lesson:
    """What is being learned at a place: the template grows with what the search has looked at."""

    def __init__(self, memory: Memory, place: Place, pattern: Pattern, reads: Reads | None):
        self.memory, self.place, self.pattern, self.reads = memory, place, pattern, reads
        self.known = (place.template, place.found)
        self.events: list[tuple[str, Node | None] | Declined | Match] = []

    def note(self, declined: list[Match], refusals: list, match: Match | None, tried: int) -> None:
        """Take down what came since the last time, and that a match, or the end of the search, came after it."""
        if self.reads is None:
            return
        self.events += [*(Declined(bare(m)) for m in declined), *refusals, *([match] if match is not None else [])]
        learned = self.memory.learn(self.place.anchor, self.pattern, self.reads, self.known)
        if learned is None:
            self.reads = None
            return
        template, found = learned
        events = self._events(found)
        if events is None:
            del template.outcomes[self.pattern]
            self.reads = None
            return
        template.outcomes[self.pattern] = Outcome(events, tried, complete=match is None)
        self.place.template, self.place.found = template, found
        self.known = learned

    def _events(self, found: Found) -> list[Refused | Declined | Recipe] | None:
        """The events in terms of a neighbourhood; None when it does not hold all of them."""
        places = {n: i for i, n in enumerate(found.nodes)}
        out: list[Refused | Declined | Recipe] = []
        for event in self.events:
            if isinstance(event, Declined):
                out.append(event)
            elif isinstance(event, Match):
                event.recipe = recipe_of(event, found)
                if event.recipe is None:
                    return None
                out.append(event.recipe)
            else:
                why, node = event
                if node not in places:
                    return None
                out.append(Refused(why, places[node]))
        return out
