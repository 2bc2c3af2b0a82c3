"""Admit: trace a rule's two sides at a match, prove the rewrite, and hold it against the level that was asked for."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from jax.errors import InconclusiveDimensionOperation

from ..errors import Refuse, RuleError, first_line
from ..ir.extract import extract
from ..ir.jaxprs import Eqn, trace_flat
from ..normalize import Cursor
from . import measure, prove
from .certificate import KINDS, Certificate, Claim
from .match import Match
from .pattern import Pattern
from .rule import Candidate
from .splice import as_reference, trace_at

if TYPE_CHECKING:
    from .drive import Context


class Admission(NamedTuple):
    """What may be spliced in.

    Args:
        after: closed jaxpr of the bound values.
        first: the equation it was traced at.
        certificate: its proof, for the place at hand.
    """

    after: Any
    first: Eqn
    certificate: Certificate


def admit(match: Match, context: Context) -> Admission:
    """Trace `after` at a match and prove the rewrite; what was said at a place that looks the same is said again.

    Returns:
        The admission.

    Raises:
        Refuse: a claim failed, or is weaker than `context.verify` allows.
    """
    known = match.recipe.admissions if match.recipe is not None else {}
    said = known.get(context.verify)
    if said is None:
        try:
            said = _admit(match, context)
        except RuleError:
            raise  # its code failed, which says nothing of the match
        except (Refuse, InconclusiveDimensionOperation) as refusal:
            said = first_line(refusal)
        known[context.verify] = said
    elif isinstance(said, Admission):
        return said._replace(certificate=replace(said.certificate, source=str(match.source)))
    if isinstance(said, str):
        raise Refuse(said)
    return said


def _admit(match: Match, context: Context) -> Admission:
    started = time.perf_counter()
    try:
        key = match.key()
        before, _ = _traced(match, key, "before")
        after, first = _traced(match, key, "after", match.rule.name)
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
    return Admission(after, first, certificate)


_TRACED: dict[Any, tuple[Any, Eqn]] = {}  # `before` and `after` are traced once per distinct signature


def _traced(match: Match, key, side: str, scope: str | None = None) -> tuple[Any, Eqn]:
    """One side of a rule, traced at the first match with this key; and the equation it was traced at."""
    if (key, side) not in _TRACED:
        _TRACED[key, side] = trace_at(match, side, scope), match.anchor.origin
    return _TRACED[key, side]


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
