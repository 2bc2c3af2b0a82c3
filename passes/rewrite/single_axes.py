"""Gathers over several named axes as gathers over one axis each: `vmap`, under which proofs run, knows no others."""

from __future__ import annotations

from jax import lax

from ..ir import jaxprs
from ..ir.emit import emit
from ..ir.region import Node, Program


def one_axis_at_a_time(closed, axis_sizes: dict[str, int]):
    """The same program with every all_gather over `("x", "y")` as one over "y" and, tiled, one over "x".

    Args:
        closed: closed jaxpr that runs under named axes.
        axis_sizes: their sizes.

    Returns:
        A closed jaxpr; the same object when it has no such gather.
    """
    program = Program(closed)
    queue, found = [program.root], False
    for region in queue:
        for node in list(region.nodes):
            if node.primitive == "all_gather" and len(names := node.params["axis_name"]) > 1:
                inner = jaxprs.trace_flat(
                    lambda x, n=node, a=names: [_gathered(x, n, a)], [node.inputs[0].aval], axis_sizes
                )
                (new,), _ = region.splice(inner, node.inputs, node.position)
                region.redirect(node.outputs[0], new)
                region.kill(node)
                found = True
            else:
                queue += [r for r in node.children() if r not in queue]
    return emit(program.root) if found else closed


def _gathered(x, node: Node, names: tuple[str, ...]):
    dim, tiled = node.params["all_gather_dimension"], node.params["tiled"]
    for i, name in enumerate(reversed(names)):
        x = lax.all_gather(x, name, axis=dim, tiled=tiled or i > 0)
    return x
