"""Rotary positions: partial rotation, three interleaved position axes, and YaRN for long contexts.

Source: RoPE (Su et al. 2021), YaRN (Peng et al. 2023), Qwen's multimodal rotary positions.
"""

import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .config import Config, RopeConfig


def rope_frequencies(rope: RopeConfig, rotary_dim: int) -> tuple[np.ndarray, float]:
    """The rotation frequencies, in radians per position, and the factor on cos and sin.

    Args:
        rope: the configuration's `rope_parameters`.
        rotary_dim: R, the rotated features of a head.

    Returns:
        frequencies [R/2] in float64, and the attention factor (1 without YaRN).

    Example:
        >>> frequencies, factor = rope_frequencies(RopeConfig(10000.0, 1.0, (1, 1, 0)), 4)
        >>> frequencies.tolist(), factor
        ([1.0, 0.01], 1.0)
    """
    frequencies = float(rope.rope_theta) ** -(np.arange(0, rotary_dim, 2) / rotary_dim)
    if rope.rope_type == "default":
        return frequencies, 1.0

    # YaRN: fast frequencies stay, slow ones are divided by the factor, a ramp lies between.
    def feature_that_turns(times: float) -> float:
        context = rope.original_max_position_embeddings or 0
        return rotary_dim * math.log(context / (times * 2 * math.pi)) / (2 * math.log(rope.rope_theta))

    low = math.floor(max(feature_that_turns(rope.beta_fast), 0))
    high = math.ceil(min(feature_that_turns(rope.beta_slow), rotary_dim - 1))
    ramp = np.clip((np.arange(rotary_dim // 2) - low) / max(high - low, 1e-3), 0, 1)
    return frequencies * (1 - ramp) + frequencies / rope.factor * ramp, 0.1 * math.log(rope.factor) + 1.0


def position_axis(rope: RopeConfig, rotary_dim: int) -> np.ndarray:
    """Which of the three position axes (time, height, width) each of the R/2 frequencies follows: interleaved."""
    axis = np.zeros(rotary_dim // 2, np.int32)
    for a in (1, 2):
        axis[a : 3 * rope.mrope_section[a] : 3] = a
    return axis


def rope_tables(
    config: Config, positions: Int[Array, "B T"] | Int[Array, "3 B T"], dtype
) -> tuple[Float[Array, "B T R"], Float[Array, "B T R"]]:
    """Cosines and sines of the rotation angles.

    Args:
        config: gives the frequencies.
        positions: [B, T], or [3, B, T] where the three axes differ (images); equal axes are ordinary rotary positions.
        dtype: type of the tables; the angles are float32.

    Returns:
        cos and sin, each [B, T, R]; the two halves of R are equal.
    """
    rope = config.rope_parameters
    frequencies, factor = rope_frequencies(rope, config.rotary_dim)
    if positions.ndim == 3:
        per_frequency = jnp.moveaxis(positions[position_axis(rope, config.rotary_dim)], 0, -1)
    else:
        per_frequency = positions[..., None]
    angles = per_frequency.astype(jnp.float32) * jnp.asarray(frequencies, jnp.float32)
    angles = jnp.concatenate([angles, angles], axis=-1)
    return (jnp.cos(angles) * factor).astype(dtype), (jnp.sin(angles) * factor).astype(dtype)


def rotate(
    x: Float[Array, "B T N D"], cos: Float[Array, "B T R"], sin: Float[Array, "B T R"]
) -> Float[Array, "B T N D"]:
    """Rotates the first R features of each head, as two halves; the others pass through."""
    rotary_dim = cos.shape[-1]
    cos, sin = cos[:, :, None, :], sin[:, :, None, :]
    turning, still = x[..., :rotary_dim], x[..., rotary_dim:]
    first, second = jnp.split(turning, 2, axis=-1)
    turned = turning * cos + jnp.concatenate([-second, first], axis=-1) * sin
    return jnp.concatenate([turned, still], axis=-1)
