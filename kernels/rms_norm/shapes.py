"""Real shapes at which an RMS norm runs: name -> (arguments, static keywords)."""

import jax.numpy as jnp
from jax import ShapeDtypeStruct as Shape

_ZERO_CENTRED = {"eps": 1e-6, "zero_centred": True}


def _norm(rows: tuple[int, ...], features: int, dtype=jnp.bfloat16):
    return (Shape((*rows, features), dtype), Shape((features,), dtype)), _ZERO_CENTRED


SHAPES = {
    "tiny": _norm((2, 5), 64, jnp.float32),
    "qwen3.5-0.8b-prefill-1024": _norm((1, 1024), 1024),
    "qwen3.5-0.8b-decode-1": _norm((1, 1), 1024),
    "qwen3.5-0.8b-query-heads-1024": _norm((1, 1024, 8), 256),
    "qwen3.5-397b-prefill-1024": _norm((1, 1024), 4096),
    "qwen3.5-397b-decode-64": _norm((64, 1), 4096),
    "qwen3.5-397b-query-heads-1024": _norm((1, 1024, 32), 256),
}
