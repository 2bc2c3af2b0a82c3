"""Full attention: grouped queries with an output gate, rotary positions and a cache of compact slots."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .cache import AttentionCache
from .config import Config
from .norms import rms_norm
from .rope import rotate


class Attention(eqx.Module):
    """Parameters of a full-attention block: N query heads, G key/value heads, head size D."""

    w_q: Float[Array, "H N*2*D"]
    w_k: Float[Array, "H G*D"]
    w_v: Float[Array, "H G*D"]
    q_norm: Float[Array, "D"]
    k_norm: Float[Array, "D"]
    w_o: Float[Array, "N*D H"]


def attention(
    p: Attention,
    config: Config,
    h: Float[Array, "B T H"],
    cache: AttentionCache,
    slots: Int[Array, "B T"],
    cos: Float[Array, "B T R"],
    sin: Float[Array, "B T R"],
    mask: Bool[Array, "B T"] | None = None,
) -> tuple[Float[Array, "B T H"], AttentionCache, dict[str, Array]]:
    """The full-attention block.

    Args:
        p: its parameters.
        config: the model.
        h: [B, T, H], the normed hidden states.
        cache: keys and values of the row's earlier tokens.
        slots: [B, T], the cache slot of each token; a token sees the slots up to its own.
        cos: [B, T, R], cosines of the rotation.
        sin: [B, T, R], sines.
        mask: [B, T], true = real token; None = all real.

    Returns:
        The block's output [B, T, H], the cache with the new tokens, and the values inside by name.
        Scores cost 4·B·N·T·S·D FLOPs for S slots, filled or not.
    """
    B, T, _ = h.shape
    N, G, D = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    q_proj, k_proj, v_proj = h @ p.w_q, h @ p.w_k, h @ p.w_v
    q, gate = jnp.split(q_proj.reshape(B, T, N, 2 * D), 2, axis=-1)  # they alternate head by head
    q_normed = rms_norm(q, p.q_norm, config.rms_norm_eps)
    k_normed = rms_norm(k_proj.reshape(B, T, G, D), p.k_norm, config.rms_norm_eps)
    q, k, v = rotate(q_normed, cos, sin), rotate(k_normed, cos, sin), v_proj.reshape(B, T, G, D)
    cache = append(cache, k, v, slots, mask)

    # query head n reads key/value head n // (N/G)
    grouped = q.reshape(B, T, G, N // G, D)
    scores = jnp.einsum("btgnd,bgsd->bgnts", grouped, cache.key.astype(h.dtype)) * D**-0.5
    visible = jnp.arange(cache.key.shape[2]) <= slots[:, :, None]
    scores = jnp.where(visible[:, None, None], scores, -jnp.inf)
    probs = jax.nn.softmax(scores.astype(jnp.float32), axis=-1).astype(h.dtype)
    context = jnp.einsum("bgnts,bgsd->btgnd", probs, cache.value.astype(h.dtype))
    gated = context.reshape(B, T, N * D) * jax.nn.sigmoid(gate.reshape(B, T, N * D))
    out = gated @ p.w_o

    taps = {"q_proj": q_proj, "k_proj": k_proj, "v_proj": v_proj, "q_norm": q_normed, "k_norm": k_normed}
    taps |= {"cos": cos, "sin": sin, "q_rope": q, "k_rope": k, "probs": probs, "context": context}
    taps |= {"gated": gated, "out": out}
    return out, cache, taps


def append(
    cache: AttentionCache,
    k: Float[Array, "B T G D"],
    v: Float[Array, "B T G D"],
    slots: Int[Array, "B T"],
    mask: Bool[Array, "B T"] | None,
) -> AttentionCache:
    """Writes the real tokens' keys and values into their slots; a token beyond the last slot is dropped."""
    B, _, max_length, _ = cache.key.shape
    rows = jnp.arange(B)[:, None]
    # padded tokens aim past the end, where "drop" drops them
    targets = slots if mask is None else jnp.where(mask, slots, max_length)
    return AttentionCache(
        key=cache.key.at[rows, :, targets].set(k.astype(cache.key.dtype), mode="drop"),
        value=cache.value.at[rows, :, targets].set(v.astype(cache.value.dtype), mode="drop"),
        length=cache.length + (k.shape[1] if mask is None else jnp.sum(mask, axis=1, dtype=jnp.int32)),
    )
