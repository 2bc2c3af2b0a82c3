"""An all-reduce of which every shard keeps its own block, as models spell it, and programs that only look like it.

Every program is a shard_map over virtual devices; name -> (function, arguments, hits per rule). Near misses must not
match at all: name -> (function, arguments, part of the reason).
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .pack_collectives import SHARDS, normal, over_two, sharded

f32, bf16 = jnp.float32, jnp.bfloat16
ONE, TWO = ({"reduce-scatter": n} for n in (1, 2))
ROWS, COLUMNS = 8, 12
X = normal(SHARDS * ROWS, COLUMNS)
DEEP = normal(SHARDS * ROWS, COLUMNS, 4)
WIDE = normal(8 * ROWS, COLUMNS)
W = normal(SHARDS * COLUMNS, 6)
ARGS = (X,)
OFFSETS = np.arange(SHARDS, dtype=np.int32) * (ROWS // SHARDS)
shard = lambda axis="x": lax.axis_index(axis)


def total(x):
    return lax.psum(x, "x")


def own(x, dim=0, index=None):
    """This shard's block of an array."""
    n = x.shape[dim] // SHARDS
    return lax.dynamic_slice_in_dim(x, shard() * n if index is None else index(n), n, dim)


def sliced_by(index, fn=total):
    """Sum, then cut at an index that a function of the block's size gives."""
    return sharded(lambda x: own(fn(x), index=index)), ARGS, ONE


# ---------------------------------------------------------------- how the cut is written
def indexed_blocks(x):
    return lax.dynamic_index_in_dim(total(x).reshape(SHARDS, -1, COLUMNS), shard(), 0, keepdims=False)


def indexed_by_array(x):
    return total(x).reshape(SHARDS, -1, COLUMNS)[shard()]


def taken_rows(x):
    n = x.shape[0] // SHARDS
    return jnp.take(total(x), shard() * n + jnp.arange(n), axis=0)


def plain_dynamic_slice(x):
    n = x.shape[0] // SHARDS
    return lax.dynamic_slice(total(x), (shard() * n, 0), (n, COLUMNS))


def middle_dimension(x):
    return own(total(x), 1)


def transposed_first(x):
    return own(total(x).T, 1)


def cast_between(x):
    return own(total(x.astype(f32)).astype(bf16))


def named_and_barred(x):
    return own(lax.optimization_barrier(total(x)))


def tree_of_two(x):
    return [own(s) for s in lax.psum([x, 2.0 * x], "x")]


def mean(x):
    return own(lax.pmean(x, "x"))


def table_in_closure(x):
    return own(total(x), index=lambda n: jnp.take(jnp.asarray(OFFSETS), shard()))


