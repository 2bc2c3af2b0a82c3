"""The Qwen3.5 language model: embedding, hybrid layers, final norm, head.

Written in the plainest spelling of the maths, without kernels or fused forms, as the thing that graph rewriting starts
from and is measured against.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from .attention import Attention, attention
from .cache import AttentionCache, Cache, LinearCache, StackedCache, init_cache, real_columns, token_slots
from .checks import check_forward_inputs
from .config import Config
from .gdn import GatedDeltaNet, gated_delta_net
from .moe import MoE, moe, swiglu
from .norms import rms_norm
from .params import Layer, Params, StackedParams
from .rope import rope_tables
from .stacked import stack_blocks, unstack_layers


class Tokens(NamedTuple):
    """What every layer knows about this call's tokens: which are real, their cache slots, their rotations."""

    mask: Bool[Array, "B T"] | None
    slots: Int[Array, "B T"]
    cos: Float[Array, "B T R"]
    sin: Float[Array, "B T R"]


def forward(
    params: Params | StackedParams,
    config: Config,
    ids: Int[Array, "B T"],
    positions: Int[Array, "B T"] | Int[Array, "3 B T"] | None = None,
    mask: Int[Array, "B T"] | Bool[Array, "B T"] | None = None,
    cache: Cache | StackedCache | None = None,
    logits: str = "all",
    taps: bool = False,
    expert_axis: str | None = None,
) -> Any:
    """Runs the language model over some tokens, from the start or continuing from a cache.

    Any number of tokens may follow a cache, and pieces of a prompt give what the whole prompt gives.  A cache has room
    for `max_length` tokens per row; tokens beyond it are not stored, and no error can be raised for that under `jit`.
    Products run at JAX's default precision: on accelerators ask for float32 ones, `jax.default_matmul_precision`.

    Args:
        params: parameters; the stacked form (`stack_blocks`) runs one scan over blocks in place of a Python loop.
        config: the model; a static pytree, so `jax.jit(forward)(params, config, ids)` works.
        ids: [B, T] token ids, T at least 1.
        positions: [B, T] rotary positions, or [3, B, T] for time, height and width.  By default each row counts its
            real tokens from 0, or on from the cache.
        mask: [B, T], 1 = real token, 0 = padding on the left or on the right of the row.  Outputs at padded places have
            no meaning.  Left padding is for an empty cache; continue a ragged batch with right padding.
        cache: from `init_cache` or an earlier call, in the same form (stacked or not) as the parameters; None = empty,
            with room for T tokens, in the parameters' type.
        logits: "all" for every token, "last" for each row's last real token only.
        taps: whether to return values inside the model as well.
        expert_axis: the mapped axis (inside `jax.shard_map` or `jax.vmap`) over which experts and rows are spread; see
            `expert_parallel`.

    Returns:
        (logits, cache), or (logits, cache, taps).  Logits are [B, T, V], or [B, V] for "last", in the parameters' type.
        Taps are a flat dict: "hidden.embed", "hidden.layer0", ..., "hidden.final", "layer0.gdn.in_proj_qkv", ...,
        "layer3.attn.probs", ..., "layer0.mlp.out".

    Raises:
        ValueError: arguments whose shapes or forms do not fit together.

    Example:
        >>> import jax
        >>> from jaxsplice.models.qwen3_5 import Config, abstract_params
        >>> config = Config.named("qwen3.5-0.8b")
        >>> ids = jax.ShapeDtypeStruct((1, 8), jnp.int32)
        >>> logits, cache = jax.eval_shape(forward, abstract_params(config), config, ids)
        >>> logits.shape, cache.layers[3].key.shape
        ((1, 8, 248320), (1, 2, 8, 256))
    """
    check_forward_inputs(params, config, ids, positions, mask, cache, logits)
    B, T = ids.shape
    mask = None if mask is None else jnp.asarray(mask, bool)
    if cache is None:
        cache = init_cache(config, B, T, params.embed.dtype)
        cache = stack_blocks(cache) if isinstance(params, StackedParams) else cache

    # From here on the model sees only embeddings: features of images and videos would replace rows of x here.
    x = embedded = params.embed[ids]
    slots = token_slots(cache.length, mask, T)
    cos, sin = rope_tables(config, slots if positions is None else positions, x.dtype)
    tokens = Tokens(mask, slots, cos, sin)
    if isinstance(params, StackedParams):
        assert isinstance(cache, StackedCache)  # as checked above
        x, blocks, inside = scan_blocks(params.blocks, config, x, cache.blocks, tokens, taps, expert_axis)
        cache = StackedCache(blocks)
    else:
        assert isinstance(cache, Cache)
        x, layers, inside = run_layers(params.layers, config, x, cache.layers, tokens, expert_axis)
        cache = Cache(layers)

    y = final = rms_norm(x, params.norm, config.rms_norm_eps)
    if logits == "last":
        y = last_real_token(y, mask)
    head = params.embed.T if params.head is None else params.head
    if taps:
        return y @ head, cache, {"hidden.embed": embedded, **name_taps(inside), "hidden.final": final}
    return y @ head, cache


