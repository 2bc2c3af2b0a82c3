"""Dumps of a pipeline run: the graph before, after each stage that changed it, and the report."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import TYPE_CHECKING

from jaxsplice.passes.errors import JaxspliceError
from jaxsplice.passes.ir.files import write_whole
from jaxsplice.passes.ir.graph import Graph
from jaxsplice.passes.ir.text import Diff, to_text

if TYPE_CHECKING:
    from jaxsplice.runtime.rewrite import Result

_RUNS = itertools.count()


class StageDumps:
    """Writes `00_before.txt`, `02_raise.txt`, ... and `report.txt` into a folder of its own per rewritten program."""

    def __init__(self, folder: Path, graph: Graph, target):
        self._folder = folder / f"{graph.name}_{next(_RUNS)}"
        self._last, self._stage = graph, 0
        try:
            self._write("before", graph)
        except OSError as error:
            raise JaxspliceError(
                f"cannot write dumps into {folder}: {error.strerror}; give a folder that can be written"
            ) from error

    def __call__(self, stage: str, graph: Graph) -> None:
        """Write a stage's graph when it differs from the one before."""
        self._stage += 1
        if graph.to_jaxpr() is not self._last.to_jaxpr():
            self._write(re.sub(r"[^a-z0-9-]+", "_", stage).strip("_"), graph)
            self._last = graph

    def _write(self, name: str, graph: Graph) -> None:
        write_whole(self._folder / f"{self._stage:02d}_{name}.txt", to_text(graph, sources=True) + "\n")

    def finish(self, result: Result) -> None:
        """Write the report and the difference of first and last."""
        write_whole(self._folder / "report.txt", f"{result.report}\n")
        write_whole(self._folder / "diff.txt", f"{Diff(result.before, result.after)}\n")


def dump_result(result: Result, folder: Path, suffixes: tuple[str, ...] = (".txt", ".json", ".dot")) -> list[Path]:
    """Write a Result: before and after in several formats, their difference, the report.

    Args:
        result: what to write.
        folder: where; made when missing.
        suffixes: formats of the two graphs.

    Returns:
        The files written.

    Raises:
        JaxspliceError: the folder cannot be written.
    """
    written = []
    try:
        for name, graph in (("before", result.before), ("after", result.after)):
            written += [graph.save(folder / f"{name}{suffix}") for suffix in suffixes]
        for name, text in (("report", str(result.report)), ("diff", str(Diff(result.before, result.after)))):
            write_whole(folder / f"{name}.txt", text + "\n")
            written.append(folder / f"{name}.txt")
    except OSError as error:
        raise JaxspliceError(
            f"cannot write into {folder}: {error.strerror}; give a folder that can be written"
        ) from error
    return written
