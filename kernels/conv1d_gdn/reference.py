"""Convolution, gates and delta rule of a Gated DeltaNet block in plain JAX, composed from the parts' references."""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jaxsplice.kernels.causal_conv1d.reference import causal_conv1d
from jaxsplice.kernels.gated_delta_rule.reference import gated_delta_rule


def conv1d_gdn(
    u: Float[Array, "B T C"],
    conv_weight: Float[Array, "K C"],
    conv_state: Float[Array, "B K-1 C"] | None,
    b: Float[Array, "B T HV"],
    a: Float[Array, "B T HV"],
    A_log: Float[Array, "HV"],
    dt_bias: Float[Array, "HV"],
    state: Float[Array, "B HV DK DV"],
) -> tuple[Float[Array, "B T HV DV"], Float[Array, "B HV DK DV"]]:
    """Everything of a Gated DeltaNet block between its input projections and its output norm.

    Convolve u with silu and split it into queries, keys and values; scale queries and keys to length 1, and queries by
    DK^-1/2; give each key head's to its HV/HK value heads; beta = sigmoid(b), g = -exp(A_log) softplus(a + dt_bias);
    run the gated delta rule. A token with b = a = -inf neither writes nor decays (beta = 0, g = 0, exactly).

    Args:
        u: projected tokens; C = 2 HK DK + HV DV channels in the order queries, keys, values, each head-major.
        conv_weight: K taps per channel.
        conv_state: the K-1 tokens of u before these, oldest first; None means zeros.
        b: write strength before its sigmoid, which is computed in b's type.
        a: decay before its softplus.
        A_log: logarithm of the decay rate.
        dt_bias: added to a.
        state: memory left by earlier tokens; HV, DK and DV are read off it.

    Returns:
        The outputs in u's type, and the state after the last token in float32.

    Raises:
        ValueError: channels that do not divide into heads.

    Cost: per token 2 K C FLOPs for the convolution and 7 HV DK DV for the rule.

    Source: Yang, Kautz and Hatamizadeh 2024, "Gated Delta Networks: Improving Mamba2 with Delta Rule".

    Example:
        >>> import jax.numpy as jnp
        >>> u, taps, gate, head = jnp.ones((1, 3, 8)), jnp.ones((4, 8)), jnp.zeros((1, 3, 2)), jnp.zeros(2)
        >>> o, state = conv1d_gdn(u, taps, None, gate, gate, head, head, jnp.zeros((1, 2, 2, 2)))
        >>> o.shape, state.shape
        ((1, 3, 2, 2), (1, 2, 2, 2))
    """
    batch, tokens, _ = u.shape
    value_heads, key_features, value_features = state.shape[1:]
    key_heads = key_heads_of(u.shape[-1], state.shape)
    keys = key_heads * key_features

    y = causal_conv1d(u, conv_weight, conv_state, activation="silu")
    q, k, v = jnp.split(y, [keys, 2 * keys], axis=-1)
    q = unit_length(q.reshape(batch, tokens, key_heads, key_features)) * key_features**-0.5
    k = unit_length(k.reshape(batch, tokens, key_heads, key_features))
    q = jnp.repeat(q, value_heads // key_heads, axis=2)
    k = jnp.repeat(k, value_heads // key_heads, axis=2)
    v = v.reshape(batch, tokens, value_heads, value_features)
    g, beta = gates(b, a, A_log, dt_bias)
    return gated_delta_rule(q, k, v, g, beta, state)


def key_heads_of(channels: int, state_shape: tuple[int, ...]) -> int:
    """HK, from C = 2 HK DK + HV DV; ValueError when it is not a whole divisor of HV."""
    _, value_heads, key_features, value_features = state_shape
    key_heads, rest = divmod(channels - value_heads * value_features, 2 * key_features)
    if rest or key_heads < 1 or value_heads % key_heads:
        raise ValueError(
            f"conv1d_gdn: u has {channels} channels and the state {state_shape} is [B, HV, DK, DV]; channels must be "
            f"2 HK DK + HV DV = 2 HK {key_features} + {value_heads * value_features} with HK a divisor of {value_heads}"
        )
    return key_heads


def unit_length(x: Float[Array, "*lead D"]) -> Float[Array, "*lead D"]:
    """Scale the last axis to length 1 in float32; 1e-6 is added to the sum of squares, inside the root."""
    x = x.astype(jnp.float32)
    return x * lax.rsqrt(jnp.sum(jnp.square(x), axis=-1, keepdims=True) + 1e-6)


def gates(b, a, A_log, dt_bias) -> tuple[Float[Array, "B T HV"], Float[Array, "B T HV"]]:
    """The decay's logarithm g and the write strength beta, float32."""
    beta = jax.nn.sigmoid(b).astype(jnp.float32)
    rate = jnp.exp(A_log.astype(jnp.float32))
    return -rate * jax.nn.softplus(a.astype(jnp.float32) + dt_bias.astype(jnp.float32)), beta