def run_layers(
    layers: tuple[Layer, ...],
    config: Config,
    x: Float[Array, "B T H"],
    caches: tuple[LinearCache | AttentionCache, ...],
    tokens: Tokens,
    expert_axis: str | None,
) -> tuple[Float[Array, "B T H"], tuple[LinearCache | AttentionCache, ...], tuple[dict[str, Array], ...]]:
    """Applies layers one after the other; returns the hidden states, the new caches and each layer's taps."""
    new_caches, taps = [], []
    for layer, cache in zip(layers, caches):
        x, cache, inside = apply_layer(layer, config, x, cache, tokens, expert_axis)
        new_caches.append(cache)
        taps.append(inside)
    return x, tuple(new_caches), tuple(taps)


def scan_blocks(
    blocks: tuple[Layer, ...],
    config: Config,
    x: Float[Array, "B T H"],
    caches: tuple[LinearCache | AttentionCache, ...],
    tokens: Tokens,
    taps: bool,
    expert_axis: str | None,
) -> tuple[Float[Array, "B T H"], tuple[LinearCache | AttentionCache, ...], tuple[dict[str, Array], ...]]:
    """The same as `run_layers` for stacked layers and caches: one scan over the repeating block."""

    def one_block(x, block):
        layers, caches = block
        x, caches, inside = run_layers(layers, config, x, caches, tokens, expert_axis)
        return x, (caches, inside if taps else ())

    x, (caches, inside) = lax.scan(one_block, x, (blocks, caches))
    return x, caches, unstack_layers(inside) if taps else ()


def apply_layer(
    p: Layer,
    config: Config,
    x: Float[Array, "B T H"],
    cache: LinearCache | AttentionCache,
    tokens: Tokens,
    expert_axis: str | None,
) -> tuple[Float[Array, "B T H"], LinearCache | AttentionCache, dict[str, Array]]:
    """One decoder layer: x + Mix(norm(x)), then x + FFN(norm(x))."""
    taps = {}
    h = rms_norm(x, p.input_norm, config.rms_norm_eps)
    if isinstance(p.mixer, GatedDeltaNet) and isinstance(cache, LinearCache):
        y, cache, inside = gated_delta_net(p.mixer, config, h, cache, tokens.mask)
        taps |= {"gdn.in": h, **{f"gdn.{name}": value for name, value in inside.items()}}
    elif isinstance(p.mixer, Attention) and isinstance(cache, AttentionCache):
        y, cache, inside = attention(p.mixer, config, h, cache, tokens.slots, tokens.cos, tokens.sin, tokens.mask)
        taps |= {"attn.in": h, **{f"attn.{name}": value for name, value in inside.items()}}
    else:
        layer, given = type(p.mixer).__name__, type(cache).__name__
        raise ValueError(f"forward: a {layer} layer met a {given}; make the cache with init_cache(config, ...)")
    x = x + y

    h = rms_norm(x, p.post_norm, config.rms_norm_eps)
    if isinstance(p.mlp, MoE):
        y, inside = moe(p.mlp, config, h, expert_axis)
        taps |= {f"mlp.{name}": value for name, value in inside.items()}
    else:
        y = swiglu(p.mlp, h)
    x = x + y
    return x, cache, taps | {"mlp.in": h, "mlp.out": y, "hidden": x}


def last_real_token(y: Float[Array, "B T H"], mask: Bool[Array, "B T"] | None) -> Float[Array, "B H"]:
    """Each row's vector at its last real token (at its first place in a row without any)."""
    if mask is None:
        return y[:, -1]
    last = jnp.maximum(real_columns(mask) - 1, 0)
    return y[jnp.arange(y.shape[0]), last]


def name_taps(layers: tuple[dict[str, Array], ...]) -> dict[str, Array]:
    """Taps of all layers in one flat dict: "layer{i}.gdn.in", and "hidden.layer{i}" for a layer's output."""
    return {
        f"hidden.layer{i}" if name == "hidden" else f"layer{i}.{name}": TAP_LAYOUTS.get(name, lambda x: x)(value)
        for i, taps in enumerate(layers)
        for name, value in taps.items()
    }


# The public implementation's layouts, where they are not this model's.
TAP_LAYOUTS = {
    "gdn.gated_norm": lambda x: x.reshape(-1, x.shape[-1]),  # rows are batch, time, head
    "attn.q_rope": lambda x: x.swapaxes(1, 2),  # heads before time
    "attn.k_rope": lambda x: x.swapaxes(1, 2),
    "attn.probs": lambda x: x.reshape(x.shape[0], -1, *x.shape[3:]),  # all N query heads on one axis
    "attn.context": lambda x: x.reshape(*x.shape[:2], -1, x.shape[-1]),
}
