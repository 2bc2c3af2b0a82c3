"""The model's own functions, optimised, against float64 results of single operators."""

import jax.numpy as jnp
import numpy as np
import pytest

import jaxsplice
from jaxsplice.models.qwen3_5.gdn import causal_conv, gated_delta_rule
from jaxsplice.models.qwen3_5.moe import route
from jaxsplice.models.qwen3_5.norms import gated_rms_norm, rms_norm

OPERATORS = 2e-6


def optimised(fn, counts, *args, **options):
    """Runs a function optimised, after asserting what was rewritten in it."""
    fast = jaxsplice.optimize(fn, **options)
    assert fast.lower(*args).report.counts == counts
    return fast(*args)


def test_norms(oracle, assert_near):
    want = oracle("ops", "norms")
    got = optimised(rms_norm, {"rms-norm": 1}, want["x"], want["rms_weight"], 1e-6, static_argnums=2)
    assert_near(got, want["rms_out"], OPERATORS, "rms")
    args = (want["x"], want["gated_weight"], want["z"], 1e-6)
    assert_near(optimised(gated_rms_norm, {"gated-rms-norm": 1}, *args, static_argnums=3), want["gated_out"], OPERATORS)


def test_routing(oracle, assert_near):
    want = oracle("ops", "routing")
    ids, weights = optimised(route, {"router-top-k": 1}, want["logits"], 10, static_argnums=1)
    np.testing.assert_array_equal(ids, want["indices"])
    assert_near(weights, want["weights"], OPERATORS, "weights")


def test_routing_to_one_expert(oracle):
    logits = oracle("ops", "routing")["logits"]
    ids, weights = optimised(route, {"router-top-k": 1}, logits, 1, static_argnums=1)
    np.testing.assert_array_equal(ids[:, 0], np.argmax(logits, axis=-1))
    np.testing.assert_array_equal(weights, 1)


def test_causal_convolution(oracle, assert_near):
    want = oracle("ops", "conv")  # channels before time
    weight, state = jnp.asarray(want["weight"]).T, jnp.zeros((2, 40, 4))
    y, state = optimised(causal_conv, {"causal-conv1d": 1}, want["x"].swapaxes(1, 2), weight, state)
    assert_near(y.swapaxes(1, 2), want["y"], OPERATORS, "prefill")
    assert_near(state, want["state_after_prefill"], 0, "state")
    for step in range(3):
        column = want["next_x"][:, :, step : step + 1].swapaxes(1, 2)
        y, state = optimised(causal_conv, {"causal-conv1d": 1}, column, weight, state)
        assert_near(y.swapaxes(1, 2), want["next_y"][:, :, step : step + 1], OPERATORS, f"step {step}")
        assert_near(state, want["next_states"][step], 0, f"state after step {step}")


@pytest.mark.parametrize(
    "name, limit",
    [("small", OPERATORS), pytest.param("real_heads", OPERATORS, marks=pytest.mark.slow), ("stress", 2e-3)],
)
def test_delta_rule(oracle, assert_near, name, limit):
    """Chunked where the original goes token by token; "stress" has decays, keys and sizes that chunks bear worst."""
    want = oracle("ops", f"delta_rule_{name}")
    inputs, rule = [want[key] for key in ("query", "key", "value", "g", "beta")], jaxsplice.optimize(gated_delta_rule)
    for start, state in (("zero", np.zeros_like(want["initial_state"])), ("given", want["initial_state"])):
        assert rule.lower(*inputs, state).report.counts == {"gated-delta-rule": 1}
        out, last = rule(*inputs, state)
        assert_near(out, want[f"{start}.out"], limit, f"{start}: out")
        assert_near(last, want[f"{start}.T130.state"], limit, f"{start}: state")
        first_half = [x[:, :65] for x in inputs]
        assert rule.lower(*first_half, state).report.counts == {"gated-delta-rule": 1}
        assert_near(rule(*first_half, state)[1], want[f"{start}.T65.state"], limit, f"{start}: state after 65")


def test_delta_rule_one_token(oracle, assert_near):
    """Single steps to the same states, at the limit of a loop over tokens even in "stress"."""
    want = oracle("ops", "delta_rule_stress")
    fast, state = jaxsplice.optimize(gated_delta_rule), want["initial_state"]
    for t in range(130):
        inputs = [want[key][:, t : t + 1] for key in ("query", "key", "value", "g", "beta")]
        assert fast.lower(*inputs, state).report.counts == {"gated-delta-rule": 1}
        out, state = fast(*inputs, state)
        assert_near(out, want["given.out"][:, t : t + 1], 5e-5, f"token {t}")
    assert_near(state, want["given.T130.state"], 5e-5, "state")
