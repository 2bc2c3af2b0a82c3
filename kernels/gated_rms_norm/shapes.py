"""Real shapes at which a gated RMS norm runs: name -> (arguments, static keywords)."""

import jax.numpy as jnp
from jax import ShapeDtypeStruct as Shape


def _norm(batch: int, tokens: int, heads: int, features: int, dtype=jnp.bfloat16):
    x = Shape((batch, tokens, heads, features), dtype)
    return (x, Shape((features,), jnp.float32), x), {"eps": 1e-6}


SHAPES = {
    "tiny": _norm(2, 5, 3, 16, jnp.float32),
    "qwen3.5-0.8b-prefill-1024": _norm(1, 1024, 16, 128),
    "qwen3.5-0.8b-decode-1": _norm(1, 1, 16, 128),
    "qwen3.5-397b-prefill-1024": _norm(1, 1024, 64, 128),
    "qwen3.5-397b-decode-64": _norm(64, 1, 64, 128),
}
