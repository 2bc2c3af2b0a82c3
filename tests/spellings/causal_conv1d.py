"""Ways in which people write a causal depthwise convolution in JAX, and programs that only look like it.

`C1` to `C10` name the forms of the models they were seen in; name -> (function, arguments, hits per rule). Near misses
must not match at all: name -> (function, arguments, part of the reason).
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

silu = jax.nn.silu
bf16, f32 = jnp.bfloat16, jnp.float32
BATCH, TIME, CHANNELS, TAPS = 2, 9, 6, 4
ONE, TWO, THREE = ({"causal-conv1d": n} for n in (1, 2, 3))


def normal(*shape, seed=0, dtype=f32):
    """Seeded standard normals."""
    rng = np.random.default_rng([seed, *shape])
    return jnp.asarray(rng.standard_normal(shape), dtype)


X, W = normal(BATCH, TIME, CHANNELS), normal(TAPS, CHANNELS)
PAST, BIAS = normal(BATCH, TAPS - 1, CHANNELS), normal(CHANNELS)
TOKEN = normal(BATCH, CHANNELS)
X16, W16 = X.astype(bf16), W.astype(bf16)
LAYERS = normal(3, TAPS, CHANNELS)
NWC, NCW, NCW_OIW = ("NWC", "WIO", "NWC"), ("NCW", "WIO", "NCW"), ("NCW", "OIW", "NCW")


def conv(x, w, padding="VALID", numbers=NWC, **options):
    """A depthwise convolution over one axis; `w` is in its own layout."""
    groups = x.shape[numbers[0].index("C")]
    return lax.conv_general_dilated(
        x, w, (1,), padding, dimension_numbers=numbers, feature_group_count=groups, **options
    )


def before(x, tokens, axis=1):
    """Zeros before x."""
    return jnp.pad(x, [(tokens, 0) if d == axis else (0, 0) for d in range(x.ndim)])


# ---------------------------------------------------------------- one convolution
def padded_twice(x, w):
    y = conv(before(before(x, 3), 3), w[:, None])[:, 3:]
    return silu(y.astype(f32)).astype(x.dtype)


def transposed_around(x, w):
    channels_first = before(x.transpose(0, 2, 1), 3, axis=2)
    y = conv(channels_first.transpose(0, 2, 1), w.T[:, :, None].transpose(1, 2, 0))
    return silu(y.transpose(0, 2, 1)).transpose(0, 2, 1)


def torch_layout(x, w):
    return silu(conv(x, w, [(3, 3)], NCW_OIW)[..., :-3])


def with_state(x, w, past):
    whole = jnp.concatenate([past, x], axis=1)
    return silu(conv(whole, w[:, None])), whole[:, -3:]


def with_state_channels_first(x, w, past):
    whole = jnp.concatenate([past.transpose(0, 2, 1), x.transpose(0, 2, 1)], axis=2)
    y = conv(whole, w[:, None], numbers=NCW)
    return silu(y).transpose(0, 2, 1), whole[:, :, -3:]


def padded_and_cut(x, w):
    return silu(conv(x, w[:, None], [(3, 3)])[:, : x.shape[1]])


def heads_by_vmap(x, w):
    heads = x.reshape(BATCH, TIME, 2, 3)
    one = lambda x, w: conv(before(x, 3), w[:, None])
    return silu(jax.vmap(one, (2, 1), 2)(heads, w.reshape(TAPS, 2, 3))).reshape(x.shape)


def module_under_vmap(x, w, bias):
    one = lambda x: conv(x[None], w.T[:, None], [(3, 0)], NCW_OIW)[0] + bias[:, None]
    return jax.vmap(one)(x.transpose(0, 2, 1))


def three_convolutions(x, w):
    parts = zip(jnp.split(x, 3, axis=-1), jnp.split(w, 3, axis=-1))
    return jnp.concatenate([silu(conv(x, w[:, None], [(3, 0)])) for x, w in parts], -1)


def two_dimensional(x, w):
    y = lax.conv_general_dilated(
        x[:, None], w[None, :, None], (1, 1), [(0, 0), (3, 0)],
        dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=CHANNELS,
    )  # fmt: skip
    return silu(y[:, 0])


def accumulated(x, w):
    return silu(conv(x, w[:, None], [(3, 0)], preferred_element_type=f32)).astype(bf16)


def in_layers(x, ws):
    return lax.scan(lambda h, w: (h + silu(conv(h, w[:, None], [(3, 0)])), None), x, ws)[0]


def convolve(x, w):
    """`jnp.convolve` turns its second operand round: the first tap meets the present token."""
    one = lambda x, w: jnp.convolve(x, w)[: x.shape[0]]
    return silu(jax.vmap(jax.vmap(one, (1, 1), 1), (0, None))(x, w))


# ---------------------------------------------------------------- sums of shifted products
def shifted(x, w):
    padded = before(x, w.shape[0] - 1)
    return silu(sum(padded[:, k : k + x.shape[1]] * w[k] for k in range(w.shape[0])))


def shifted_with_bias_first(x, w, bias):
    padded, y = before(x, 3), jnp.broadcast_to(bias, x.shape)
    for k in range(TAPS):
        y = y + padded[:, k : k + TIME] * w[k]
    return silu(y)


def shifted_in_f32(x, w):
    padded, y = before(x.astype(f32), 3), jnp.zeros(x.shape, f32)
    for k in range(TAPS):
        y += padded[:, k : k + TIME] * w[:, k].astype(f32)
    return silu(y).astype(x.dtype)


def shifted_back(x, w):
    """The present token meets the first tap."""
    y = x * w[0]
    for j in range(1, TAPS):
        y = y + before(x, j)[:, :TIME] * w[j]
    return y


def shifted_back_turned(x, w):
    return sum(before(x[:, : TIME - j], j) * w[TAPS - 1 - j] for j in range(TAPS))


def stacked_windows(x, w):
    padded = before(x, 3)
    windows = jnp.stack([padded[:, k : k + TIME] for k in range(TAPS)], axis=2)
    return silu(jnp.einsum("btkc,kc->btc", windows, w))


def gathered_windows(x, w):
    at = jnp.arange(TIME)[:, None] + jnp.arange(TAPS)
    return silu((before(x, 3)[:, at] * w).sum(2))


def windows_by_dynamic_slice(x, w):
    padded = before(x, 3)
    windows = jax.vmap(lambda t: lax.dynamic_slice_in_dim(padded, t, TAPS, 1))(jnp.arange(TIME))
    return silu(jnp.einsum("tbkc,kc->btc", windows, w))


def circular(x, w):
    return sum(jnp.roll(x, TAPS - 1 - k, axis=1) * w[k] for k in range(TAPS))


def edge_padded(x, w):
    return silu(conv(jnp.pad(x, ((0, 0), (3, 0), (0, 0)), mode="edge"), w[:, None]))


def over_last(x, w):
    return conv(before(x, 3, axis=2), w[:, None], numbers=NCW)


# ---------------------------------------------------------------- one token
def step_einsum(x, w, past):
    window = jnp.concatenate([past, x[:, None]], axis=1)
    return silu(jnp.einsum("nkd,kd->nd", window, w)), window[:, 1:]


def step_einsum_weight_channels_first(x, w, past):
    window = jnp.concatenate([past, x[:, None]], axis=1)
    return silu(jnp.einsum("nkd,dk->nd", window, w)), window[:, 1:]


def step_sum(x, w, past):
    window = jnp.concatenate([past, x[:, :, None]], axis=2)
    return silu((window * w).sum(-1)), window[:, :, 1:]


def step_taps(x, w, past):
    window = [*(past[:, k] for k in range(3)), x]
    return silu(sum(token * w[k] for k, token in enumerate(window)))


def step_rolled(x, w, buffer):
    buffer = jnp.roll(buffer, -1, axis=1).at[:, -1].set(x)
    return silu((buffer * w).sum(1)), buffer


def step_convolution(x, w, past):
    return silu(conv(jnp.concatenate([past, x[:, None]], 1), w[:, None]))[:, 0]


def steps_in_scan(x, w, past):
    def step(past, x):
        window = jnp.concatenate([past, x[:, None]], axis=1)
        return window[:, 1:], silu(jnp.einsum("kd,nkd->nd", w, window))

    past, y = lax.scan(step, past, x.transpose(1, 0, 2))
    return y.transpose(1, 0, 2), past


def steps_in_while(x, w, past):
    def step(carry):
        t, past, total = carry
        window = jnp.concatenate([past, x[:, None]], axis=1)
        return t + 1, window[:, 1:], total + silu(jnp.einsum("nkd,kd->nd", window, w))

    return lax.while_loop(lambda c: c[0] < 3, step, (0, past, jnp.zeros_like(x)))[1:]


def taps(n, activation=silu):
    return (lambda x, w: activation(conv(before(x, n - 1), w[:, None])), (X, normal(n, CHANNELS)), ONE)


POSITIVES = {
    "C1 padding in the primitive": (lambda x, w: silu(conv(x, w[:, None], [(3, 0)])), (X, W), ONE),
    "C1 without silu": (lambda x, w: conv(x, w[:, None], [(3, 0)]), (X, W), ONE),
    "C1 bias behind it": (lambda x, w, b: silu(conv(x, w[:, None], [(3, 0)]) + b), (X, W, BIAS), ONE),
    "C1 bf16": (lambda x, w: silu(conv(x, w[:, None], [(3, 0)])), (X16, W16), ONE),
    "C1 bf16, accumulated in f32": (accumulated, (X16, W16), ONE),
    "C1 bf16 x, f32 arithmetic": (
        lambda x, w: silu(conv(x.astype(f32), w[:, None], [(3, 0)])).astype(bf16), (X16, W), ONE
    ),
    "C2 pad then VALID": (lambda x, w: silu(conv(before(x, 3), w[:, None])), (X, W), ONE),
    "C2 pad then VALID, reshaped bias": (
        lambda x, w, b: silu(conv(before(x, 3), w[:, None]) + b.reshape(1, 1, -1)), (X, W, BIAS), ONE
    ),
    "C2 padded on both sides and cut": (padded_and_cut, (X, W), ONE),
    "C3 padded twice and cut": (padded_twice, (X16, W16), ONE),
    "C4 transposes around": (transposed_around, (X, W), ONE),
    "C4 channels first throughout (torch)": (torch_layout, (X.transpose(0, 2, 1), W.T[:, None]), ONE),
    "C5 state before it": (with_state, (X, W, PAST), ONE),
    "C5 state kept channels first": (with_state_channels_first, (X, W, PAST), ONE),
    "C5 state of zeros": (lambda x, w: with_state(x, w, jnp.zeros_like(PAST))[0], (X, W), ONE),
    "C6 shift and add": (shifted, (X, W), ONE),
    "C6 shift and add, bias first": (shifted_with_bias_first, (X, W, BIAS), ONE),
    "C6 shift and add in f32": (shifted_in_f32, (X16, W16.T), ONE),
    "C6 shifted back, taps from the present": (shifted_back, (X, W), ONE),
    "C6 shifted back, taps turned round": (shifted_back_turned, (X, W), ONE),
    "C6 stacked windows, einsum": (stacked_windows, (X, W), ONE),
    "gathered windows": (gathered_windows, (X, W), ONE),
    "windows by vmapped dynamic_slice": (windows_by_dynamic_slice, (X, W), ONE),
    "C8 step: einsum nkd,kd": (step_einsum, (TOKEN, W, PAST), ONE),
    "C8 step: einsum nkd,dk": (step_einsum_weight_channels_first, (TOKEN, W.T, PAST), ONE),
    "C8 step: sum, state channels first": (step_sum, (TOKEN, W.T, PAST.transpose(0, 2, 1)), ONE),
    "C8 step: tap by tap": (step_taps, (TOKEN, W, PAST), ONE),
    "C8 step: rolled buffer": (step_rolled, (TOKEN, W, normal(BATCH, TAPS, CHANNELS)), ONE),
    "C8 step: convolution": (step_convolution, (TOKEN, W, PAST), ONE),
    "C8 steps in scan": (steps_in_scan, (X, W, PAST), ONE),
    "C8 steps in while": (steps_in_while, (TOKEN, W, PAST), ONE),
    "C9 heads by vmap": (heads_by_vmap, (X, W), ONE),
    "C9 three convolutions": (three_convolutions, (X, W), THREE),
    "C10 module under vmap, bias": (module_under_vmap, (X, W, BIAS), ONE),
    "sequence under vmap": (
        jax.vmap(lambda x, w: silu(conv(x[None], w[:, None], [(3, 0)])[0]), (0, None)), (X, W), ONE
    ),
    "two dimensions, one of size 1": (two_dimensional, (X, W), ONE),
    "jnp.convolve per channel": (convolve, (X, W), ONE),
    "in scan over layers": (in_layers, (X, LAYERS), ONE),
    "in jit, remat and cond": (
        lambda x, w: lax.cond(x[0, 0, 0] > 0, jax.jit(jax.checkpoint(shifted)), lambda x, w: x, x, w), (X, W), ONE
    ),
    "twice, one after the other": (lambda x, w: shifted(shifted(x, w), w), (X, W), TWO),
    "circular: the last tokens are the state": (circular, (X, W), ONE),
    "the first token repeated is the state": (edge_padded, (X, W), ONE),
    "time last": (over_last, (X.transpose(0, 2, 1), W), ONE),
    **{f"{n} taps": taps(n) for n in (2, 3, 5, 6, 8)},
    "7 taps without silu": taps(7, lambda y: y),
}  # fmt: skip


# ---------------------------------------------------------------- not a causal depthwise convolution
def segments(x, w, ids):
    """C7: a tap that reaches into another document counts nothing."""
    padded, marks, y = before(x, 3), before(ids, 3), 0.0
    for k in range(TAPS):
        y += padded[:, k : k + TIME] * w[k] * (marks[:, k : k + TIME] == ids)[..., None]
    return y


def full(x, w):
    return lax.conv_general_dilated(x, w, (1,), [(3, 0)], dimension_numbers=NWC)


def multiplied(x, w):
    return lax.conv_general_dilated(x, w, (1,), [(3, 0)], dimension_numbers=NWC, feature_group_count=CHANNELS)


def weights_per_token(x, w):
    padded = before(x, 3)
    return sum(padded[:, k : k + TIME] * w[:, :, k] for k in range(TAPS))


def strided(x, w):
    return lax.conv_general_dilated(x, w[:, None], (2,), [(3, 0)], dimension_numbers=NWC, feature_group_count=CHANNELS)


def a_tap_missing(x, w):
    padded = before(x, 3)
    return sum(padded[:, k : k + TIME] * w[k] for k in (0, 2, 3))


def a_tap_twice(x, w):
    padded = before(x, 3)
    return sum(padded[:, k : k + TIME] * w[j] for j, k in enumerate((0, 1, 1, 3)))


def two_inputs(x, w, y):
    a, b = before(x, 3), before(y, 3)
    return silu(sum((a, b)[k % 2][:, k : k + TIME] * w[k] for k in range(TAPS)))


def rotary(x, table):
    turned = jnp.concatenate([-x[..., 3:], x[..., :3]], -1)
    return x * table[..., 0] + turned * table[..., 1]


NEAR_MISSES = {
    "looks ahead": (lambda x, w: silu(conv(x, w[:, None], [(2, 1)])), (X, W), "no slice, reshape and transpose"),
    "looks only ahead": (lambda x, w: silu(conv(x, w[:, None], [(0, 3)])), (X, W), "no slice, reshape and transpose"),
    "dilated": (lambda x, w: silu(conv(x, w[:, None], [(6, 0)], rhs_dilation=(2,))), (X, W), "another value"),
    "strided": (strided, (X, W), "`before` would give f32[2,9,6]"),
    "full": (full, (X, normal(TAPS, CHANNELS, CHANNELS)), "found conv_general_dilated"),
    "two outputs per channel": (multiplied, (X, normal(TAPS, 1, 2 * CHANNELS)), "found conv_general_dilated"),
    "C7 documents": (segments, (X, W, jnp.asarray([[0] * 4 + [1] * 5, [0] * 9])), "another value"),
    "weights per token": (weights_per_token, (X, normal(BATCH, TIME, TAPS, CHANNELS)), "no slice, reshape"),
    "a tap missing": (a_tap_missing, (X, W), "no slice, reshape and transpose"),
    "a tap twice": (a_tap_twice, (X, W), "another value than the one"),
    "two inputs": (two_inputs, (X, W, X + 1), "another value than the one"),
    "state one token short": (
        lambda x, w, s: silu(conv(jnp.concatenate([s, x], 1), w[:, None])), (X, W, PAST[:, 1:]), "no slice, reshape"
    ),
    "what experts add up to": (
        lambda y, w: jnp.einsum("tkd,tk->td", y, w), (normal(5, TAPS, CHANNELS), normal(5, TAPS)), "`before` would give"
    ),
    "what experts add up to, silu": (
        lambda y, w: silu((y * w[..., None]).sum(1)), (normal(5, TAPS, CHANNELS), normal(5, TAPS)), "would give"
    ),
    "rotary embedding from one table": (rotary, (X, normal(TIME, CHANNELS, 2)), "wanted concatenate, found an input"),
    "mixture of two": (lambda x, y, w: x * w[0] + y * w[1], (X, X + 1, W[:2]), "another value than the one"),
    "one tap": (lambda x, w: silu(conv(x, w[:, None])), (X, W[:1]), "wanted concatenate, found an input"),
}  # fmt: skip
