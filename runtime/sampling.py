"""Choosing the next token from logits: greedy, temperature, top-k, top-p."""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from jaxsplice.passes.errors import JaxspliceError


@dataclass(frozen=True)
class Sampler:
    """How tokens are chosen.

    Args:
        temperature: logits are divided by it; 0 takes the most probable token.
        top_k: choose among the k most probable; 0 for all.
        top_p: choose among the most probable tokens that together have this probability; 1 for all.

    Raises:
        JaxspliceError: a value out of range.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> Sampler(temperature=0.0)(jnp.array([[0.0, 3.0, 1.0]]), jax.random.key(0)).tolist()
        [1]
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self):
        if not 0 <= self.temperature < math.inf or self.top_k < 0 or not 0 < self.top_p <= 1:
            raise JaxspliceError(
                f"temperature={self.temperature}, top_k={self.top_k}, top_p={self.top_p}: temperature and top_k must "
                "not be negative, and top_p must lie above 0 and at most at 1"
            )

    def __call__(self, logits: Float[Array, "B V"], key: Array) -> Int[Array, "B"]:
        """One token per row.

        Args:
            logits: unnormalised scores.
            key: random key; not used when greedy.

        Returns:
            Token ids, int32.
        """
        logits = logits.astype(jnp.float32)
        if self.temperature == 0:
            return jnp.argmax(logits, axis=-1).astype(jnp.int32)
        logits = logits / self.temperature
        if self.top_k and self.top_k < logits.shape[-1]:
            least = lax.top_k(logits, self.top_k)[0][..., -1:]
            logits = jnp.where(logits < least, -jnp.inf, logits)
        if self.top_p < 1:
            logits = jnp.where(self._in_nucleus(logits), logits, -jnp.inf)
        return jax.random.categorical(key, logits, axis=-1).astype(jnp.int32)

    def _in_nucleus(self, logits: Float[Array, "B V"]) -> Array:
        """Tokens before the point where the sorted probabilities add up to top_p, the one that crosses it included."""
        ordered = jnp.sort(logits, axis=-1, descending=True)
        probabilities = jax.nn.softmax(ordered, axis=-1)
        before = jnp.cumsum(probabilities, axis=-1) - probabilities
        count = jnp.sum(before < self.top_p, axis=-1, keepdims=True)
        least = jnp.take_along_axis(ordered, count - 1, axis=-1)
        return logits >= least
