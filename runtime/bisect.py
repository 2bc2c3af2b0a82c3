"""bisect: the first rewrite after which a program no longer passes a check."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxsplice.passes.errors import JaxspliceError, Refuse, raised_by
from jaxsplice.passes.ir.files import write_whole
from jaxsplice.passes.ir.graph import Graph
from jaxsplice.passes.ir.jaxprs import as_function
from jaxsplice.passes.ir.text import Diff, to_text
from jaxsplice.passes.report import Row
from jaxsplice.passes.rewrite import measure

from .rewrite import Result, rewrite
from .target import Target
from .tracing import trace

Check = Callable[[Graph, Graph], Any]  # (original, rewritten) -> False, or an exception, when that is broken
SLACK = 10.0  # a whole program may be off by this many times what one operation may


@dataclass(frozen=True)
class Culprit:
    """The first rewrite that breaks a check.

    Attributes:
        number: which rewrite it is, from 1.
        rewrites: how many the pipeline makes in all.
        row: its rule, stage, source line and certificate.
        complaint: what the check said of the program with it.
        before: the program with all rewrites before it, lowered.
        after: the same with it.
    """

    number: int
    rewrites: int
    row: Row
    complaint: str
    before: Graph
    after: Graph

    def __str__(self) -> str:
        return "\n".join(
            [
                f"rewrite {self.number} of {self.rewrites} breaks the check: rule {self.row.rule} at {self.row.source}",
                f"  replaced: {self.row.what}",
                f"  certificate: {self.row.certificate}",
                f"  check: {self.complaint}",
            ]
        )

    def save(self, folder: str | Path) -> list[Path]:
        """Write `culprit.txt`, the program `before.txt` and `after.txt` that rewrite, and `diff.txt`.

        Args:
            folder: where; made when missing.

        Returns:
            The files.

        Raises:
            JaxspliceError: the folder cannot be written.
        """
        texts = {
            "culprit.txt": str(self),
            "before.txt": to_text(self.before, sources=True),
            "after.txt": to_text(self.after, sources=True),
            "diff.txt": str(Diff(self.before, self.after)),
        }
        try:
            for name, text in texts.items():
                write_whole(Path(folder) / name, f"{text}\n")
        except OSError as error:
            raise JaxspliceError(
                f"cannot write into {folder}: {error.strerror}; give a folder that can be written"
            ) from error
        return [Path(folder) / name for name in texts]


def bisect(
    program: Callable | Graph,
    *args,
    check: Check | None = None,
    passes: Any = "default",
    target: str | Target | None = None,
    verify: str = "auto",
    seed: int = 0,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Sequence[str] | None = None,
    **kwargs,
) -> Culprit | None:
    """Find the first rewrite that breaks a program, by halving: about log2(n) rewrites and checks for n rewrites.

    Args:
        program: a function (with its arguments) or a Graph.
        *args: arrays or `jax.ShapeDtypeStruct`s.
        check: `check(before, after)` with the original and the rewritten Graph, both callable; broken when it gives
            False or raises. None compares their results: on the arrays given, random ones where only types are given.
        passes: as in `jaxsplice.rewrite`.
        target: as in `jaxsplice.rewrite`.
        verify: as in `jaxsplice.rewrite`.
        seed: of the random arguments.
        static_argnums: as in `jax.jit`.
        static_argnames: as in `jax.jit`.
        **kwargs: keyword arguments of the function.

    Returns:
        The culprit; None when the check passes with all rewrites.

    Raises:
        JaxspliceError: the check fails before any rewrite, the pipeline itself fails, or there are no random arguments
            of these types.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> x, w = jnp.ones((4, 8)), jnp.ones((8, 16))
        >>> gate = lambda x, a, b: jax.nn.silu(x @ a) * (x @ b)
        >>> bisect(gate, x, w, w) is None
        True
        >>> culprit = bisect(gate, x, w, w, check=lambda before, after: "swiglu" not in after.primitives())
        >>> culprit.number, culprit.row.rule
        (1, 'swiglu')
    """
    static = {"static_argnums": static_argnums, "static_argnames": static_argnames}
    graph = program if isinstance(program, Graph) else trace(program, *args, **static, **kwargs)
    given = jax.tree.leaves((args, kwargs)) if not any(static.values()) else []
    asked = check or _same_results(graph, given, seed)

    def first(rewrites: int | None) -> Result:
        result = rewrite(graph, passes, target, verify, stop_after=rewrites)
        if result.report.failure:
            raise JaxspliceError(f"there is nothing to bisect, the pipeline itself fails: {result.report.failure}")
        return result

    sound, broken = first(0), first(None)
    complaint = _complaint(asked, graph, sound.after)
    if complaint:
        raise JaxspliceError(f"the check fails before any rewrite: {complaint}")
    complaint = _complaint(asked, graph, broken.after)
    if not complaint:
        return None
    rewrites = len(broken.report.rows)
    low, high = 0, rewrites
    while high - low > 1:
        middle = (low + high) // 2
        result = first(middle)
        said = _complaint(asked, graph, result.after)
        if said:
            broken, complaint, high = result, said, middle
        else:
            sound, low = result, middle
    return Culprit(high, rewrites, broken.report.rows[high - 1], complaint, sound.after, broken.after)


def _complaint(check: Check, before: Graph, after: Graph) -> str:
    """What a check has against a program; empty when it passes."""
    try:
        answer = check(before, after)
    except Exception as error:  # whatever the user's check does
        return raised_by(error)
    return "it gave False" if answer is not None and not answer else ""


def _same_results(graph: Graph, given: list[Any], seed: int) -> Check:
    """Compare on the arrays given, or on random ones of the graph's types."""
    values = _arguments(graph, given, seed)
    limit = SLACK * measure.default_tolerance(graph.out_avals)
    run = lambda program: [np.asarray(x) for x in jax.jit(as_function(program.to_jaxpr()))(*values)]
    expected = run(graph)

    def check(before: Graph, after: Graph) -> None:
        error = measure.largest_error(run(after), expected)
        if error > limit:
            raise AssertionError(f"results are off by {error:.1e} (limit {limit:.1e})")

    return check


def _arguments(graph: Graph, given: list[Any], seed: int) -> list[Any]:
    if len(given) == len(graph.in_avals) and not any(isinstance(a, jax.ShapeDtypeStruct) for a in given):
        return given
    try:
        return measure.random_arguments(graph.in_avals, seed)
    except Refuse as refusal:
        raise JaxspliceError(f"{refusal}: give arrays, or a check of your own (check=)") from refusal
