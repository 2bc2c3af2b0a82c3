"""The model's own functions against float64 results of single operators."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsplice.models.qwen3_5 import Config
from jaxsplice.models.qwen3_5.gdn import causal_conv, gated_delta_rule
from jaxsplice.models.qwen3_5.moe import route
from jaxsplice.models.qwen3_5.norms import gated_rms_norm, l2_norm, rms_norm
from jaxsplice.models.qwen3_5.rope import rope_frequencies, rope_tables

OPERATORS = 2e-6


def test_norms(oracle, assert_near):
    want = oracle("ops", "norms")
    assert_near(rms_norm(want["x"], want["rms_weight"], 1e-6), want["rms_out"], OPERATORS, "rms")
    assert_near(gated_rms_norm(want["x"], want["gated_weight"], want["z"], 1e-6), want["gated_out"], OPERATORS, "gated")
    assert_near(l2_norm(want["l2_x"]), want["l2_out"], OPERATORS, "l2")


def test_routing(oracle, assert_near):
    want = oracle("ops", "routing")
    ids, weights = route(jnp.asarray(want["logits"]), 10)
    np.testing.assert_array_equal(ids, want["indices"])
    assert_near(weights, want["weights"], OPERATORS, "weights")


@pytest.mark.parametrize("kind", ["default", "yarn4"])
def test_rotary_tables_of_the_real_model(oracle, assert_near, kind):
    want = oracle("ops", "rope_real")
    config = Config.named("397b-a17b")
    if kind == "yarn4":
        yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 262144}
        config = dataclasses.replace(config, rope_parameters=dataclasses.replace(config.rope_parameters, **yarn))
    frequencies, factor = rope_frequencies(config.rope_parameters, config.rotary_dim)
    assert_near(frequencies, want[f"{kind}.inv_freq"], 1e-6, "frequencies")
    assert factor == pytest.approx({"default": 1.0, "yarn4": 1.138629436111989}[kind])
    cos, sin = rope_tables(config, jnp.asarray(want["position_ids"])[:, None], jnp.float32)
    # float32 angles at the last position, 262143, are off by about 0.03 whoever computes them
    assert_near(cos[0, :5], want[f"{kind}.cos"][:5], 1e-3, "cos")
    assert_near(sin[0, :5], want[f"{kind}.sin"][:5], 1e-3, "sin")


def test_causal_convolution(oracle, assert_near):
    want = oracle("ops", "conv")  # channels before time
    weight, state = jnp.asarray(want["weight"]).T, jnp.zeros((2, 40, 4))
    y, state = causal_conv(jnp.asarray(want["x"]).swapaxes(1, 2), weight, state)
    assert_near(y.swapaxes(1, 2), want["y"], OPERATORS, "prefill")
    assert_near(state, want["state_after_prefill"], 0, "state")
    for step in range(3):
        column = jnp.asarray(want["next_x"])[:, :, step : step + 1].swapaxes(1, 2)
        y, state = causal_conv(column, weight, state)
        assert_near(y.swapaxes(1, 2), want["next_y"][:, :, step : step + 1], OPERATORS, f"step {step}")
        assert_near(state, want["next_states"][step], 0, f"state after step {step}")


def test_convolution_window_ends_at_the_last_real_token():
    u = jnp.arange(1.0, 7.0).reshape(1, 6, 1).repeat(4, axis=0)
    mask = jnp.array([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0], [1, 1, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0]], bool)
    before = jnp.full((4, 1, 4), -1.0)
    _, window = causal_conv(u, jnp.ones((4, 1)), before, mask)
    np.testing.assert_array_equal(window[:, 0], [[3, 4, 5, 6], [2, 3, 4, 5], [-1, -1, 1, 2], [-1, -1, -1, -1]])


@pytest.mark.parametrize("name, limit", [("small", OPERATORS), ("real_heads", OPERATORS), ("stress", 5e-5)])
def test_delta_rule(oracle, assert_near, name, limit):
    want = oracle("ops", f"delta_rule_{name}")
    inputs = [want[key] for key in ("query", "key", "value", "g", "beta")]
    rule = jax.jit(gated_delta_rule, compiler_options={"xla_backend_optimization_level": 0})
    for start, state in (("zero", np.zeros_like(want["initial_state"])), ("given", want["initial_state"])):
        out, last = rule(*inputs, state)
        assert_near(out, want[f"{start}.out"], limit, f"{start}: out")
        assert_near(last, want[f"{start}.T130.state"], limit, f"{start}: state")
        _, first = rule(*(x[:, :65] for x in inputs), state)
        assert_near(first, want[f"{start}.T65.state"], limit, f"{start}: state after 65")
        _, again = rule(*(x[:, 65:] for x in inputs), first)
        assert_near(again, want[f"{start}.T130.state"], limit, f"{start}: state after 65 and 65")
