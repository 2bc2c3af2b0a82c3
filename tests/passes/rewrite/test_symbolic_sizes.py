"""Symbolic sizes: rewritten where they can be compared, left alone with a reason where they cannot; never an error."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

import jaxsplice
from jaxsplice.models import qwen3_5


def swiglu(x, gate, up):
    return jax.nn.silu(x @ gate) * (x @ up)


@pytest.fixture
def batch():
    return export.symbolic_shape("b")[0]


def test_swiglu_over_a_symbolic_batch_is_rewritten_and_exports(batch):
    x, w = jax.ShapeDtypeStruct((batch, 8), jnp.float32), jax.ShapeDtypeStruct((8, 16), jnp.float32)
    fast = jaxsplice.optimize(swiglu)
    assert fast.lower(x, w, w).report.counts == {"swiglu": 1}
    exported = export.deserialize(export.export(jax.jit(fast))(x, w, w).serialize())
    rng = np.random.default_rng(0)
    args = [rng.standard_normal(s).astype(np.float32) for s in ((3, 8), (8, 16), (8, 16))]
    np.testing.assert_allclose(exported.call(*args), swiglu(*args), atol=1e-5)


def test_model_over_a_symbolic_batch_keeps_what_it_cannot_compare(batch, oracle):
    config = qwen3_5.Config.from_json(oracle.folder("moe_tiny") / "config.json")
    params = qwen3_5.abstract_params(config)
    result = jaxsplice.optimize(qwen3_5.forward).lower(params, config, jax.ShapeDtypeStruct((batch, 16), jnp.int32))
    assert result.report.counts["rms-norm"] > 0
    assert "symbolic sizes cannot be compared" in str(result.report).replace("\n  ", " ")
