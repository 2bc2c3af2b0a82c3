"""Real shapes at which a grouped SwiGLU runs: name -> (arguments, static keywords).

Rows are tokens times chosen experts. "shard" is one of 8 devices that share the experts.
"""

import jax.numpy as jnp
import numpy as np
from jax import ShapeDtypeStruct as Shape


def _experts(rows: int, experts: int, features: int, width: int, dtype=jnp.bfloat16):
    weight = Shape((experts, features, width), dtype)
    return (Shape((rows, features), dtype), weight, weight, Shape((experts,), jnp.int32)), {}


def _batched(experts: int, rows: int, features: int, width: int, dtype=jnp.bfloat16):
    weight = Shape((experts, features, width), dtype)
    return (Shape((experts, rows, features), dtype), weight, weight), {}


SHAPES = {
    "tiny": _experts(50, 20, 64, 16, jnp.float32),
    "tiny-batched": _batched(4, 6, 64, 16, jnp.float32),
    "small-640": _experts(640, 32, 1024, 512, jnp.float32),
    "qwen3.5-35b-prefill-1024": _experts(1024 * 8, 256, 2048, 512),
    "qwen3.5-35b-decode-8": _experts(8 * 8, 256, 2048, 512),
    "qwen3.5-397b-prefill-1024": _experts(1024 * 10, 512, 4096, 1024),
    "qwen3.5-397b-decode-64": _experts(64 * 10, 512, 4096, 1024),
    "qwen3.5-397b-shard-prefill-1024": _experts(1024 * 10, 64, 4096, 1024),
}


def sample(rng: np.random.Generator, x, w_gate, w_up, group_sizes=None, *, precision=None) -> list[np.ndarray | None]:
    """Valid arguments of given shapes: rows thrown onto the experts at random, one in sixteen onto none.

    Args:
        rng: source of randomness.
        x: aval of the rows; the others likewise.
        w_gate: weights of the gate.
        w_up: weights of what is gated.
        group_sizes: rows of each expert, or None.
        precision: not used.

    Returns:
        One array per argument, of its shape and type; weights are scaled so that outputs are of order 1.
    """
    scale = w_gate.shape[1] ** -0.5
    arrays = [rng.standard_normal(x.shape).astype(x.dtype)]
    arrays += [(scale * rng.standard_normal(w.shape, np.float32)).astype(w.dtype) for w in (w_gate, w_up)]
    if group_sizes is None:
        return arrays
    experts = group_sizes.shape[0]
    return [*arrays, rng.multinomial(x.shape[0] * 15 // 16, np.full(experts, 1 / experts)).astype(group_sizes.dtype)]
