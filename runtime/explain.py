"""explain: where a rule matches, and how near it came elsewhere, with the user's own lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from jaxsplice.passes.errors import PipelineError, no_such
from jaxsplice.passes.instrument import Instrument, Instruments, Writer
from jaxsplice.passes.ir.graph import Graph
from jaxsplice.passes.ir.region import Node
from jaxsplice.passes.ir.text import type_text
from jaxsplice.passes.pipeline import ApplyRules, Pipeline
from jaxsplice.passes.rewrite.drive import Context
from jaxsplice.passes.rewrite.nearest import nearest
from jaxsplice.passes.rewrite.rule import STAGES, GraphRule, Rule

from .hints import hint_for
from .library import library
from .target import Target
from .tracing import trace

_REFUSED = 10**6  # depth of a whole pattern that was found and declined; one that failed its proof counts more
MIN_DEPTH = 2  # terms that must match before a place counts as resembling a rule; or it has its rarest primitive


@dataclass(frozen=True)
class Hit:
    """A place where the rule matches.

    Args:
        rule: name.
        source: user's line.
        certificate: its proof, as text.
        replaced: primitives it covers.
    """

    rule: str
    source: Any
    certificate: str
    replaced: str

    def __str__(self) -> str:
        return f"{self.rule} matches at {self.source}: {self.replaced}\n    {self.certificate}"


@dataclass(frozen=True)
class Miss:
    """A place where the rule nearly matches.

    Args:
        rule: name.
        source: user's line of the root.
        depth: how many terms had matched before it stopped; a lawful refusal of a full match counts as very deep.
        reason: where it stopped, and why.
        hint: what could be done.
        equation: the first equation that differs, with its types; empty when a whole match was declined.
        wanted: what the pattern has there.
        found: what the program has there.
    """

    rule: str
    source: Any
    depth: int
    reason: str
    hint: str = ""
    equation: str = ""
    wanted: str = ""
    found: str = ""

    def __str__(self) -> str:
        equation = f"\n    first difference: {self.equation}" if self.equation else ""
        hint = f"\n    hint: {self.hint}" if self.hint else ""
        return f"{self.rule} does not apply at {self.source}\n    {self.reason}{equation}{hint}"


@dataclass(frozen=True)
class Explanation:
    """Matches and near misses of a rule (or of all rules) in one program.

    Attributes:
        hits: where it matches.
        misses: where it nearly does, nearest first, one per place.
    """

    hits: list[Hit] = field(default_factory=list)
    misses: list[Miss] = field(default_factory=list)

    @property
    def counts(self) -> dict[str, int]:
        """Rule name -> matches."""
        out: dict[str, int] = {}
        for hit in self.hits:
            out[hit.rule] = out.get(hit.rule, 0) + 1
        return out

    def __str__(self) -> str:
        lines = [str(h) for h in self.hits] + [str(m) for m in self.misses]
        return "\n".join(lines) if lines else "nothing in this program resembles the rule"


def explain(
    program: Callable | Graph,
    *args,
    rule: str | Rule | GraphRule | None = None,
    limit: int = 5,
    target: str | Target | None = None,
    static_argnums=None,
    static_argnames=None,
    **kwargs,
) -> Explanation:
    """Say where rules match a program, and for the nearest misses what differs, with the source line and a hint.

    Args:
        program: a function (with its arguments) or a Graph.
        *args: arrays or `jax.ShapeDtypeStruct`s.
        rule: the rule to explain, by name, or a Rule of one's own; all shipped rules when None. Rules of earlier stages
            are applied first.
        limit: near misses kept per rule.
        target: as in `jaxsplice.rewrite`.
        static_argnums: as in `jax.jit`.
        static_argnames: as in `jax.jit`.
        **kwargs: keyword arguments of the function.

    Returns:
        An Explanation; `str()` prints it.

    Raises:
        PipelineError: there is no such rule.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> x, w = jnp.ones((4, 8)), jnp.ones((8, 16))
        >>> found = explain(lambda x, a, b: jax.nn.gelu(x @ a) * (x @ b), x, w, w, rule="swiglu")
        >>> len(found.hits), found.misses[0].rule
        (0, 'swiglu')
    """
    wanted = _wanted(rule)
    graph = program if isinstance(program, Graph) else trace(
        program, *args, static_argnums=static_argnums, static_argnames=static_argnames, **kwargs
    )  # fmt: skip
    watch = _Watch({r.stage for r in wanted})
    context = Context(target=Target.parse(target), explain=True, instruments=Instruments((watch,)))
    own = [] if rule is None or isinstance(rule, str) else wanted
    _stages(own).run(graph, context)
    names = dict.fromkeys(r.name for r in wanted)
    rows = [row for row in context.report.rows if row.rule in names]
    hits = [Hit(row.rule, row.source, str(row.certificate), row.what) for row in rows]
    return Explanation(hits, [m for name in names for m in _misses(name, wanted, context, watch)[:limit]])


def _wanted(rule: str | Rule | GraphRule | None) -> list[Rule | GraphRule]:
    if isinstance(rule, Rule | GraphRule):
        return [rule]
    rules = [r for r in library().rules if rule is None or r.name == rule]
    if not rules:
        names = {r.name for r in library().rules}
        raise PipelineError(no_such("rule", str(rule), names, "A Rule of your own can be given itself: rule=my_rule."))
    return sorted(rules, key=lambda r: r.name)


def _stages(own: list[Rule | GraphRule]) -> Pipeline:
    """All stages; rules of one's own come first in theirs."""
    parts: list[Any] = ["normalize"]
    for stage in STAGES:
        parts += [ApplyRules(stage, (r,)) for r in own if r.stage == stage]
        parts.append(stage)
    return library().pipeline(parts)


