"""several small all_gathers over one axis  ->  one all_gather of one int32 blob

    ids ───── all_gather ─┐                 ids ── bits ─┐                         ┌─ ids
    weights ─ all_gather ─┘    becomes      weights bits ┴─ blob ─ all_gather ─ cut ┴─ weights

Token routing gathers hidden states, expert ids and expert weights: three collectives. Ids and weights are a few KB and
cost latency only, so they travel together: 3 -> 2.

Pays: one launch and one link latency per layer less; bytes are equal. Larger arrays are left alone: packing them costs
more HBM traffic than the latency it saves.
Source: the playbook's P3; vLLM tpu-inference.
Limits: same axis, groups and layout of gathering; none depends on another; at most 1 MiB each; 8 to 32 bit types.
"""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
from jax import ShapeDtypeStruct as Shape
from jax import lax
from jax.custom_derivatives import SymbolicZero

from jaxsplice.passes.collectives import axis_names, depends_on
from jaxsplice.passes.rewrite.rule import Candidate, GraphCase, GraphRule, NearMiss

MAX_BYTES = 1 << 20  # per array and device


def find(region, refuse):
    """Groups of small all_gathers that could be one."""
    groups: dict = {}
    for node in region.by_primitive.get("all_gather", ()):
        if not node.live:
            continue
        key = (axis_names(node), node.params["axis_size"])
        why = _unpackable(node)
        if why is None:
            groups.setdefault(key, []).append(node)
        else:
            refuse(why, node)
    for (axes, size), nodes in groups.items():
        if len(nodes) == 1 and not _is_blob(nodes[0]):
            refuse(f"only one small all_gather over {axes}: there is nothing to pack it with", nodes[0])
        for group in _independent(sorted(nodes, key=lambda n: n.position), refuse):
            yield _candidate(group, axes, size)


def _unpackable(node) -> str | None:
    """Why an all_gather travels alone."""
    if axis_names(node) is None:
        return "it gathers within groups of an axis"
    aval = node.inputs[0].aval
    if aval.dtype.itemsize > 4 or aval.dtype.kind not in "iufbV":
        return f"{aval.dtype} does not fit into 32 bits"
    if aval.size * 4 > MAX_BYTES:
        return f"too large to pack: {aval.size * 4:,} bytes per device, at most {MAX_BYTES:,}"
    return None


def _is_blob(node) -> bool:
    """Whether what it gathers is packed already, by this rule or by hand."""
    blob = node.inputs[0]
    return len(blob.aval.shape) == 1 and blob.node is not None and blob.node.primitive == "concatenate"


def _independent(nodes, refuse):
    """Split gathers into groups in which none depends on another."""
    while len(nodes) > 1:
        group, rest = [nodes[0]], []
        for node in nodes[1:]:
            outputs = {id(v) for n in group for v in n.outputs}
            dependent = depends_on(node.inputs[0], outputs, group[0].position)
            (rest if dependent else group).append(node)
            if dependent:
                refuse("an all_gather that depends on another one's result cannot travel with it", node)
        if len(group) > 1:
            yield group
        nodes = rest


