"""Dumps of a pipeline run: the graph before, after each stage that changed it, and the report."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import TYPE_CHECKING

from jaxsplice.passes.errors import JaxspliceError, no_such
from jaxsplice.passes.instrument import Instrument, Writer
from jaxsplice.passes.ir.files import FORMATS, write_whole
from jaxsplice.passes.ir.graph import Graph
from jaxsplice.passes.ir.text import Diff, to_text

if TYPE_CHECKING:
    from jaxsplice.passes.pipeline import Pipeline
    from jaxsplice.passes.report import Report
    from jaxsplice.runtime.rewrite import Result

_RUNS = itertools.count()


class StageDumps(Instrument):
    """Writes `00_before.txt`, `02_raise.txt`, ..., `pipeline.txt`, `report.txt` and `diff.txt`.

    Every rewritten program gets a folder of its own.

    Args:
        folder: where those folders are made.
    """

    def __init__(self, folder: Path):
        self._parent, self._stage = folder, 0

    def start(self, pipeline: Pipeline, graph: Graph) -> None:
        """Write the program as it is given, and what will run on it."""
        self._folder = self._parent / f"{graph.name}_{next(_RUNS)}"
        self._before, self._last = graph, to_text(graph, sources=True)
        try:
            self._write("before", self._last)
            write_whole(self._folder / "pipeline.txt", f"{pipeline}\nhash {pipeline.hash}\n")
        except OSError as error:
            raise JaxspliceError(
                f"cannot write dumps into {self._parent}: {error.strerror}; give a folder that can be written"
            ) from error

    def after_stage(self, stage: str, graph: Writer) -> None:
        """Write a stage's graph when it differs from the one before."""
        self._stage += 1
        text = to_text(graph(), sources=True)
        if text != self._last:
            self._write(re.sub(r"[^a-z0-9-]+", "_", stage).strip("_"), text)
            self._last = text

    def _write(self, name: str, text: str) -> None:
        write_whole(self._folder / f"{self._stage:02d}_{name}.txt", text + "\n")

    def finish(self, graph: Graph, report: Report) -> None:
        """Write the report and the difference of first and last."""
        write_whole(self._folder / "report.txt", f"{report}\n")
        write_whole(self._folder / "diff.txt", f"{Diff(self._before, graph)}\n")


def dump_result(result: Result, folder: Path, suffixes: tuple[str, ...] = (".txt", ".json", ".dot")) -> list[Path]:
    """Write a Result: before and after in several formats, their difference, the report.

    Args:
        result: what to write.
        folder: where; made when missing.
        suffixes: formats of the two graphs.

    Returns:
        The files written.

    Raises:
        JaxspliceError: a format does not exist or cannot be made here, and nothing is written; or the folder cannot be
            written.
    """
    for suffix in suffixes:
        if suffix not in FORMATS:
            raise JaxspliceError(no_such("format", suffix.lstrip("."), [s.lstrip(".") for s in FORMATS]))
    texts = {
        f"{name}{suffix}": FORMATS[suffix](graph)
        for name, graph in (("before", result.before), ("after", result.after))
        for suffix in suffixes
    }
    texts |= {"report.txt": f"{result.report}\n", "diff.txt": f"{Diff(result.before, result.after)}\n"}
    try:
        for name, text in texts.items():
            write_whole(folder / name, text)
    except OSError as error:
        raise JaxspliceError(
            f"cannot write into {folder}: {error.strerror}; give a folder that can be written"
        ) from error
    return [folder / name for name in texts]
