"""The Ops' maths in float64 NumPy, written as the papers do: what tests compare with."""

import numpy as np


def as_float64(*arrays):
    """Each array in float64, None as it is."""
    return [None if a is None else np.asarray(a, np.float64) for a in arrays]


def sigmoid(x):
    """The logistic function without overflow."""
    return 0.5 * (1.0 + np.tanh(0.5 * x))


def silu(x):
    """X times its sigmoid."""
    return x * sigmoid(x)


def rms_norm(x, weight, eps, zero_centred):
    """RMS norm; zero_centred adds one to the weight."""
    x, weight = as_float64(x, weight)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * (weight + zero_centred)


def swiglu(x, w_gate, w_up):
    """SwiGLU of all rows with one pair of weights."""
    x, w_gate, w_up = as_float64(x, w_gate, w_up)
    return silu(x @ w_gate) * (x @ w_up)


def grouped_swiglu(x, w_gate, w_up, group_sizes):
    """SwiGLU of consecutive rows with their group's weights; zeros after the last group."""
    out = np.zeros((x.shape[0], w_gate.shape[2]))
    start = 0
    for expert, size in enumerate(np.asarray(group_sizes)):
        out[start : start + size] = swiglu(x[start : start + size], w_gate[expert], w_up[expert])
        start += size
    return out


def causal_conv1d(x, weight, state=None):
    """Tap K-1 meets the present token; without a state zeros came before."""
    x, weight, state = as_float64(x, weight, state)
    taps, tokens = len(weight), x.shape[1]
    past = np.zeros((x.shape[0], taps - 1, x.shape[2])) if state is None else state
    full = np.concatenate([past, x], axis=1)
    return sum(weight[j] * full[:, j : j + tokens] for j in range(taps))


def gated_delta_rule(q, k, v, g, beta, state):
    """Token by token: decay, read, correct, write, output."""
    q, k, v, g, beta, state = as_float64(q, k, v, g, beta, state)
    out = np.empty(v.shape)
    for t in range(v.shape[1]):
        state = state * np.exp(g[:, t])[..., None, None]
        read = np.einsum("bhkv,bhk->bhv", state, k[:, t])
        correction = beta[:, t, :, None] * (v[:, t] - read)
        state = state + k[:, t, :, :, None] * correction[:, :, None, :]
        out[:, t] = np.einsum("bhkv,bhk->bhv", state, q[:, t])
    return out, state


def conv1d_gdn(u, conv_weight, conv_state, b, a, A_log, dt_bias, state):
    """Convolution with silu, split, l2 norms, gates, delta rule."""
    u, b, a, A_log, dt_bias, state = as_float64(u, b, a, A_log, dt_bias, state)
    batch, tokens, channels = u.shape
    _, value_heads, key_features, value_features = state.shape
    key_heads = (channels - value_heads * value_features) // (2 * key_features)
    y = silu(causal_conv1d(u, conv_weight, conv_state))
    keys = key_heads * key_features
    q, k = (
        unit_length(x.reshape(batch, tokens, key_heads, key_features)).repeat(value_heads // key_heads, axis=2)
        for x in (y[..., :keys], y[..., keys : 2 * keys])
    )
    v = y[..., 2 * keys :].reshape(batch, tokens, value_heads, value_features)
    g = -np.exp(A_log) * np.logaddexp(0.0, a + dt_bias)
    return gated_delta_rule(q / np.sqrt(key_features), k, v, g, sigmoid(b), state)


def unit_length(x):
    """L2 norm with 1e-6 on the sum of squares."""
    return x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6)
