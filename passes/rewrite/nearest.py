"""Nearest: how far a rule's pattern goes at each place that could be its root. Asked for by `explain` only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from jax.errors import InconclusiveDimensionOperation

from ..errors import RuleError
from ..ir.region import Node, Program
from ..ir.walk import walk
from ..normalize import ALL, Cursor
from .mismatch import Mismatch, describe
from .pattern import Pattern, patterns_of
from .rule import Rule
from .unify import OutOfSteps, Unifier

MAX_PLACES = 2000  # per pattern; a program that is larger than that is explained from its beginning


class Near(NamedTuple):
    """One partial match.

    Args:
        root: where the pattern was laid.
        pattern: the pattern.
        mismatch: what had matched, and where it stopped.
    """

    root: Node
    pattern: Pattern
    mismatch: Mismatch


def nearest(program: Program, rule: Rule) -> Iterator[Near]:
    """Partial matches of a rule, one per pattern and place; none where a pattern of one result fits as a whole.

    Unlike the search that rewrites, this one begins at the root, so that a program without the pattern's rarest
    primitive (another activation, say) is explained too.
    """
    try:
        patterns = patterns_of(rule)
    except RuleError:
        return
    nodes = list(walk(program.root))
    for pattern in patterns:
        roots = [n for n in nodes if n.primitive in pattern.roots and pattern.plausible(n)]
        for root in roots[:MAX_PLACES]:
            mismatch = _mismatch_at(root, pattern)
            if mismatch is not None:
                yield Near(root, pattern, mismatch)


def _mismatch_at(root: Node, pattern: Pattern) -> Mismatch | None:
    unifier = Unifier(pattern.variables, ALL, captures=pattern.capture_names, statics=pattern.statics, explain=True)
    try:
        for value in root.outputs:
            for _ in unifier.unify(pattern.outputs[0], Cursor.whole(value)):
                return _other_result_missing(pattern, unifier, root)
    except (OutOfSteps, InconclusiveDimensionOperation):
        pass
    return unifier.best


def _other_result_missing(pattern: Pattern, unifier: Unifier, root: Node) -> Mismatch | None:
    """What is wrong where the first of several results fits; nothing when it is the only one."""
    if len(pattern.outputs) == 1:
        return None
    wanted = ", ".join(describe(output) for output in pattern.outputs[1:])
    return Mismatch(unifier.depth + len(unifier.bindings), wanted, "no such other result of the same arguments", root)
