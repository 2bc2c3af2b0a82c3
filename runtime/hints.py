"""Hints: what a user may do about a near miss, told from where the search stopped and what stands there."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import jax

from jaxsplice.passes.ir.jaxprs import is_scalar_literal, literal_array
from jaxsplice.passes.ir.region import Node, Value
from jaxsplice.passes.normalize.cursor import PEEL
from jaxsplice.passes.rewrite.mismatch import Mismatch
from jaxsplice.passes.rewrite.pattern import Pattern

MAX_CONE = 64  # nodes behind a place that are looked at
_BORDERS = {"dot_general", "ragged_dot_general", "conv_general_dilated", "scan", "while", "cond", "reduce_sum", "sort"}
_REASONS = (  # part of the reason -> what to do
    (
        r"its inner (\S+) at .* is also used by the result",
        r"the inner \1 is also returned: drop it, or compute it apart from this (XLA merges equal work)",
    ),
    (
        r"its inner (\S+) at .* is also used by (\S+) at",
        r"\2 reads the inner \1 too: compute it apart for \2 (XLA merges equal work), or let \2 read the result",
    ),
    (
        r"(?:has|wanted) the number (\S+?),? (?:where the program has|found) the number (\S+)",
        r"the number is \2, the rule is for \1; a rule takes any number for a keyword-only parameter of its `before`",
    ),
    (
        r"rewrite: `after` is not `before`",
        "the rule itself is wrong here: mend its `after`, let its `where` decline this, or state a `tolerance` for it",
    ),
    (r"result of \S+ \d+: (\S+) before, (\S+) after", r"the rule's `after` gives \2 where its `before` gives \1"),
    (r"its \S+ failed: ", "mend the rule: its own code failed"),
    (r"would lose that rounding", "round once, after the last operation, or use a rule whose `before` rounds so too"),
    (
        r"`before` would give (.*) here, the program has (.*)",
        r"the types differ: let the program give \1, or add a Case with those types",
    ),
    (r"has an effect that must keep its place", "move the print, callback or reference out of this part"),
    (r"a batched or broadcast operand", "the rule has no such axis: apply the function per element, or add a Case"),
    (r"an input of it depends on one of its results", "this part reads what it makes: split it"),
    (r"symbolic sizes", "fix the size, or divide only what is known to divide"),
    (r"too many ways to group", "split the long sum or product by a name of its own"),
    (
        r"found a product with more factors",
        "something else is multiplied in between; multiply before or after instead",
    ),
    (r"found a sum with more addends", "something else is added in between (a bias?); add it before or after instead"),
    (
        r"wanted (?:dot_general|a product|a sum over an axis), found (?:add|a sum\b(?! over))",
        "something is added here (a bias?), the rule has nothing of the kind",
    ),
    (r"to the power of \S+, not (\S+)", r"the rule has a value to the power of \1 here (a square? a root?)"),
    (r"already plays another part", "the rule needs two separate operations here, and this is one and the same"),
    (r"a literal number is captured", "the rule captures a constant here; pass a Python number, not an array"),
    (r"a value that no single array of the program holds", "the argument is spread over several arrays: join them"),
)  # fmt: skip
_ACTIVATIONS = (  # primitive, number in its surroundings (None: any) -> name
    ("erf", None, "gelu (by erf)"),
    ("erfc", None, "gelu (by erf)"),
    ("tanh", 0.044715, "gelu (by tanh)"),
    ("logistic", 1.702, "quick gelu (1.702)"),
    ("max", 0.0, "relu"),
    ("tanh", None, "tanh"),
    ("logistic", None, "logistic (silu, sigmoid)"),
)


def hint_for(reason: str, root: Node, pattern: Pattern | None, miss: Mismatch | None, taken_by: str | None) -> str:
    """What could be done about a near miss; empty when nothing better than the reason can be said.

    Args:
        reason: the sentence of the miss.
        root: its place.
        pattern: what was searched for, where that is known.
        miss: where the search stopped, where it did.
        taken_by: another rule that matched this place.
    """
    activation = _other_activation(root, pattern) if pattern is not None else None
    if activation is not None:
        wanted, found = activation
        taken = f": rule {taken_by} takes it" if taken_by else ""
        return f"the activation is {found}, the rule's is {wanted}{taken}"
    if taken_by:
        return f"rule {taken_by} takes this place"
    if miss is not None and "another value than the one" in miss.found:
        name = _argument_name(pattern, miss.argument)
        return f"the operands differ: {name} is changed between its uses" + _by(miss.node)
    for part, advice in _REASONS:
        found = re.search(part, reason)
        if found:
            return found.expand(advice)
    return ""


def _by(node: Node | None) -> str:
    if node is None:
        return "; is one changed on the way?"
    maker = node
    while maker.primitive in PEEL and maker.inputs and type(maker.inputs[0]) is Value and maker.inputs[0].node:
        maker = maker.inputs[0].node  # what only moves elements was seen through
    return f", by {maker.primitive} at {maker.source}"


def _argument_name(pattern: Pattern | None, position: int | None) -> str:
    """The name of a flat argument of `before`, as its author wrote it."""
    if pattern is None or position is None:
        return "an argument"
    paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(pattern.case.args)[0]]
    names = list(inspect.signature(pattern.rule.before).parameters)
    first, *rest = paths[position]
    return f"{names[first.idx] if first.idx < len(names) else 'argument'}{jax.tree_util.keystr(tuple(rest))}"


def _other_activation(root: Node, pattern: Pattern) -> tuple[str, str] | None:
    """The activation that a pattern has, and one that stands behind a place where the pattern's own does not."""
    wanted = _activations(list(pattern.region.nodes))[:1]
    found = _activations(list(_behind(root))) if wanted else []
    return (wanted[0], found[0]) if wanted and found and wanted[0] not in found else None


def _activations(nodes: list[Node]) -> list[str]:
    primitives = {node.primitive for node in nodes}
    literals = [literal_array(a) for node in nodes for a in node.inputs if is_scalar_literal(a)]
    numbers = [float(n) for n in literals if n.dtype.kind in "fiV"]  # V: bfloat16 and the like
    return [
        name
        for primitive, number, name in _ACTIVATIONS
        if primitive in primitives and (number is None or any(abs(n - number) < 1e-6 for n in numbers))
    ]


def _behind(root: Node) -> Iterator[Node]:
    """A node and those it is computed by, nearest first, up to products, sums, loops and Ops: its own surroundings."""
    queue, seen = [root], {id(root)}
    for node in queue:
        yield node
        if node is not root and (node.primitive in _BORDERS or "op" in node.params):
            continue
        for atom in node.inputs:
            maker = atom.node if type(atom) is Value else None
            if maker is not None and id(maker) not in seen and len(queue) < MAX_CONE:
                seen.add(id(maker))
                queue.append(maker)
