"""Compiles the SwiGLU kernel for TPU7x without a TPU."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

SHAPES = {
    "square-1024": (1024, 4096, 1024),
    "397b-shared-decode-64": (64, 4096, 1024),
    "0.8b-prefill-1024": (1024, 1024, 3584),
    "features-not-a-multiple": (300, 3000, 1000),
}

COMPILE = """
import json, sys
import jax, jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding
from jaxsplice.kernels.swiglu.tpu import swiglu

topology = topologies.get_topology_desc(platform="tpu", topology_name="tpu7x:2x2x1")
core = SingleDeviceSharding(topology.devices[0])
found = {}
for name, (rows, features, width) in json.loads(sys.argv[1]).items():
    shapes = ((1, rows, features), (features, width), (features, width))
    args = [jax.ShapeDtypeStruct(s, jnp.bfloat16, sharding=core) for s in shapes]
    compiled = jax.jit(swiglu).lower(*args).compile()
    text = compiled.as_text()
    found[name] = {
        "kernels": text.count('custom_call_target="tpu_custom_call"'),
        "other_products": text.count(" convolution(") + text.count(" dot("),
        "temporary_bytes": compiled.memory_analysis().temp_size_in_bytes,
        "output_bytes": compiled.memory_analysis().output_size_in_bytes,
    }
print(json.dumps(found))
"""


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs libtpu, from jax[tpu]")
def test_compiles_for_tpu7x_to_one_kernel_without_intermediates():
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "TPU_SKIP_MDS_QUERY": "1",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
    }
    run = subprocess.run(
        [sys.executable, "-c", COMPILE, json.dumps(SHAPES)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    found = json.loads(run.stdout.splitlines()[-1])
    assert set(found) == set(SHAPES)
    for name, (rows, _, width) in SHAPES.items():
        one_intermediate = 2 * rows * width
        assert found[name]["kernels"] == 1, name
        assert found[name]["other_products"] == 0, name
        assert found[name]["temporary_bytes"] < one_intermediate, name
        assert one_intermediate <= found[name]["output_bytes"] < 2 * one_intermediate, name
