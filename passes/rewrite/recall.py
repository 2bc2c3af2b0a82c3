"""Recall: what the search for a pattern gave at one place, to be had again at places that look the same.

Nothing is believed on a hash: a place looks the same when its neighbourhood is the same, equation by equation
(neighbourhood.py). So the region that a remembered match covers is the very program that was proved; what lies outside
of it (who else uses its inside) is looked at afresh.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from ..errors import Refuse
from ..ir.region import OUTPUT, Node, Region, Surroundings, Value
from ..ir.values import Reads
from .cover import refuse_cycle, refuse_escapes
from .match import Match
from .neighbourhood import Found, Neighbourhood, is_function, neighbourhood_of
from .pattern import Pattern

MAX_TEMPLATES = 20_000  # of all programs seen; then everything is forgotten
MAX_PER_KEY = 64


class Refused(NamedTuple):
    """A lawful no, with the place of its node."""

    why: str
    node: int


class Declined(NamedTuple):
    """A match that the rule's own `where` declined; it is asked again at every place."""

    match: Match

    def holds(self) -> bool:
        """Whether it declines still."""
        try:
            self.match.require_where(self.match.avals)
        except Refuse:
            return True
        return False


@dataclass(eq=False)
class Recipe:
    """A match in terms of a neighbourhood, and what is known of it.

    Attributes:
        match: the match it was made from, without the program it stood in.
        roots, inputs: places of values.
        nodes: places of nodes.
        admissions: verification level -> what `admit` said (admit.py).
        what: the primitives it covers, in words; empty until somebody asked.
    """

    match: Match
    roots: tuple[int, ...]
    inputs: tuple[int, ...]
    nodes: tuple[int, ...]
    admissions: dict[Any, Any] = field(default_factory=dict)
    what: str = ""

    def at(self, found: Found, region: Region) -> Match:
        """The match at a place.

        Raises:
            Refuse: the rule's `where`, or what lies outside of it, forbids it.
        """
        nodes, values = found.nodes, found.values
        match = replace(
            self.match,
            region=region,
            roots=[values[i] for i in self.roots],
            inputs=[values[i] for i in self.inputs],
            nodes=[nodes[i] for i in self.nodes],
            recipe=self,
        )
        match.require_where(match.avals)
        if len(match.roots) > 1:
            refuse_cycle(match.nodes, match.roots, match.inputs)
        refuse_escapes(match)
        return match


@dataclass
class Outcome:
    """What a search gave, in order; not `complete` when it was left after its last event.

    Attributes:
        events: refusals and recipes.
        tried: roots that were unified.
    """

    events: list[Refused | Declined | Recipe] = field(default_factory=list)
    tried: int = 0
    complete: bool = False

    @property
    def nothing(self) -> bool:
        """Whether there is nothing to find and nothing to say."""
        return self.complete and not self.events


class Template:
    """A neighbourhood and the outcomes of all patterns that were searched for there."""

    __slots__ = ("neighbourhood", "open", "outcomes")

    def __init__(self, neighbourhood: Neighbourhood, outcomes: dict[Pattern, Outcome]):
        self.neighbourhood, self.outcomes = neighbourhood, outcomes
        self.open: dict[int, tuple[tuple[Pattern, ...], tuple[Pattern, ...]]] = {}

    def open_among(self, patterns: tuple[Pattern, ...]) -> tuple[Pattern, ...]:
        """Patterns of a list that may match here, or have something to say, or were not searched for yet."""
        known = self.open.get(id(patterns))
        if known is None or known[0] is not patterns:
            left = tuple(p for p in patterns if (o := self.outcomes.get(p)) is None or not o.nothing)
            known = self.open[id(patterns)] = (patterns, left)
        return known[1]


