"""What the model remembers between calls: a window and a state per linear layer, keys and values per full layer."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .config import LINEAR, Config


class LinearCache(eqx.Module):
    """Cache of a linear-attention layer; its size does not grow with the number of tokens.

    Attributes:
        conv_state: [B, C, K], the last K columns before the convolution (zeros before the first token).
        recurrent_state: [B, HV, DK, DV] float32, the delta rule's state, key index first.
    """

    conv_state: Float[Array, "B C K"]
    recurrent_state: Float[Array, "B HV DK DV"]


class AttentionCache(eqx.Module):
    """Cache of a full-attention layer.

    A row's tokens stand in slots 0, 1, 2, ... without holes, however the row was padded.

    Attributes:
        key: [B, G, max_length, D], after norm and rotation.
        value: [B, G, max_length, D].
        length: [B] int32, the number of filled slots.
    """

    key: Float[Array, "B G S D"]
    value: Float[Array, "B G S D"]
    length: Int[Array, "B"]


class Cache(eqx.Module):
    """One cache per layer, in the order of the layers."""

    layers: tuple[LinearCache | AttentionCache, ...]

    @property
    def length(self) -> Int[Array, "B"]:
        """Tokens seen so far, per row (zeros for a model without full attention, which has no use for it)."""
        return _length(self.layers)

    @property
    def max_length(self) -> int | None:
        """Slots per row; None for a model without full attention, which has no such limit."""
        return _max_length(self.layers)


class StackedCache(eqx.Module):
    """One cache per layer of the repeating block; every leaf has a leading axis over the blocks.

    Made by `stack_blocks`; goes with `StackedParams`.
    """

    blocks: tuple[LinearCache | AttentionCache, ...]

    @property
    def length(self) -> Int[Array, "B"]:
        """Tokens seen so far, per row; all blocks have seen the same."""
        return _length(self.blocks)[0]

    @property
    def max_length(self) -> int | None:
        """Slots per row; None for a model without full attention."""
        return _max_length(self.blocks)


def init_cache(config: Config, batch: int, max_length: int, dtype=jnp.float32) -> Cache:
    """An empty cache.

    Args:
        config: the model.
        batch: B, the number of rows.
        max_length: room for this many tokens per row.
        dtype: type of the windows, keys and values.  Give the parameters' type: a wider one costs memory and changes
            no number, a narrower one rounds.  The recurrent state is always float32.

    Returns:
        The cache.  Per row, 2·G·D·max_length numbers per full layer, C·K + HV·DK·DV per linear layer.

    Example:
        >>> cache = init_cache(Config.named("qwen3.5-0.8b"), batch=1, max_length=8)
        >>> cache.layers[0].recurrent_state.shape, cache.layers[3].key.shape
        ((1, 16, 128, 128), (1, 2, 8, 256))
    """

    def empty(kind: str) -> LinearCache | AttentionCache:
        if kind == LINEAR:
            heads, dk, dv = config.linear_num_value_heads, config.linear_key_head_dim, config.linear_value_head_dim
            return LinearCache(
                conv_state=jnp.zeros((batch, config.conv_channels, config.linear_conv_kernel_dim), dtype),
                recurrent_state=jnp.zeros((batch, heads, dk, dv), jnp.float32),
            )
        shape = (batch, config.num_key_value_heads, max_length, config.head_dim)
        return AttentionCache(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype), jnp.zeros((batch,), jnp.int32))

    return Cache(tuple(empty(kind) for kind in config.layer_types))


def token_slots(length: Int[Array, "B"], mask: Bool[Array, "B T"] | None, num_tokens: int) -> Int[Array, "B T"]:
    """The cache slot, and by default the position, of each new token: the count of real tokens before it.

    A padded token gets the slot of the real token before it (or 0): it is never written, and what it reads is finite.
    """
    if mask is None:
        return length[:, None] + jnp.arange(num_tokens, dtype=jnp.int32)
    return jnp.maximum(length[:, None] + jnp.cumsum(mask, axis=1, dtype=jnp.int32) - 1, 0)


def real_columns(mask: Bool[Array, "B T"]) -> Int[Array, "B"]:
    """Per row, the number of columns up to and including the last real token; 0 in a row without any."""
    return jnp.max(jnp.where(mask, jnp.arange(1, mask.shape[1] + 1, dtype=jnp.int32), 0), axis=1)


def _length(layers: tuple[LinearCache | AttentionCache, ...]) -> Array:
    for layer in layers:
        if isinstance(layer, AttentionCache):
            return layer.length
    return jnp.zeros(jax.tree.leaves(layers)[0].shape[:-2], jnp.int32)


def _max_length(layers: tuple[LinearCache | AttentionCache, ...]) -> int | None:
    return next((layer.key.shape[-2] for layer in layers if isinstance(layer, AttentionCache)), None)
