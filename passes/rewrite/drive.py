"""Drive: apply rules to every region of a program until nothing more matches; prove each rewrite; keep the records."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax.errors import InconclusiveDimensionOperation

from ..errors import JaxspliceError, Refuse
from ..instrument import Instruments
from ..ir.extract import extract
from ..ir.jaxprs import at_source, trace_flat
from ..ir.region import Program, Region
from ..normalize import ALL, Cursor
from ..report import Report, Row
from . import measure, prove
from .certificate import KINDS, Certificate, Claim
from .find import find
from .match import Match
from .pattern import Pattern
from .rule import Candidate, GraphRule, Rule, code_of
from .search import Search
from .splice import as_reference, splice, trace_at

MAX_SWEEPS = 16  # rules whose results they match again, or that undo each other, are stopped here and named


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
        for row, region in self.sites:
            row.sites, row.trips = region.sites, region.trips
        for name, search in self.searches.items():
            statistics = self.report.statistics_of(name)
            statistics.tried = search.tried
            statistics.matched = sum(r.rule == name for r in self.report.rows)
            statistics.refusals = search.standing()
            for failure in dict.fromkeys(search.failures):
                self.report.warn(failure)
        return self.report


def apply_rules(program: Program, rules: Sequence[Rule | GraphRule], context: Context, stage: str) -> None:
    """Apply rules to all regions, outermost first; a region is swept again while rules still find new matches.

    Raises:
        JaxspliceError: rules kept producing each other's patterns; the message names them.
    """
    ordered = sorted(rules, key=lambda r: -r.priority)
    queue, seen = [program.root], {id(program.root)}
    for region in queue:
        _settle_region(region, ordered, context, stage)
        for node in region.nodes:
            if node.live:
                for child in node.children():
                    if id(child) not in seen:
                        seen.add(id(child))
                        queue.append(child)


def _settle_region(region: Region, rules: Sequence[Rule | GraphRule], context: Context, stage: str) -> None:
    fired: dict[str, int] = {}
    sweeps: list[dict[str, int]] = []
    fresh: set[int] | None = None  # first look at everything, then at what changed
    for _ in range(MAX_SWEEPS):
        size = len(region.nodes)
        fired = {r.name: n for r in rules if (n := _sweep(region, r, context, stage, fresh))}
        if not fired or context.exhausted:
            return
        sweeps.append(fired)
        fresh = {id(n) for n in region.nodes[size:] if n.live}
    names = ", ".join(sorted({name for fired in sweeps[-2:] for name in fired}))
    raise JaxspliceError(
        f"rules {names} still match after {MAX_SWEEPS} sweeps over one region: a rule's `after` holds its own "
        "`before`, or two rules undo each other. Take one of them out of the pipeline, or let its `where` refuse what "
        "it made."
    )


def _sweep(region: Region, rule: Rule | GraphRule, context: Context, stage: str, fresh: set[int] | None) -> int:
    count, search, started = 0, context.search(rule), time.perf_counter()
    if context.exhausted:
        return 0
    for match in find(region, rule, context.views, search, None if fresh is None else fresh | search.again):
        if rewrite_match(match, context, stage):
            count += 1
        if context.exhausted:
            break
    context.report.statistics_of(rule.name).seconds += time.perf_counter() - started
    return count


def rewrite_match(match: Match, context: Context, stage: str) -> bool:
    """Prove one match and splice it in; a refusal is recorded and leaves the program as it was."""
    try:
        with code_of(match.rule, "proof"):
            after, certificate = admit(match, context)
    except (Refuse, InconclusiveDimensionOperation) as refusal:
        context.search(match.rule).refuse(refusal, match.anchor)
        return False
    context.instruments.tell("before_rewrite", match, certificate, program=match.region.program)
    what, alive = _what(match), sum(n.live for n in match.nodes)
    source = match.source
    new = splice(match, after)
    for node in new:
        node.certificate = certificate
    gone = alive - sum(n.live for n in match.nodes)
    row = Row(match.rule.name, stage, source, gone, len(new), certificate, what=what)
    context.report.rows.append(row)
    context.sites.append((row, match.region))
    context.instruments.tell("after_rewrite", row, new, program=match.region.program)
    return True


def admit(match: Match, context: Context) -> tuple[Any, Certificate]:
    """Trace `after` at a match and prove the rewrite.

    Returns:
        The closed jaxpr to splice in, and the certificate.

    Raises:
        Refuse: a claim failed, or is weaker than `context.verify` allows.
    """
    started = time.perf_counter()
    try:
        key = match.key()
        before, after = _traced(match, key, "before"), _traced(match, key, "after", match.rule.name)
        certificate = Certificate(
            match.rule.name,
            _match_claim(match, before, key, context),
            _rewrite_claim(match, before, after, key, context),
            source=str(match.source),
        )
    finally:
        seconds = context.report.seconds
        seconds["prove"] = seconds.get("prove", 0.0) + time.perf_counter() - started
    demand(certificate, context)
    return after, certificate


_TRACED: dict[Any, Any] = {}  # `before` and `after` are traced once per distinct signature


def _traced(match: Match, key, side: str, scope: str | None = None):
    """One side of a rule at a match: traced at its first match, at later ones given their source."""
    here = match.anchor.origin
    if (key, side) not in _TRACED:
        _TRACED[key, side] = trace_at(match, side, scope), here
    closed, first = _TRACED[key, side]
    return closed if scope is None or first is here else at_source(closed, first, here)


def demand(certificate: Certificate, context: Context) -> None:
    """Refuse what is weaker than the verification level allows."""
    if context.verify == "strict" and KINDS.index(certificate.kind) > KINDS.index("reassociated"):
        raise Refuse(f"verify='strict' accepts exact and reassociated only; this is {certificate}")


def _match_claim(match: Match, before, key, context: Context) -> Claim:
    region = extract(match.nodes, match.inputs, match.roots)
    numbers = tuple(prove.PROOFS.numbering.outputs(region, prove.PROOFS.numbering.inputs(len(match.inputs))))
    outputs = [Cursor.whole(v) for v in match.roots]
    sample = _region_sample(match)
    return prove.PROOFS.once(
        ("match", key, numbers, context.verify),
        lambda: prove.match_claim(before, region, outputs, match, context.verify, sample),
    )


def _region_sample(match: Match):
    """Random values for the bound arrays: the rule's own sampler where arguments are the values as they stand."""
    plain = all(all(step is None for step in plan) for plan in match.arguments)
    sample = getattr(match.rule, "sample", None)
    if sample is None or not plain:
        return measure.random_arguments
    return lambda avals, seed: sample(np.random.default_rng(seed), *_arguments(match, avals), **match.params)


