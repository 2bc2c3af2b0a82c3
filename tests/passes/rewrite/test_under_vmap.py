"""Collectives over two axes, as `vmap` has them, are those that devices run."""

import jax
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec

from jaxsplice.passes.ir import jaxprs
from jaxsplice.passes.rewrite.under_vmap import as_under_vmap

SIZES = {"x": 4, "y": 2}
X = np.random.default_rng(0).standard_normal((8, 16, 3)).astype(np.float32)
PROGRAMS = {
    "tiled gather": lambda x: lax.all_gather(x, ("x", "y"), axis=1, tiled=True),
    "gather": lambda x: lax.all_gather(x, ("x", "y"), axis=1),
    "the second axis slower": lambda x: lax.all_gather(x, ("y", "x"), axis=0),
    "scatter": lambda x: lax.psum_scatter(x, ("x", "y"), scatter_dimension=0, tiled=True),
    "one axis": lambda x: lax.all_gather(x, "y"),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_they_compute_what_devices_do(name):
    fn = PROGRAMS[name]
    mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    rows = PartitionSpec(("x", "y"))
    run = jax.shard_map(lambda x: fn(x[0])[None], mesh=mesh, in_specs=rows, out_specs=rows, check_vma=False)
    closed = jaxprs.trace_flat(lambda x: [fn(x)], [jax.typeof(X[0])], SIZES)
    respelled = as_under_vmap(closed, SIZES)
    assert (respelled is closed) == (name == "one axis")
    inner = jax.vmap(jaxprs.as_function(respelled), axis_name="y")
    (got,) = jax.vmap(inner, axis_name="x")(X.reshape(4, 2, 16, 3))
    np.testing.assert_allclose(np.asarray(got).reshape(8, *got.shape[2:]), run(X), rtol=1e-6, atol=1e-6)


def test_a_sum_that_knows_what_varies_becomes_a_plain_one():
    mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = PartitionSpec("x")
    run = jax.shard_map(lambda x: lax.psum(x, "x"), mesh=mesh, in_specs=spec, out_specs=PartitionSpec())
    (eqn,) = jaxprs.open_jaxpr(jax.make_jaxpr(run)(X)).eqns
    body = jaxprs.open_jaxpr(eqn.params["jaxpr"])
    assert [e.primitive.name for e in body.eqns] == ["psum_invariant"]
    closed = as_under_vmap(jaxprs.close(body, []), {"x": 8})
    assert [e.primitive.name for e in jaxprs.open_jaxpr(closed).eqns] == ["psum"]
