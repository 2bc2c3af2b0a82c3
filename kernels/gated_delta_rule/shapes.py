"""Real shapes at which the delta rule runs: name -> (arguments, static keywords).

Heads are value heads: queries and keys come repeated. The state is float32.
"""

import jax.numpy as jnp
import numpy as np
from jax import ShapeDtypeStruct as Shape


def _rule(batch: int, tokens: int, heads: int, features: tuple[int, int] = (128, 128), dtype=jnp.float32):
    key_features, value_features = features
    key = Shape((batch, tokens, heads, key_features), jnp.float32)
    gate = Shape((batch, tokens, heads), jnp.float32)
    state = Shape((batch, heads, key_features, value_features), jnp.float32)
    return (key, key, Shape((batch, tokens, heads, value_features), dtype), gate, gate, state), {}


SHAPES = {
    "tiny": _rule(2, 130, 8, (16, 24)),
    "tiny-token": _rule(2, 1, 8, (16, 24)),
    "qwen3.5-0.8b-prefill-1024": _rule(1, 1024, 16),
    "qwen3.5-0.8b-decode-1": _rule(1, 1, 16),
    "qwen3.5-0.8b-verify-4": _rule(1, 4, 16),
    "qwen3.5-4b-prefill-1024": _rule(1, 1024, 32),
    "qwen3.5-397b-prefill-1024": _rule(1, 1024, 64, dtype=jnp.bfloat16),
    "qwen3.5-397b-decode-64": _rule(64, 1, 64, dtype=jnp.bfloat16),
}


def sample(rng: np.random.Generator, q, k, v, g, beta, state) -> list[np.ndarray]:
    """Valid arguments of given shapes: unit keys, scaled unit queries, g below 0 and beta between 0 and 1.

    Args:
        rng: source of randomness.
        q: aval of the queries; the others likewise.
        k: keys.
        v: values.
        g: logarithm of the decay.
        beta: strength of the write.
        state: memory.

    Returns:
        One array per argument, of its shape and type.
    """
    values = {name: rng.standard_normal(a.shape) for name, a in zip("qkvgbs", (q, k, v, g, beta, state))}
    for name in "qk":
        values[name] /= np.linalg.norm(values[name], axis=-1, keepdims=True)
    values["q"] *= q.shape[-1] ** -0.5
    values["g"] = -np.abs(values["g"])
    values["b"] = 1 / (1 + np.exp(-values["b"]))
    return [x.astype(a.dtype) for x, a in zip(values.values(), (q, k, v, g, beta, state))]
