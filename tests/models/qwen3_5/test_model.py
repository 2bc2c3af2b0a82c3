"""`forward` itself: types, abstract traces, gradients under padding, options and refusals."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsplice.models.qwen3_5 import Config, abstract_params, forward, init_cache, load, random_params, stack_blocks

QUICK = {"xla_backend_optimization_level": 0}
IDS = jnp.array([[3, 1, 4, 1, 5, 9], [2, 7, 1, 8, 2, 8]])


def test_397b_traces_abstractly():
    config = Config.named("qwen3.5-397b-a17b")
    ids = jax.ShapeDtypeStruct((2, 5), jnp.int32)
    logits, cache = jax.eval_shape(forward, abstract_params(config), config, ids)
    assert logits.shape == (2, 5, 248320) and logits.dtype == jnp.bfloat16
    assert len(cache.layers) == 60
    assert cache.layers[0].conv_state.shape == (2, 12288, 4) and cache.layers[0].conv_state.dtype == jnp.bfloat16
    assert cache.layers[0].recurrent_state.shape == (2, 64, 128, 128)
    assert cache.layers[0].recurrent_state.dtype == jnp.float32
    assert cache.layers[3].key.shape == cache.layers[59].value.shape == (2, 2, 5, 256)
    assert cache.layers[3].length.shape == (2,) and cache.layers[3].length.dtype == jnp.int32


def test_397b_stacked_is_one_scan_over_blocks():
    config = Config.named("qwen3.5-397b-a17b")
    jaxpr = jax.make_jaxpr(forward)(stack_blocks(abstract_params(config)), config, jnp.zeros((2, 1), jnp.int32))
    assert [eqn.params["length"] for eqn in jaxpr.eqns if eqn.primitive.name == "scan"] == [15]


def test_types_of_the_bfloat16_model():
    config = dataclasses.replace(Config.named("35b-a3b"), num_hidden_layers=4, layer_types=())
    ids = jax.ShapeDtypeStruct((1, 3), jnp.int32)
    trace = lambda params, ids: forward(params, config, ids, taps=True)
    logits, cache, taps = jax.eval_shape(trace, abstract_params(config), ids)
    wide = {name.split(".", 1)[1] for name, value in taps.items() if value.dtype == jnp.float32}
    assert wide == {"gdn.g"}
    assert taps["layer0.mlp.topk_indices"].dtype == jnp.int32
    assert {leaf.dtype.name for leaf in jax.tree.leaves((logits, cache))} == {"bfloat16", "float32", "int32"}
    assert logits.dtype == cache.layers[3].key.dtype == jnp.bfloat16


def test_bfloat16_stays_near_float32(oracle, run):
    params, config = load(oracle.folder("moe_tiny"), dtype=jnp.bfloat16)
    want = oracle("moe_tiny", "text")
    logits, _ = run(params, config, want["input_ids"])
    assert np.mean(np.abs(logits.astype(np.float32) - want["logits"])) < 0.12  # 0.059 in the public implementation
    assert np.mean(np.argmax(logits, -1) == np.argmax(want["logits"], -1)) > 0.88  # 0.942 there


def test_gradients_under_padding(dense_tiny, last_two_layers, assert_near):
    _, params, config = last_two_layers(dense_tiny)
    tokens = IDS.at[0, 3:].set(198)

    def loss(params, ids, mask):
        logits, _ = forward(params, config, ids, mask=mask)
        return jnp.sum(jnp.where(mask[..., None], jax.nn.log_softmax(logits), 0)[..., 7])

    gradient = jax.jit(jax.grad(loss), compiler_options=QUICK)
    right = gradient(params, tokens, jnp.array([[1, 1, 1, 0, 0, 0], [1] * 6], bool))
    tokens = tokens.at[0].set(jnp.roll(tokens[0], 3))
    left = gradient(params, tokens, jnp.array([[0, 0, 0, 1, 1, 1], [1] * 6], bool))
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(right), jax.tree.leaves(left)):
        name = jax.tree_util.keystr(path)
        a, b = np.asarray(a), np.asarray(b)
        assert np.all(np.isfinite(a)) and np.any(a), name
        assert_near(a, b, 1e-4 * np.max(np.abs(b)) + 1e-5, name)


def test_padding_may_hold_anything(dense_tiny, oracle, run):
    want = oracle("dense_tiny", "ragged")
    ids, mask = want["right.input_ids"], want["right.attention_mask"]
    cache = init_cache(dense_tiny.config, 3, 69)  # as in the tests of ragged batches, whose compiled function this uses
    call = lambda ids: run(dense_tiny.params, dense_tiny.config, ids, mask=mask, cache=cache)[1]
    for got, same in zip(jax.tree.leaves(call(ids)), jax.tree.leaves(call(np.where(mask, ids, 5)))):
        np.testing.assert_array_equal(got, same)


def test_vmap_over_rows(dense_tiny, last_two_layers, run, assert_near):
    _, params, config = last_two_layers(dense_tiny)
    want, _ = run(params, config, IDS)
    got, _ = jax.jit(jax.vmap(lambda ids: forward(params, config, ids)), compiler_options=QUICK)(IDS[:, None])
    assert_near(np.asarray(got)[:, 0], want, 1e-5)


def test_random_parameters_have_sensible_scale(moe_tiny, last_two_layers, run):
    # many equal sizes, because each shape of random numbers is compiled
    sizes = dict.fromkeys(("vocab_size", "hidden_size", "head_dim", "num_experts", "moe_intermediate_size"), 64)
    sizes |= dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), 32)
    sizes |= dict.fromkeys(("num_attention_heads", "num_key_value_heads", "linear_num_key_heads"), 1)
    config = dataclasses.replace(
        last_two_layers(moe_tiny).config, **sizes, linear_num_value_heads=2, shared_expert_intermediate_size=64
    )
    params = random_params(config, jax.random.key(0, impl="unsafe_rbg"))
    assert jax.tree.map(lambda x: (x.shape, x.dtype), params) == jax.tree.map(
        lambda x: (x.shape, x.dtype), abstract_params(config, jnp.float32)
    )
    logits, _, taps = run(params, config, IDS, taps=True)
    assert 0.7 < np.std(logits) < 1.4
    assert all(0.5 < np.std(taps[f"hidden.layer{i}"]) < 5 for i in range(2))
    half = jax.eval_shape(lambda key: random_params(config, key, jnp.bfloat16), jax.random.key(0))
    assert half == abstract_params(config)


def test_a_model_of_linear_layers_only(dense_tiny, run, assert_near):
    config = dataclasses.replace(dense_tiny.config, num_hidden_layers=1, layer_types=())
    params = dataclasses.replace(dense_tiny.params, layers=dense_tiny.params.layers[:1])
    whole, _ = run(params, config, IDS)
    first, cache = run(params, config, IDS[:, :2])
    second, _ = run(params, config, IDS[:, 2:], cache=cache)
    assert_near(np.concatenate([first, second], axis=1), whole, 1e-4)


@pytest.mark.parametrize(
    "change, error, message",
    [
        ({"ids": IDS[0]}, ValueError, r"ids is int32\[6\]; give integers \[B, T\]"),
        ({"ids": IDS[:, :0]}, ValueError, r"T >= 1"),
        ({"ids": IDS * 1.0}, ValueError, r"ids is float32"),
        ({"ids": [[1, 2]]}, TypeError, r"ids is a list"),
        ({"logits": "first"}, ValueError, r"logits is 'first'; give 'all'"),
        ({"positions": IDS[:, :3]}, ValueError, r"positions is \[2, 3\]; give \[B, T\] = \[2, 6\] or \[3, 2, 6\]"),
        ({"mask": IDS[0]}, ValueError, r"mask is \[6\]; give \[B, T\] = \[2, 6\]"),
        ({"params": {}}, TypeError, r"params is a dict; give what load or random_params returns"),
        ({"config": "0.8b"}, TypeError, r"config is a str; give what load or Config.named returns"),
        ({"config": Config.named("0.8b")}, ValueError, r"params.embed is \[199, 48\].*\[248320, 1024\]"),
        ({"rows": 3, "room": 9}, ValueError, r"ids has 2 rows and cache 3; use init_cache\(config, 2, max_length\)"),
        ({"rows": 2, "room": 5}, ValueError, r"6 tokens do not fit in a cache of 5"),
        ({"rows": 2, "room": 9, "stacked": True}, ValueError, r"both must be stacked or neither"),
    ],
)
def test_refusals(dense_tiny, change, error, message):
    arguments = {"params": dense_tiny.params, "config": dense_tiny.config, "ids": IDS, **change}
    if "rows" in arguments:
        cache = init_cache(dense_tiny.config, arguments.pop("rows"), arguments.pop("room"))
        arguments["cache"] = stack_blocks(cache) if arguments.pop("stacked", False) else cache
    with pytest.raises(error, match=message):
        forward(**arguments)


def test_config_of_another_depth_is_refused(dense_tiny):
    deeper = dataclasses.replace(dense_tiny.config, num_hidden_layers=8, layer_types=())
    for params in (dense_tiny.params, stack_blocks(dense_tiny.params)):
        with pytest.raises(ValueError, match="params has 4 layers, but config says 8"):
            forward(params, deeper, IDS)


def test_cache_of_another_pattern_is_refused(dense_tiny):
    other = dataclasses.replace(dense_tiny.config, layer_types=("full_attention",) * 4)
    with pytest.raises(ValueError, match="a GatedDeltaNet layer met a AttentionCache; make the cache with init_cache"):
        forward(dense_tiny.params, dense_tiny.config, IDS, cache=init_cache(other, 2, 8))
