"""Linear attention: the Gated DeltaNet block.

Source: "Gated Delta Networks: Improving Mamba2 with Delta Rule" (Yang, Kautz, Hatamizadeh 2024).
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from .cache import LinearCache, real_columns
from .config import Config
from .norms import gated_rms_norm, l2_norm


class GatedDeltaNet(eqx.Module):
    """Parameters of a linear-attention block.  C = 2·HK·DK + HV·DV channels, in the order query, key, value."""

    w_qkv: Float[Array, "H C"]
    w_z: Float[Array, "H HV*DV"]
    w_b: Float[Array, "H HV"]
    w_a: Float[Array, "H HV"]
    conv: Float[Array, "K C"]
    A_log: Float[Array, "HV"]
    dt_bias: Float[Array, "HV"]
    norm: Float[Array, "DV"]
    w_out: Float[Array, "HV*DV H"]


def gated_delta_net(
    p: GatedDeltaNet,
    config: Config,
    h: Float[Array, "B T H"],
    cache: LinearCache,
    mask: Bool[Array, "B T"] | None = None,
) -> tuple[Float[Array, "B T H"], LinearCache, dict[str, Array]]:
    """The linear-attention block.

    Args:
        p: its parameters.
        config: the model.
        h: [B, T, H], the normed hidden states.
        cache: what the row's earlier tokens left.
        mask: [B, T], true = real token; None = all real.

    Returns:
        The block's output [B, T, H], the cache after the row's last real token, and the values inside by name.
    """
    B, T, _ = h.shape
    HK, HV = config.linear_num_key_heads, config.linear_num_value_heads
    DK, DV = config.linear_key_head_dim, config.linear_value_head_dim
    if mask is not None:
        # A padded column enters the convolution as zeros, like the columns before the first token.
        h = jnp.where(mask[..., None], h, 0)
    u = h @ p.w_qkv
    z = h @ p.w_z
    b = h @ p.w_b
    a = h @ p.w_a
    if mask is not None:
        # sigmoid(-inf) = 0 and softplus(-inf) = 0: at padding nothing is written (beta = 0) and nothing decays
        # (g = 0), exactly, so the state stands still.
        b = jnp.where(mask[..., None], b, -jnp.inf)
        a = jnp.where(mask[..., None], a, -jnp.inf)

    y, conv_state = causal_conv(u, p.conv, cache.conv_state, mask)
    q, k, v = jnp.split(y, [HK * DK, 2 * HK * DK], axis=-1)
    q, k, v = q.reshape(B, T, HK, DK), k.reshape(B, T, HK, DK), v.reshape(B, T, HV, DV)
    beta = jax.nn.sigmoid(b)
    g = -jnp.exp(p.A_log.astype(jnp.float32)) * jax.nn.softplus(a.astype(jnp.float32) + p.dt_bias.astype(jnp.float32))
    core, recurrent_state = gated_delta_rule(q, k, v, g, beta, cache.recurrent_state)
    core = core.astype(h.dtype)
    normed = gated_rms_norm(core, p.norm, z.reshape(B, T, HV, DV), config.rms_norm_eps)
    out = normed.reshape(B, T, HV * DV) @ p.w_out

    taps = {"in_proj_qkv": u, "in_proj_z": z, "in_proj_b": b, "in_proj_a": a, "query": q, "key": k, "value": v}
    taps |= {"g": g, "beta": beta, "core": core, "gated_norm": normed, "out": out}
    return out, LinearCache(conv_state, recurrent_state), taps


def causal_conv(
    u: Float[Array, "B T C"],
    weight: Float[Array, "K C"],
    conv_state: Float[Array, "B C K"],
    mask: Bool[Array, "B T"] | None = None,
) -> tuple[Float[Array, "B T C"], Float[Array, "B C K"]]:
    """Causal depthwise convolution over time, then silu.

    Args:
        u: [B, T, C], this call's columns.
        weight: [K, C]; tap K-1 is the present token.
        conv_state: [B, C, K], the K columns before this call's.
        mask: [B, T], true = real token.

    Returns:
        [B, T, C], and the K columns up to each row's last real token, [B, C, K] in the type of `conv_state`.
    """
    K, C = weight.shape
    full = jnp.concatenate([conv_state.swapaxes(1, 2).astype(u.dtype), u], axis=1)
    conv = lax.conv_general_dilated(
        full[:, 1:], weight[:, None, :], (1,), "VALID", dimension_numbers=("NWC", "WIO", "NWC"), feature_group_count=C
    )
    if mask is None:
        window = full[:, -K:]
    else:
        # K columns precede column 0 of u, so the window that ends at the row's last real token starts at its count.
        window = jax.vmap(lambda row, start: lax.dynamic_slice_in_dim(row, start, K))(full, real_columns(mask))
    return jax.nn.silu(conv), window.swapaxes(1, 2).astype(conv_state.dtype)


def gated_delta_rule(
    q: Float[Array, "B T HK DK"],
    k: Float[Array, "B T HK DK"],
    v: Float[Array, "B T HV DV"],
    g: Float[Array, "B T HV"],
    beta: Float[Array, "B T HV"],
    state: Float[Array, "B HV DK DV"],
) -> tuple[Float[Array, "B T HV DV"], Float[Array, "B HV DK DV"]]:
    """The gated delta rule, one token after the other, in float32.

    Args:
        q: [B, T, HK, DK], queries before their l2 norm.
        k: [B, T, HK, DK], keys before theirs.
        v: [B, T, HV, DV]; value head n uses key head n // (HV/HK).
        g: [B, T, HV], the logarithm of the decay, at most 0.
        beta: [B, T, HV], the strength of the write, in [0, 1].
        state: [B, HV, DK, DV], from the tokens before.

    Returns:
        Outputs [B, T, HV, DV] and the state after the last token, both float32.  T steps, about 7·HV·DK·DV FLOPs each.
    """
    heads_per_key = v.shape[2] // k.shape[2]
    q = l2_norm(q) * q.shape[-1] ** -0.5
    k = l2_norm(k)
    q = jnp.repeat(q, heads_per_key, axis=2)
    k = jnp.repeat(k, heads_per_key, axis=2)

    def token_step(state, token):
        q, k, v, g, beta = token
        state = state * jnp.exp(g)[..., None, None]
        read = jnp.einsum("bhkv,bhk->bhv", state, k)
        correction = beta[..., None] * (v - read)
        state = state + jnp.einsum("bhk,bhv->bhkv", k, correction)
        return state, jnp.einsum("bhkv,bhk->bhv", state, q)

    time_major = [jnp.moveaxis(x.astype(jnp.float32), 1, 0) for x in (q, k, v, g, beta)]
    state, out = lax.scan(token_step, state.astype(jnp.float32), tuple(time_major))
    return jnp.moveaxis(out, 0, 1), state
