"""Collectives as `vmap`, where proofs run, has them: over one named axis each, and blind to which values vary."""

from __future__ import annotations

from jax import lax

from ..ir import jaxprs
from ..ir.emit import emit
from ..ir.region import Node, Program


def as_under_vmap(closed, axis_sizes: dict[str, int]):
    """The same program with gathers and tiled reduce-scatters over several axes as one per axis, and plain psums.

    Args:
        closed: closed jaxpr that runs under named axes.
        axis_sizes: their sizes.

    Returns:
        A closed jaxpr; the same object when it has no such collective.
    """
    program = Program(closed)
    queue, found = [program.root], False
    for region in queue:
        for node in list(region.nodes):
            respelled = _RESPELLED.get(node.primitive)
            if respelled is None or len(node.params.get("axis_name", ("", ""))) == 1:
                queue += [r for r in node.children() if r not in queue]
                continue
            inner = jaxprs.trace_flat(lambda x, n=node, f=respelled: [f(x, n)], [node.inputs[0].aval], axis_sizes)
            (new,), _ = region.splice(inner, node.inputs, node)
            region.redirect(node.outputs[0], new)
            region.kill(node)
            found = True
    return emit(program.root) if found else closed


def _gathered(x, node: Node):
    """The first axis is the slowest; behind the innermost axis' own dimension, the others lie tiled."""
    dim, tiled = node.params["all_gather_dimension"], node.params["tiled"]
    for i, name in enumerate(reversed(node.params["axis_name"])):
        x = lax.all_gather(x, name, axis=dim, tiled=tiled or i > 0)
    return x


def _scattered(x, node: Node):
    for name in node.params["axis_name"]:
        x = lax.psum_scatter(x, name, scatter_dimension=node.params["scatter_dimension"], tiled=True)
    return x


def _summed(x, node: Node):
    return lax.psum(x, node.params["axes"])


_RESPELLED = {"all_gather": _gathered, "reduce_scatter": _scattered, "psum_invariant": _summed}
