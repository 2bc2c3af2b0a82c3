"""Experts and rows spread over eight devices give what one device gives."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxsplice.models.qwen3_5 import (
    cache_specs,
    expert_parallel,
    forward,
    init_cache,
    param_specs,
    stack_blocks,
    unstack_blocks,
)
from jaxsplice.models.qwen3_5.moe import combine, experts, moe, route, spread_experts

QUICK = {"xla_backend_optimization_level": 0}
IDS = np.random.default_rng(0).integers(0, 180, (8, 5), np.int32)
MASK = np.where((np.arange(5) < 3) | (np.arange(8)[:, None] % 2 == 1), 1, 0)


@pytest.fixture(scope="module")
def run_parallel(mesh):
    return jax.jit(expert_parallel(mesh, "x"), static_argnames=("logits", "taps"), compiler_options=QUICK)


def hidden_states(*shape):
    return np.random.default_rng(2).normal(size=shape).astype(np.float32)


def single_products(p):
    """A mixture of experts whose products sum a single term: their result cannot depend on the order of summation."""

    def sparse(w):
        rows = np.arange(w.shape[-2])[:, None] == (7 * np.arange(w.shape[-1]) + 3) % w.shape[-2]
        return jnp.asarray(np.where(rows, w * np.float32(w.shape[-2] ** 0.5), np.float32(0)))

    return dataclasses.replace(p, w_gate=sparse(p.w_gate), w_up=sparse(p.w_up), w_down=sparse(p.w_down))


@pytest.fixture(scope="module")
def on_one_device(model, run):
    """Logits, cache and taps of `run` on a single device."""
    params, config = model
    return run(params, config, IDS, mask=MASK, cache=init_cache(config, 8, 7), taps=True)


def test_eight_devices_equal_one(model, on_one_device, run_parallel, assert_near):
    params, config = model
    want, want_cache, want_taps = on_one_device
    got, got_cache, got_taps = run_parallel(params, config, IDS, mask=MASK, cache=init_cache(config, 8, 7), taps=True)
    assert got.sharding.spec[0] == "x" and got_cache.layers[1].key.sharding.spec[0] == "x"
    assert_near(got, want, 2e-5, "logits")
    for a, b in zip(jax.tree.leaves(got_cache), jax.tree.leaves(want_cache), strict=True):
        assert_near(a, b, 2e-5, "cache")
    assert got_taps.keys() == want_taps.keys()
    real = MASK.reshape(-1) == 1
    for name in ("layer0.mlp.topk_indices", "layer1.mlp.topk_indices"):
        np.testing.assert_array_equal(np.asarray(got_taps[name])[real], want_taps[name][real])


def test_stacked_and_placed_on_explicit_axes(model, on_one_device, assert_near):
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Explicit,))
    params, config = model
    want, want_cache, _ = on_one_device
    stacked, cache = stack_blocks(params), stack_blocks(init_cache(config, 8, 7))
    placed = jax.tree.map(
        lambda leaf, spec: jax.device_put(leaf, NamedSharding(mesh, spec)),
        (stacked, cache),
        (param_specs(stacked, "x"), cache_specs(cache, "x")),
    )
    assert placed[0].blocks[0].mlp.w_up.addressable_shards[0].data.shape == (1, 2, 64, 16)
    quick = jax.jit(expert_parallel(mesh, "x"), static_argnames=("logits",), compiler_options=QUICK)
    positions = np.broadcast_to(np.arange(5, dtype=np.int32), (3, 8, 5))
    got, got_cache = quick(placed[0], config, IDS, positions, MASK, placed[1], logits="last")
    assert_near(got, want[np.arange(8), MASK.sum(axis=1) - 1], 2e-5, "logits")
    got_cache = unstack_blocks(jax.device_get(got_cache))
    for a, b in zip(jax.tree.leaves(got_cache), jax.tree.leaves(want_cache), strict=True):
        assert_near(a, b, 2e-5, "cache")


def test_one_expert_per_token_is_bit_for_bit(model, mesh, run_parallel):
    # Attention and shared experts run on one row per device in both, and with one expert per token nothing but zeros is
    # added to its output, so that any difference would be a mistake in routing, sorting or slicing.
    params, config = model
    config = dataclasses.replace(config, num_experts_per_tok=1)
    params = dataclasses.replace(
        params, layers=tuple(dataclasses.replace(layer, mlp=single_products(layer.mlp)) for layer in params.layers)
    )
    cache = init_cache(config, 8, 5)
    by_rows = jax.shard_map(
        lambda params, ids, cache: forward(params, config, ids, cache=cache),
        mesh=mesh,
        in_specs=(P(), P("x"), P("x")),
        out_specs=P("x"),
    )
    want = jax.jit(by_rows, compiler_options=QUICK)(params, IDS, cache)
    got = run_parallel(params, config, IDS, cache=cache)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_array_equal(a, b)


def test_routed_experts_bit_for_bit(model, mesh):
    p, x, weights = single_products(model[0].layers[0].mlp), hidden_states(40, 64), np.ones((40, 1), np.float32)
    one = jax.jit(lambda *args: combine(experts(*args), weights))
    spread = jax.shard_map(
        lambda p, x, ids, weights: spread_experts(p, x, ids, weights, "x"),
        mesh=mesh,
        in_specs=(param_specs(model[0], "x").layers[0].mlp, P("x"), P("x"), P("x")),
        out_specs=P("x"),
    )
    spread = jax.jit(spread)
    for case, ids in {
        "random": np.random.default_rng(3).integers(0, 16, (40, 1), np.int32),
        "all to one device": np.full((40, 1), 15, np.int32),
        "each to its own": np.arange(40, dtype=np.int32)[:, None] // 5 * 2,
    }.items():
        np.testing.assert_array_equal(spread(p, x, ids, weights), one(p, x, ids), err_msg=case)


def test_experts_are_a_dense_sum(model, assert_near):
    """The sorted form against the definition: every expert on every token, weighted."""
    p, x = model[0].layers[0].mlp, hidden_states(12, 64)
    ids, weights = route(x @ p.router, 5)
    full = np.zeros((12, 16))
    np.put_along_axis(full, np.asarray(ids), np.asarray(weights), axis=1)
    gate, up = (np.einsum("mh,ehi->mei", x, w) for w in (p.w_gate, p.w_up))
    want = np.einsum("mei,eih,me->mh", gate / (1 + np.exp(-gate)) * up, p.w_down, full)
    assert_near(jax.jit(lambda *args: combine(experts(*args), weights))(p, x, ids), want, 1e-5)


def test_gradients_of_eight_devices_equal_one(model, mesh, assert_near):
    params, config = model
    p, x = params.layers[0].mlp, hidden_states(8, 2, 64)
    spread = jax.shard_map(
        lambda p, x: moe(p, config, x, "x")[0],
        mesh=mesh,
        in_specs=(param_specs(params, "x").layers[0].mlp, P("x")),
        out_specs=P("x"),
    )
    loss = lambda apply: jax.jit(jax.grad(lambda p, x: jnp.sum(jnp.sin(apply(p, x))), (0, 1)), compiler_options=QUICK)
    want = loss(lambda p, x: moe(p, config, x)[0])(p, x)
    got = loss(spread)(p, x)
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(got), jax.tree.leaves(want), strict=True):
        assert_near(a, b, 2e-5, jax.tree_util.keystr(path))


def test_same_form_under_vmap(model, assert_near):
    """The collectives mean the same under a mapped axis of `jax.vmap`, on a single device."""
    params, config = model
    p, x = params.layers[0].mlp, hidden_states(8, 1, 2, 64)
    axes = jax.tree.map(lambda spec: 0 if spec else None, param_specs(params, "x").layers[0].mlp)
    split = jax.tree.map(lambda leaf, axis: leaf if axis is None else leaf.reshape(8, 2, *leaf.shape[1:]), p, axes)
    mapped = jax.vmap(lambda p, x: moe(p, config, x, "x")[0], in_axes=(axes, 0), axis_name="x")
    want = jax.jit(lambda p, x: moe(p, config, x)[0])(p, x[:, 0])
    assert_near(jax.jit(mapped)(split, x)[:, 0], want, 1e-5)


def test_plain_collectives(model, mesh):
    """Three gathers and one sum per mixture of experts, spelled as people write them."""
    params, config = model
    text = str(jax.make_jaxpr(expert_parallel(mesh, "x"))(params, config, IDS))
    assert text.count(" all_gather[") == 3 * 2
    assert text.count(" psum") == 2


def test_refusals(model, mesh):
    params, config = model
    with pytest.raises(ValueError, match=r"the mesh has axes \('x',\), not 'y'"):
        expert_parallel(mesh, "y")
    with pytest.raises(ValueError, match="6 rows of ids do not divide over 8 devices"):
        expert_parallel(mesh, "x")(params, config, IDS[:6])
    with pytest.raises(ValueError, match="20 experts do not divide over the 8 devices"):
        expert_parallel(mesh, "x")(params, dataclasses.replace(config, num_experts=20), IDS)
