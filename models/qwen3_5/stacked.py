"""Two forms of the same model: a tuple of layers, or the repeating block of layers stacked for one scan."""

from typing import Any, TypeVar, overload

import jax
import jax.numpy as jnp

from .cache import Cache, StackedCache
from .params import Params, StackedParams

Tree = TypeVar("Tree")


@overload
def stack_blocks(tree: Params) -> StackedParams: ...
@overload
def stack_blocks(tree: Cache) -> StackedCache: ...
def stack_blocks(tree: Params | Cache) -> StackedParams | StackedCache:
    """Stacks the repeating block of layers (3 linear, 1 full), so that `forward` runs one scan over the blocks.

    Args:
        tree: parameters or a cache; of arrays or of `jax.ShapeDtypeStruct` (whose shardings are not carried over:
            attach those that `param_specs` gives for the result).

    Returns:
        The stacked form.  Arrays are copied: for a moment both forms are held.

    Example:
        >>> from jaxsplice.models.qwen3_5 import Config, abstract_params
        >>> params = stack_blocks(abstract_params(Config.named("qwen3.5-397b-a17b")))
        >>> len(params.blocks), params.blocks[0].mlp.w_gate.shape
        (4, (15, 512, 4096, 1024))
    """
    if isinstance(tree, Cache):
        return StackedCache(stack_layers(tree.layers))
    if isinstance(tree, Params):
        return StackedParams(tree.embed, stack_layers(tree.layers), tree.norm, tree.head)
    raise TypeError(f"stack_blocks takes Params or Cache, not {type(tree).__name__}")


@overload
def unstack_blocks(tree: StackedParams) -> Params: ...
@overload
def unstack_blocks(tree: StackedCache) -> Cache: ...
def unstack_blocks(tree: StackedParams | StackedCache) -> Params | Cache:
    """The inverse of `stack_blocks`."""
    if isinstance(tree, StackedCache):
        return Cache(unstack_layers(tree.blocks))
    if isinstance(tree, StackedParams):
        return Params(tree.embed, unstack_layers(tree.blocks), tree.norm, tree.head)
    raise TypeError(f"unstack_blocks takes StackedParams or StackedCache, not {type(tree).__name__}")


def stack_layers(layers: tuple[Tree, ...]) -> tuple[Tree, ...]:
    """One tree per layer of the shortest repeating block, each leaf stacked over the blocks."""
    kinds = [_kind(layer) for layer in layers]
    n = len(layers)
    size = next(size for size in range(1, n + 1) if n % size == 0 and kinds == kinds[:size] * (n // size))
    return tuple(jax.tree.map(_stack, *layers[j::size]) for j in range(size))


def unstack_layers(blocks: tuple[Tree, ...]) -> tuple[Tree, ...]:
    """The inverse of `stack_layers`."""
    num_blocks = jax.tree.leaves(blocks)[0].shape[0]
    return tuple(jax.tree.map(lambda leaf, i=i: _take(leaf, i), layer) for i in range(num_blocks) for layer in blocks)


def _kind(layer: Any) -> tuple:
    return jax.tree.structure(layer), [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(layer)]


def _stack(*leaves):
    if isinstance(leaves[0], jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct((len(leaves), *leaves[0].shape), leaves[0].dtype)
    return jnp.stack(leaves)


def _take(leaf, i: int):
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype)
    return leaf[i]
