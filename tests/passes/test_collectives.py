"""Reading collectives: which axes, who uses a value behind marks, and which shard an index picks, however written."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec

from jaxsplice.passes import collectives
from jaxsplice.passes.ir import jaxprs
from jaxsplice.passes.ir.jaxprs import Literal
from jaxsplice.passes.ir.region import OUTPUT, Program

SHARDS = 4
X = np.arange(32, dtype=np.float32).reshape(8, 4)


def inside(fn, *more, check_vma=False):
    """The region of a function of one shard of X, over an axis "d" of four and an axis "e" of two."""
    mesh = jax.make_mesh((SHARDS, 2), ("d", "e"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    rows = PartitionSpec("d")
    run = jax.shard_map(
        fn, mesh=mesh, in_specs=(rows, *[PartitionSpec()] * len(more)), out_specs=rows, check_vma=check_vma
    )
    program = Program(jax.make_jaxpr(run)(X, *more))
    (region,) = program.root.nodes[0].children()
    return region


def node_of(region, primitive: str):
    return [n for n in region.nodes if n.primitive == primitive][-1]


# ---------------------------------------------------------------- axes
@pytest.mark.parametrize(
    ("fn", "primitive", "names"),
    [
        (lambda x: lax.all_gather(x, "d"), "all_gather", ("d",)),
        (lambda x: lax.psum(x, ("d", "e")), "psum", ("d", "e")),
        (lambda x: lax.ppermute(x, "e", [(0, 1), (1, 0)]), "ppermute", ("e",)),
        (lambda x: lax.psum_scatter(x.T, "d"), "reduce_scatter", ("d",)),
        (lambda x: x + lax.axis_index("d"), "axis_index", ("d",)),
        (lambda x: lax.all_gather(x, "d", axis_index_groups=[[0, 1], [2, 3]]), "all_gather", None),
    ],
)
def test_axis_names(fn, primitive, names):
    assert collectives.axis_names(node_of(inside(fn), primitive)) == names


# ---------------------------------------------------------------- users
def test_users_are_seen_through_marks():
    def fn(x):
        y = lax.optimization_barrier(lax.all_gather(x, "d"))
        return jnp.sin(y[0]) + lax.optimization_barrier(y[1])

    region = inside(fn)
    gathered = node_of(region, "all_gather").outputs[0]
    assert {user.primitive for user, _ in collectives.users(gathered)} == {"slice"}


def test_users_end_at_the_results():
    region = inside(lambda x: lax.optimization_barrier(lax.psum(x, "d")))
    assert [user for user, _ in collectives.users(node_of(region, "psum").outputs[0])] == [OUTPUT]


# ---------------------------------------------------------------- indices
def numbers(atom, axis_sizes):
    """A scalar index on every shard, as plain numbers."""
    found = collectives.on_every_shard(atom, axis_sizes)
    return None if found is None else [int(v) for v in found]


def times_two(i):
    return 2 * i


def next_shard(i):
    return (i + 1) % SHARDS


def previous_shard(i):
    return jnp.where(i == 0, SHARDS - 1, i - 1)


def from_table(i):
    return jnp.array([3, 1, 2, 0])[i]


def clamped(i):
    return jnp.clip(i - 1, 0, 2)


def wrapped(i):
    return jnp.where(i - 2 < 0, i - 2 + SHARDS, i - 2)


INDICES = {
    "itself": (lambda i: i, [0, 1, 2, 3]),
    "times two": (times_two, [0, 2, 4, 6]),
    "next": (next_shard, [1, 2, 3, 0]),
    "previous": (previous_shard, [3, 0, 1, 2]),
    "clamped": (clamped, [0, 0, 1, 2]),
    "wrapped": (wrapped, [2, 3, 0, 1]),
    "rows": (lambda i: i * 2 + 1, [1, 3, 5, 7]),
}


def index_in(fn, *more):
    """The index with which a function of (shard, position, ...) reads a slice."""
    region = inside(lambda x, *rest: lax.dynamic_slice_in_dim(x, fn(lax.axis_index("d"), *rest), 1, 1), *more)
    return node_of(region, "dynamic_slice").inputs[2]


@pytest.mark.parametrize("name", INDICES)
def test_an_index_is_evaluated_on_every_shard(name):
    fn, expected = INDICES[name]
    assert numbers(index_in(fn), {"d": SHARDS}) == expected
    assert [int(fn(jnp.int32(i))) for i in range(SHARDS)] == expected


def reading_by_table(x):
    return lax.dynamic_slice_in_dim(x, from_table(lax.axis_index("d")), 1, 1)


def test_an_index_from_a_table():
    region = Program(jaxprs.trace_flat(lambda x: [reading_by_table(x)], [jax.typeof(X[:2])], {"d": SHARDS})).root
    index = node_of(region, "dynamic_slice").inputs[2]
    assert numbers(index, {"d": SHARDS}) == [3, 1, 2, 0]


def test_an_index_from_a_table_outside_of_the_shards():
    index = node_of(inside(reading_by_table), "dynamic_slice").inputs[2]
    assert numbers(index, {"d": SHARDS}) == [3, 1, 2, 0]


def test_a_literal_is_the_same_everywhere():
    region = inside(lambda x: lax.dynamic_slice_in_dim(x, 2, 1, 1))
    index = node_of(region, "dynamic_slice").inputs[2]
    assert type(index) is Literal
    assert numbers(index, {"d": SHARDS}) == [2] * SHARDS


def test_an_index_that_depends_on_data_or_another_axis_is_left_alone():
    assert numbers(index_in(lambda i, k: i + k, jnp.int32(1)), {"d": SHARDS}) is None
    other = index_in(lambda i: i + lax.axis_index("e"))
    assert numbers(other, {"d": SHARDS}) is None
    assert numbers(index_in(lambda i: i), {"e": 2}) is None


def test_an_index_of_very_many_equations_is_left_alone():
    def long(i):
        for _ in range(collectives.MAX_INDEX_NODES + 1):
            i = i + 1
        return i

    assert numbers(index_in(long), {"d": SHARDS}) is None


# ---------------------------------------------------------------- dependence
def test_depends_on():
    region = inside(lambda x: jnp.cos(jnp.sin(x)) + jnp.exp(x))
    sin, cos, exp = (node_of(region, p) for p in ("sin", "cos", "exp"))
    made = {id(sin.outputs[0])}
    assert collectives.depends_on(cos.outputs[0], made, 0)
    assert collectives.depends_on(sin.outputs[0], made, 0)
    assert not collectives.depends_on(exp.outputs[0], made, 0)
    assert not collectives.depends_on(cos.outputs[0], made, cos.position + 1)  # what is made earlier cannot
