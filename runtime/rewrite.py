"""rewrite: a Graph to a Result."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from absl import logging

from jaxsplice.passes.errors import InternalError, JaxspliceError, VerifyError, raised_by
from jaxsplice.passes.instrument import Instrument, Instruments, as_instruments
from jaxsplice.passes.ir.check import same_signature, verify_graph
from jaxsplice.passes.ir.graph import Graph
from jaxsplice.passes.pipeline import Pipeline
from jaxsplice.passes.report import Report
from jaxsplice.passes.rewrite.certificate import Certificate
from jaxsplice.passes.rewrite.drive import Context

from .dump.stages import StageDumps
from .library import library
from .reproducer import write_reproducer
from .target import Target
from .tracing import trace

DUMP_DIR_VARIABLE = "JAXSPLICE_DUMP_DIR"
CHECK_VARIABLE = "JAXSPLICE_CHECK"  # set: verify whole graphs after every pipeline, not what was touched alone
VERIFY_LEVELS = ("off", "auto", "strict")


@dataclass(frozen=True)
class Result:
    """A rewritten program beside the original.

    Attributes:
        before: the Graph as traced.
        after: the Graph after the pipeline; the same object when nothing matched.
        report: rewrites, counts, refusals, seconds; `str()` is a table.
        target: what it was lowered for.
    """

    before: Graph
    after: Graph
    report: Report
    target: Target

    @property
    def certificates(self) -> list[Certificate]:
        """One per rewrite: rule, kind, error, source line."""
        return self.report.certificates

    def __call__(self, *args, **kwargs):
        """Run the rewritten program."""
        return self.after(*args, **kwargs)


def rewrite(
    graph: Graph,
    passes: Any = "default",
    target: str | Target | None = None,
    verify: str = "auto",
    *,
    dump_dir: str | Path | None = None,
    stop_after: int | None = None,
    instruments: Instrument | Sequence[Instrument] = (),
) -> Result:
    """Run a pipeline on a Graph. An internal error gives the program as it was, a warning, and a crash reproducer.

    Args:
        graph: the program; not changed.
        passes: a pipeline's name, its text ("normalize,raise{swiglu},lower"), or a list of names, Rules and Passes.
        target: hardware to choose implementations for; this machine's when None.
        verify: "auto" proves or measures each rewrite; "strict" also refuses what is not exact or reassociated, and
            raises when a rule's own code or the engine fails; "off" trusts rules and implementations and checks
            structure only.
        dump_dir: folder for the graph before and after each stage and the report; the environment variable
            JAXSPLICE_DUMP_DIR when None.
        stop_after: stop after this many rewrites (`jaxsplice.bisect` finds the one that breaks something by it).
        instruments: told of every stage and rewrite.

    Returns:
        A Result.

    Raises:
        PipelineError: unknown pass or rule.
        InstrumentError: an instrument failed.
        InternalError: with verify="strict", jaxsplice failed.
        VerifyError: with verify="strict", the rewritten graph breaks an invariant.
        RuleError: with verify="strict", a rule's own code failed.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> x, w = jnp.ones((4, 8)), jnp.ones((8, 16))
        >>> result = rewrite(trace(lambda x, a, b: jax.nn.silu(x @ a) * (x @ b), x, w, w))
        >>> result.report.counts
        {'swiglu': 1}
    """
    if not isinstance(graph, Graph):
        raise JaxspliceError(f"rewrite needs a Graph and was given {graph!r}; jaxsplice.trace(fn, *args) makes one")
    pipeline, target = library().pipeline(passes), Target.parse(target)
    folder = dump_dir if dump_dir is not None else os.environ.get(DUMP_DIR_VARIABLE)
    dumps = Path(folder) if folder else None
    context = Context(target=target, verify=verify_level(verify), stop_after=stop_after)
    context.instruments = Instruments((*([StageDumps(dumps)] if dumps else []), *as_instruments(instruments)))
    after = _run(pipeline, graph, context, dumps)
    context.instruments.tell("finish", after, context.report)
    for warning in context.report.warnings:
        logging.warning("jaxsplice, rewriting %s: %s", graph.name, warning)
    return Result(graph, after, context.report, target)


def _run(pipeline: Pipeline, graph: Graph, context: Context, dumps: Path | None) -> Graph:
    """The graph after a pipeline, verified; as it was given when jaxsplice itself fails."""
    try:
        after = pipeline.run(graph, context)
        if after is not graph and (context.verify == "strict" or os.environ.get(CHECK_VARIABLE)):
            verify_graph(after.to_jaxpr(), f"{graph.name} after {pipeline}")
        same_signature(graph.in_avals, after.in_avals, "argument")
        same_signature(graph.out_avals, after.out_avals, "result")
        return after
    except Exception as error:
        if isinstance(error, JaxspliceError) and not isinstance(error, VerifyError | InternalError):
            raise
        options = f"target {context.target}, verify {context.verify}, stop_after {context.stop_after}"
        where = write_reproducer(graph, pipeline, options, error, dumps)
        sentence = f"internal error, {raised_by(error)}; {where}"
        if context.verify == "strict":
            raise (VerifyError if isinstance(error, VerifyError) else InternalError)(sentence) from error
        context.report.abandon(f"{sentence}. The program is used as it was given")
        return graph


def verify_level(verify: str) -> str:
    """The level itself when there is such a level.

    Raises:
        JaxspliceError: there is none of that name.
    """
    if verify not in VERIFY_LEVELS:
        raise JaxspliceError(f"verify={verify!r} is none of {', '.join(VERIFY_LEVELS)}")
    return verify


@functools.singledispatch
def as_result(program: Any, *args, **options) -> Result:
    """A Result from a function with arguments, a Graph, or a Result itself."""
    passes, target, verify = (
        options.pop(k, d) for k, d in (("passes", "default"), ("target", None), ("verify", "auto"))
    )
    return rewrite(trace(program, *args, **options), passes, target, verify)


@as_result.register
def _(program: Graph, *args, **options) -> Result:
    return rewrite(program, **options)


@as_result.register
def _(program: Result, *args, **options) -> Result:
    return program
