"""The real 397B-A17B, abstractly: how much of it is recognised, in a prompt of 1024 tokens and in one decode step.

The scanned form is one loop of 15 blocks of four layers, so a place counts once and runs 15 times; unrolled, every
place counts. With experts spread over eight devices, collectives are there as well.
"""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType

import jaxsplice
from jaxsplice.models.qwen3_5 import Config, abstract_params, expert_parallel, forward, init_cache, stack_blocks

DELTAS, MIXTURES = ("causal-conv1d", "gated-delta-rule", "conv1d-gdn"), ("grouped-swiglu", "router-top-k", "swiglu")
COLLECTIVES = ("pack-collectives", "reduce-scatter")
NORMS = {
    "rms-norm": 151,
    "gated-rms-norm": 45,
}  # of a hundred and fifty-one, 120 are of layers, 30 of heads, one is last
RUNS = NORMS | dict.fromkeys(DELTAS, 45) | dict.fromkeys(MIXTURES, 60)
SITES = {"rms-norm": 11, "gated-rms-norm": 3} | dict.fromkeys(DELTAS, 3) | dict.fromkeys(MIXTURES, 4)

# (rows, tokens): one prompt per device, and a batch of decode steps
PREFILL, STEP = (1, 1024), (64, 1)
SPREAD_PREFILL, SPREAD_STEP = (8, 1024), (8, 1)


@pytest.fixture(scope="module")
def on_one_device():
    return forward


@pytest.fixture(scope="module")
def on_eight_devices():
    return expert_parallel(jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,)), "x")


def rewritten(function, shape, form):
    """The Result for abstract parameters and a cache of 2048 slots; nothing is executed."""
    config = Config.named("qwen3.5-397b-a17b")
    params, cache = abstract_params(config), jax.eval_shape(lambda: init_cache(config, shape[0], 2048, jnp.bfloat16))
    ids = jax.ShapeDtypeStruct(shape, jnp.int32)
    fast = jaxsplice.optimize(function, static_argnames=("logits", "taps"))
    return fast.lower(form(params), config, ids, cache=form(cache), logits="last")


def unrolled(tree):
    return tree


def zero_centred(result) -> list[bool]:
    """Of each norm in the rewritten program, whether its weight is one more than what is stored."""
    return [
        dict(node.params["op"].static)["zero_centred"] for node in result.after.nodes if node.primitive == "rms-norm"
    ]


@pytest.mark.parametrize("shape", [PREFILL, STEP], ids=["prefill", "step"])
def test_scanned(on_one_device, shape):
    result = rewritten(on_one_device, shape, stack_blocks)
    assert result.report.counts == SITES
    assert result.report.trip_counts == RUNS
    assert zero_centred(result) == [True] * 11


@pytest.mark.parametrize(
    "shape", [SPREAD_PREFILL, pytest.param(SPREAD_STEP, marks=pytest.mark.slow)], ids=["prefill", "step"]
)
def test_scanned_on_eight_devices(on_eight_devices, shape):
    result = rewritten(on_eight_devices, shape, stack_blocks)
    assert result.report.counts == SITES | dict.fromkeys(COLLECTIVES, 4)
    assert result.report.trip_counts == RUNS | dict.fromkeys(COLLECTIVES, 60)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [PREFILL, STEP], ids=["prefill", "step"])
def test_unrolled(on_one_device, shape):
    result = rewritten(on_one_device, shape, unrolled)
    assert result.report.counts == result.report.trip_counts == RUNS
    assert zero_centred(result) == [True] * 151
    assert result.after.primitives()["gated-rms-norm"] == 45


@pytest.mark.slow
@pytest.mark.parametrize("shape", [SPREAD_PREFILL, SPREAD_STEP], ids=["prefill", "step"])
def test_unrolled_on_eight_devices(on_eight_devices, shape):
    result = rewritten(on_eight_devices, shape, unrolled)
    assert result.report.counts == result.report.trip_counts == RUNS | dict.fromkeys(COLLECTIVES, 60)
