"""Pattern: a rule's `before`, traced at one of its cases, ready to be searched for."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax

from ..ir import jaxprs
from ..ir.region import OUTPUT, Node, Program, Region, Value
from ..normalize import ALL, Cursor
from ..normalize.contractions import MAX_TAPS, taps_met
from ..normalize.cursor import PEEL, unmoved
from ..normalize.flatten import open_head
from ..normalize.marks import literal_number
from ..normalize.terms import Add, Along, Fn, Leaf, Prod, Result, Sum
from .rule import Case, Rule, code_of

# How common a primitive is in model code; the search starts at the rarest one of a pattern.
_COMMON = {
    "mul": 9, "add": 9, "sub": 8, "div": 7, "neg": 7, "select_n": 7, "reduce_sum": 6, "dot_general": 6, "max": 6,
    "exp": 5, "integer_pow": 5, "square": 5, "log": 4, "reduce_max": 4, "tanh": 3, "logistic": 2, "rsqrt": 2, "sqrt": 2,
}  # fmt: skip
_NOT_ANCHORS = {
    "broadcast_in_dim", "reshape", "transpose", "squeeze", "slice", "split", "convert_element_type", "pad", "copy",
    "concatenate", "iota", "stop_gradient", "eq", "lt", "le", "gt", "ge", "ne", "and", "or", "not", "pvary", "rev",
    "optimization_barrier", "name",
}  # fmt: skip
# Other primitives with which the same head can be written.
SPELLED = {
    "logistic": ("logistic", "exp", "tanh"),
    "rsqrt": ("rsqrt", "sqrt", "pow"),
    "sqrt": ("sqrt", "rsqrt", "pow"),
    "square": ("square", "integer_pow", "mul", "pow"),
    "integer_pow": ("integer_pow", "square", "mul", "pow"),
    "div": ("div", "mul"),
    "conv_general_dilated": ("conv_general_dilated", "add", "dot_general", "reduce_sum"),
    "add": ("add", "conv_general_dilated"),
    "reduce_sum": ("reduce_sum", "dot_general"),
    "dot_general": ("dot_general", "reduce_sum", "mul"),
}
_PRODUCTS = {"mul", "div", "neg", "square", "sqrt", "rsqrt", "integer_pow", "pow", "dot_general"}
_MULTIPLIES = {"mul", "dot_general"}
_SUMS = {"add", "sub", "add_any", "concatenate", "conv_general_dilated"}


class Pattern:
    """One variant of a rule's pattern.

    Attributes:
        rule, case: what it was traced from.
        region: use-def form of `before`.
        variables: region input -> position among the flat array arguments.
        capture_names: region input -> keyword whose number it stands for.
        outputs: the region's results.
        anchor: primitive at which searches start.
        roots: primitives the root node may have.
    """

    def __init__(self, rule: Rule, case: Case, before: Callable | None = None):
        self.rule, self.case = rule, case
        self.numbers = rule.number_captures(case.params)
        self.flat_args, self.in_tree = jax.tree.flatten(case.args)
        closed = trace_before(self, self.flat_args, dict.fromkeys(self.numbers, _NUMBER), before or rule.before)
        self.region = Program(closed).root
        n = len(self.flat_args)
        self.variables: dict[Value, int] = {v: i for i, v in enumerate(self.region.inputs[:n])}
        self.capture_names: dict[Value, str] = dict(zip(self.region.inputs[n:], self.numbers))
        self.statics = {where: name for name, where in rule.captures.items()}
        self.outputs = [Cursor.whole(out) for out in self.region.outputs]
        self.anchor = _anchor(self.region.nodes)
        self.roots = root_primitives(self.outputs[0])
        self.strict_roots = {"dot_general"} if "reduce_sum" in self.roots else set()
        self.addends = _addend_counts(self.region)
        if self.addends and type(open_head(self.outputs[0], ALL)) is Add:
            self.roots = self.roots | {"dot_general", "reduce_sum"}
            self.strict_roots = {"dot_general"}
        self.height = 2 * _depth(self.region.outputs[0]) + 4
        self.climb = _computing_steps(self.region, self.anchor) + 2
        self.size = len(self.region.nodes)
        anchors = self.region.by_primitive.get(self.anchor, ())
        self.feeds_products = self.anchor == "exp" and all(_feeds(n, _MULTIPLIES) for n in anchors)

    def plausible(self, root: Node) -> bool:
        """A cheap look at whether a node can be the root; unification decides."""
        if root.primitive == "add" and self.addends and _goes_on(root):
            return False
        if root.primitive != "dot_general" or "dot_general" in self.strict_roots:
            return True
        return not _contracts(root)  # with nothing to sum it is a product

    def plausible_anchor(self, node: Node) -> bool:
        """A cheap look at whether a node can be the anchor: shifted products must be as many as the pattern's taps."""
        if self.feeds_products and not _feeds(node, _MULTIPLIES):
            return False
        if not self.addends or (node.primitive == self.anchor and node.primitive != "conv_general_dilated"):
            return True
        if not _one_weight_per_element(node):
            return False
        count = _count_products(node)
        return count in self.addends or (count == 0 and node.primitive == "conv_general_dilated")

    def arguments(self, flat: Sequence[Any]) -> tuple:
        """Positional arguments of `before` from flat arrays."""
        return jax.tree.unflatten(self.in_tree, flat)

    def function(self, fn: Callable, params: dict[str, Any]) -> Callable[..., list]:
        """`before` or `after` as a function of flat arrays that returns flat arrays."""
        return lambda *flat: jax.tree.leaves(fn(*self.arguments(flat), **params))


