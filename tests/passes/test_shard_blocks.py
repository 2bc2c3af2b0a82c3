"""Which block each shard reads: the arithmetic says what running the read on every shard gives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from jaxsplice.passes.ir import jaxprs
from jaxsplice.passes.ir.region import Program
from jaxsplice.passes.shard_blocks import block_read

SIZES = {"x": 2, "y": 3}
ARRAY = np.arange(12 * 5, dtype=np.float32).reshape(12, 5)


def both():
    return lax.axis_index("x") * 3 + lax.axis_index("y")


READS = {
    "both axes": (lambda a: lax.dynamic_slice_in_dim(a, both() * 2, 2), ("x", "y")),
    "the second axis slower": (
        lambda a: lax.dynamic_slice_in_dim(a, (lax.axis_index("y") * 2 + lax.axis_index("x")) * 2, 2), ("y", "x")
    ),
    "one axis": (lambda a: lax.dynamic_slice_in_dim(a, lax.axis_index("y") * 4, 4), ("y",)),
    "indexed blocks": (lambda a: jnp.asarray(a).reshape(6, 2, 5)[both()], ("x", "y")),
    "rows taken": (lambda a: jnp.asarray(a)[both() * 2 + jnp.arange(2)], ("x", "y")),
    "transposed, halved": (lambda a: lax.dynamic_slice_in_dim(a.T * 0.5, both() * 2, 2, 1), ("x", "y")),
    "blocks that overlap": (lambda a: lax.dynamic_slice_in_dim(a, both(), 2), None),
    "some rows left out": (lambda a: lax.dynamic_slice_in_dim(a, both() * 2, 1), None),
    "every third row": (lambda a: jnp.asarray(a).reshape(2, 6, 5)[:, both()], None),
    "turned round": (lambda a: lax.dynamic_slice_in_dim(a, (5 - both()) * 2, 2), None),
    "rows turned round": (lambda a: jnp.asarray(a)[both() * 2 + 1 - jnp.arange(2)], None),
}  # fmt: skip


def read_of(fn):
    region = Program(jaxprs.trace_flat(lambda a: [fn(a)], [jax.typeof(ARRAY)], SIZES)).root
    return block_read(region.outputs[0], region.inputs[0], SIZES)


def on_shards(fn):
    return jax.vmap(jax.vmap(fn, (None, 0), axis_name="y", axis_size=3), (None, 0), axis_name="x", axis_size=2)


@pytest.mark.parametrize("name", READS)
def test_a_block_is_what_the_shards_read(name):
    fn, axes = READS[name]
    block = read_of(fn)
    if axes is None:
        assert block is None
        return
    assert block is not None and block.axes == axes
    marks = np.zeros((2, 3))
    read = np.asarray(on_shards(lambda a, _: fn(a))(ARRAY, marks)).reshape(2, 3, -1)
    number = dict(zip(("x", "y"), np.indices((2, 3))))
    place = number[axes[0]] if len(axes) == 1 else number[axes[0]] * SIZES[axes[1]] + number[axes[1]]
    blocks = np.split(ARRAY, SIZES[axes[0]] if len(axes) == 1 else 6, axis=block.dim)
    factor = 0.5 if "halved" in name else 1.0
    for at in np.ndindex(2, 3):
        np.testing.assert_array_equal(read[at], factor * blocks[place[at]].transpose(block.order).ravel())


@settings(deadline=None, max_examples=25, derandomize=True, database=None)
@given(st.integers(-2, 3), st.integers(-2, 3), st.integers(-3, 3), st.sampled_from([1, 2, 4, 6]))
def test_a_block_is_found_exactly_when_the_shards_divide_the_array(x_step, y_step, first, size):
    def fn(a):
        return lax.dynamic_slice_in_dim(a, x_step * lax.axis_index("x") + y_step * lax.axis_index("y") + first, size)

    block = read_of(fn)
    read = np.asarray(on_shards(lambda a, _: fn(a))(ARRAY, np.zeros((2, 3)))).reshape(6, size, 5)
    rows = np.unique(read[..., 0].reshape(6, -1), axis=0)
    divides = len(rows) > 1 and len(rows) * size == 12 and np.array_equal(rows.ravel(), ARRAY[:, 0])
    in_order = all(np.diff(read[:, 0, 0].reshape(2, 3), axis=i).min(initial=0) >= 0 for i in (0, 1))
    assert (block is not None) == bool(divides and in_order)