class Memory:
    """Templates of all places searched so far under the same views and in the same surroundings."""

    def __init__(self):
        self._templates: dict[Any, list[Template]] = {}

    def recall(self, anchor: Node) -> tuple[Template | None, Found | None]:
        """The template whose neighbourhood is found around a node, and where."""
        templates = self._templates.get(_key(anchor), [])
        for i, template in enumerate(templates):
            found = template.neighbourhood.around(anchor)
            if found is not None:
                if i:
                    templates.insert(0, templates.pop(i))
                return template, found
        return None, None

    def learn(
        self, anchor: Node, pattern: Pattern, reads: Reads, known: tuple[Template | None, Found | None]
    ) -> tuple[Template, Found] | None:
        """Make or widen the template around a node, so that it covers one more search.

        Args:
            anchor: the node.
            pattern: what was searched for.
            reads: what the search looked at.
            known: the template found there before, which holds still.

        Returns:
            The template, with an empty outcome for the pattern, and where it lies; None where there can be none.
        """
        old, where = known
        if old is not None and where is not None:
            before = old.neighbourhood.reads(where)
            reads.makers |= before.makers
            reads.users |= before.users
        made = neighbourhood_of(anchor, reads)
        if made is None:
            return None
        neighbourhood, found = made
        outcomes = {} if old is None or where is None else _moved(old.outcomes, where, found)
        outcomes[pattern] = Outcome()
        template = Template(neighbourhood, outcomes)
        templates = self._templates.setdefault(_key(anchor), [])
        if old in templates:
            templates[templates.index(old)] = template
        else:
            templates.insert(0, template)
            _count(1)
            del templates[MAX_PER_KEY:]
        return template, found


_DOWN, _UP = 3, 2  # equations around an anchor that a first look takes in


def _key(anchor: Node) -> tuple:
    """A first look: the primitives around a node."""
    key: list[Any] = []
    level = [anchor]
    for _ in range(_DOWN):
        level = [a.maker for n in level for a in n.inputs if type(a) is Value and a.maker is not None]
        key += [n.eqn.primitive for n in level]
        key.append(len(level))
    level = [anchor]
    for _ in range(_UP):
        level = [u for n in level[:8] for o in n.outputs for u in o.users if u.live and u is not OUTPUT]
        key += [n.eqn.primitive for n in level[:8]]
    return (anchor.eqn.primitive, *key)


_MEMORIES: dict[tuple[frozenset[str], Surroundings], Memory] = {}
_templates = 0


def memory_of(views: frozenset[str], around: Surroundings) -> Memory:
    """What is remembered under these views, in these surroundings."""
    return _MEMORIES.setdefault((views, around), Memory())


def forget() -> None:
    """Forget all templates, here and in memories that are in use."""
    global _templates
    _templates = 0
    for memory in _MEMORIES.values():
        memory._templates.clear()
    _MEMORIES.clear()


def _count(more: int) -> None:
    global _templates
    _templates += more
    if _templates > MAX_TEMPLATES:
        forget()


def _moved(outcomes: dict[Pattern, Outcome], old: Found, new: Found) -> dict[Pattern, Outcome]:
    """Outcomes in terms of a wider neighbourhood of the same place."""
    nodes = {n: i for i, n in enumerate(new.nodes)}
    values = {v: i for i, v in enumerate(new.values)}

    def moved(event: Refused | Declined | Recipe) -> Refused | Declined | Recipe:
        if isinstance(event, Declined):
            return event
        if isinstance(event, Refused):
            return Refused(event.why, nodes[old.nodes[event.node]])
        return replace(
            event,
            roots=tuple(values[old.values[i]] for i in event.roots),
            inputs=tuple(values[old.values[i]] for i in event.inputs),
            nodes=tuple(nodes[old.nodes[i]] for i in event.nodes),
        )

    return {p: Outcome([moved(e) for e in o.events], o.tried, o.complete) for p, o in outcomes.items()}


def bare(match: Match) -> Match:
    """A match without the program it stands in."""
    return replace(match, region=None, roots=[], inputs=[], nodes=[], recipe=None)


def recipe_of(match: Match, found: Found) -> Recipe | None:
    """A match in terms of the neighbourhood it stands in; None where that does not hold all of it."""
    nodes = {n: i for i, n in enumerate(found.nodes)}
    values = {v: i for i, v in enumerate(found.values)}
    if any(v not in values for v in (*match.roots, *match.inputs)) or any(n not in nodes for n in match.nodes):
        return None
    if any(is_function(v) for n in match.nodes for v in n.params.values()):
        return None  # two derivatives may differ
    return replace(
        match.recipe or Recipe(bare(match), (), (), ()),  # what is known of it already is kept
        roots=tuple(values[v] for v in match.roots),
        inputs=tuple(values[v] for v in match.inputs),
        nodes=tuple(nodes[n] for n in match.nodes),
    )
