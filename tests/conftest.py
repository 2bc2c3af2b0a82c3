"""Shared by all tests: eight virtual CPU devices, and the numeric fixtures."""

import os
import sys

# JAX reads both when it is imported or first used, so they must be set before any test module is.
if "jax" in sys.modules:
    raise RuntimeError("something imported jax before tests/conftest.py could ask for 8 CPU devices; find the plugin")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["JAXSPLICE_CHECK"] = "1"  # whole graphs are verified after every pipeline
if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"

import pytest

from .oracle import Oracle


@pytest.fixture(scope="session")
def oracle() -> Oracle:
    """The numeric fixtures: `oracle("moe_tiny", "text")["logits"]`, `oracle.folder("moe_tiny")`."""
    return Oracle()