def table_by_where(x):
    at = jnp.int32(0)
    for i in range(SHARDS):
        at = jnp.where(shard() == i, i * (ROWS // SHARDS), at)
    return own(total(x), index=lambda n: at)


def over_y(x):
    n = x.shape[0] // 2
    return lax.dynamic_slice_in_dim(lax.psum(x, "y"), shard("y") * n, n)


def both_axes(x):
    n = x.shape[0] // 8
    at = shard("x") * 2 + shard("y")
    return lax.dynamic_slice_in_dim(lax.psum(x, ("x", "y")), at * n, n)


def both_axes_at_once(x):
    n = x.shape[0] // 8
    return lax.dynamic_slice_in_dim(lax.psum(x, ("x", "y")), shard(("x", "y")) * n, n)


def one_of_two_axes(x):
    return own(lax.psum(x, ("x", "y")))


# ---------------------------------------------------------------- where it stands
def behind_a_product(x, w):
    return own(total(jnp.tanh(x) @ w))


def in_layers(x):
    def layer(h, _):
        return lax.all_gather(own(total(jnp.sin(h))), "x", tiled=True), None

    return lax.scan(layer, x, None, length=2)[0]


def in_a_branch(x):
    return lax.cond(lax.axis_size("x") * x[0, 0] > 1e9, lambda x: own(total(x)), lambda x: own(x), x)


def in_jit_and_remat(x):
    return jax.jit(jax.checkpoint(lambda x: own(total(x))))(x)


def under_vmap(x):
    return jax.vmap(lambda column: own(total(column)), 1, 1)(x)


def twice(x):
    return own(total(jnp.sin(own(total(x), 1))), 0)


POSITIVES = {
    "index times size": (sharded(lambda x: own(total(x))), ARGS, ONE),
    "bf16": (sharded(lambda x: own(total(x))), (X.astype(bf16),), ONE),
    "checked for varying axes": (sharded(lambda x: own(total(x)), check_vma=True), ARGS, ONE),
    "size times index": sliced_by(lambda n: n * shard()),
    "remainder": sliced_by(lambda n: lax.rem(shard(), SHARDS) * n),
    "jnp remainder": sliced_by(lambda n: jnp.mod(shard(), SHARDS) * n),
    "clamped": sliced_by(lambda n: jnp.clip(shard() * n, 0, ROWS - n)),
    "minimum": sliced_by(lambda n: jnp.minimum(shard() * n, ROWS - n)),
    "shifted": sliced_by(lambda n: jnp.left_shift(shard(), 1)),
    "index as unsigned": sliced_by(lambda n: (shard().astype(jnp.uint32) * n).astype(jnp.int32)),
    "counted from the end": sliced_by(lambda n: (shard() - SHARDS) * n),
    "table in a closure": (sharded(table_in_closure), ARGS, ONE),
    "jnp.take of a table": sliced_by(lambda n: jnp.take(jnp.arange(SHARDS) * n, shard())),
    "table by where": (sharded(table_by_where), ARGS, ONE),
    "plain dynamic_slice": (sharded(plain_dynamic_slice), ARGS, ONE),
    "dynamic_index_in_dim of blocks": (sharded(indexed_blocks), ARGS, ONE),
    "blocks indexed": (sharded(indexed_by_array), ARGS, ONE),
    "rows taken": (sharded(taken_rows), ARGS, ONE),
    "another dimension": (sharded(middle_dimension), ARGS, ONE),
    "middle of three dimensions": (sharded(middle_dimension), (DEEP,), ONE),
    "transposed before the cut": (sharded(transposed_first), ARGS, ONE),
    "cast before the cut": (sharded(cast_between), ARGS, ONE),
    "barrier before the cut": (sharded(named_and_barred), ARGS, ONE),
    "two arrays": (sharded(tree_of_two), ARGS, TWO),
    "mean": (sharded(mean), ARGS, ONE),
    "the inner of two axes": (over_two(over_y), (WIDE,), ONE),
    "both of two axes": (over_two(both_axes), (WIDE,), ONE),
    "both of two axes, one index": (over_two(both_axes_at_once), (WIDE,), ONE),
    "one axis automatic": (over_two(lambda x: own(total(x)), rows=("x",), axis_names={"x"}), ARGS, ONE),
    "behind a product": (sharded(behind_a_product), (X, W), ONE),
    "in scan over layers": (sharded(in_layers), ARGS, ONE),
    "in a branch": (sharded(in_a_branch), ARGS, ONE),
    "in jit and remat": (sharded(in_jit_and_remat), ARGS, ONE),
    "under vmap": (sharded(under_vmap), ARGS, ONE),
    "twice": (sharded(twice), ARGS, TWO),
}


# ---------------------------------------------------------------- not its own block
def also_returned(x):
    s = total(x)
    return own(s), s


def also_used(x):
    s = total(x)
    return own(s) * s.max()


def index_given(x, i):
    return lax.dynamic_slice_in_dim(total(x), i[0], 2)


def overlapping(x):
    return lax.dynamic_slice_in_dim(total(x), shard(), ROWS // SHARDS)


def in_groups(x):
    halves = [[0, 1], [2, 3]]
    return own(lax.psum(x, "x", axis_index_groups=halves))


BLOCK = "own block of axis"
NEAR_MISSES = {
    "the next shard's block": (sharded(lambda x: own(total(x), index=lambda n: n * ((shard() + 1) % 4))), ARGS, BLOCK),
    "blocks in reverse": (sharded(lambda x: own(total(x), index=lambda n: (SHARDS - 1 - shard()) * n)), ARGS, BLOCK),
    "the same block everywhere": (sharded(lambda x: own(total(x), index=lambda n: 0 * shard() + n)), ARGS, BLOCK),
    "a fixed block": (sharded(lambda x: total(x)[:2]), ARGS, "is not what is sliced"),
    "blocks that overlap": (sharded(overlapping), ARGS, BLOCK),
    "half a block": (
        sharded(lambda x: lax.dynamic_slice_in_dim(total(x), shard() * 2, 1)), ARGS, BLOCK
    ),
    "index of another axis": (
        over_two(lambda x: lax.dynamic_slice_in_dim(lax.psum(x, "x"), shard("y") * 2, 2)), (WIDE,), BLOCK
    ),
    "summed over one axis, cut over both": (
        over_two(lambda x: lax.dynamic_slice_in_dim(lax.psum(x, "x"), shard(("x", "y")), 1)), (WIDE,), BLOCK
    ),
    "index from data": (
        sharded(lambda x: own(total(x), index=lambda n: jnp.int32(x[0, 0]) * n)), ARGS, BLOCK
    ),
    "index from an argument": (sharded(index_given), (X, jnp.arange(SHARDS) * 2), BLOCK),
    "clamped too low": (
        sharded(lambda x: own(total(x), index=lambda n: jnp.clip(shard() * n, 0, ROWS - 2 * n))), ARGS, BLOCK
    ),
    "sum also returned": (sharded(also_returned), ARGS, "also used elsewhere"),
    "sum also used": (sharded(also_used), ARGS, "also used elsewhere"),
    "nonlinear between": (sharded(lambda x: own(jax.nn.relu(total(x)))), ARGS, "is not what is sliced"),
    "maximum": (sharded(lambda x: own(lax.pmax(x, "x"))), ARGS, "nothing in this program resembles"),
    "groups of the axis": (sharded(in_groups), ARGS, "within groups of an axis"),
}  # fmt: skip
