"""One clear error for arguments of `forward` that do not fit together."""

import jax

from .cache import Cache, StackedCache
from .config import Config
from .params import Params, StackedParams


def check_forward_inputs(params, config: Config, ids, positions, mask, cache, logits: str) -> None:
    """Refuses arguments of `forward` by shape and form (never by value, which `jit` hides).

    Raises:
        TypeError: params, config or cache are of another kind.
        ValueError: a shape, a type or an option is off.
    """
    if not isinstance(params, (Params, StackedParams)):
        raise TypeError(f"forward: params is a {type(params).__name__}; give what load or random_params returns")
    if not isinstance(config, Config):
        raise TypeError(f"forward: config is a {type(config).__name__}; give what load or Config.named returns")
    if logits not in ("all", "last"):
        raise ValueError(f"forward: logits is {logits!r}; give 'all' (every token) or 'last' (a row's last real token)")
    if not hasattr(ids, "shape"):
        raise TypeError(f"forward: ids is a {type(ids).__name__}; give an array [B, T], e.g. jnp.array(ids)[None]")
    if ids.ndim != 2 or ids.shape[1] == 0 or ids.dtype.kind not in "iu":
        raise ValueError(f"forward: ids is {ids.dtype}{list(ids.shape)}; give integers [B, T], T >= 1, e.g. ids[None]")
    B, T = ids.shape
    if positions is not None and positions.shape not in ((B, T), (3, B, T)):
        raise ValueError(f"forward: positions is {list(positions.shape)}; give [B, T] = [{B}, {T}] or [3, {B}, {T}]")
    if mask is not None and mask.shape != (B, T):
        raise ValueError(
            f"forward: mask is {list(mask.shape)}; give [B, T] = [{B}, {T}], for this call's tokens alone, 1 = real"
        )
    _check_layers(params, config)
    if cache is not None:
        _check_cache(params, config, cache, B, T)


def _check_layers(params: Params | StackedParams, config: Config) -> None:
    if params.embed.shape != (config.vocab_size, config.hidden_size):
        raise ValueError(
            f"forward: params.embed is {list(params.embed.shape)}, but config says [vocab_size, hidden_size] = "
            f"[{config.vocab_size}, {config.hidden_size}]; params and config belong to different models"
        )
    if isinstance(params, StackedParams):
        found = len(params.blocks) * params.blocks[0].input_norm.shape[0]
    else:
        found = len(params.layers)
    if found != config.num_hidden_layers:
        raise ValueError(
            f"forward: params has {found} layers, but config says {config.num_hidden_layers}; "
            "params and config belong to different models"
        )


def _check_cache(params, config: Config, cache, batch: int, num_tokens: int) -> None:
    stacked = isinstance(params, StackedParams)
    if not isinstance(cache, StackedCache if stacked else Cache):
        way_out = "stack_blocks(cache)" if stacked else "unstack_blocks(cache)"
        raise ValueError(
            f"forward: params is {type(params).__name__} and cache is {type(cache).__name__}; "
            f"both must be stacked or neither, e.g. {way_out}"
        )
    rows = jax.tree.leaves(cache)[0].shape[1 if stacked else 0]
    if rows != batch:
        raise ValueError(f"forward: ids has {batch} rows and cache {rows}; use init_cache(config, {batch}, max_length)")
    if cache.max_length is not None and cache.max_length < num_tokens:
        raise ValueError(
            f"forward: {num_tokens} tokens do not fit in a cache of {cache.max_length}; "
            f"make it with init_cache(config, {batch}, max_length) for all tokens to come"
        )
