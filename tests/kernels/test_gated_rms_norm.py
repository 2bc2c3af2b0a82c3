import jax.numpy as jnp
import numpy as np
import pytest

from jaxsplice.kernels.gated_rms_norm.reference import gated_rms_norm

from . import float64_truth


def test_equals_the_fixture(oracle):
    f = oracle("ops", "norms")
    out = gated_rms_norm(f["x"], f["gated_weight"], f["z"], eps=1e-6)
    np.testing.assert_allclose(out, f["gated_out"], rtol=0, atol=2e-6)


@pytest.mark.parametrize("shape", [(7,), (3, 1), (2, 3, 4, 32)])
@pytest.mark.parametrize(("dtype", "limit"), [(jnp.float32, 2e-6), (jnp.bfloat16, 3e-2)])
def test_equals_float64(shape, dtype, limit):
    rng = np.random.default_rng(0)
    x, gate = (jnp.asarray(rng.normal(size=shape) * 3, dtype) for _ in range(2))
    weight = jnp.asarray(rng.normal(size=shape[-1:]), jnp.float32)
    out = gated_rms_norm(x, weight, gate, eps=1e-6)
    assert (out.shape, out.dtype) == (shape, dtype)
    gate = np.asarray(gate, np.float64)
    truth = float64_truth.rms_norm(x, weight, 1e-6, False) * float64_truth.silu(gate)
    np.testing.assert_allclose(np.asarray(out, np.float64), truth, rtol=limit, atol=limit)


def test_casts_in_the_published_order():
    # float32 norm, cast, float32 weight, float32 gate, cast: the first cast is visible in bfloat16.
    rng = np.random.default_rng(1)
    x, gate = (jnp.asarray(rng.normal(size=(64, 128)), jnp.bfloat16) for _ in range(2))
    weight = jnp.asarray(rng.normal(size=128), jnp.float32)
    wide = np.asarray(x, np.float32)
    normed = wide / np.sqrt((wide * wide).mean(-1, keepdims=True) + np.float32(1e-6))
    wide_gate = np.asarray(gate, np.float32)
    gated = wide_gate / (1 + np.exp(-wide_gate))
    stepwise = np.asarray(jnp.asarray(normed, jnp.bfloat16), np.float32) * np.asarray(weight) * gated
    at_once = normed * np.asarray(weight) * gated
    out = gated_rms_norm(x, weight, gate, eps=1e-6)
    as_rounded = lambda y: np.asarray(jnp.asarray(y, jnp.bfloat16))
    assert (np.asarray(out) != as_rounded(stepwise)).mean() < 1e-3
    assert (np.asarray(out) != as_rounded(at_once)).mean() > 0.1
