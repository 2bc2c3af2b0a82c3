import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsplice.kernels.router_top_k import reference, xla

BOTH = pytest.mark.parametrize("router_top_k", [reference.router_top_k, xla.router_top_k], ids=["reference", "xla"])


@BOTH
def test_equals_the_fixture(router_top_k, oracle):
    f = oracle("ops", "routing")
    weights, ids = router_top_k(f["logits"], k=10)
    np.testing.assert_array_equal(ids, f["indices"])
    np.testing.assert_allclose(weights, f["weights"], rtol=0, atol=2e-6)
    assert (weights.dtype, ids.dtype) == (jnp.float32, jnp.int32)


@BOTH
def test_equals_float64(router_top_k):
    logits = np.random.default_rng(0).normal(size=(3, 4, 50)).astype(np.float32) * 3
    weights, ids = router_top_k(jnp.asarray(logits), k=7)
    order = np.argsort(-logits.astype(np.float64), axis=-1)[..., :7]
    exp = np.exp(np.take_along_axis(logits.astype(np.float64), order, -1))
    np.testing.assert_array_equal(ids, order)
    np.testing.assert_allclose(weights, exp / exp.sum(-1, keepdims=True), rtol=2e-6)


def edge_cases():
    rng = np.random.default_rng(0)
    random = rng.normal(size=(8, 20)).astype(np.float32)
    masked = random.copy()
    masked[:, ::3] = -np.inf
    almost_all_masked = np.full((2, 20), -np.inf, np.float32)
    almost_all_masked[:, [4, 9]] = 1.0, 2.0
    return {
        "ties, also of 0 and -0": (np.round(random), 5),
        "all equal": (np.full((2, 20), 0.3, np.float32), 5),
        "-inf": (masked, 5),
        "fewer finite than k": (almost_all_masked, 5),
        "k = E": (random, 20),
        "k = E with ties": (np.round(random), 20),
        "k = 1": (random, 1),
        "large": (random * 50 + 1e4, 5),
        "one row": (random[0], 3),
    }


@pytest.mark.parametrize("name", edge_cases())
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_xla_chooses_as_the_reference(name, dtype):
    logits, k = edge_cases()[name]
    logits = jnp.asarray(logits, dtype)
    weights, ids = xla.router_top_k(logits, k=k)
    expected_weights, expected_ids = reference.router_top_k(logits, k=k)
    np.testing.assert_array_equal(ids, expected_ids)
    np.testing.assert_allclose(weights, expected_weights, rtol=0, atol=2e-6)


def test_gradient_equals_the_references():
    logits = jnp.asarray(np.random.default_rng(2).normal(size=(4, 12)), jnp.float32)
    direction = jnp.asarray(np.random.default_rng(3).normal(size=(4, 5)), jnp.float32)
    gradients = [
        jax.grad(lambda x, f=f: jnp.sum(f(x, k=5)[0] * direction))(logits)
        for f in (reference.router_top_k, xla.router_top_k)
    ]
    np.testing.assert_allclose(*gradients, rtol=0, atol=1e-6)


def test_vmap():
    logits = jnp.asarray(np.random.default_rng(4).normal(size=(3, 4, 12)), jnp.float32)
    mapped = jax.vmap(lambda x: xla.router_top_k(x, k=3), in_axes=1, out_axes=1)(logits)
    for got, expected in zip(mapped, xla.router_top_k(logits, k=3)):
        np.testing.assert_array_equal(got, expected)
