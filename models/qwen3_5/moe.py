"""Feed-forward blocks: dense SwiGLU, and the mixture of experts on one device or with experts spread over an axis."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from .config import Config


class SwiGLU(eqx.Module):
    """Parameters of a gated feed-forward block of width I."""

    w_gate: Float[Array, "H I"]
    w_up: Float[Array, "H I"]
    w_down: Float[Array, "I H"]


class MoE(eqx.Module):
    """Parameters of a mixture of E experts of width I, with one shared expert that sees every token."""

    router: Float[Array, "H E"]
    w_gate: Float[Array, "E H I"]
    w_up: Float[Array, "E H I"]
    w_down: Float[Array, "E I H"]
    shared: SwiGLU
    shared_gate: Float[Array, "H 1"]


def swiglu(p: SwiGLU, x: Float[Array, "... H"]) -> Float[Array, "... H"]:
    """silu(x W_gate) * (x W_up), times W_down."""
    return (jax.nn.silu(x @ p.w_gate) * (x @ p.w_up)) @ p.w_down


def moe(
    p: MoE, config: Config, x: Float[Array, "B T H"], expert_axis: str | None = None
) -> tuple[Float[Array, "B T H"], dict[str, Array]]:
    """The mixture of experts: the k best experts of each token, weighted, plus the gated shared expert.

    No capacity limit and no dropped tokens.  `jax.vmap` over x alone is not possible, because JAX's `ragged_dot` has no
    batching rule for shared weights: use the batch axis, or map the parameters too.

    Args:
        p: its parameters; with `expert_axis` the E/n experts of this device.
        config: the model.
        x: [B, T, H], the normed hidden states; with `expert_axis` this device's rows.
        expert_axis: name of the mapped axis that experts and rows are spread over; None = one device has all experts.

    Returns:
        [B, T, H], and the values inside by name, where tokens are flat: [B·T, ...].
    """
    B, T, H = x.shape
    x = x.reshape(B * T, H)
    logits = x @ p.router
    ids, weights = route(logits, config.num_experts_per_tok)
    if expert_axis is None:
        routed = combine(experts(p, x, ids), weights)
    else:
        routed = spread_experts(p, x, ids, weights, expert_axis)
    shared = swiglu(p.shared, x)
    shared_gate_logit = x @ p.shared_gate
    out = routed + jax.nn.sigmoid(shared_gate_logit) * shared

    taps = {"router_logits": logits, "topk_indices": ids, "topk_weights": weights, "routed": routed}
    taps |= {"shared": shared, "shared_gate_logit": shared_gate_logit}
    return out.reshape(B, T, H), taps


def route(logits: Float[Array, "M E"], k: int) -> tuple[Int[Array, "M k"], Float[Array, "M k"]]:
    """The k most probable experts of each token and their probabilities, normalised to sum 1.

    Args:
        logits: [M, E] in the model's type.
        k: experts per token.

    Returns:
        Expert ids [M, k], and weights [M, k] in the model's type; softmax and division are float32.
    """
    probs = jax.nn.softmax(logits.astype(jnp.float32), axis=-1)
    weights, ids = lax.top_k(probs, k)
    weights = weights / jnp.sum(weights, axis=-1, keepdims=True)
    return ids, weights.astype(logits.dtype)


def experts(p: MoE, x: Float[Array, "M H"], ids: Int[Array, "M k"]) -> Float[Array, "M k H"]:
    """What each chosen expert makes of its token: sort by expert, three ragged products, unsort.

    Ids of E and above belong to no expert: they sort to the end, outside all groups, and their output has no meaning.
    """
    (M, k), E = ids.shape, p.w_gate.shape[0]
    flat_ids = ids.reshape(M * k)
    order = jnp.argsort(flat_ids)
    rows = x[order // k]
    group_sizes = jnp.bincount(flat_ids, length=E)
    gate = lax.ragged_dot(rows, p.w_gate, group_sizes)
    up = lax.ragged_dot(rows, p.w_up, group_sizes)
    out = lax.ragged_dot(jax.nn.silu(gate) * up, p.w_down, group_sizes)
    return out[jnp.argsort(order)].reshape(M, k, -1)


def combine(outputs: Float[Array, "M k H"], weights: Float[Array, "M k"]) -> Float[Array, "M H"]:
    """Sums the k experts' outputs with their weights."""
    return jnp.sum(outputs * weights[..., None], axis=1)


def spread_experts(
    p: MoE, x: Float[Array, "M H"], ids: Int[Array, "M k"], weights: Float[Array, "M k"], axis: str
) -> Float[Array, "M H"]:
    """The routed experts when both tokens and experts are spread over a mapped axis.

    Every device gathers all tokens, applies the experts it holds, and the partial sums are added over the axis; each
    device keeps its own tokens' slice.

    Args:
        p: the E/n experts of this device.
        x: [M, H], the M tokens of this device.
        ids: [M, k], global expert ids.
        weights: [M, k], their weights.
        axis: the mapped axis.

    Returns:
        [M, H] for the tokens of this device.
    """
    num_local_tokens, num_local_experts = x.shape[0], p.w_gate.shape[0]
    x = lax.all_gather(x, axis, axis=0, tiled=True)
    ids = lax.all_gather(ids, axis, axis=0, tiled=True)
    weights = lax.all_gather(weights, axis, axis=0, tiled=True)

    local_ids = ids - lax.axis_index(axis) * num_local_experts
    is_local = (local_ids >= 0) & (local_ids < num_local_experts)
    outputs = experts(p, x, jnp.where(is_local, local_ids, num_local_experts))
    # Outside all groups a ragged product may hold anything, so it is replaced rather than multiplied by zero.
    outputs = jnp.where(is_local[..., None], outputs, 0)
    routed = lax.psum(combine(outputs, weights), axis)
    return lax.dynamic_slice_in_dim(routed, lax.axis_index(axis) * num_local_tokens, num_local_tokens)
