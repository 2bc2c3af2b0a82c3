"""Experts and rows on eight devices, optimised: what one device gives, with fewer and cheaper collectives."""

import dataclasses
import re
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jaxsplice
from jaxsplice.models.qwen3_5 import expert_parallel, forward, init_cache, stack_blocks, unstack_blocks

from .conftest import QUICK

IDS = np.random.default_rng(0).integers(0, 180, (8, 5), np.int32)
MASK = np.where((np.arange(5) < 3) | (np.arange(8)[:, None] % 2 == 1), 1, 0)
PLACED = {"pack-collectives": 2, "reduce-scatter": 2}  # per mixture of experts, and there are two


@pytest.fixture(scope="module")
def one_expert(model):
    """One expert per token, whose products sum a single term: no result depends on an order of summation."""
    params, config = model

    def sparse(w):
        rows = np.arange(w.shape[-2])[:, None] == (7 * np.arange(w.shape[-1]) + 3) % w.shape[-2]
        return jnp.asarray(np.where(rows, w * np.float32(w.shape[-2] ** 0.5), np.float32(0)))

    def single_products(p):
        return dataclasses.replace(p, w_gate=sparse(p.w_gate), w_up=sparse(p.w_up), w_down=sparse(p.w_down))

    layers = tuple(dataclasses.replace(layer, mlp=single_products(layer.mlp)) for layer in params.layers)
    return dataclasses.replace(params, layers=layers), dataclasses.replace(config, num_experts_per_tok=1)


@pytest.fixture(scope="module")
def spread(mesh):
    """The expert-parallel form, as written."""
    return expert_parallel(mesh, "x")


@pytest.fixture(scope="module")
def fast_spread(spread):
    """The same, optimised."""
    return jaxsplice.optimize(spread, static_argnames=("logits", "taps"))


def by_rows(function, mesh):
    """Each row on a device of its own, as in the expert-parallel form, but with all experts and no collective there."""

    def run(params, config, ids, cache):
        local = lambda params, ids, cache: function(params, config, ids, cache=cache)
        specs = {"in_specs": (P(), P("x"), P("x")), "out_specs": P("x")}
        return jax.shard_map(local, mesh=mesh, **specs)(params, ids, cache)

    return run


def collectives(function, *args, **kwargs):
    """How often each collective occurs in the program that XLA has compiled."""
    text = jax.jit(function, compiler_options=QUICK).lower(*args, **kwargs).compile().as_text()
    names = "all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute"
    return dict(Counter(re.findall(rf" ({names})(?:-start)?\(", text)))


def assert_equal_trees(got, want):
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_array_equal(a, b)


def test_eight_devices_equal_one(model, counts, run, spread, fast_spread, assert_near):
    """The optimised form on eight devices, the plain one there, and the plain one on one device."""
    params, config = model
    args = {"mask": MASK, "cache": init_cache(config, 8, 7)}
    assert fast_spread.lower(params, config, IDS, **args).report.counts == counts(config) | PLACED
    want, want_cache = run(params, config, IDS, **args)
    for form in (spread, fast_spread):
        got, got_cache = jax.jit(form, compiler_options=QUICK)(params, config, IDS, **args)
        assert got.sharding.spec[0] == "x" and got_cache.layers[1].key.sharding.spec[0] == "x"
        assert_near(got, want, 3e-5, "logits")
        for a, b in zip(jax.tree.leaves(got_cache), jax.tree.leaves(want_cache), strict=True):
            assert_near(a, b, 3e-5, "cache")


@pytest.mark.slow
def test_a_step_after_the_prompt(model, counts, run, spread, fast_spread, assert_near):
    params, config = model
    _, cache = run(params, config, IDS, mask=MASK, cache=init_cache(config, 8, 7))
    assert fast_spread.lower(params, config, IDS[:, :1], cache=cache).report.counts == counts(config) | PLACED
    want, _ = run(params, config, IDS[:, :1], cache=cache)
    got, _ = jax.jit(fast_spread, compiler_options=QUICK)(params, config, IDS[:, :1], cache=cache)
    assert_near(got, want, 3e-5, "logits")


