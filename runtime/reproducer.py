"""A folder with what it takes to look into an internal error: program, pipeline, versions, traceback."""

from __future__ import annotations

import importlib.metadata
import platform
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable
from pathlib import Path

import jax

from jaxsplice.passes.errors import raised_by
from jaxsplice.passes.ir import jaxprs
from jaxsplice.passes.ir.files import write_whole
from jaxsplice.passes.ir.graph import Graph
from jaxsplice.passes.ir.text import to_text
from jaxsplice.passes.pipeline import Pipeline

PACKAGES = ("jaxsplice", "jax", "jaxlib", "numpy")
EXPORTED = "program.jax_export"


def write_reproducer(graph: Graph, pipeline: Pipeline, options: str, error: Exception, dumps: Path | None) -> str:
    """Write a crash reproducer; whatever cannot be written says why instead.

    Files: `graph.txt` (with source lines), `program.jax_export` (`jax.export.deserialize` reads it; the program can
    then be called), `pipeline.txt`, `versions.txt`, `traceback.txt`.

    Args:
        graph: the program as it was given.
        pipeline: what ran on it.
        options: target and verification level, as text.
        error: what went wrong.
        dumps: folder for dumps, whose subfolder it becomes; a new folder for temporary files when None.

    Returns:
        A clause for the message: where the folder is, or why there is none.
    """
    prefix = f"{graph.name}_crash_"
    try:
        if dumps is not None:
            dumps.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=prefix if dumps is not None else f"jaxsplice_{prefix}", dir=dumps))
        texts = {
            "graph.txt": lambda: to_text(graph, sources=True),
            "pipeline.txt": lambda: f"{pipeline}\nhash {pipeline.hash}\n{options}",
            "versions.txt": versions,
            "traceback.txt": lambda: "".join(traceback.format_exception(error)),
        }
        for name, text in texts.items():
            write_whole(folder / name, f"{_or_reason(text)}\n")
        _export(graph, folder)
    except OSError as failure:
        return f"no reproducer could be written: {failure}"
    return f"a reproducer is in {folder}"


def versions() -> str:
    """Versions of Python, the machine, and the packages that count, a line each."""
    lines = [f"python {sys.version.split()[0]}", f"{platform.system()} {platform.machine()}"]
    lines += [f"{name} {importlib.metadata.version(name)}" for name in PACKAGES]
    return "\n".join([*lines, f"backend {jax.default_backend()}"])


def _or_reason(text: Callable[[], str]) -> str:
    try:
        return text()
    except Exception as failure:  # the error at hand may be one of printing
        return f"could not be made: {raised_by(failure)}"


def _export(graph: Graph, folder: Path) -> None:
    """Serialise the program with jax.export, in a thread of its own: we may be inside somebody's tracing."""
    outcome: list[bytearray | str] = []
    thread = threading.Thread(target=lambda: outcome.append(_exported(graph)))
    thread.start()
    thread.join()
    if isinstance(outcome[0], str):
        write_whole(folder / f"{EXPORTED}.txt", f"could not be made: {outcome[0]}\n")
    else:
        (folder / EXPORTED).write_bytes(outcome[0])


def _exported(graph: Graph) -> bytearray | str:
    try:
        run = jax.jit(jaxprs.as_function(graph.to_jaxpr()))
        flat = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in graph.in_avals]
        return jax.export.export(run)(*flat).serialize()
    except Exception as failure:  # callbacks, references, values of an outer transformation
        return raised_by(failure)
