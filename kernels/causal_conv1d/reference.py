"""Causal depthwise convolution in plain JAX: the meaning, the oracle and the derivative."""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float


def causal_conv1d(
    x: Float[Array, "B T C"],
    weight: Float[Array, "K C"],
    state: Float[Array, "B K-1 C"] | None,
    *,
    activation: str | None,
) -> Float[Array, "B T C"]:
    """Convolve every channel over time with its own K taps, looking only back.

    Token t of the result is the sum over j of `weight[j] * u[t - (K-1) + j]`, where u is x with the state before it, so
    tap K-1 meets the present token. Arithmetic is in the weight's type; the result is cast to x's.

    Args:
        x: B sequences of T tokens.
        weight: K taps per channel.
        state: the K-1 tokens before x, oldest first; None means zeros.
        activation: "silu", or None.

    Returns:
        An array of x's shape and type.

    Raises:
        ValueError: unknown activation, or a state that is not K-1 tokens of x's channels.

    Cost: 2 K FLOPs per element and 4 for silu; reads x, weight and state once, writes x's size once.

    Source: the short convolution of Mamba (Gu and Dao 2023) and Gated DeltaNet.

    Example:
        >>> import jax.numpy as jnp
        >>> x = jnp.array([1.0, 2.0, 3.0]).reshape(1, 3, 1)
        >>> causal_conv1d(x, jnp.array([[10.0], [1.0]]), None, activation=None).ravel().tolist()
        [1.0, 12.0, 23.0]
    """
    y = lax.conv_general_dilated(
        with_past(x, weight, state),
        weight[:, None, :],
        window_strides=(1,),
        padding="VALID",
        dimension_numbers=("NWC", "WIO", "NWC"),
        feature_group_count=x.shape[-1],
    )
    return activate(y, activation).astype(x.dtype)


def with_past(
    x: Float[Array, "B T C"], weight: Float[Array, "K C"], state: Float[Array, "B K-1 C"] | None
) -> Float[Array, "B T+K-1 C"]:
    """Put the K-1 tokens before x in front of it, in the weight's type."""
    past = weight.shape[0] - 1
    if state is None:
        return jnp.pad(x.astype(weight.dtype), ((0, 0), (past, 0), (0, 0)))
    needed = (x.shape[0], past, x.shape[2])
    if state.shape != needed:
        raise ValueError(
            f"causal_conv1d: state has shape {state.shape}, but {weight.shape[0]} taps over x {x.shape} need {needed}: "
            f"keep the last {past} tokens before x, oldest first, or pass None for zeros"
        )
    return jnp.concatenate([state.astype(weight.dtype), x.astype(weight.dtype)], axis=1)


def activate(y: Float[Array, "B T C"], activation: str | None) -> Float[Array, "B T C"]:
    """Apply the activation of that name."""
    if activation is None:
        return y
    if activation != "silu":
        raise ValueError(f'causal_conv1d: activation is {activation!r}; use "silu" or None')
    return jax.nn.silu(y)