@pytest.mark.parametrize(
    "tokens, gathers",
    [pytest.param(5, 1, marks=pytest.mark.slow, id="all small"), pytest.param(4352, 2, id="large hidden states")],
)
def test_collectives_in_the_compiled_program(model, spread, fast_spread, tokens, gathers):
    """Per mixture of experts: three gathers become two (one, where hidden states are small as well), and a sum of
    which each device keeps its slice becomes a scattered sum. 4352 tokens of 64 floats are more than a mebibyte."""
    params, config = model
    args = (params, config, jax.ShapeDtypeStruct((8, tokens), jnp.int32))
    assert collectives(spread, *args) == {"all-gather": 2 * 3, "all-reduce": 2}
    assert fast_spread.lower(*args).report.counts.items() >= PLACED.items()
    assert collectives(fast_spread, *args) == {"all-gather": 2 * gathers, "reduce-scatter": 2}


def test_better_collectives_change_no_bit(one_expert, mesh, spread):
    """Placed collectives alone, against the program as written and against all experts on one device."""
    params, config = one_expert
    cache = init_cache(config, 8, 5)
    placed = jaxsplice.optimize(spread, passes="normalize,place,lower")
    assert placed.lower(params, config, IDS, cache=cache).report.counts == PLACED
    want = jax.jit(by_rows(forward, mesh), compiler_options=QUICK)(params, config, IDS, cache)
    assert_equal_trees(jax.jit(spread, compiler_options=QUICK)(params, config, IDS, cache=cache), want)
    assert_equal_trees(jax.jit(placed, compiler_options=QUICK)(params, config, IDS, cache=cache), want)


def test_whole_pipeline_differs_by_no_bit_from_one_device(one_expert, mesh, fast, fast_spread):
    """Everything fused in both: eight devices still give what one gives, to the bit."""
    params, config = one_expert
    cache = init_cache(config, 8, 5)
    alone = fast.lower(params, config, IDS[:1], cache=init_cache(config, 1, 5)).report.counts
    assert alone["conv1d-gdn"] == 1 and alone["grouped-swiglu"] == alone["swiglu"] == 2
    assert fast_spread.lower(params, config, IDS, cache=cache).report.counts == alone | PLACED
    want = jax.jit(by_rows(fast, mesh), compiler_options=QUICK)(params, config, IDS, cache)
    assert_equal_trees(jax.jit(fast_spread, compiler_options=QUICK)(params, config, IDS, cache=cache), want)


@pytest.mark.slow
def test_scanned_on_explicit_axes(model, counts, run, assert_near):
    """Stacked blocks (here one) and axes that are part of types: the same sites, in a loop."""
    params, config = model
    explicit = expert_parallel(jax.make_mesh((8,), ("x",), axis_types=(AxisType.Explicit,)), "x")
    fast_explicit = jaxsplice.optimize(explicit)
    stacked, cache = stack_blocks(params), init_cache(config, 8, 7)
    result = fast_explicit.lower(stacked, config, IDS, cache=stack_blocks(cache))
    assert result.report.counts == result.report.trip_counts == counts(config) | PLACED
    want, want_cache = run(params, config, IDS, cache=cache)
    got, got_cache = jax.jit(fast_explicit, compiler_options=QUICK)(stacked, config, IDS, cache=stack_blocks(cache))
    assert_near(got, want, 3e-5, "logits")
    for a, b in zip(jax.tree.leaves(unstack_blocks(jax.device_get(got_cache))), jax.tree.leaves(want_cache)):
        assert_near(a, b, 3e-5, "cache")


def test_gradients_of_eight_devices_equal_one(model, fast_spread, assert_near):
    params, config = model
    loss = lambda form: lambda params: jnp.sum(jnp.sin(form(params, config, IDS)[0])) / IDS.size
    want = jax.jit(jax.grad(loss(forward)), compiler_options=QUICK)(params)
    got = jax.jit(jax.grad(loss(fast_spread)), compiler_options=QUICK)(params)
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(got), jax.tree.leaves(want), strict=True):
        assert_near(a, b, 1e-4 * np.max(np.abs(b)) + 1e-5, jax.tree_util.keystr(path))
