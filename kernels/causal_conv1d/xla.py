"""Causal depthwise convolution as shifted multiply-adds.

XLA's CPU convolution is a scalar loop when every channel is a group. Written as K shifted products it becomes one
vectorised loop: [1, 1024, 6144] on two cores takes 4 to 8 ms in float32 and 8 to 12 in bfloat16 instead of 155 to 250,
and [1, 1, 6144] 0.03 to 0.06 ms instead of 0.06 to 0.4.
"""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from .reference import activate, with_past


def causal_conv1d(
    x: Float[Array, "B T C"],
    weight: Float[Array, "K C"],
    state: Float[Array, "B K-1 C"] | None,
    *,
    activation: str | None,
) -> Float[Array, "B T C"]:
    """Compute the reference's function with one fused pass over x; sums are float32, rounded once to the weight's type.

    All tokens are computed as if zeros came before x, which needs no copy of x; the first K-1 are then replaced by what
    the state makes of them.

    Args:
        x: B sequences of T tokens.
        weight: K taps per channel.
        state: the K-1 tokens before x, oldest first; None means zeros.
        activation: "silu", or None.

    Returns:
        An array of x's shape and type.

    Raises:
        ValueError: as the reference.
    """
    taps = weight.shape[0]
    tokens = x.shape[1]
    if tokens < taps:
        return _with_state(x, weight, state, activation)
    scale = weight.astype(jnp.float32)
    present = x.astype(weight.dtype).astype(jnp.float32)
    total = scale[-1] * present
    for delay in range(1, taps):
        delayed = lax.pad(present, jnp.float32(0), ((0, 0, 0), (delay, -delay, 0), (0, 0, 0)))
        total += scale[taps - 1 - delay] * delayed
    y = activate(total.astype(weight.dtype), activation).astype(x.dtype)
    if state is None or taps == 1:
        return y
    return lax.dynamic_update_slice(y, _with_state(x[:, : taps - 1], weight, state, activation), (0, 0, 0))


def _with_state(x, weight, state, activation):
    """A few tokens whose windows reach into the state, from a copy of both."""
    tokens = x.shape[1]
    u = with_past(x, weight, state).astype(jnp.float32)
    products = [tap.astype(jnp.float32) * u[:, j : j + tokens] for j, tap in enumerate(weight)]
    return activate(sum(products[1:], products[0]).astype(weight.dtype), activation).astype(x.dtype)
