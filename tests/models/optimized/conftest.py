"""Shared by the tests of the optimised model: the tiny models, and `forward` optimised once for the whole session."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsplice
from jaxsplice.models.qwen3_5 import forward

from ..qwen3_5.conftest import (  # noqa: F401  (fixtures)
    Tiny,
    assert_near,
    assert_states,
    dense_tiny,
    last_two_layers,
    load_tiny,
    mesh,
    model,
    moe_tiny,
    run,
    tiny,
)

QUICK = {"xla_backend_optimization_level": 0}  # compile time rules these tests


def sites(linear: int, full: int, experts: bool) -> dict[str, int]:
    """What the default pipeline finds in `forward` with so many layers of each kind, each place written once.

    Every layer has two norms, a full one two more (queries and keys), and the model one at its end. A mixture of
    experts has a shared expert, which is a plain SwiGLU.
    """
    layers = linear + full
    deltas = dict.fromkeys(["causal-conv1d", "gated-delta-rule", "conv1d-gdn", "gated-rms-norm"], linear)
    mixtures = dict.fromkeys(["grouped-swiglu", "router-top-k"], layers) if experts else {}
    return {name: n for name, n in (deltas | mixtures).items() if n} | {
        "rms-norm": 2 * layers + 2 * full + 1,
        "swiglu": layers,
    }


@pytest.fixture(scope="session")
def counts():
    """The exact `report.counts` of a model's `forward`, by its configuration."""

    def expected(config):
        full = config.layer_types.count("full_attention")
        return sites(len(config.layer_types) - full, full, bool(config.num_experts))

    return expected


@pytest.fixture(scope="session")
def fast():
    """`forward`, optimised."""
    return jaxsplice.optimize(forward, static_argnames=("logits", "taps"))


@pytest.fixture(scope="session")
def run_fast(fast):
    """`forward`, optimised, checked for an exact count of rewrites and run under `jax.jit`, with NumPy results."""
    compiled = jax.jit(fast, static_argnames=("logits", "taps"), compiler_options=QUICK)

    def call(expected, *args, **kwargs):
        assert fast.lower(*args, **kwargs).report.counts == expected
        return jax.device_get(compiled(*args, **kwargs))

    return call


@pytest.fixture(scope="session")
def two_blocks(last_two_layers):  # noqa: F811
    """Two different blocks of a linear layer and a full one."""

    def make(tiny: Tiny) -> Tiny:  # noqa: F811
        name, params, config = last_two_layers(tiny)
        other = jax.tree.map(lambda leaf: np.asarray(leaf)[..., ::-1], params.layers)
        params = jax.tree.map(jnp.asarray, dataclasses.replace(params, layers=(*params.layers, *other)))
        return Tiny(name, params, dataclasses.replace(config, num_hidden_layers=4, layer_types=()))

    return make
