"""silu(depthwise causal convolution over time)  ->  causal_conv1d(x, weight, state)

    state ─ concatenate x ─ conv (K taps, one group per channel) ─ silu        becomes one node

Recognised as a convolution, as sums of shifted products, as an einsum over a window; with the tokens before x carried
in a state, or zeros in their place; with silu behind it or bare.

Pays: shifted multiply-adds instead of a grouped convolution (a GDN layer on TPU: HBM 1,078 -> 915 MiB, compile time
43 -> 15 s), and the node that the GDN kernel absorbs.
Source: the short convolution of Mamba (Gu and Dao 2023) and Gated DeltaNet.
Limits: 2 to 8 taps, one channel multiplier, no dilation, stride 1, no bias; time is the middle axis of [B, T, C]
once transposed.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import ShapeDtypeStruct as Shape
from jax import lax

from jaxsplice.kernels.causal_conv1d import causal_conv1d
from jaxsplice.passes.rewrite.rule import Case, NearMiss, Refuse, Rule


def _convolve(x, weight, padding):
    return lax.conv_general_dilated(
        x, weight[:, None, :], (1,), padding, dimension_numbers=("NWC", "WIO", "NWC"), feature_group_count=x.shape[-1]
    )


def before_state(x, weight, state):
    """The tokens before x come from a state."""
    return _convolve(jnp.concatenate([state, x], axis=1), weight, "VALID")


def after_state(x, weight, state):
    """One Op."""
    return causal_conv1d(x, weight, state, activation=None)


def before_zeros(x, weight):
    """There is nothing before x."""
    return _convolve(x, weight, [(weight.shape[0] - 1, 0)])


def after_zeros(x, weight):
    """One Op."""
    return causal_conv1d(x, weight, None, activation=None)


def before_blank(x, weight):
    """Fewer tokens than taps behind a state of zeros: some taps meet nothing but zeros."""
    state = jnp.zeros((x.shape[0], weight.shape[0] - 1, x.shape[2]), x.dtype)
    return before_state(x, weight, state)


def before_state_silu(x, weight, state):
    """As `before_state`, then silu."""
    return jax.nn.silu(before_state(x, weight, state))


def after_state_silu(x, weight, state):
    """One Op."""
    return causal_conv1d(x, weight, state, activation="silu")


def before_zeros_silu(x, weight):
    """As `before_zeros`, then silu."""
    return jax.nn.silu(before_zeros(x, weight))


def before_blank_silu(x, weight):
    """As `before_blank`, then silu."""
    return jax.nn.silu(before_blank(x, weight))


def after_zeros_silu(x, weight):
    """One Op."""
    return causal_conv1d(x, weight, None, activation="silu")


def where(x, weight, state=None):
    """The state holds K-1 tokens."""
    if weight.shape[0] < 2:
        raise Refuse("a convolution of one tap is a product")
    if state is not None and state.shape[1] != weight.shape[0] - 1:
        raise Refuse(f"the state holds {state.shape[1]} tokens, {weight.shape[0] - 1} are needed")


def _shapes(batch: int, tokens: int, channels: int, taps: int):
    return (
        Shape((batch, tokens, channels), jnp.float32),
        Shape((taps, channels), jnp.float32),
        Shape((batch, taps - 1, channels), jnp.float32),
    )


FEW, MANY = (4, 3, 2), (8, 7, 6, 5)


# While tokens are fewer than taps, which taps meet the state, and which x, depends on their number.
def _with_state(taps):
    return [Case(*_shapes(2, t, 6, k)) for k in taps for t in (9, *range(k - 1, 0, -1))]


def _without(taps):
    # Padding before fewer tokens than taps leaves a convolution of fewer taps.
    return [Case(*_shapes(2, t, 6, k)[:2]) for k in taps for t in ((9, *range(k - 1, 1, -1)) if k in FEW else (9,))]


def _blank(taps):
    return [Case(*_shapes(2, t, 6, k)[:2]) for k in taps for t in range(2, k)]


def _one_token(taps):
    return [Case(*_shapes(2, 1, 6, k)[:2]) for k in taps]


X, W, S = _shapes(2, 9, 6, 4)


def _looks_ahead(x, w):
    return _convolve(x, w, [(2, 1)])


def _dilated(x, w):
    return lax.conv_general_dilated(
        x, w[:, None], (1,), [(6, 0)], rhs_dilation=(2,), dimension_numbers=("NWC", "WIO", "NWC"), feature_group_count=6
    )


def _full(x, w):
    weight = jnp.broadcast_to(w[:, None], (4, 6, 6))
    return lax.conv_general_dilated(x, weight, (1,), [(3, 0)], dimension_numbers=("NWC", "WIO", "NWC"))


def _experts_combined(outputs, weights):
    return jnp.einsum("tkd,tk->td", outputs, weights)


def _mixture_of_two(a, b, weights):
    return a * weights[0] + b * weights[1]


OUTPUTS, ROUTED, PAIR = Shape((5, 4, 6), jnp.float32), Shape((5, 4), jnp.float32), Shape((2, 6), jnp.float32)

_family = partial(Rule, "causal-conv1d", where=where, benefit="shifted multiply-adds; absorbed by the GDN kernel")
# Zeros go before a state: with two taps, one token behind a state is any two products (so only silu makes it one). The
# usual numbers of taps go first, which saves the search for the others; without silu last, lest they take part of a
# longer sum.
rules = (
    _family(before=before_state_silu, after=after_state_silu, cases=_with_state(FEW), priority=10),
    _family(before=before_zeros_silu, after=after_zeros_silu, cases=_without(FEW), priority=12),
    _family(before=before_blank_silu, after=after_zeros_silu, cases=_blank(FEW) + _one_token(FEW), priority=11),
    _family(
        before=before_state,
        after=after_state,
        cases=[*_with_state(FEW[:-1]), Case(*_shapes(2, 9, 6, 2))],
        priority=1,
        near_misses=[
            NearMiss(_experts_combined, OUTPUTS, ROUTED, reason="`before` would give"),
            NearMiss(_mixture_of_two, X, X, PAIR, reason="another value"),
        ],
    ),
    _family(before=before_blank, after=after_zeros, cases=_blank(FEW), priority=2),
    _family(
        before=before_zeros,
        after=after_zeros,
        cases=_without(FEW),
        priority=3,
        near_misses=[
            NearMiss(_looks_ahead, X, W, reason="no slice, reshape and transpose"),
            NearMiss(_dilated, X, W, reason="another value"),
            NearMiss(_full, X, W, reason="found conv_general_dilated"),
        ],
    ),
    _family(before=before_state_silu, after=after_state_silu, cases=_with_state(MANY), priority=7),
    _family(before=before_zeros_silu, after=after_zeros_silu, cases=_without(MANY), priority=9),
    _family(before=before_blank_silu, after=after_zeros_silu, cases=_blank(MANY) + _one_token(MANY), priority=8),
    _family(before=before_state, after=after_state, cases=_with_state(MANY), priority=4),
    _family(before=before_blank, after=after_zeros, cases=_blank(MANY), priority=5),
    _family(before=before_zeros, after=after_zeros, cases=_without(MANY), priority=6),
)
