"""The stacked form: one scan over blocks gives what the loop over layers gives."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsplice.models.qwen3_5 import (
    Cache,
    Config,
    StackedCache,
    abstract_params,
    forward,
    init_cache,
    stack_blocks,
    unstack_blocks,
)

IDS = jnp.array([[3, 1, 4, 1, 5, 9], [2, 7, 1, 8, 2, 8]])


@pytest.fixture(scope="module")
def two_blocks(dense_tiny, last_two_layers):
    """Two different blocks of a linear layer and a full one."""
    _, params, config = last_two_layers(dense_tiny)
    other = jax.tree.map(lambda leaf: np.asarray(leaf)[..., ::-1], params.layers)
    params = dataclasses.replace(params, layers=(*params.layers, *other))
    return params, dataclasses.replace(config, num_hidden_layers=4, layer_types=())


def test_scanned_equals_unrolled(two_blocks, run, assert_near):
    params, config = two_blocks
    mask = jnp.array([[1, 1, 1, 1, 0, 0], [1] * 6])
    cache = init_cache(config, 2, 8)
    want, want_cache, want_taps = run(params, config, IDS, mask=mask, cache=cache, taps=True)
    got, got_cache, got_taps = run(stack_blocks(params), config, IDS, mask=mask, cache=stack_blocks(cache), taps=True)
    assert isinstance(want_cache, Cache) and isinstance(got_cache, StackedCache)
    assert_near(got, want, 1e-5, "logits")
    for a, b in zip(jax.tree.leaves(unstack_blocks(got_cache)), jax.tree.leaves(want_cache), strict=True):
        assert_near(a, b, 1e-5, "cache")
    assert got_taps.keys() == want_taps.keys()
    for name, value in want_taps.items():
        np.testing.assert_allclose(got_taps[name], value, atol=2e-5, err_msg=name)
    np.testing.assert_array_equal(got_cache.length, [4, 6])


def test_scanned_makes_its_own_cache(two_blocks):
    params, config = two_blocks
    logits, cache = jax.eval_shape(forward, stack_blocks(params), config, IDS)
    assert logits.shape == (2, 6, 199)
    assert cache.blocks[1].key.shape == (2, 2, 2, 6, 32)  # blocks first, then rows


def test_round_trip(two_blocks):
    params, config = two_blocks
    for tree in (params, init_cache(config, 2, 8)):
        again = unstack_blocks(stack_blocks(tree))
        assert jax.tree.structure(again) == jax.tree.structure(tree)
        assert all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(again), jax.tree.leaves(tree)))


def test_abstract_parameters_stack():
    params = abstract_params(Config.named("397b-a17b"))
    stacked = stack_blocks(params)
    assert len(stacked.blocks) == 4
    assert stacked.blocks[3].mlp.w_down == jax.ShapeDtypeStruct((15, 512, 1024, 4096), jnp.bfloat16)
    assert unstack_blocks(stacked) == params


def test_refusals(two_blocks):
    params, _ = two_blocks
    with pytest.raises(TypeError, match="takes Params or Cache, not StackedParams"):
        stack_blocks(stack_blocks(params))
    with pytest.raises(TypeError, match="takes StackedParams or StackedCache, not Params"):
        unstack_blocks(params)
