"""Pipeline: named stages, written as text that prints back to itself.

    normalize,raise{swiglu,rms-norm},fuse,place,lower,cleanup

A Pass is a graph -> graph function with a name. The engine's own passes edit one shared use-def form in place, so that
a whole pipeline reads the jaxpr once and writes it once; a user's pass works on Graphs.
"""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .errors import PipelineError, no_such
from .fingerprint import combined, fingerprint
from .ir.certified import certificates_in, certify
from .ir.emit import emit
from .ir.graph import Graph
from .ir.region import Program
from .normalize import VIEWS
from .rewrite.drive import Context, apply_rules
from .rewrite.rule import STAGES, GraphRule, Rule


@dataclass(frozen=True)
class Pass:
    """A named graph -> graph step. Subclass it and override `run`; or, inside the engine, `edit`.

    Example:
        >>> class Count(Pass):
        ...     def run(self, graph, context):
        ...         context.report.notes.append(f"{sum(graph.primitives().values())} nodes")
        ...         return graph
        >>> str(Pipeline((Count("count"),)))
        'count'
    """

    name: str

    def run(self, graph: Graph, context: Context) -> Graph:
        """Give the graph after this pass; the same object when there is nothing to do.

        Args:
            graph: the program so far.
            context: target, verification level and report.

        Returns:
            A Graph with the same arguments and results.
        """
        raise PipelineError(f"pass {self.name!r} defines neither run(graph, context) nor edit(program, context)")

    def __str__(self) -> str:
        return self.name


class EditingPass(Pass):
    """A pass of the engine: it edits the program's use-def form in place."""

    def edit(self, program: Program, context: Context) -> None:
        """Edit a program."""
        raise NotImplementedError

    def run(self, graph: Graph, context: Context) -> Graph:
        """The same, on a graph."""
        program = program_of(graph)
        self.edit(program, context)
        return written(program, graph)


def program_of(graph: Graph) -> Program:
    """A program to edit, with the certificates of the graph it is read from."""
    program = Program(graph.to_jaxpr())
    certify(program, graph.certificates)
    return program


def written(program: Program, like: Graph) -> Graph:
    """A program as a Graph with the arguments, results, name and certificates of the one it was read from."""
    closed = emit(program.root)  # first: it names what is new
    return like.with_jaxpr(closed, {**like.certificates, **certificates_in(program)})


@dataclass(frozen=True)
class Normalize(EditingPass):
    """Choose the views under which later stages compare programs. It changes no equation, so no number either."""

    views: tuple[str, ...] = ()

    def edit(self, program: Program, context: Context) -> None:
        """Set the context's views; all of them when none is named."""
        context.views = frozenset(self.views or VIEWS)

    def __str__(self) -> str:
        return _with_options(self.name, self.views)


@dataclass(frozen=True)
class ApplyRules(EditingPass):
    """Apply rules until nothing more matches. `names` are as asked for; none means all of the stage."""

    rules: tuple[Rule | GraphRule, ...] = field(default=(), repr=False)
    names: tuple[str, ...] = ()

    def edit(self, program: Program, context: Context) -> None:
        """Rewrite all regions; note rules that were asked for by name and never fired."""
        before = len(context.report.rows)
        apply_rules(program, self.rules, context, self.name)
        fired = {row.rule for row in context.report.rows[before:]}
        for name in dict.fromkeys(self.names):
            if name not in fired and not context.exhausted:
                context.report.warn(f"rule {name} was asked for and never fired; jaxsplice.explain says why")

    def __str__(self) -> str:
        return _with_options(self.name, self.names)


def _with_options(name: str, options: Iterable[str]) -> str:
    listed = ",".join(options)
    return f"{name}{{{listed}}}" if listed else name


@dataclass(frozen=True)
class Pipeline:
    """Passes in order.

    Example:
        >>> str(Pipeline((Normalize("normalize"), Normalize("normalize", ("marks",)))))
        'normalize,normalize{marks}'
    """

    passes: tuple[Pass, ...]

    def __str__(self) -> str:
        return ",".join(map(str, self.passes))

    @functools.cached_property
    def hash(self) -> str:
        """Equal for pipelines that do the same: text, options, the code of rules and passes, versions (16 digits)."""
        rules = [fingerprint(rule) for step in self.passes for rule in getattr(step, "rules", ())]
        own = [step for step in self.passes if not isinstance(step, ApplyRules)]
        return combined([str(self), rules, own])

    def run(self, graph: Graph, context: Context) -> Graph:
        """Run all passes.

        Args:
            graph: the program.
            context: shared state; its report is filled, its instruments are told of every stage and rewrite.

        Returns:
            The graph after all passes: the same object when nothing changed.
        """
        program, current = program_of(graph), graph
        context.instruments = replace(context.instruments, write=lambda program: written(program, current))
        context.instruments.tell("start", self, graph)
        for step in self.passes:
            context.instruments.tell("before_stage", str(step), program=program)
            started = time.perf_counter()
            if isinstance(step, EditingPass):
                step.edit(program, context)
            else:
                current = step.run(written(program, current), context)
                program = program_of(current)
            seconds = context.report.seconds
            seconds[step.name] = seconds.get(step.name, 0.0) + time.perf_counter() - started
            context.instruments.tell("after_stage", str(step), program=program)
        context.finish()
        after = written(program, current)
        return graph.with_jaxpr(after.to_jaxpr(), after.certificates)


