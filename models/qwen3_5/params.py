"""The tree of parameters.  Linear weights are stored [in, out], so that code reads `x @ w`."""

import equinox as eqx
from jaxtyping import Array, Float

from .attention import Attention
from .gdn import GatedDeltaNet
from .moe import MoE, SwiGLU


class Layer(eqx.Module):
    """One decoder layer: norm, linear or full attention; norm, dense or mixture-of-experts feed-forward."""

    input_norm: Float[Array, "H"]
    mixer: GatedDeltaNet | Attention
    post_norm: Float[Array, "H"]
    mlp: MoE | SwiGLU


class Params(eqx.Module):
    """All parameters, layer by layer.  `head` is None when the output head is the embedding, transposed."""

    embed: Float[Array, "V H"]
    layers: tuple[Layer, ...]
    norm: Float[Array, "H"]
    head: Float[Array, "H V"] | None


class StackedParams(eqx.Module):
    """All parameters, with the repeating block of layers stacked for a scan.  Made by `stack_blocks`.

    `blocks` holds one layer per layer of the block; each of their leaves has a leading axis over the blocks.
    """

    embed: Float[Array, "V H"]
    blocks: tuple[Layer, ...]
    norm: Float[Array, "H"]
    head: Float[Array, "H V"] | None