class _Number:
    """Marks a captured number while tracing the pattern: it becomes an argument of its own."""


_NUMBER = _Number()


def trace_before(pattern: Pattern, avals, numbers: dict[str, Any], fn: Callable):
    """Trace a rule's function with captured numbers as extra scalar arguments after the arrays."""
    names, n = list(numbers), len(avals)
    rest = {k: v for k, v in pattern.case.params.items() if k not in numbers}

    def flat_fn(*values):
        arrays, scalars = values[:n], values[n:]
        return jax.tree.leaves(fn(*pattern.arguments(arrays), **rest, **dict(zip(names, scalars))))

    scalar = jax.ShapeDtypeStruct((), "float32", weak_type=True)
    return jaxprs.trace_flat(flat_fn, [*avals, *[scalar] * len(names)], dict(pattern.case.axis_sizes))


@functools.lru_cache(maxsize=4096)
def patterns_of(rule: Rule) -> tuple[Pattern, ...]:
    """The rule's patterns, one per case that differs in structure."""
    out: dict[Any, Pattern] = {}
    for case in rule.cases:
        with code_of(rule, "before"):
            pattern = Pattern(rule, case)
        out.setdefault((_primitives(pattern.region), tuple(_skeleton(o, 24) for o in pattern.outputs)), pattern)
    return tuple(sorted(out.values(), key=lambda p: -p.size))


def _primitives(region: Region) -> tuple:
    """Names of a region's primitives, with those in its loops."""
    return tuple((n.primitive, *(_primitives(child) for child in n.children())) for n in region.nodes)


@functools.lru_cache(maxsize=1024)
def exclusions_of(rule: Rule) -> tuple[tuple[str, Pattern], ...]:
    """Patterns of what the rule leaves alone, with their names."""
    with code_of(rule, "unless"):
        return tuple((name, Pattern(rule, case, fn)) for name, fn in rule.unless.items() for case in rule.cases)


def _skeleton(term: Any, depth: int) -> Any:
    """The form of a term without its sizes; terms of one form are found by one pattern."""
    head = open_head(term, ALL)
    kind = type(head).__name__
    if depth == 0:
        return kind
    if type(head) in (Prod, Add):
        parts = head.factors if type(head) is Prod else [(t, c) for c, t in head.addends]
        return kind, tuple(_skeleton(t, depth - 1) for t, _ in parts)
    if type(head) is Sum:
        return kind, _skeleton(head.body, depth - 1)
    if type(head) in (Fn, Along):
        return head.name, tuple(_skeleton(t, depth - 1) for t in head.args)
    if type(head) is Result:
        whole = [Cursor.whole(a) for a in head.node.inputs if type(a) is Value] if "op" in head.node.params else []
        return head.node.primitive, tuple(_skeleton(c, depth - 1) for c in whole)
    if type(head) is Leaf:
        return kind, tuple((offset, bool(terms)) for offset, terms in head.cursor.index)
    return kind


def _anchor(nodes: list[Node]) -> str:
    names = [n.primitive for n in nodes if n.primitive not in _NOT_ANCHORS]
    return min(names, key=lambda name: _COMMON.get(name, 1)) if names else nodes[0].primitive


def root_primitives(output: Cursor) -> set[str]:
    """Primitives with which a program can write the head of a pattern's result."""
    head = open_head(output, ALL)
    if type(head) is Prod:
        several = len(head.factors) > 1
        return {"mul", "div", "neg", "dot_general"} if several else _PRODUCTS
    if type(head) is Add:
        return _SUMS
    if type(head) is Sum:
        return {"dot_general", "reduce_sum"}
    if type(head) is Fn:
        return {head.name, *SPELLED.get(head.name, ()), *(_PRODUCTS if head.name == "logistic" else ())}
    if type(head) is Along:
        return {head.name}
    if type(head) is Result:
        return {head.node.primitive}
    return {output.node.primitive} if output.node is not None else set()


