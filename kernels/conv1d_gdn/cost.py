"""What convolution, gates and delta rule cost when they are fused and the state stays on the chip."""

from jax import ShapeDtypeStruct


def cost(
    u: ShapeDtypeStruct,
    conv_weight: ShapeDtypeStruct,
    conv_state: ShapeDtypeStruct | None,
    b: ShapeDtypeStruct,
    a: ShapeDtypeStruct,
    A_log: ShapeDtypeStruct,
    dt_bias: ShapeDtypeStruct,
    state: ShapeDtypeStruct,
) -> dict[str, int]:
    """Work of an ideal fused block: each input read once, outputs and state written once.

    Args:
        u: the projected tokens, [B, T, C].
        conv_weight: the taps, [K, C].
        conv_state: the tokens before, [B, K-1, C], or None.
        b: write strength, [B, T, HV].
        a: decay, [B, T, HV].
        A_log: decay rate, [HV].
        dt_bias: [HV].
        state: [B, HV, DK, DV].

    Returns:
        flops (convolution 2 K + 4 per channel, l2 norm 4 per query or key channel, gates 12 per value head, rule 7 per
        state element, all per token), hbm_bytes_read, hbm_bytes_written, link_bytes and vmem_bytes (one key head: the
        float32 states of its value heads and K tokens of its channels).

    Example:
        >>> import jax
        >>> of = lambda *shape: jax.ShapeDtypeStruct(shape, "float32")
        >>> cost(of(1, 1, 8), of(4, 8), None, of(1, 1, 2), of(1, 1, 2), of(2), of(2), of(1, 2, 2, 2))["flops"]
        192
    """
    batch, tokens, channels = u.shape
    _, value_heads, key_features, value_features = state.shape
    taps = conv_weight.shape[0]
    key_channels = channels - value_heads * value_features
    key_heads = key_channels // (2 * key_features)
    inputs = [x for x in (u, conv_weight, conv_state, b, a, A_log, dt_bias, state) if x is not None]
    per_token = (2 * taps + 4) * channels + 4 * key_channels + 12 * value_heads
    return {
        "flops": batch * tokens * per_token + 7 * tokens * state.size,
        "hbm_bytes_read": sum(x.size * x.dtype.itemsize for x in inputs),
        "hbm_bytes_written": batch * tokens * value_heads * value_features * u.dtype.itemsize + 4 * state.size,
        "link_bytes": 0,
        "vmem_bytes": 4 * (value_heads * key_features * value_features + taps * channels) // key_heads,
    }
