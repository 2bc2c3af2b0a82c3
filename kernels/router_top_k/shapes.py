"""Real shapes at which experts are chosen: name -> (arguments, static keywords)."""

import jax.numpy as jnp
from jax import ShapeDtypeStruct as Shape


def _router(tokens: int, experts: int, k: int, dtype=jnp.bfloat16):
    return (Shape((tokens, experts), dtype),), {"k": k}


SHAPES = {
    "tiny": _router(16, 20, 5, jnp.float32),
    "qwen3.5-35b-prefill-1024": _router(1024, 256, 8),
    "qwen3.5-397b-prefill-1024": _router(1024, 512, 10),
    "qwen3.5-397b-decode-64": _router(64, 512, 10),
    "qwen3.5-397b-decode-1": _router(1, 512, 10),
}
