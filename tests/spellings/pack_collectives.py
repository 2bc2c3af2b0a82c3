"""Groups of small all-gathers as expert layers write them, and gathers that cannot travel together.

Every program is a shard_map over virtual devices; name -> (function, arguments, hits per rule). Near misses must not
match at all: name -> (function, arguments, part of the reason).
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec

f32, bf16, i32 = jnp.float32, jnp.bfloat16, jnp.int32
ONE, TWO = ({"pack-collectives": n} for n in (1, 2))
SHARDS = 4


def normal(*shape, seed=0, dtype=f32):
    """Seeded standard normals."""
    rng = np.random.default_rng([seed, *shape])
    return jnp.asarray(rng.standard_normal(shape), dtype)


def whole(*shape, dtype=i32):
    """Seeded small whole numbers."""
    return jnp.asarray(np.random.default_rng([7, *shape]).integers(0, 100, shape), dtype)


def sharded(fn, axes=("x",), sizes=(SHARDS,), check_vma=False, **options):
    """A function of shards (of the first dimension) as a function of whole arrays."""
    mesh = jax.make_mesh(sizes, axes, axis_types=(jax.sharding.AxisType.Auto,) * len(axes))
    rows = PartitionSpec(options.pop("rows", axes))
    return jax.shard_map(fn, mesh=mesh, in_specs=rows, out_specs=rows, check_vma=check_vma, **options)


def over_two(fn, **options):
    """The same over two axes, "x" of four and "y" of two."""
    return sharded(fn, ("x", "y"), (SHARDS, 2), **options)


def gather(a, axis="x", dim=0, tiled=True, **options):
    return lax.all_gather(a, axis, axis=dim, tiled=tiled, **options)


HIDDEN, IDS, WEIGHTS = normal(8, 16, dtype=bf16), whole(8, 3), normal(8, 3)
ROUTING = (HIDDEN, IDS, WEIGHTS)
PAIR = (IDS, WEIGHTS)
LAYERS = (normal(8, 3, 3, seed=1), whole(8, 3, 3))


# ---------------------------------------------------------------- one group
def token_routing(x, ids, weights):
    return gather(x), gather(ids), gather(weights)


def dictionary(x, ids, weights):
    return jax.tree.map(gather, {"x": x, "ids": ids, "weights": weights})


def mixed_layouts(ids, weights):
    return gather(ids), gather(weights, tiled=False).sum(0)


def other_dimensions(ids, weights):
    return gather(ids, dim=1), gather(weights, dim=0)


def untiled_behind(ids, weights):
    return gather(ids, dim=1, tiled=False), gather(weights, dim=2, tiled=False)


def group_sizes(ids, weights):
    counts = jnp.bincount(ids[:, 0] % 4, length=4)
    return gather(counts, tiled=False).sum(0), gather(weights)


def five_types(ids, weights):
    made = (ids, weights, weights.astype(bf16), ids.astype(jnp.uint32), ids > 50)
    return [gather(a) for a in made]


def narrow_types(ids, weights):
    made = (ids.astype(jnp.int8), weights.astype(jnp.float16), weights.astype(jnp.float8_e4m3fn))
    return [gather(a).astype(f32) for a in made]


def used_between(x, ids, weights):
    everyone = gather(ids)
    mine = jnp.take(x, everyone[:2, 0] % 2, axis=0)
    return mine, gather(weights * 2.0)


def computed_between(x, ids, weights):
    scores = jax.nn.softmax(x.astype(f32) @ jnp.ones((16, 4)))
    top, best = lax.top_k(scores, 2)
    return gather(top), gather(best)


def scalars(ids, weights):
    return gather(ids.sum(), tiled=False).sum()[None], gather(weights.sum(), tiled=False).max()[None]


def batched(ids, weights):
    return jax.vmap(lambda i, w: (gather(i), gather(w)))(ids, weights)


def behind_a_barrier(ids, weights):
    ids, weights = lax.optimization_barrier((ids, weights))
    return lax.optimization_barrier((gather(ids), gather(weights)))


def through_a_loss(ids, weights):
    """A function whose derivative is taken outside still shows its gathers."""
    return jnp.sum(gather(weights) ** 2)[None] + gather(ids).sum()


# ---------------------------------------------------------------- regions
def in_layers(weights, ids):
    def layer(h, layer):
        w, i = layer
        return h + gather(w).sum(0) * gather(i).sum(0), None

    return lax.scan(layer, jnp.zeros((3,)), (weights.swapaxes(0, 1), ids.swapaxes(0, 1)))[0][None]


def in_a_branch(ids, weights):
    both = lambda i, w: gather(i).sum(0) + gather(w).sum(0)
    return lax.cond(lax.axis_size("x") * weights[0, 0] > 1e9, both, lambda i, w: i[0] + w[0], ids, weights)[None]


def in_both_branches(ids, weights):
    both = lambda scale: lambda i, w: gather(i).sum(0) + scale * gather(w).sum(0)
    return lax.cond(ids.shape[0] * weights[0, 0] > 1e9, both(1.0), both(2.0), ids, weights)[None]


def in_a_while(ids, weights):
    def step(carry):
        n, total = carry
        return n + 1, total + gather(ids).sum() + gather(weights + total).sum()

    return lax.while_loop(lambda c: c[0] < 2, step, (0, 0.0))[1][None]


def in_jit_and_remat(ids, weights):
    return jax.jit(jax.checkpoint(lambda i, w: (gather(i), gather(w))))(ids, weights)


# ---------------------------------------------------------------- several groups
def one_depends(ids, weights):
    everyone = gather(ids)
    return everyone, gather(weights), gather(weights * everyone.sum())


def two_chains(ids, weights):
    a, b = gather(ids), gather(weights)
    return gather(ids + a.sum()), gather(weights + b.sum())


def two_axes_two_each(ids, weights):
    return gather(ids, "x"), gather(ids, "y"), gather(weights, "x"), gather(weights, "y")


POSITIVES = {
    "ids and weights": (sharded(lambda i, w: (gather(i), gather(w))), PAIR, ONE),
    "hidden states, ids and weights": (sharded(token_routing), ROUTING, ONE),
    "a dictionary of them": (sharded(dictionary), ROUTING, ONE),
    "bf16 weights": (sharded(token_routing), (HIDDEN, IDS, WEIGHTS.astype(bf16)), ONE),
    "five types": (sharded(five_types), PAIR, ONE),
    "narrow types": (sharded(narrow_types), PAIR, ONE),
    "untiled": (sharded(lambda i, w: (gather(i, tiled=False)[0], gather(w, tiled=False)[0])), PAIR, ONE),
    "tiled and untiled": (sharded(mixed_layouts), PAIR, ONE),
    "along other dimensions": (sharded(other_dimensions), PAIR, ONE),
    "untiled, new dimension behind": (sharded(untiled_behind), PAIR, ONE),
    "group sizes, untiled": (sharded(group_sizes), PAIR, ONE),
    "scalars": (sharded(scalars), PAIR, ONE),
    "a result used before the next gather": (sharded(used_between), ROUTING, ONE),
    "computed by the router": (sharded(computed_between), ROUTING, ONE),
    "behind a barrier": (sharded(behind_a_barrier), PAIR, ONE),
    "the same array twice": (sharded(lambda i, w: (gather(w), gather(w, dim=1), gather(i))), PAIR, ONE),
    "axis name in a tuple": (sharded(lambda i, w: (gather(i, ("x",)), gather(w, ("x",)))), PAIR, ONE),
    "two axes at once": (over_two(lambda i, w: (gather(i, ("x", "y")), gather(w, ("x", "y")))), PAIR, ONE),
    "the inner of two axes": (over_two(lambda i, w: (gather(i, "y"), gather(w, "y"))), PAIR, ONE),
    "one axis automatic": (
        over_two(lambda i, w: (gather(i), gather(w)), rows=("x",), axis_names={"x"}), PAIR, ONE
    ),
    "checked for varying axes": (sharded(lambda i, w: (gather(i), gather(w)), check_vma=True), PAIR, ONE),
    "under vmap": (sharded(batched), PAIR, ONE),
    "loss": (sharded(through_a_loss), PAIR, ONE),
    "in scan over layers": (sharded(in_layers), LAYERS, ONE),
    "in a branch": (sharded(in_a_branch), PAIR, ONE),
    "in both branches": (sharded(in_both_branches), PAIR, TWO),
    "in a while loop": (sharded(in_a_while), PAIR, ONE),
    "in jit and remat": (sharded(in_jit_and_remat), PAIR, ONE),
    "jit around the shard_map": (jax.jit(sharded(token_routing)), ROUTING, ONE),
    "two shard_maps": (lambda *a: [sharded(token_routing)(*a), sharded(token_routing)(*a)], ROUTING, TWO),
    "one more that depends on them": (sharded(one_depends), PAIR, ONE),
    "two chains": (sharded(two_chains), PAIR, TWO),
    "two over each of two axes": (over_two(two_axes_two_each), PAIR, TWO),
}  # fmt: skip


# ---------------------------------------------------------------- not a group
def chain(ids, weights):
    return gather(weights * gather(ids).sum())


def chain_through_a_loop(ids, weights):
    total = lax.fori_loop(0, 2, lambda _, t: t + 1, gather(ids).sum())
    return gather(weights * total)


def a_branch_each(ids, weights):
    return lax.cond(
        weights[0, 0] > 1e9, lambda i, w: gather(i).sum(0) * 1.0, lambda i, w: gather(w).sum(0), ids, weights
    )[None]


def one_in_a_loop(ids, weights):
    everyone = gather(ids)
    return everyone, lax.scan(lambda h, _: (h + gather(weights).sum(0), None), jnp.zeros(3), None, length=2)[0][None]


def in_groups(ids, weights):
    halves = [[0, 1], [2, 3]]
    return gather(ids, axis_index_groups=halves), gather(weights, axis_index_groups=halves)


def complex_numbers(ids, weights):
    return gather(weights + 1j), gather(ids * 1j)


LARGE = (normal(4 * 1024, 512), normal(4 * 1024, 512, seed=1))

NEAR_MISSES = {
    "the second depends on the first": (sharded(chain), PAIR, "depends on another"),
    "depends on it through a loop": (sharded(chain_through_a_loop), PAIR, "depends on another"),
    "other axes": (over_two(lambda i, w: (gather(i, "x"), gather(w, "y"))), PAIR, "only one small all_gather"),
    "axes in the other order": (
        over_two(lambda i, w: (gather(i, ("x", "y")), gather(w, ("y", "x")))), PAIR, "only one small all_gather"
    ),
    "one and both axes": (
        over_two(lambda i, w: (gather(i, ("x", "y")), gather(w, "x"))), PAIR, "only one small all_gather"
    ),
    "only one": (sharded(lambda i, w: (gather(i), lax.psum(w, "x"))), PAIR, "only one small all_gather"),
    "one small, one large": (sharded(lambda a, b: (gather(a), gather(b[:1]))), LARGE, "too large"),
    "large": (sharded(lambda a, b: (gather(a), gather(b))), LARGE, "too large"),
    "one in each branch": (sharded(a_branch_each), PAIR, "only one small all_gather"),
    "one in a loop, one outside": (sharded(one_in_a_loop), PAIR, "only one small all_gather"),
    "groups of the axis": (sharded(in_groups), PAIR, "within groups of an axis"),
    "complex numbers": (sharded(complex_numbers), PAIR, "does not fit into 32 bits"),
    "two shard_maps, one each": (
        lambda i, w: (sharded(gather)(i), sharded(gather)(w)), PAIR, "only one small all_gather"
    ),
}  # fmt: skip