# ---------------------------------------------------------------- text and lists
_ITEM = re.compile(r"\s*([a-z0-9][a-z0-9-]*)\s*(?:\{([^{}]*)\})?\s*(?:,|$)")


@dataclass(frozen=True)
class Library:
    """What pipeline text may name: rules, engine passes, whole pipelines.

    Args:
        rules: all rules.
        passes: pass name -> pass.
        pipelines: pipeline name -> text.
    """

    rules: tuple[Rule | GraphRule, ...]
    passes: dict[str, Pass]
    pipelines: dict[str, str]

    def pipeline(self, passes: Any) -> Pipeline:
        """A pipeline from its name, its text, or a list of texts, Rules and Passes.

        Args:
            passes: "default"; "normalize,raise{swiglu},lower"; [my_rule, "lower"]; a Pipeline.

        Returns:
            The Pipeline.

        Raises:
            PipelineError: an unknown name, or text that does not parse; the message shows what exists.
        """
        if isinstance(passes, Pipeline):
            return passes
        if isinstance(passes, str):
            return Pipeline(tuple(self._parse(passes)))
        if isinstance(passes, Pass | Rule | GraphRule):
            passes = [passes]
        if not isinstance(passes, Sequence):
            raise PipelineError(
                f"passes={passes!r}: give a pipeline's name, text such as 'normalize,raise{{swiglu}},lower', "
                "or a list of names, Rules and Passes"
            )
        return Pipeline(tuple(step for item in passes for step in self._item(item)))

    def _item(self, item: Any) -> list[Pass]:
        if isinstance(item, str):
            return self._parse(item)
        if isinstance(item, Pass):
            return [item]
        if isinstance(item, Rule | GraphRule):
            return [ApplyRules(item.stage, (item,), (item.name,))]
        raise PipelineError(f"a pipeline holds names, Rules and Passes, not {item!r}")

    def _parse(self, text: str, within: tuple[str, ...] = ()) -> list[Pass]:
        steps, at = [], 0
        while at < len(text):
            found = _ITEM.match(text, at)
            if found is None or found.end() == at:
                raise PipelineError(
                    f"pipeline text {text!r} does not parse at {text[at:]!r}: "
                    "write names separated by commas, with options in braces, as in 'normalize,raise{swiglu},lower'"
                )
            name, options = found.group(1), found.group(2)
            names = tuple(o.strip() for o in options.split(",") if o.strip()) if options else ()
            steps += self._named(name, within) if name in self.pipelines and not names else [self._step(name, names)]
            at = found.end()
        return steps

    def _named(self, name: str, within: tuple[str, ...] = ()) -> list[Pass]:
        """The passes of a pipeline in the library; it may name others, but not itself."""
        if name in within:
            raise PipelineError(f"pipeline {name!r} holds itself: {' -> '.join([*within, name])}")
        return self._parse(self.pipelines[name], (*within, name))

    def _step(self, name: str, options: tuple[str, ...]) -> Pass:
        if name in STAGES:
            return self._stage(name, options)
        if name == "normalize":
            for view in options:
                if view not in VIEWS:
                    raise PipelineError(no_such("view", view, VIEWS))
            return Normalize(name, options)
        if name in self.passes and not options:
            return self.passes[name]
        rules = tuple(r for r in self.rules if r.name == name)
        if rules and not options:
            return ApplyRules(rules[0].stage, rules, (name,))
        if name in self.passes or rules:
            raise PipelineError(f"{name!r} takes no options in braces")
        known = {*STAGES, "normalize", *self.passes, *self.pipelines, *(r.name for r in self.rules)}
        raise PipelineError(no_such("pass, pipeline or rule", name, known))

    def _stage(self, stage: str, names: tuple[str, ...]) -> ApplyRules:
        rules = tuple(r for r in self.rules if r.stage == stage)
        for name in names:
            if name not in {r.name for r in rules}:
                raise PipelineError(no_such(f"rule of stage {stage!r}", name, {r.name for r in rules}))
        return ApplyRules(stage, tuple(r for r in rules if not names or r.name in names), names)
