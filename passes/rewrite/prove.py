"""Prove: the three claims behind a rewrite (design: a match is a claim and carries its proof).

    match            the region equals `before`, traced at the exact types that were bound
    rewrite          `before` equals `after` with its Ops read as their references
    implementation   the chosen implementation equals its Op's reference (implementations.py, when one is chosen)

Each is tried from strong to weak: the same operations (value numbering), the same term up to association and layout
(unify, comparing), and last by measurement against the float64 reading.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import jax.numpy as jnp
from jax.errors import InconclusiveDimensionOperation

from ..errors import Refuse, RuleError
from ..ir import jaxprs
from ..ir.emit import emit
from ..ir.region import Program, Value
from ..normalize import ALL, WITHOUT_ROUNDING, Cursor
from . import measure
from .certificate import EXACT, REASSOCIATED, Claim
from .leaves import is_rounding
from .numbering import Numbering, same_program
from .unify import OutOfSteps, Unifier


@dataclass
class Proofs:
    """Claims made so far, by what they are about; and the numbering that tells regions apart."""

    claims: dict[Any, Claim | str] = field(default_factory=dict)
    numbering: Numbering = field(default_factory=Numbering)

    def once(self, key, prove) -> Claim:
        """The claim for a key, proved at first need. A failed one refuses again without being tried again.

        Proofs run in a thread of their own: whatever is being traced around us (jit, grad, a mesh, x64) stays outside.
        """
        if key not in self.claims:
            try:
                self.claims[key] = _WORKER.submit(prove).result()
            except RuleError:
                raise  # no claim was disproved: the rule's own code failed
            except Refuse as refusal:
                self.claims[key] = str(refusal)
        claim = self.claims[key]
        if isinstance(claim, str):
            raise Refuse(claim)
        return claim


_WORKER = ThreadPoolExecutor(1, "jaxsplice-proofs")
PROOFS = Proofs()  # one per process: a signature is proved once


def same_term(pattern, outputs: Sequence[Cursor], fixed: Sequence[Value], views: frozenset[str]) -> str | None:
    """Whether program terms equal a closed jaxpr's results, as terms under some views.

    Args:
        pattern: closed jaxpr.
        outputs: the program's results, as cursors.
        fixed: the program's values that are the jaxpr's arguments.
        views: equations that may be used.

    Returns:
        None when they are equal, else where they differ.
    """
    region = Program(pattern).root
    unifier = Unifier(
        {v: i for i, v in enumerate(region.inputs)}, views, fixed=dict(zip(region.inputs, fixed)), explain=True
    )
    pairs = [(Cursor(p, q.index), q) for p, q in zip(region.outputs, outputs)]
    try:
        for _ in unifier.all(pairs):
            return None
    except OutOfSteps:
        return "too large to compare"
    except InconclusiveDimensionOperation:
        return "symbolic sizes cannot be compared"
    best = unifier.best
    if best is None:
        return "the terms differ"
    where = f" ({best.node.source})" if best.node is not None else ""
    return f"`before` has {best.wanted} where the program has {best.found}{where}"


def match_claim(before, region_jaxpr, outputs: Sequence[Cursor], match, verify: str, sample) -> Claim:
    """The region equals `before`.

    Args:
        before: closed jaxpr of `before` applied to the bound values, at their exact types.
        region_jaxpr: closed jaxpr of the region, same arguments and results.
        outputs: the region's results in the program.
        match: the Match; its inputs are the arguments.
        verify: with "off" nothing is measured: equal terms are taken at their word.
        sample: gives arguments for a measured claim.

    Returns:
        The claim.

    Raises:
        Refuse: they are not equal, or it cannot be shown.
    """
    if same_program(before, region_jaxpr):
        return EXACT
    if same_term(before, outputs, match.inputs, WITHOUT_ROUNDING) is None:
        return REASSOCIATED
    _refuse_lost_rounding(match)
    why = same_term(before, outputs, match.inputs, ALL)
    if verify == "off":
        if why is None:
            return Claim("assumed", note="equal but for roundings, not measured")
        raise Refuse(f"match: {why}")
    if measure.bytes_needed(before) + measure.bytes_needed(region_jaxpr) > measure.MAX_BYTES:
        raise Refuse(f"match: {why or 'roundings differ'}, and it is too large to measure")
    axes = axes_used(before, match) or axes_used(region_jaxpr, match)
    if axes:
        sample = measure.random_arguments
    args = sample([measure.per_shard(v.aval, axes) for v in match.inputs], measure.seed_of(match.rule.name))
    return _same_reading(region_jaxpr, before, args, axes, match.rule.tolerance, why)


def _refuse_lost_rounding(match) -> None:
    """A value that is rounded on purpose inside (to a type narrower than the results') must stay rounded."""
    floats = [v.aval.dtype for v in match.roots if jnp.issubdtype(v.aval.dtype, jnp.floating)]
    finest = max((jnp.finfo(d).nmant for d in floats), default=0)
    for node in match.nodes:
        if is_rounding(node) and jnp.finfo(node.params["new_dtype"]).nmant < finest:
            raise Refuse(
                f"match: it rounds to {node.params['new_dtype']} at {node.source} and gives a finer type; "
                "`before` would lose that rounding"
            )


def _same_reading(region_jaxpr, before, args, axes, tolerance, why: str | None) -> Claim:
    """Measured: equal float64 readings; in its own precision `before` may be as far off as the region is."""
    apart = measure.largest_error(measure.run64(before, args, axes), measure.run64(region_jaxpr, args, axes))
    if apart > 1e-9:
        raise Refuse(f"match: {why or 'the numbers differ'} (off by {apart:.1e} in float64)")
    claim = measure.measure(region_jaxpr, before, args, tolerance, own_error=True, axis_sizes=axes)
    if isinstance(claim, str):
        raise Refuse(f"match: rounded otherwise than `before`: {claim}")
    return claim


def rewrite_claim(before, after, pair_to_measure, match) -> Claim:
    """`before` equals `after`, Ops read as their references.

    Args:
        before: closed jaxpr of the rule's `before` at the match.
        after: closed jaxpr of its `after`.
        pair_to_measure: gives (before, after, arguments, reduced) to measure with: the same pair, or a smaller one.
        match: the Match.

    Returns:
        The claim.

    Raises:
        Refuse: they are not equal.
    """
    axis_sizes = axes_used(before, match)
    if same_program(before, after, inline_ops=True):
        return EXACT
    if not axis_sizes and _same_inlined(before, after):
        return REASSOCIATED
    small_before, small_after, args, reduced = pair_to_measure()
    equation = getattr(match.rule, "equation", "numeric")
    claim = measure.measure(
        small_before,
        inline_ops(small_after),
        args,
        0.0 if equation == "exact" else match.rule.tolerance,
        own_error=equation == "reassociated",
        axis_sizes=axis_sizes,
    )
    if isinstance(claim, str):
        raise Refuse(f"rewrite: `after` is not `before`: {claim}")
    if equation != "numeric":
        return replace(claim, kind=equation)
    return replace(claim, kind="numeric@reduced") if reduced else claim


def axes_used(closed, match) -> dict[str, int]:
    """The named axes around a match, when the program has collectives over any of them; else none."""
    axis_sizes = dict(match.region.axis_sizes)
    return axis_sizes if axis_sizes and _names_axis(closed, set(axis_sizes)) else {}


def _names_axis(jaxpr, names: set[str]) -> bool:
    for eqn in jaxprs.open_jaxpr(jaxpr).eqns:
        if eqn.primitive.name in ("pvary", "pcast"):
            continue  # a mark in the types, no communication
        for key in ("axis_name", "axes"):
            value = eqn.params.get(key, ())
            if names.intersection(a for a in (value if isinstance(value, tuple) else (value,)) if isinstance(a, str)):
                return True
        if any(_names_axis(inner, names) for inner in jaxprs.all_jaxprs(eqn)):
            return True
    return False


def _same_inlined(before, after) -> bool:
    program = Program(inline_ops(before))
    outputs = [Cursor.whole(v) for v in program.root.outputs if type(v) is Value]
    if len(outputs) != len(program.root.outputs):
        return False
    return same_term(inline_ops(after), outputs, program.root.inputs, WITHOUT_ROUNDING) is None


def inline_ops(closed):
    """The same program with every Op, at any depth, replaced by its reference's equations."""
    program = Program(closed)
    queue = [program.root]
    for region in queue:
        for node in region.nodes:  # grows while Ops inside references appear
            if not node.live:
                continue
            if hasattr(node.params.get("op"), "static"):
                results, _ = region.splice(node.params["jaxpr"], node.inputs, node)
                for old, new in zip(node.outputs, results):
                    region.redirect(old, new)
                region.kill(node)
            else:
                queue += [r for r in node.children() if r not in queue]
    return emit(program.root)
