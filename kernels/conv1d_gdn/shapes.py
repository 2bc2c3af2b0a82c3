"""Real shapes at which the fused block runs: name -> (arguments, static keywords)."""

import jax.numpy as jnp
from jax import ShapeDtypeStruct as Shape


def _block(batch, tokens, key_heads, value_heads, features=(128, 128), dtype=jnp.bfloat16, past=True):
    key_features, value_features = features
    channels = 2 * key_heads * key_features + value_heads * value_features
    gate = Shape((batch, tokens, value_heads), dtype)
    arguments = (
        Shape((batch, tokens, channels), dtype),
        Shape((4, channels), dtype),
        Shape((batch, 3, channels), dtype) if past else None,
        gate,
        gate,
        Shape((value_heads,), jnp.float32),
        Shape((value_heads,), dtype),
        Shape((batch, value_heads, key_features, value_features), jnp.float32),
    )
    return arguments, {}


SHAPES = {
    "tiny": _block(2, 130, 2, 8, (16, 16), jnp.float32),
    "tiny-from-zero": _block(2, 130, 2, 8, (16, 16), jnp.float32, past=False),
    "tiny-token": _block(2, 1, 2, 6, (16, 24), jnp.float32),
    "tiny-token-from-zero": _block(2, 1, 2, 6, (16, 24), jnp.float32, past=False),
    "qwen3.5-0.8b-prefill-1024": _block(1, 1024, 16, 16),
    "qwen3.5-0.8b-prefill-1024-float32": _block(1, 1024, 16, 16, dtype=jnp.float32),
    "qwen3.5-0.8b-prefill-1024-from-zero": _block(1, 1024, 16, 16, past=False),
    "qwen3.5-0.8b-decode-1": _block(1, 1, 16, 16),
    "qwen3.5-4b-prefill-1024": _block(1, 1024, 16, 32),
    "qwen3.5-397b-prefill-1024": _block(1, 1024, 16, 64, past=False),
    "qwen3.5-397b-decode-64": _block(64, 1, 16, 64),
}
