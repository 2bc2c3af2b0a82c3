"""Where each parameter lives in a published checkpoint: tensor name, shape there, and the way from there to here.

`published_parameters` is the one description of the model's parameters; abstract and random parameters, loading and
saving all follow from it.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from .attention import Attention
from .config import LINEAR, Config
from .gdn import GatedDeltaNet
from .moe import MoE, SwiGLU
from .params import Layer, Params

TEXT_PREFIX = "model.language_model."
# Parts of a checkpoint that this model does not have yet: the vision tower and the multi-token prediction head.
SKIPPED_PREFIXES = ("model.visual.", "mtp.")


@dataclass(frozen=True)
class Published:
    """One parameter's place in a published checkpoint.

    Attributes:
        name: the tensor's name.
        stored: the tensor's shape.
        axes: for each of our axes, the tensor's axis; an axis of the tensor that is not named has size 1.
        rows: the part of the tensor's axis 1 that is ours (start, stop); None = all of it.
        float32: kept in float32 whatever the model's type.
    """

    name: str
    stored: tuple[int, ...]
    axes: tuple[int, ...]
    rows: tuple[int, int] | None = None
    float32: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of our parameter."""
        return tuple(self._size(axis) for axis in self.axes)

    def read(self, tensor: Any, index: tuple[slice, ...] | None = None) -> np.ndarray:
        """Our parameter, or the part of it at `index`, from a lazily read tensor; only the needed part is read."""
        places = [slice(0, size) for size in self.stored]
        for axis, part in zip(self.axes, index or (slice(None),) * len(self.axes)):
            first = self.rows[0] if self.rows and axis == 1 else 0
            start, stop, _ = part.indices(self._size(axis))
            places[axis] = slice(first + start, first + stop)
        dropped = tuple(axis for axis in range(len(self.stored)) if axis not in self.axes)
        block = np.asarray(tensor[tuple(places)]).squeeze(dropped)
        return block.transpose(np.argsort(np.argsort(self.axes)))

    def write(self, parameter: np.ndarray) -> np.ndarray:
        """The tensor (its `rows` part) from our parameter: the inverse of `read`."""
        block = parameter.transpose(np.argsort(self.axes))
        dropped = tuple(axis for axis in range(len(self.stored)) if axis not in self.axes)
        return np.expand_dims(block, dropped)

    def _size(self, axis: int) -> int:
        return self.rows[1] - self.rows[0] if self.rows and axis == 1 else self.stored[axis]


def published_parameters(config: Config) -> Params:
    """The tree of parameters of `config`, with a `Published` at each leaf."""
    V, H = config.vocab_size, config.hidden_size
    layers = tuple(_layer(config, f"{TEXT_PREFIX}layers.{i}.", kind) for i, kind in enumerate(config.layer_types))
    embed: Any = Published(f"{TEXT_PREFIX}embed_tokens.weight", (V, H), axes=(0, 1))
    norm: Any = _vector(f"{TEXT_PREFIX}norm.weight", H)
    head: Any = None if config.tie_word_embeddings else _linear("lm_head.weight", H, V)
    return Params(embed, layers, norm, head)


def _vector(name: str, size: int, float32: bool = False) -> Any:
    return Published(name, (size,), axes=(0,), float32=float32)


def _linear(name: str, size_in: int, size_out: int) -> Any:
    return Published(name, (size_out, size_in), axes=(1, 0))


def _layer(config: Config, prefix: str, kind: str) -> Layer:
    H = config.hidden_size
    return Layer(
        input_norm=_vector(f"{prefix}input_layernorm.weight", H),
        mixer=_linear_attention(config, prefix) if kind == LINEAR else _attention(config, prefix),
        post_norm=_vector(f"{prefix}post_attention_layernorm.weight", H),
        mlp=_moe(config, prefix) if config.is_moe else _swiglu(f"{prefix}mlp.", H, config.intermediate_size),
    )


def _linear_attention(config: Config, prefix: str) -> GatedDeltaNet:
    H, HV, C = config.hidden_size, config.linear_num_value_heads, config.conv_channels
    conv: Any = Published(f"{prefix}linear_attn.conv1d.weight", (C, 1, config.linear_conv_kernel_dim), axes=(2, 0))
    return GatedDeltaNet(
        w_qkv=_linear(f"{prefix}linear_attn.in_proj_qkv.weight", H, C),
        w_z=_linear(f"{prefix}linear_attn.in_proj_z.weight", H, config.value_dim),
        w_b=_linear(f"{prefix}linear_attn.in_proj_b.weight", H, HV),
        w_a=_linear(f"{prefix}linear_attn.in_proj_a.weight", H, HV),
        conv=conv,
        A_log=_vector(f"{prefix}linear_attn.A_log", HV, float32=True),
        dt_bias=_vector(f"{prefix}linear_attn.dt_bias", HV),
        norm=_vector(f"{prefix}linear_attn.norm.weight", config.linear_value_head_dim, float32=True),
        w_out=_linear(f"{prefix}linear_attn.out_proj.weight", config.value_dim, H),
    )


def _attention(config: Config, prefix: str) -> Attention:
    H, N, G, D = config.hidden_size, config.num_attention_heads, config.num_key_value_heads, config.head_dim
    return Attention(
        w_q=_linear(f"{prefix}self_attn.q_proj.weight", H, 2 * N * D),
        w_k=_linear(f"{prefix}self_attn.k_proj.weight", H, G * D),
        w_v=_linear(f"{prefix}self_attn.v_proj.weight", H, G * D),
        q_norm=_vector(f"{prefix}self_attn.q_norm.weight", D),
        k_norm=_vector(f"{prefix}self_attn.k_norm.weight", D),
        w_o=_linear(f"{prefix}self_attn.o_proj.weight", N * D, H),
    )


def _swiglu(prefix: str, hidden: int, width: int) -> SwiGLU:
    return SwiGLU(
        w_gate=_linear(f"{prefix}gate_proj.weight", hidden, width),
        w_up=_linear(f"{prefix}up_proj.weight", hidden, width),
        w_down=_linear(f"{prefix}down_proj.weight", width, hidden),
    )


def _moe(config: Config, prefix: str) -> MoE:
    H, E, I = config.hidden_size, config.num_experts, config.moe_intermediate_size
    gate: Any = Published(f"{prefix}mlp.experts.gate_up_proj", (E, 2 * I, H), axes=(0, 2, 1), rows=(0, I))
    up: Any = Published(f"{prefix}mlp.experts.gate_up_proj", (E, 2 * I, H), axes=(0, 2, 1), rows=(I, 2 * I))
    down: Any = Published(f"{prefix}mlp.experts.down_proj", (E, H, I), axes=(0, 2, 1))
    return MoE(
        router=_linear(f"{prefix}mlp.gate.weight", H, E),
        w_gate=gate,
        w_up=up,
        w_down=down,
        shared=_swiglu(f"{prefix}mlp.shared_expert.", H, config.shared_expert_intermediate_size),
        shared_gate=_linear(f"{prefix}mlp.shared_expert_gate.weight", H, 1),
    )
