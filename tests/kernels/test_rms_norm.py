import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsplice.kernels.rms_norm.reference import rms_norm

from . import float64_truth


def test_equals_the_fixture(oracle):
    f = oracle("ops", "norms")
    out = rms_norm(f["x"], f["rms_weight"], eps=1e-6, zero_centred=True)
    np.testing.assert_allclose(out, f["rms_out"], rtol=0, atol=2e-6)


@pytest.mark.parametrize("zero_centred", [False, True])
@pytest.mark.parametrize("shape", [(7,), (3, 1), (2, 3, 64), (2, 0, 5)])
@pytest.mark.parametrize(("dtype", "limit"), [(jnp.float32, 2e-6), (jnp.bfloat16, 2e-2)])
def test_equals_float64(shape, dtype, limit, zero_centred):
    rng = np.random.default_rng(0)
    x, weight = jnp.asarray(rng.normal(size=shape) * 3, dtype), jnp.asarray(rng.normal(size=shape[-1:]), dtype)
    out = rms_norm(x, weight, eps=1e-3, zero_centred=zero_centred)
    assert (out.shape, out.dtype) == (shape, dtype)
    truth = float64_truth.rms_norm(x, weight, 1e-3, zero_centred)
    np.testing.assert_allclose(np.asarray(out, np.float64), truth, rtol=limit, atol=limit)


def test_bfloat16_is_rounded_once():
    rng = np.random.default_rng(1)
    x = jnp.asarray(rng.normal(size=(64, 128)), jnp.bfloat16)
    weight = jnp.asarray(rng.normal(size=128) / 10, jnp.bfloat16)
    wide = np.asarray(x, np.float32)
    normed = wide / np.sqrt((wide * wide).mean(-1, keepdims=True) + np.float32(1e-6))
    as_rounded = lambda y: np.asarray(jnp.asarray(y, jnp.bfloat16), np.float32)
    out = np.asarray(rms_norm(x, weight, eps=1e-6, zero_centred=True), np.float32)
    assert (out != as_rounded(normed * (1 + np.asarray(weight, np.float32)))).mean() < 1e-3
    assert (out != as_rounded(normed * np.asarray(1 + weight, np.float32))).mean() > 0.1
    assert (out != as_rounded(as_rounded(normed) * (1 + np.asarray(weight, np.float32)))).mean() > 0.1


def test_zero_rows_stay_zero_and_have_finite_gradients():
    x, weight = jnp.zeros((2, 8)), jnp.ones(8)
    loss = lambda x, w: jnp.sum(rms_norm(x, w, eps=1e-6, zero_centred=False))
    assert float(loss(x, weight)) == 0
    for gradient in jax.grad(loss, (0, 1))(x, weight):
        assert np.isfinite(gradient).all()
