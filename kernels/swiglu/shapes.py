"""Real shapes at which a SwiGLU runs: name -> (arguments, static keywords)."""

import jax.numpy as jnp
from jax import ShapeDtypeStruct as Shape


def _mlp(batch: int, tokens: int, features: int, width: int, dtype=jnp.bfloat16):
    weight = Shape((features, width), dtype)
    return (Shape((batch, tokens, features), dtype), weight, weight), {}


SHAPES = {
    "tiny": _mlp(2, 5, 48, 80, jnp.float32),
    "qwen3.5-0.8b-prefill-1024": _mlp(1, 1024, 1024, 3584),
    "qwen3.5-0.8b-prefill-1024-float32": _mlp(1, 1024, 1024, 3584, jnp.float32),
    "qwen3.5-0.8b-decode-1": _mlp(1, 1, 1024, 3584),
    "qwen3.5-27b-prefill-1024": _mlp(1, 1024, 5120, 17408),
    "qwen3.5-397b-shared-prefill-1024": _mlp(1, 1024, 4096, 1024),
    "qwen3.5-397b-shared-decode-64": _mlp(64, 1, 4096, 1024),
}
