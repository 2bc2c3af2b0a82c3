"""The optimised model under JAX's transformations, and transformations of it optimised: the same numbers, all fused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jaxsplice
from jaxsplice.models.qwen3_5 import forward, init_cache, stack_blocks, unstack_blocks

from .conftest import QUICK

IDS = np.random.default_rng(1).integers(0, 180, (8, 6), np.int32)
NEAR = 2e-5  # a few roundings of float32, of logits of size 2


@pytest.fixture(scope="module", params=["dense_tiny", pytest.param("moe_tiny", marks=pytest.mark.slow)])
def model(request, load_tiny, last_two_layers):
    """A linear layer and a full one."""
    return last_two_layers(load_tiny(request.param))


@pytest.fixture(scope="module")
def dense(dense_tiny, last_two_layers):
    return last_two_layers(dense_tiny)


@pytest.fixture(scope="module")
def moe(moe_tiny, last_two_layers):
    return last_two_layers(moe_tiny)


def quick(function, *args):
    return jax.device_get(jax.jit(function, compiler_options=QUICK)(*args))


def test_called_as_it_is_and_under_jit(model, counts, fast, run, assert_near):
    """Called with arrays it compiles itself; under `jax.jit` it is part of the program around it."""
    _, params, config = model
    want, want_cache = run(params, config, IDS)
    assert fast.lower(params, config, IDS).report.counts == counts(config)
    before = repr(fast)
    direct, cache = fast(params, config, IDS)
    within, _ = quick(lambda params, ids: fast(params, config, ids), params, IDS)
    assert repr(fast) == before, "arrays and tracers of one type are one signature"
    assert_near(direct, want, NEAR, "logits")
    assert_near(within, want, NEAR, "logits under jit")
    for a, b in zip(jax.tree.leaves(cache), jax.tree.leaves(want_cache), strict=True):
        assert_near(a, b, NEAR, "cache")


def test_vmap(dense, counts, fast, run, assert_near):
    """Rows mapped one by one, each rewritten."""
    _, params, config = dense
    rows = IDS[:, None]
    assert fast.lower(params, config, rows[0]).report.counts == counts(config)
    got, _ = quick(jax.vmap(lambda ids: fast(params, config, ids)), rows)
    assert_near(got[:, 0], run(params, config, IDS)[0], NEAR, "logits")


def test_optimised_map(dense, counts, run, assert_near):
    """The mapped program is rewritten as a whole: every value in it has one more axis."""
    _, params, config = dense
    fast_map = jaxsplice.optimize(jax.vmap(forward, in_axes=(None, None, 0)))
    got, _ = quick(lambda params, rows: fast_map(params, config, rows), params, IDS[:, None])
    assert_near(got[:, 0], run(params, config, IDS)[0], NEAR, "logits")
    assert fast_map.lower(params, config, IDS[:, None]).report.counts == counts(config)


@pytest.mark.slow
def test_vmap_over_models(moe, counts, fast, run, assert_near):
    """Two models of different weights at once, mixtures of experts and all."""
    _, params, config = moe
    other = jax.tree.map(lambda leaf: np.asarray(leaf)[..., ::-1], params)
    both = jax.tree.map(lambda a, b: jnp.stack([a, b]), params, other)
    assert fast.lower(params, config, IDS).report.counts == counts(config)
    got, _ = quick(jax.vmap(lambda params: fast(params, config, IDS)), both)
    for logits, one in zip(got, (params, other)):
        assert_near(logits, run(one, config, IDS)[0], NEAR)


@pytest.mark.parametrize("name", ["dense_tiny", pytest.param("moe_tiny", marks=pytest.mark.slow)])
def test_scan_over_layers(load_tiny, two_blocks, counts, fast, run, assert_near, name):
    """Two blocks in one loop: a place counts once and runs twice."""
    _, params, config = two_blocks(load_tiny(name))
    stacked, cache = jax.jit(stack_blocks)(params), init_cache(config, 8, 7)
    report = fast.lower(stacked, config, IDS, cache=stack_blocks(cache)).report
    whole = counts(config)
    # all but the last norm stand in the loop, whose body is half of the layers
    assert report.counts == {name: (n + 1) // 2 for name, n in whole.items()}
    assert report.trip_counts == whole
    want, want_cache = run(params, config, IDS, cache=cache)
    step = lambda params, ids, cache: fast(params, config, ids, cache=cache)
    got, got_cache = quick(step, stacked, IDS, stack_blocks(cache))
    assert_near(got, want, NEAR, "logits")
    for a, b in zip(jax.tree.leaves(unstack_blocks(got_cache)), jax.tree.leaves(want_cache), strict=True):
        assert_near(a, b, NEAR, "cache")


@pytest.mark.slow
def test_scan_over_steps(model, counts, fast, run, assert_near):
    """A loop over tokens around the optimised step, and the loop itself optimised."""
    _, params, config = model
    want, _ = run(params, config, IDS)

    def loop(step):
        def one(cache, token):
            logits, cache = step(params, config, token[:, None], cache=cache)
            return cache, logits[:, 0]

        return lambda ids: lax.scan(one, init_cache(config, 8, 6), ids.T)[1]

    assert fast.lower(params, config, IDS[:, :1], cache=init_cache(config, 8, 6)).report.counts == counts(config)
    assert_near(quick(loop(fast), IDS).swapaxes(0, 1), want, NEAR, "loop around the optimised step")
    whole = jaxsplice.optimize(loop(forward))
    assert whole.lower(IDS).report.counts == counts(config)
    assert whole.lower(IDS).report.trip_counts == {name: 6 * n for name, n in counts(config).items()}
    assert_near(quick(whole, IDS).swapaxes(0, 1), want, NEAR, "optimised loop")


def test_shard_map(model, counts, fast, run, assert_near):
    """Rows over eight devices: rewritten by each for its row, and the whole program rewritten around them."""
    _, params, config = model
    cache = init_cache(config, 8, 6)
    want, _ = run(params, config, IDS, cache=cache)
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))

    def spread(function):
        local = lambda params, ids, cache: function(params, config, ids, cache=cache)[0]
        return jax.shard_map(local, mesh=mesh, in_specs=(P(), P("x"), P("x")), out_specs=P("x"))

    assert fast.lower(params, config, IDS[:1], cache=init_cache(config, 1, 6)).report.counts == counts(config)
    assert_near(quick(spread(fast), params, IDS, cache), want, NEAR, "optimised inside")
    whole = jaxsplice.optimize(spread(forward))
    assert whole.lower(params, IDS, cache).report.counts == counts(config)
    assert_near(quick(whole, params, IDS, cache), want, NEAR, "optimised outside")


def test_export_round_trip(model, counts, fast, run, assert_near):
    """Serialised and read again; the file holds no node of ours, and serves hosts that have never heard of them."""
    _, params, config = model
    leaves, tree = jax.tree.flatten(params)
    program = jax.jit(lambda leaves, ids: fast(jax.tree.unflatten(tree, leaves), config, ids)[0])
    assert fast.lower(params, config, IDS).report.counts == counts(config)
    exported = jax.export.export(program)(leaves, IDS)
    again = jax.export.deserialize(exported.serialize())
    assert again.in_avals == exported.in_avals and again.out_avals == exported.out_avals
    assert "jaxsplice" not in {name.split(".")[0] for name in again.mlir_module().split()}
    np.testing.assert_array_equal(again.call(leaves, IDS), program(leaves, IDS))
    assert_near(again.call(leaves, IDS), run(params, config, IDS)[0], NEAR)