class _Watch(Instrument):
    """Keeps the program as it was before some stages, and which rule took which node."""

    def __init__(self, stages: set[str]):
        self._stages = stages
        self.graphs: dict[str, Graph] = {}
        self.takers: dict[tuple, str] = {}

    def before_stage(self, stage: str, graph: Writer) -> None:
        if stage in self._stages and stage not in self.graphs:
            self.graphs[stage] = graph()

    def before_rewrite(self, match, certificate, graph) -> None:
        for node in match.nodes:
            self.takers.setdefault(_place(node), match.rule.name)


def _place(node: Node) -> tuple:
    """The same for a node in two readings of one program."""
    return (node.primitive, str(node.source), node.outputs[0].var if node.outputs else None)


def _misses(name: str, rules: list[Rule | GraphRule], context: Context, watch: _Watch) -> list[Miss]:
    """The nearest misses of the rules of one name, one per line of the user's, nearest first."""
    found = [*_declined(name, context, watch)]
    for rule in rules:
        if rule.name == name and isinstance(rule, Rule) and rule.stage in watch.graphs:
            found += _partial(rule, watch)
    matched = {str(row.source) for row in context.report.rows if row.rule == name}
    best: dict[str, Miss] = {}
    for miss in sorted(found, key=lambda m: -m.depth):
        if str(miss.source) not in matched:
            best.setdefault(str(miss.source), miss)
    return list(best.values())


def _declined(name: str, context: Context, watch: _Watch) -> Iterator[Miss]:
    """Whole matches that were declined, or failed their proof."""
    search = context.searches.get(name)
    for why, node in search.refusals if search is not None else ():
        if node is not None:
            hint = hint_for(why, node, None, None, _taker(node, name, watch))
            yield Miss(name, node.source, _REFUSED + why.startswith("match"), why, hint)


def _partial(rule: Rule, watch: _Watch) -> Iterator[Miss]:
    """Places where a part of a pattern matches."""
    for root, pattern, mismatch in nearest(watch.graphs[rule.stage].program, rule):
        if mismatch.depth >= MIN_DEPTH or root.primitive == pattern.anchor:
            hint = hint_for(str(mismatch), root, pattern, mismatch, _taker(root, rule.name, watch))
            equation = _equation(mismatch.node) if mismatch.node is not None else ""
            yield Miss(
                rule.name, root.source, mismatch.depth, str(mismatch), hint, equation, mismatch.wanted, mismatch.found
            )


def _taker(node: Node, name: str, watch: _Watch) -> str | None:
    """Another rule that took a node."""
    taker = watch.takers.get(_place(node))
    return taker if taker != name else None


def _equation(node: Node) -> str:
    """An equation by its types."""
    operands = ", ".join(type_text(a.aval) for a in node.inputs)
    results = ", ".join(type_text(v.aval) for v in node.outputs)
    return f"{node.primitive}({operands}) -> {results}"
