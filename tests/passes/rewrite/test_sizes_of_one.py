"""Batches of one, single tokens, fewer tokens than taps: axes of size one say nothing, and every rule still fires."""

import jax
import jax.numpy as jnp
import pytest

import jaxsplice
from jaxsplice.models import qwen3_5

EXPECTED = {
    "causal-conv1d": 3, "conv1d-gdn": 3, "gated-delta-rule": 3, "gated-rms-norm": 3,
    "grouped-swiglu": 4, "swiglu": 4, "router-top-k": 4, "rms-norm": 11,
}  # fmt: skip


@pytest.mark.parametrize("cached", [False, True], ids=["no cache", "cache"])
@pytest.mark.parametrize(("batch", "tokens"), [(1, 1), (1, 2), (1, 3), (1, 4), (1, 5), (2, 1), (2, 3), (3, 1)])
def test_every_rule_fires(oracle, batch, tokens, cached):
    config = qwen3_5.Config.from_json(oracle.folder("moe_tiny") / "config.json")
    params, ids = qwen3_5.abstract_params(config), jax.ShapeDtypeStruct((batch, tokens), jnp.int32)
    cache = qwen3_5.init_cache(config, batch, 16) if cached else None
    graph = jaxsplice.trace(qwen3_5.forward, params, config, ids, cache=cache)
    assert jaxsplice.rewrite(graph, "normalize,raise,fuse").report.counts == EXPECTED
