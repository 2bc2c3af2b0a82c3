"""Derivatives of the optimised model: by finite differences, and against the original's."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsplice
from jaxsplice.models.qwen3_5 import forward

from .conftest import QUICK, Tiny

IDS = np.random.default_rng(5).integers(0, 180, (2, 9), np.int32)
POLICIES = {
    "nothing": jax.checkpoint_policies.nothing_saveable,
    "products": jax.checkpoint_policies.dots_saveable,
}


@pytest.fixture(scope="module", params=["block", pytest.param("two layers", marks=pytest.mark.slow)])
def model(request, moe_tiny, last_two_layers):
    """A linear layer with its mixture of experts; or that and a full one."""
    name, params, config = last_two_layers(moe_tiny)
    if request.param == "two layers":
        return Tiny(name, params, config)
    config = dataclasses.replace(config, num_hidden_layers=1, layer_types=("linear_attention",))
    return Tiny(name, dataclasses.replace(params, layers=params.layers[:1]), config)


def loss_of(function, config):
    """Mean cross entropy of the next token."""

    def loss(params):
        logits, _ = function(params, config, IDS)
        likely = jax.nn.log_softmax(logits[:, :-1])
        return -jnp.mean(jnp.take_along_axis(likely, IDS[:, 1:, None], axis=-1))

    return loss


def quick(function, *args):
    return jax.device_get(jax.jit(function, compiler_options=QUICK)(*args))


@pytest.fixture(scope="module")
def want(model):
    """The original's loss and gradient."""
    _, params, config = model
    return quick(jax.value_and_grad(loss_of(forward, config)), params)


@pytest.fixture(scope="module")
def assert_gradient(want, assert_near):
    """Asserts a gradient that is the original's, leaf by leaf, and nowhere zero."""

    def check(gradient):
        for (path, got), true in zip(
            jax.tree_util.tree_leaves_with_path(gradient), jax.tree.leaves(want[1]), strict=True
        ):
            name = jax.tree_util.keystr(path)
            assert np.any(true), name
            assert_near(got, true, 1e-4 * np.max(np.abs(true)), name)

    return check


def test_gradient_of_the_optimised(model, counts, fast, want, assert_gradient):
    _, params, config = model
    assert fast.lower(params, config, IDS).report.counts == counts(config)
    loss, gradient = quick(jax.value_and_grad(loss_of(fast, config)), params)
    np.testing.assert_allclose(loss, want[0], rtol=1e-5)
    assert_gradient(gradient)


def test_gradient_by_finite_differences(model, fast):
    """Along every parameter's own gradient, which is where the slope is largest: its length."""
    _, params, config = model
    leaves, tree = jax.tree.flatten(jax.tree.map(np.asarray, params))
    loss = jax.jit(loss_of(fast, config), compiler_options=QUICK)
    gradient = jax.tree.leaves(quick(jax.grad(loss_of(fast, config)), params))
    for i, (path, _) in enumerate(jax.tree_util.tree_leaves_with_path(params)):
        length = np.linalg.norm(gradient[i])
        step = gradient[i] / length * min(4e-3, 4e-3 / length)  # changes the loss by 4e-3 at most, far above rounding
        ends = [loss(jax.tree.unflatten(tree, [*leaves[:i], leaves[i] + s * step, *leaves[i + 1 :]])) for s in (1, -1)]
        slope = (float(ends[0]) - float(ends[1])) / (2 * np.linalg.norm(step))
        np.testing.assert_allclose(slope, length, rtol=0.02, atol=2e-5, err_msg=jax.tree_util.keystr(path))


@pytest.mark.slow
def test_optimised_loss(model, counts, assert_gradient):
    _, params, config = model
    loss = jaxsplice.optimize(loss_of(forward, config))
    assert loss.lower(params).report.counts == counts(config)
    assert_gradient(quick(jax.grad(loss), params))


def test_optimised_value_and_gradient(model, want, assert_gradient):
    """The whole derivative optimised: what the backward pass reads from inside a place keeps it as it is, and of the
    forward pass only the bare convolution has no such reader."""
    _, params, config = model
    both = jaxsplice.optimize(jax.value_and_grad(loss_of(forward, config)))
    assert both.lower(params).report.counts == {"causal-conv1d": 1}
    loss, gradient = quick(both, params)
    np.testing.assert_allclose(loss, want[0], rtol=1e-5)
    assert_gradient(gradient)


@pytest.mark.parametrize("policy", ["products", pytest.param("nothing", marks=pytest.mark.slow)])
def test_remat(model, counts, fast, assert_gradient, policy):
    _, params, config = model
    assert fast.lower(params, config, IDS).report.counts == counts(config)
    assert_gradient(quick(jax.grad(jax.checkpoint(loss_of(fast, config), policy=POLICIES[policy])), params))


def test_remat_policies_see_inside(model, fast):
    """A policy that keeps products finds them inside fused nodes: fewer are done again than if nothing is kept."""
    _, params, config = model

    def products(policy):
        step = jax.grad(jax.checkpoint(loss_of(fast, config), policy=POLICIES[policy]))
        return str(jax.make_jaxpr(step)(params)).count(" dot_general[")

    def as_written(policy):
        step = jax.grad(jax.checkpoint(loss_of(forward, config), policy=POLICIES[policy]))
        return str(jax.make_jaxpr(step)(params)).count(" dot_general[")

    assert products("products") < products("nothing")
    assert products("nothing") - products("products") == as_written("nothing") - as_written("products")


@pytest.mark.slow
def test_optimised_remat(model, counts, assert_gradient):
    """Remat around the model, optimised with it: rewritten inside, and still done again in the backward pass."""
    _, params, config = model
    loss = jaxsplice.optimize(jax.checkpoint(loss_of(forward, config), policy=POLICIES["products"]))
    assert loss.lower(params).report.counts == counts(config)
    assert_gradient(quick(jax.grad(loss), params))
