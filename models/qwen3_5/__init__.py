"""Qwen3.5 in plain JAX: hybrid Gated DeltaNet and gated attention, dense or mixture of experts.

    config = Config.named("qwen3.5-397b-a17b")
    logits, cache = jax.eval_shape(forward, abstract_params(config), config, jax.ShapeDtypeStruct((8, 128), jnp.int32))

    params, config = load("path/to/checkpoint")
    logits, cache = jax.jit(forward)(params, config, ids)

Text only: the vision tower, the multi-token prediction head and FP8 checkpoints are not part of it yet.
"""

from .cache import AttentionCache, Cache, LinearCache, StackedCache, init_cache
from .checkpoint import load, save
from .config import Config, RopeConfig, VisionConfig
from .model import forward
from .parallel import cache_specs, expert_parallel, param_specs
from .params import Layer, Params, StackedParams
from .stacked import stack_blocks, unstack_blocks
from .tokenizer import load_tokenizer
from .weights import abstract_params, random_params

__all__ = [
    "AttentionCache",
    "Cache",
    "Config",
    "Layer",
    "LinearCache",
    "Params",
    "RopeConfig",
    "StackedCache",
    "StackedParams",
    "VisionConfig",
    "abstract_params",
    "cache_specs",
    "expert_parallel",
    "forward",
    "init_cache",
    "load",
    "load_tokenizer",
    "param_specs",
    "random_params",
    "save",
    "stack_blocks",
    "unstack_blocks",
]
