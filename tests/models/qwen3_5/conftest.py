"""Shared by the tests of the model: the tiny models, and one compiled `forward` per shape for the whole session."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

from jaxsplice.models.qwen3_5 import Config, Params, forward, load


class Tiny(NamedTuple):
    """A tiny model of the fixtures."""

    name: str
    params: Params
    config: Config


@pytest.fixture(scope="session")
def run():
    """`forward`, jitted, with NumPy results.

    Compile time rules these tests: XLA is asked for its quickest compilation, and NumPy slices results without any.
    """
    compiled = jax.jit(
        forward,
        static_argnames=("logits", "taps", "expert_axis"),
        compiler_options={"xla_backend_optimization_level": 0},
    )
    return lambda *args, **kwargs: jax.device_get(compiled(*args, **kwargs))


@pytest.fixture(scope="session")
def load_tiny(oracle):
    """Loads a tiny model by name."""
    return lambda name: Tiny(name, *load(oracle.folder(name)))


@pytest.fixture(scope="session", params=["dense_tiny", "moe_tiny"])
def tiny(request, load_tiny) -> Tiny:
    return load_tiny(request.param)


@pytest.fixture(scope="session")
def moe_tiny(load_tiny) -> Tiny:
    return load_tiny("moe_tiny")


@pytest.fixture(scope="session")
def dense_tiny(load_tiny) -> Tiny:
    return load_tiny("dense_tiny")


@pytest.fixture(scope="session")
def last_two_layers():
    """A tiny model's last linear layer and its full one: all that a transformation meets, at half the compile time."""

    def cut(tiny: Tiny) -> Tiny:
        params = dataclasses.replace(tiny.params, layers=tiny.params.layers[2:])
        sizes = {"num_hidden_layers": 2, "layer_types": (), "full_attention_interval": 2}
        return Tiny(tiny.name, params, dataclasses.replace(tiny.config, **sizes))

    return cut


@pytest.fixture(scope="session")
def assert_near():
    """Asserts equal shapes and a largest absolute difference under a limit."""

    def check(got, want, limit, what=""):
        got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
        assert got.shape == want.shape, f"{what}: shape {got.shape}, should be {want.shape}"
        worst = np.max(np.abs(got - want))
        assert worst <= limit, f"{what}: differs by {worst:.2e}, limit {limit:.0e}"

    return check


@pytest.fixture(scope="session")
def assert_states(assert_near):
    """Asserts the states of the linear layers, at `prefix` + "layer{i}.conv_state" and ".recurrent_state"."""

    def check(cache, want, prefix, row=None):
        for i, layer in enumerate(cache.layers[:3]):
            for name in ("conv_state", "recurrent_state"):
                got = getattr(layer, name)
                key = f"{prefix}layer{i}.{name}"
                assert_near(got if row is None else got[row], want[key], 1e-4, key)

    return check


@pytest.fixture(scope="session")
def mesh():
    """Eight devices along x."""
    assert jax.device_count() >= 8, "tests/conftest.py asks for 8 devices"
    return jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))


@pytest.fixture(scope="session")
def model(moe_tiny, last_two_layers):
    """A linear layer and a full one, with 16 experts, which eight devices can share."""
    _, params, config = last_two_layers(moe_tiny)

    def first_sixteen(mlp):
        w_gate, w_up, w_down = (np.asarray(w)[:16] for w in (mlp.w_gate, mlp.w_up, mlp.w_down))
        return dataclasses.replace(mlp, router=np.asarray(mlp.router)[:, :16], w_gate=w_gate, w_up=w_up, w_down=w_down)

    layers = tuple(dataclasses.replace(layer, mlp=first_sixteen(layer.mlp)) for layer in params.layers)
    params = jax.tree.map(jnp.asarray, dataclasses.replace(params, layers=layers))
    return params, dataclasses.replace(config, num_experts=16)
