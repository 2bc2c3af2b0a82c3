"""Real shapes at which the convolution runs: name -> (arguments, static keywords).

Channels are 2 HK DK + HV DV of the model's linear attention.
"""

import jax.numpy as jnp
from jax import ShapeDtypeStruct as Shape


def _conv(batch: int, tokens: int, channels: int, past: bool, dtype=jnp.bfloat16):
    state = Shape((batch, 3, channels), dtype) if past else None
    return (Shape((batch, tokens, channels), dtype), Shape((4, channels), dtype), state), {"activation": "silu"}


SHAPES = {
    "tiny": _conv(2, 9, 40, True, jnp.float32),
    "tiny-from-zero": _conv(2, 9, 40, False, jnp.float32),
    "qwen3.5-0.8b-prefill-1024": _conv(1, 1024, 6144, False),
    "qwen3.5-0.8b-continue-1024": _conv(1, 1024, 6144, True),
    "qwen3.5-0.8b-decode-1": _conv(1, 1, 6144, True),
    "qwen3.5-397b-prefill-1024": _conv(1, 1024, 12288, False),
    "qwen3.5-397b-decode-64": _conv(64, 1, 12288, True),
}
