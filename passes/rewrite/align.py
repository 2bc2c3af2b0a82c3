"""Align: which axes of the program play each axis of the pattern.

A search has noted facts: "these pattern axes, in some order, are these program axes" (an operand's axes, a sum's
axes, a loop's step). An axis' signature is the set of facts it takes part in. Pattern and program axes with equal
signatures correspond; where there are several, they are interchangeable and pair up in order. A pattern axis may be
played by none (size one) or by several program axes (merged).
"""

from __future__ import annotations

import itertools

from ..normalize.index import Label, labels_of
from .unify import Unifier

Alignment = dict[Label, list[Label]]  # pattern axis -> program axes, most significant first


def align(u: Unifier, outputs: list[tuple[tuple, tuple]]) -> Alignment | str:
    """Solve a finished search.

    Args:
        u: unifier holding a solution.
        outputs: (pattern index, program index) of every result.

    Returns:
        The alignment, or why there is none.
    """
    facts = [(labels_of(p), labels_of(q)) for p, q in outputs]
    for occurrences in u.bindings.values():
        facts += [(labels_of(o.index), labels_of(_fullest(o))) for o in occurrences]
    facts += [(_atoms(p), _atoms(q)) for p, q in u.evidence]
    ours, theirs = _classes([p for p, _ in facts]), _classes([q for _, q in facts])
    extra = [labels for signature, labels in theirs.items() if signature not in ours]
    if extra:
        sizes = ", ".join(str(label.size) for labels in extra for label in labels)
        return f"the program has an axis (of size {sizes}) that the pattern has not: a batched or broadcast operand"
    out: Alignment = {}
    for signature, labels in ours.items():
        out.update(_pair(labels, theirs.get(signature, [])))
    return out


def _fullest(occurrence):
    return max((level.index for level in occurrence.levels), key=lambda index: len(labels_of(index)))


def _atoms(labels: list[Label]) -> list[Label]:
    return [atom for label in labels for atom in label.atoms()]


def _classes(sides: list[list[Label]]) -> dict[tuple[int, ...], list[Label]]:
    signatures: dict[Label, list[int]] = {}
    for i, labels in enumerate(sides):
        for label in dict.fromkeys(labels):
            signatures.setdefault(label, []).append(i)
    out: dict[tuple[int, ...], list[Label]] = {}
    for label, signature in signatures.items():
        out.setdefault(tuple(signature), []).append(label)
    return out


def _pair(ours: list[Label], theirs: list[Label]) -> Alignment:
    """Pair axes in order; parts of one program axis stay together, the first pattern axis takes what is left over."""
    groups = [list(parts) for _, parts in itertools.groupby(theirs, key=lambda label: id(label.whole))]
    n, m = len(ours), len(groups)
    if m < n:
        return {p: (groups[i - (n - m)] if i >= n - m else []) for i, p in enumerate(ours)}
    first = m - n + 1
    merged = [label for group in groups[:first] for label in group]
    return {p: (merged if i == 0 else groups[first + i - 1]) for i, p in enumerate(ours)}