def _candidate(group, axes, size) -> Candidate:
    layouts = [(n.params["all_gather_dimension"], n.params["tiled"]) for n in group]

    def gather(x, place):
        dimension, tiled = layouts[place]
        return lax.all_gather(x, axes, axis=dimension, tiled=tiled)

    def before(*arrays):
        return [gather(x, i) for i, x in enumerate(arrays)]

    @jax.custom_jvp
    def packed(*arrays):
        blob = jnp.concatenate([_to_bits(x).reshape(-1) for x in arrays])
        gathered = lax.all_gather(blob, axes, axis=0, tiled=False)
        ends = list(itertools.accumulate(x.size for x in arrays))
        cut = [gathered[:, end - x.size : end] for x, end in zip(arrays, ends)]
        return [_from_bits(c, x, d, t) for c, x, (d, t) in zip(cut, arrays, layouts)]

    def derivative(arrays, tangents) -> Any:
        """Bits have no derivative: tangents are gathered as they would have been, each on its own."""
        out = packed(*arrays)
        still = [SymbolicZero(jax.typeof(x).to_tangent_aval()) for x in out]
        return out, [s if type(t) is SymbolicZero else gather(t, i) for i, (s, t) in enumerate(zip(still, tangents))]

    packed.defjvp(derivative, symbolic_zeros=True)

    types = tuple((str(n.inputs[0].aval.dtype), n.inputs[0].aval.shape) for n in group)
    return Candidate(
        [n.outputs[0] for n in group],
        [n.inputs[0] for n in group],
        before,
        lambda *arrays: packed(*arrays),
        (axes, size, types, tuple(layouts)),
        [Shape(tuple(min(k, 6) for k in n.inputs[0].aval.shape), n.inputs[0].aval.dtype) for n in group],
    )


def _to_bits(x):
    """The same bits as int32; narrower types are widened, which loses nothing."""
    if jnp.issubdtype(x.dtype, jnp.floating):
        return lax.bitcast_convert_type(x.astype(jnp.float32), jnp.int32)
    if x.dtype == jnp.uint32:
        return lax.bitcast_convert_type(x, jnp.int32)
    return x.astype(jnp.int32)


def _from_bits(bits, like, dimension: int, tiled: bool):
    """[devices, n] int32 back to the array that gathering `like` gives."""
    if jnp.issubdtype(like.dtype, jnp.floating):
        flat = lax.bitcast_convert_type(bits, jnp.float32).astype(like.dtype)
    elif like.dtype == jnp.uint32:
        flat = lax.bitcast_convert_type(bits, jnp.uint32)
    else:
        flat = bits.astype(like.dtype)
    devices = bits.shape[0]
    moved = jnp.moveaxis(flat.reshape(devices, *like.shape), 0, dimension)
    if not tiled:
        return moved
    shape = list(like.shape)
    shape[dimension] *= devices
    return moved.reshape(shape)


def _token_routing(x, ids, weights):
    gather = lambda a: lax.all_gather(a, "x", axis=0, tiled=True)
    return gather(x), gather(ids), gather(weights)


def _chain(ids, weights):
    everyone = lax.all_gather(ids, "x", axis=0, tiled=True)
    return lax.all_gather(weights * everyone.sum(), "x", axis=0, tiled=True)


def _two_axes(ids, weights):
    return lax.all_gather(ids, "x", axis=0, tiled=True), lax.all_gather(weights, "y", axis=0, tiled=True)


def _two_large(a, b):
    return lax.all_gather(a, "x", axis=0, tiled=True), lax.all_gather(b, "x", axis=0, tiled=True)


HIDDEN, IDS, WEIGHTS = Shape((128, 4096), jnp.bfloat16), Shape((128, 10), jnp.int32), Shape((128, 10), jnp.float32)
LARGE = Shape((1024, 4096), jnp.float32)
AXES = {"x": 4}

rule = GraphRule(
    "pack-collectives",
    find,
    equation="exact",
    cases=[
        GraphCase(_token_routing, (Shape((512, 4096), jnp.bfloat16), IDS, WEIGHTS), AXES),
        GraphCase(_token_routing, (Shape((512, 4096), jnp.bfloat16), IDS, Shape((128, 10), jnp.bfloat16)), AXES),
    ],
    near_misses=[
        NearMiss(_chain, IDS, WEIGHTS, reason="depends on another", axis_sizes=AXES),
        NearMiss(_two_axes, IDS, WEIGHTS, reason="only one small all_gather", axis_sizes={"x": 4, "y": 2}),
        NearMiss(_two_large, LARGE, LARGE, reason="too large", axis_sizes=AXES),
    ],
    benefit="one collective launch and link latency less per layer",
)
