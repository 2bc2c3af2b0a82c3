"""Report: what a pipeline did to a program, where, how it was proved, and how long it took."""

from __future__ import annotations

import textwrap
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from .rewrite.certificate import KINDS, Certificate, strength

WIDTH = 80  # columns of the printed report
MAX_REASONS = 3  # refusals printed per rule; all are in `statistics`


@dataclass
class Row:
    """One rewrite.

    Args:
        rule: name.
        stage: stage it happened in.
        source: user's file, line and function.
        replaced: nodes removed.
        added: nodes put in their place.
        certificate: its proof.
        sites: places in the program (a shared jaxpr counts once per call, a loop's body once).
        trips: times it runs per run of the program; None when a loop's length is not known.
        what: the primitives it replaced, in a few words.
    """

    rule: str
    stage: str
    source: Any
    replaced: int
    added: int
    certificate: Certificate
    sites: int = 1
    trips: int | None = 1
    what: str = ""


@dataclass
class RuleStatistics:
    """How one rule fared: places tried, matched, and refused with their reasons."""

    tried: int = 0
    matched: int = 0
    seconds: float = 0.0
    refusals: Counter = field(default_factory=Counter)


@dataclass
class Report:
    """All rewrites of one pipeline run.

    Attributes:
        rows: the rewrites, in order.
        statistics: rule name -> RuleStatistics, also of rules that never matched.
        seconds: stage name -> seconds; "prove" is the part of it spent on proofs.
        notes: anything else worth knowing, one sentence each.
        warnings: those of the notes that the caller should be told even if nobody prints the report.
        failure: why the pipeline was abandoned and the program is as it was given; empty when it was not.
    """

    rows: list[Row] = field(default_factory=list)
    statistics: dict[str, RuleStatistics] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    failure: str = ""

    def warn(self, sentence: str) -> None:
        """Note something that must not pass unseen; `jaxsplice.rewrite` logs it."""
        self.notes.append(sentence)
        self.warnings.append(sentence)

    def abandon(self, sentence: str) -> None:
        """The pipeline failed: nothing was rewritten after all."""
        self.rows.clear()
        self.failure = sentence
        self.warn(sentence)

    @property
    def counts(self) -> dict[str, int]:
        """Rule name -> sites. A raise hit stays counted when a later stage fuses it away."""
        out: Counter = Counter()
        for row in self.rows:
            out[row.rule] += row.sites
        return dict(out)

    @property
    def trip_counts(self) -> dict[str, int | None]:
        """Rule name -> sites times the trips of the loops around them; None when one is not known."""
        out: dict[str, int | None] = {}
        for row in self.rows:
            known = out.get(row.rule, 0)
            out[row.rule] = None if known is None or row.trips is None else known + row.trips
        return out

    @property
    def certificates(self) -> list[Certificate]:
        """One per rewrite."""
        return [row.certificate for row in self.rows]

    @property
    def kinds(self) -> dict[str, int]:
        """Kind of certificate -> rewrites that have it, strongest first."""
        found = Counter(certificate.kind for certificate in self.certificates)
        return {kind: found[kind] for kind in KINDS if kind in found}

    def statistics_of(self, rule: str) -> RuleStatistics:
        """The statistics of a rule, made at first use."""
        return self.statistics.setdefault(rule, RuleStatistics())

    def __str__(self) -> str:
        return "\n".join([*self.table(), *self._tail()])

    def table(self) -> list[str]:
        """One line per rule that fired, 80 columns: hits, runs, certificate, worst error, what it replaced."""
        if not self.rows:
            return ["no rewrites"]
        lines = [f"{'rule':<18} {'hits':>4} {'runs':>5}  {'certificate':<15} {'error':>7}  replaced"]
        for rule in self.counts:
            rows = [r for r in self.rows if r.rule == rule]
            weakest = max((r.certificate for r in rows), key=strength)
            errors = [r.certificate.error for r in rows if r.certificate.error is not None]
            error = f"{max(errors):.0e}" if errors else "-"
            trips = self.trip_counts[rule]
            runs = "?" if trips is None else str(trips)
            name = rule
            if len(rule) > 18:  # on a line of its own
                lines, name = [*lines, rule], ""
            head = f"{name:<18} {self.counts[rule]:>4} {runs:>5}  {weakest.kind:<15} {error:>7}  "
            lines.append(head + _shortened(rows[0].what, WIDTH - len(head)))
        return lines

    def rule_table(self) -> str:
        """Per rule: places tried, matched and refused, its seconds, and every reason for a refusal; slowest first."""
        lines = [f"{'rule':<30} {'tried':>7} {'matched':>7} {'refused':>7} {'seconds':>9}"]
        for name, rule in sorted(self.statistics.items(), key=lambda item: -item[1].seconds):
            refused = sum(rule.refusals.values())
            lines.append(f"{name:<30} {rule.tried:>7} {rule.matched:>7} {refused:>7} {rule.seconds:>9.4f}")
            lines += [line for why, count in rule.refusals.most_common() for line in _wrapped(f"  {count} x {why}")]
        return "\n".join(lines)

    def _tail(self) -> list[str]:
        sentences = [*self._proved(), *self._refusals(), *dict.fromkeys(self.notes)]
        if self.seconds:
            sentences.append("time: " + ", ".join(f"{k} {v * 1e3:.0f} ms" for k, v in self.seconds.items()))
        return [line for sentence in sentences for line in _wrapped(sentence)]

    def _proved(self) -> list[str]:
        """How many rewrites have a certificate of each kind."""
        return ["certificates: " + ", ".join(f"{n} {kind}" for kind, n in self.kinds.items())] if self.rows else []

    def _refusals(self) -> list[str]:
        """Why rules left places alone that look like theirs, the commonest reasons first."""
        lines = []
        for name, statistics in self.statistics.items():
            reasons = statistics.refusals.most_common()
            lines += [f"refused {name} x{count}: {why}" for why, count in reasons[:MAX_REASONS]]
            if len(reasons) > MAX_REASONS:
                lines.append(
                    f"refused {name} for {len(reasons) - MAX_REASONS} more reasons; report.rule_table() has all"
                )
        return lines


def _wrapped(sentence: str) -> list[str]:
    return textwrap.wrap(sentence, WIDTH, subsequent_indent="  ", break_on_hyphens=False)


def _shortened(text: str, width: int) -> str:
    return textwrap.shorten(text, width, placeholder="...") if width > 3 else ""