def _addend_counts(region) -> set[int]:
    """Numbers of addends of the sums in a pattern that a convolution stands for."""
    return {_count_products(node) for node in region.by_primitive.get("conv_general_dilated", ())} - {0}


def could_be_taps(node: Node) -> bool:
    """A cheap look at whether a sum could be a short convolution written out."""
    return _one_weight_per_element(node) and _count_products(node) > 0


def _count_products(node: Node) -> int:
    """Addends of a convolution, of a sum over an axis, or of a chain of additions of products; 0 otherwise."""
    if node.primitive == "conv_general_dilated":
        return taps_met(node)
    if node.primitive == "dot_general":
        (contracted, _), _ = node.params["dimension_numbers"]
        return math.prod(node.inputs[0].aval.shape[d] for d in contracted)
    if node.primitive == "reduce_sum":
        return math.prod(node.inputs[0].aval.shape[d] for d in node.params["axes"])
    return _count_added_products(node)


def _count_added_products(node: Node) -> int:
    count, stack = 0, list(node.inputs)
    while stack:
        atom = unmoved(stack.pop())
        maker = atom.node if type(atom) is Value else None
        if maker is None:
            if literal_number(atom) != 0:
                return 0
        elif maker.primitive == "add":
            stack += maker.inputs
        elif maker.primitive == "mul" or (maker.primitive == "dot_general" and not _contracts(maker)):
            count += 1
        else:
            return 0
        if count > MAX_TAPS:
            return 0
    return count


def _contracts(node: Node) -> bool:
    (contracted, _), _ = node.params["dimension_numbers"]
    return bool(contracted)


def _one_weight_per_element(node: Node) -> bool:
    """Whether a product and sum could be a depthwise one: its weight has no axis that the other operand lacks."""
    if node.primitive == "dot_general":
        (contracted, _), (batch, _) = node.params["dimension_numbers"]
        summed = len(contracted) + len(batch)
        return bool(batch) and any(len(a.aval.shape) == summed for a in node.inputs)
    return node.primitive != "reduce_sum" or _made_by(node.inputs[0], ("mul",))


def _feeds(node: Node, primitives: set[str]) -> bool:
    """Whether one of some primitives uses a node's result as it is, or moved."""
    level = [node]
    for current in level:  # grows by what only moves elements
        if len(level) > MAX_TAPS:
            return True
        for user in (u for out in current.outputs for u in out.uses if u is not OUTPUT and u.live):
            if user.primitive in primitives:
                return True
            if user.primitive in PEEL:
                level.append(user)
    return False


def _goes_on(node: Node) -> bool:
    """Whether a sum is part of a longer one: another product is added to it."""
    level = [node]
    for current in level:  # grows by what only moves elements
        if len(level) > MAX_TAPS:
            return False
        for user in current.outputs[0].uses:
            if user is OUTPUT or not user.live:
                continue
            if user.primitive in PEEL:
                level.append(user)
            elif user.primitive == "add":
                others = [a for a in user.inputs if a is not current.outputs[0]]
                if any(_made_by(a, ("mul", "dot_general")) for a in others):
                    return True
    return False


def _made_by(atom, primitives: tuple[str, ...]) -> bool:
    atom = unmoved(atom)
    return type(atom) is Value and atom.node is not None and atom.node.primitive in primitives


def _computing_steps(region, anchor: str) -> int:
    """Computing equations on the longest way from an anchor to the first result."""
    steps: dict[int, int] = {}
    for node in region.nodes:
        below = [
            steps[id(a.node)] for a in node.inputs if type(a) is Value and a.node is not None and id(a.node) in steps
        ]
        own = 0 if node.primitive in PEEL else 1
        if below:
            steps[id(node)] = max(below) + own
        elif node.primitive == anchor:
            steps[id(node)] = 0
    root = region.outputs[0]
    return steps.get(id(root.node), len(region.nodes)) if type(root) is Value else 0


def _depth(value) -> int:
    """Longest way from an output to an input, in nodes."""
    memo: dict[int, int] = {}
    if type(value) is not Value or value.node is None:
        return 0
    for node in value.node.region.nodes:
        above = [memo.get(id(a.node), 0) for a in node.inputs if type(a) is Value and a.node is not None]
        memo[id(node)] = 1 + max(above, default=0)
    return memo[id(value.node)]
