"""Cleanup: remove what rewriting left behind and nothing else.

Spliced equations that nothing uses, transposes that undo each other, and equal spliced layout equations (the same
weight transposed twice). The user's own equations stay, used or not.
"""

from __future__ import annotations

from dataclasses import dataclass

from .ir.region import Node, Program, Region, Value
from .normalize.functions import params_key
from .pipeline import EditingPass
from .rewrite.drive import Context

_LAYOUT = {"transpose", "reshape", "slice", "squeeze", "broadcast_in_dim", "convert_element_type"}


@dataclass(frozen=True)
class Cleanup(EditingPass):
    """Tidy regions that a rewrite touched; exact, bit for bit."""

    def edit(self, program: Program, context: Context) -> None:
        """Clean every changed region."""
        for region in program.regions():
            if region.changed:
                _cancel_transposes(region)
                _merge_equal_layouts(region)
                _drop_unused(region)


def _cancel_transposes(region: Region) -> None:
    for node in region.nodes:
        if not node.live or node.primitive != "transpose" or type(node.inputs[0]) is not Value:
            continue
        inner = node.inputs[0].node
        if inner is None or inner.primitive != "transpose" or not (node.spliced or inner.spliced):
            continue
        first, second = inner.params["permutation"], node.params["permutation"]
        if [first[d] for d in second] == list(range(len(first))):
            region.redirect(node.outputs[0], inner.inputs[0])
            region.kill(node)


def _merge_equal_layouts(region: Region) -> None:
    seen: dict = {}
    for node in sorted((n for n in region.nodes if n.live and n.spliced), key=lambda n: n.position):
        if node.primitive not in _LAYOUT or len(node.inputs) != 1 or type(node.inputs[0]) is not Value:
            continue
        key = (node.primitive, id(node.inputs[0]), params_key(node.params))
        first = seen.setdefault(key, node)
        if first is not node:
            region.redirect(node.outputs[0], first.outputs[0])
            region.kill(node)


def _drop_unused(region: Region) -> None:
    for node in reversed(region.nodes):
        if node.live and _removable(node) and not any(region.is_used(v) for v in node.outputs):
            region.kill(node)


def _removable(node: Node) -> bool:
    """Spliced, or a layout equation that only fed what a rewrite removed."""
    if node.eqn.effects:
        return False
    fed = [u for v in node.outputs for u in v.uses]
    return node.spliced or (node.primitive in _LAYOUT and bool(fed))