def _arguments(match: Match, avals):
    return match.variant.arguments(avals) if isinstance(match.variant, Pattern) else avals


def _rewrite_claim(match: Match, before, after, key, context: Context) -> Claim:
    if context.verify == "off":
        return Claim("assumed", note="verify='off'")
    return prove.PROOFS.once(
        ("rewrite", key),
        lambda: prove.rewrite_claim(before, after, lambda: _pair_to_measure(match, before, after), match),
    )


def _pair_to_measure(match: Match, before, after):
    """The two programs and arguments to measure with: at the match's types, or at small ones when those are large."""
    seed, axis_sizes = measure.seed_of(match.rule.name), prove.axes_used(before, match)
    shards = int(np.prod(list(axis_sizes.values()), dtype=int))
    avals, reduced = match.avals, False
    if 2 * shards * (measure.bytes_needed(before) + measure.bytes_needed(after)) > measure.MAX_BYTES:
        avals, reduced = _small_avals(match), True
    small = [as_reference(trace_flat(match.flat(side), avals, axis_sizes)) for side in ("before", "after")]
    args = measure.random_arguments([measure.per_shard(a, axis_sizes) for a in avals], seed)
    sample = getattr(match.rule, "sample", None)
    if isinstance(match.variant, Candidate) and match.variant.sample is not None:
        args = match.variant.sample(np.random.default_rng(seed), axis_sizes, *avals)
    elif sample is not None:
        args = jax.tree.leaves(list(sample(np.random.default_rng(seed), *_arguments(match, avals), **match.params)))
    return small[0], small[1], args, reduced


def _small_avals(match: Match) -> list[Any]:
    """The pattern's own case with the dtypes found here; a candidate's small types."""
    if isinstance(match.variant, Candidate):
        if not match.variant.small:
            raise Refuse("rewrite: too large to measure")
        return list(match.variant.small)
    pattern = match.variant
    small = [jax.ShapeDtypeStruct(c.shape, a.dtype) for c, a in zip(pattern.flat_args, match.avals, strict=True)]
    match.require_where(small)
    return small


def _what(match: Match) -> str:
    """The primitives a match covers, most telling first, with counts."""
    counts = Counter(n.primitive for n in match.nodes)
    plain = {"broadcast_in_dim", "reshape", "convert_element_type", "squeeze", "transpose", "slice", "mul", "add"}
    names = sorted(counts, key=lambda name: (name in plain, -counts[name], name))
    return " ".join(name if counts[name] == 1 else f"{counts[name]}x{name}" for name in names)
