"""Lower: choose an implementation for every Op node, for one target, and prove it against the Op's reference."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jax.errors import InconclusiveDimensionOperation

from .errors import Refuse, first_line
from .ir import jaxprs
from .ir.region import Node, Program, Region
from .ir.walk import walk
from .pipeline import EditingPass
from .report import Row
from .rewrite import measure
from .rewrite.admit import demand
from .rewrite.certificate import EXACT, Claim, strength
from .rewrite.drive import Context
from .rewrite.prove import PROOFS, inline_ops


@dataclass(frozen=True)
class Lower(EditingPass):
    """Give every Op node the first implementation that serves the target and passes its proof; else the reference."""

    def edit(self, program: Program, context: Context) -> None:
        """Choose for all Op nodes, in all regions."""
        rows = {id(row.certificate): row for row in context.report.rows}
        nodes = list(walk(program.root))
        for node in nodes:
            if is_op(node) and node.params["implementation"] is None:
                _choose(node, node.region, rows.get(id(node.certificate)), context)
        for node in nodes:  # all that a rewrite put there share its certificate, as it is now
            row = rows.get(id(node.certificate))
            if row is not None:
                node.certificate = row.certificate


def is_op(node: Node) -> bool:
    """Whether a node is an Op (kernels/op.py)."""
    return hasattr(node.params.get("op"), "static")


def _choose(node: Node, region: Region, row: Row | None, context: Context) -> None:
    signature = node.params["op"]
    avals = signature.argument_avals([_aval(a) for a in node.inputs])
    platform, refused = context.target.platform, []
    for implementation in signature.op.implementations:
        try:
            if implementation.refusal(platform, avals, dict(signature.static)) is not None:
                continue
            claim = implementation_claim(signature, implementation, avals, context)
            if row is not None:
                demand(replace(row.certificate, implementation=claim), context)
        except (Refuse, InconclusiveDimensionOperation) as refusal:
            refused.append(first_line(refusal))
            continue
        _set_implementation(node, region, implementation.name)
        _record(row, claim)
        _note(node, f"falls back to {implementation.name}", refused, context)
        return
    _note(node, "keeps its reference", refused, context)
    _record(row, EXACT)  # the reference is the meaning


def _note(node: Node, outcome: str, refused: list[str], context: Context) -> None:
    context.report.notes += [f"{node.primitive} {outcome} at {node.source}: {why}" for why in refused]


def _aval(atom) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(atom.aval.shape, atom.aval.dtype)


def _set_implementation(node: Node, region: Region, name: str) -> None:
    node.eqn = node.eqn.replace(params={**node.eqn.params, "implementation": name})
    region.changed = True
    if node.site is not None:
        node.site.touch()


def _record(row: Row | None, claim: Claim) -> None:
    """Put the claim on the certificate of the rewrite that made the node; of several Ops the weakest claim stands."""
    if row is not None:
        claims = [c for c in (row.certificate.implementation, claim) if c is not None]
        row.certificate = replace(row.certificate, implementation=max(claims, key=strength))


# ---------------------------------------------------------------- the implementation's claim
def implementation_claim(signature, implementation, args: Sequence[Any], context: Context) -> Claim:
    """The implementation equals the Op's reference, measured once per implementation and signature.

    Args:
        signature: the Op node's signature; its vmaps are left out.
        implementation: the candidate.
        args: abstract arguments of the Op (None for absent ones).
        context: for the verification level, and to book the time.

    Returns:
        The claim.

    Raises:
        Refuse: it is off by more than the Op's tolerance, or there is no way to run it here.
    """
    if implementation.function is signature.op.reference:
        return EXACT
    if context.verify == "off":
        return Claim("assumed", note="verify='off'")
    started = time.perf_counter()
    try:
        types = tuple((a.shape, str(a.dtype)) if a is not None else None for a in args)
        key = ("implementation", signature.op, implementation.name, signature.static, types)
        return PROOFS.once(key, lambda: _measure(signature, implementation, args))
    finally:
        seconds = context.report.seconds
        seconds["prove"] = seconds.get("prove", 0.0) + time.perf_counter() - started


def _measure(signature, implementation, args) -> Claim:
    op, static = signature.op, dict(signature.static)
    function = implementation.function
    if implementation.platforms and jax.default_backend() not in _platform_names(implementation.platforms):
        function = implementation.interpreted
        if function is None:
            raise Refuse(f"{implementation.name} cannot run on this machine and has no interpreted form to prove it by")
    args, static, reduced = _fitting(op, implementation, args, static)
    flat, tree = jax.tree.flatten(args)
    reference = inline_ops(_closed(op.reference, tree, static, flat))
    candidate = _closed(function, tree, static, flat)
    rng = np.random.default_rng(measure.seed_of(op.name))
    values = op.sample(rng, *args, **static) if op.sample else measure.random_arguments(flat, measure.seed_of(op.name))
    floats = [a.dtype for a in candidate.out_avals if a.dtype.kind not in "iub"]
    limit = max((op.tolerance.of(d) for d in floats), default=0.0)
    claim = measure.measure(reference, candidate, jax.tree.leaves(list(values)), limit, own_error=True)
    if isinstance(claim, str):
        raise Refuse(f"implementation: {implementation.name} is not its reference: {claim}")
    return replace(claim, kind="numeric@reduced") if reduced else claim


def _platform_names(platforms: tuple[str, ...]) -> set[str]:
    return {"gpu" if p in ("cuda", "rocm") else p for p in platforms}


def _closed(function, tree, static, flat):
    return jaxprs.trace_flat(
        lambda *values: jax.tree.leaves(function(*jax.tree.unflatten(tree, values), **static)), flat
    )


def _fitting(op, implementation, args, static):
    """The arguments when one evaluation fits the limit, else the largest of the Op's named shapes that does."""
    if _bytes(op, args, static) <= measure.MAX_BYTES // 4:
        return args, static, False
    dtypes = [a.dtype for a in jax.tree.leaves(args)]
    fitting = []
    for shapes, keywords in op.shapes.values():
        flat, tree = jax.tree.flatten(shapes)
        if tree != jax.tree.structure(args):
            continue
        cast = jax.tree.unflatten(tree, [jax.ShapeDtypeStruct(s.shape, d) for s, d in zip(flat, dtypes)])
        keywords = {**static, **{k: v for k, v in keywords.items() if k not in static or _is_size(v)}}
        size = _bytes(op, cast, keywords)
        if size <= measure.MAX_BYTES // 4 and implementation.supports(*cast, **keywords) is None:
            fitting.append((size, cast, keywords))
    if not fitting:
        raise Refuse(f"too large to measure, and {op.name} names no smaller shape of this form")
    _, cast, keywords = max(fitting, key=lambda f: f[0])
    return cast, keywords, True


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _bytes(op, args, static) -> int:
    flat, tree = jax.tree.flatten(args)
    return measure.bytes_needed(_closed(op.reference, tree, static, flat))
