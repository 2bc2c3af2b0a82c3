"""Instrument: a look at a pipeline while it runs: around every stage, and around every rewrite.

Dumps, bisecting and `explain` are instruments; a user's own is a subclass that overrides what it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .errors import InstrumentError, InternalError, JaxspliceError, raised_by

if TYPE_CHECKING:
    from .ir.graph import Graph
    from .ir.region import Node
    from .pipeline import Pipeline
    from .report import Report, Row
    from .rewrite.certificate import Certificate
    from .rewrite.match import Match

Writer = Callable[[], "Graph"]  # writes the program as it stands as a Graph; costs time only when it is called


class Instrument:
    """Watches a pipeline. Every method does nothing until a subclass overrides it; none may change the program.

    `graph` is a function: it gives the program as it stands just then, at the cost of writing it out.

    Example:
        >>> import jax, jax.numpy as jnp, jaxsplice
        >>> class Stages(Instrument):
        ...     def after_stage(self, stage, graph):
        ...         print(stage, graph().primitives())
        >>> graph = jaxsplice.trace(lambda x: jnp.sin(x) * 2.0, jnp.float32(1.0))
        >>> result = jaxsplice.rewrite(graph, "normalize,raise", instruments=[Stages()])
        normalize {'sin': 1, 'mul': 1}
        raise {'sin': 1, 'mul': 1}
    """

    def start(self, pipeline: Pipeline, graph: Graph) -> None:
        """Before the first stage."""

    def before_stage(self, stage: str, graph: Writer) -> None:
        """Before a stage; `stage` is its text, options included."""

    def after_stage(self, stage: str, graph: Writer) -> None:
        """After a stage."""

    def before_rewrite(self, match: Match, certificate: Certificate, graph: Writer) -> None:
        """A match is proved and about to be replaced; its nodes still stand."""

    def after_rewrite(self, row: Row, nodes: list[Node], graph: Writer) -> None:
        """A match was replaced by these nodes."""

    def finish(self, graph: Graph, report: Report) -> None:
        """After the last stage, when the rewritten graph was verified."""


@dataclass(frozen=True)
class Instruments:
    """All instruments of one run, called in order.

    Args:
        each: the instruments.
        write: makes a Graph of the program of a region or match; set by the pipeline.
    """

    each: tuple[Instrument, ...] = ()
    write: Callable[[Any], Graph] | None = None

    def tell(self, event: str, *facts: Any, program: Any = None) -> None:
        """Call one method of every instrument.

        Args:
            event: the method.
            *facts: its arguments.
            program: the program that the last argument, `graph`, writes; none is passed when None.

        Raises:
            InstrumentError: one of them failed; it names the instrument, the method and the line.
        """
        for instrument in self.each:
            try:
                if program is None:
                    getattr(instrument, event)(*facts)
                else:
                    getattr(instrument, event)(*facts, lambda: self._written(program))
            except JaxspliceError:
                raise
            except Exception as error:
                name = type(instrument).__name__
                raise InstrumentError(f"instrument {name} failed in {event}: {raised_by(error)}") from error

    def _written(self, program: Any) -> Graph:
        assert self.write is not None  # the pipeline has set it
        try:
            return self.write(program)
        except Exception as error:  # no fault of the instrument's
            raise InternalError(f"the program could not be written: {raised_by(error)}") from error


def as_instruments(instruments: Instrument | Iterable[Instrument]) -> tuple[Instrument, ...]:
    """A tuple of instruments from one, or several.

    Raises:
        JaxspliceError: something else is among them.
    """
    given = (instruments,) if isinstance(instruments, Instrument) else tuple(instruments)
    for one in given:
        if not isinstance(one, Instrument):
            raise JaxspliceError(
                f"instruments={one!r}: give objects of classes that derive from jaxsplice.Instrument "
                "(an instance, not the class)"
            )
    return given
