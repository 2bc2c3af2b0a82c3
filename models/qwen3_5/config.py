"""Qwen3.5 configuration: the fields of the published config.json, frozen and hashable.

Field names are the published ones, so a reader of a config.json knows them already.  A `Config` is a static pytree
without leaves: it passes through `jax.jit`, `jax.eval_shape` and friends as an ordinary argument.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import jax

LINEAR, FULL = "linear_attention", "full_attention"
_DENSE, _MOE = "qwen3_5", "qwen3_5_moe"  # model_type of the dense and of the mixture-of-experts sizes
# Fields that every published size sets to the same value.  The model has no switch for them.
_FIXED = {
    "hidden_act": "silu",
    "attention_bias": False,
    "attn_output_gate": True,
    "mamba_ssm_dtype": "float32",
    "mlp_only_layers": [],
}
# Fields that a config.json holds beside its text_config.
_OUTER_TOKENS = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
_Fields = TypeVar("_Fields", "RopeConfig", "VisionConfig", "Config")


@dataclass(frozen=True)
class RopeConfig:
    """Rotary positions (`rope_parameters`): plain (`rope_type="default"`) or YaRN (`"yarn"`)."""

    rope_theta: float
    partial_rotary_factor: float
    mrope_section: tuple[int, int, int]
    rope_type: str = "default"
    mrope_interleaved: bool = True
    # YaRN only
    factor: float = 1.0
    original_max_position_embeddings: int | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0

    def __post_init__(self):
        object.__setattr__(self, "mrope_section", tuple(self.mrope_section))
        if self.rope_type not in ("default", "yarn"):
            raise ValueError(f"rope_type is {self.rope_type!r}; this model knows 'default' and 'yarn'")
        if self.rope_type == "yarn" and self.original_max_position_embeddings is None:
            raise ValueError("rope_type 'yarn' needs original_max_position_embeddings (262144 for the published sizes)")
        if not self.mrope_interleaved:
            raise ValueError("mrope_interleaved is false; Qwen3.5 interleaves the three position axes, set it to true")


@dataclass(frozen=True)
class VisionConfig:
    """The vision tower's published fields.  Parsed and kept; the tower itself is not part of this model yet."""

    depth: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    out_hidden_size: int
    in_channels: int
    patch_size: int
    spatial_merge_size: int
    temporal_patch_size: int
    num_position_embeddings: int
    hidden_act: str = "gelu_pytorch_tanh"


@jax.tree_util.register_static
@dataclass(frozen=True)
class Config:
    """A Qwen3.5 model's sizes.

    Build one with `Config.named` or `Config.from_json`; vary one with `dataclasses.replace`.  `num_experts=0` is a
    dense model.  With `layer_types=()` the kinds of layers follow from `full_attention_interval`.

    Raises:
        ValueError: the fields contradict each other.

    Example:
        >>> config = Config.named("qwen3.5-0.8b")
        >>> config.hidden_size, config.num_hidden_layers, config.layer_types[3]
        (1024, 24, 'full_attention')
    """

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    rms_norm_eps: float
    # linear attention (Gated DeltaNet)
    linear_num_key_heads: int
    linear_num_value_heads: int
    linear_key_head_dim: int
    linear_value_head_dim: int
    linear_conv_kernel_dim: int
    # full attention
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rope_parameters: RopeConfig
    max_position_embeddings: int
    # feed-forward: dense sizes
    intermediate_size: int = 0
    # feed-forward: mixture of experts
    num_experts: int = 0
    num_experts_per_tok: int = 0
    moe_intermediate_size: int = 0
    shared_expert_intermediate_size: int = 0
    # the whole model
    layer_types: tuple[str, ...] = ()
    full_attention_interval: int = 4
    tie_word_embeddings: bool = False
    eos_token_id: int | tuple[int, ...] | None = None
    # kept for the parts that are still to come: multi-token prediction and vision
    mtp_num_hidden_layers: int = 0
    mtp_use_dedicated_embeddings: bool = False
    vision_config: VisionConfig | None = None
    image_token_id: int | None = None
    video_token_id: int | None = None
    vision_start_token_id: int | None = None
    vision_end_token_id: int | None = None

    def __post_init__(self):
        kinds = self.layer_types or tuple(
            FULL if (i + 1) % self.full_attention_interval == 0 else LINEAR for i in range(self.num_hidden_layers)
        )
        object.__setattr__(self, "layer_types", tuple(kinds))
        _check(self)

    # the letters of the maths
    @property
    def key_dim(self) -> int:
        """HK · DK, the width of all linear-attention queries, and of all keys."""
        return self.linear_num_key_heads * self.linear_key_head_dim

    @property
    def value_dim(self) -> int:
        """HV · DV, the width of all linear-attention values."""
        return self.linear_num_value_heads * self.linear_value_head_dim

    @property
    def conv_channels(self) -> int:
        """C, the channels of the causal convolution: queries, keys and values."""
        return 2 * self.key_dim + self.value_dim

    @property
    def rotary_dim(self) -> int:
        """R, the features of each attention head that rotate."""
        return int(self.head_dim * self.rope_parameters.partial_rotary_factor)

    @property
    def is_moe(self) -> bool:
        """Whether the feed-forward blocks are mixtures of experts."""
        return self.num_experts > 0

    @classmethod
    def named(cls, name: str) -> Config:
        """The configuration of a published size.

        Args:
            name: such as "qwen3.5-397b-a17b" or "397B-A17B"; case does not matter.

        Raises:
            ValueError: no published size has this name; the message lists those there are.

        Example:
            >>> Config.named("Qwen3.5-397B-A17B").num_experts
            512
        """
        published = published_sizes()
        known = {size.lower(): size for size in published["models"]}
        key = name.lower()
        key = key if key.startswith("qwen3.5-") else f"qwen3.5-{key}"
        if key not in known:
            raise ValueError(
                f"Config.named({name!r}): no published size has this name. Known: {', '.join(known)}. "
                "For another model give Config.from_json the path of its config.json."
            )
        common, size = published["common"], published["models"][known[key]]
        parts = {part: {**common[part], **size[part]} for part in ("text_config", "vision_config")}
        return cls.from_dict({**common, **size, **parts}, source=known[key])

    @classmethod
    def from_json(cls, path: str | Path) -> Config:
        """The configuration in a config.json.

        Args:
            path: the file, or the folder that holds it.  Whole configurations (with a `text_config`) and bare text
                configurations are both read.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: it is no JSON, not of a Qwen3.5 model, or lacks fields.
        """
        file = Path(path) / "config.json" if Path(path).is_dir() else Path(path)
        if not file.is_file():
            raise FileNotFoundError(f"no config.json at {file}; give a Qwen3.5 checkpoint's folder or the file itself")
        try:
            values = json.loads(file.read_text())
        except ValueError as error:
            raise ValueError(f"{file} is not valid JSON ({error}); download or write it again") from error
        return cls.from_dict(values, source=str(file))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], source: str = "config") -> Config:
        """The configuration in a parsed config.json; `source` names it in error messages.

        Raises:
            ValueError: not of a Qwen3.5 model, or fields are missing or out of range.
        """
        text = values.get("text_config", values)
        kind = str(values.get("model_type", text.get("model_type"))).removesuffix("_text")
        if kind not in (_DENSE, _MOE):
            raise ValueError(f"{source}: model_type is {kind!r}; this model reads {_DENSE!r} and {_MOE!r}")
        for name, needed in _FIXED.items():
            if text.get(name, needed) != needed:
                raise ValueError(f"{source}: {name} is {text[name]!r}, but Qwen3.5 fixes it to {needed!r}")
        vision, rope = values.get("vision_config"), text.get("rope_parameters")
        return _from_fields(
            cls,
            {
                **text,
                **{name: values[name] for name in _OUTER_TOKENS if name in values},
                "tie_word_embeddings": values.get("tie_word_embeddings", text.get("tie_word_embeddings", False)),
                "vision_config": vision and _from_fields(VisionConfig, vision, f"{source}: vision_config"),
                **({"rope_parameters": _from_fields(RopeConfig, rope, f"{source}: rope_parameters")} if rope else {}),
            },
            source,
        )

    def to_dict(self) -> dict[str, Any]:
        """The configuration in the published form of config.json; `from_dict` reads it back equal."""
        kind = _MOE if self.is_moe else _DENSE
        unused = _feed_forward_fields(not self.is_moe)
        values = {name: value for name, value in asdict(self).items() if value is not None and name not in unused}
        outer = {name: values.pop(name) for name in _OUTER_TOKENS if name in values}
        vision = values.pop("vision_config", None)
        whole = {
            "architectures": [f"Qwen3_5{'Moe' if self.is_moe else ''}ForConditionalGeneration"],
            "model_type": kind,
            "tie_word_embeddings": self.tie_word_embeddings,
            **outer,
            "text_config": {"model_type": f"{kind}_text", **_FIXED, **values},
        }
        return whole if vision is None else {**whole, "vision_config": {"model_type": kind, **vision}}


def published_sizes() -> dict[str, Any]:
    """The published sizes: configurations and exact parameter counts, as in configs.json beside this file."""
    return json.loads(Path(__file__).with_name("configs.json").read_text())


def _from_fields(cls: type[_Fields], values: Mapping[str, Any], source: str) -> _Fields:
    """An instance of a dataclass from the fields it knows; other fields of a config.json do not concern this model."""
    known: dict[str, Any] = {f.name: values[f.name] for f in fields(cls) if values.get(f.name) is not None}
    if missing := [f.name for f in fields(cls) if f.default is MISSING and f.name not in known]:
        raise ValueError(f"{source}: missing {', '.join(missing)}; take every field from the published config.json")
    known |= {name: tuple(value) for name, value in known.items() if isinstance(value, list)}
    return cls(**known)


def _check(config: Config) -> None:
    """Refuses fields that contradict each other."""
    if len(config.layer_types) != config.num_hidden_layers:
        raise ValueError(
            f"layer_types names {len(config.layer_types)} layers and num_hidden_layers is {config.num_hidden_layers}; "
            "give layer_types=() to derive them from full_attention_interval"
        )
    if unknown := set(config.layer_types) - {LINEAR, FULL}:
        raise ValueError(f"layer_types holds {sorted(unknown)}; known kinds are {LINEAR!r} and {FULL!r}")
    for many, few in (
        ("linear_num_value_heads", "linear_num_key_heads"),
        ("num_attention_heads", "num_key_value_heads"),
    ):
        if getattr(config, many) % getattr(config, few):
            raise ValueError(f"{many} = {getattr(config, many)} is not a multiple of {few} = {getattr(config, few)}")
    if 2 * sum(config.rope_parameters.mrope_section) != config.rotary_dim:
        raise ValueError(
            f"mrope_section {config.rope_parameters.mrope_section} must sum to half of the rotated features, "
            f"head_dim * partial_rotary_factor / 2 = {config.rotary_dim // 2}"
        )
    if missing := [name for name in _feed_forward_fields(config.is_moe) if not getattr(config, name)]:
        kind = "mixture of experts" if config.is_moe else "dense model (num_experts is not given)"
        raise ValueError(f"a {kind} needs {', '.join(missing)}")
    E, k = config.num_experts, config.num_experts_per_tok
    if k > E:
        raise ValueError(f"num_experts_per_tok = {k} must be from 1 to num_experts = {E}")


def _feed_forward_fields(is_moe: bool) -> tuple[str, ...]:
    """The fields that only mixtures of experts have, or only dense models."""
    if is_moe:
        return "num_experts", "num_experts_per_tok", "moe_intermediate_size", "shared_expert_intermediate_size"
    return ("intermediate_size",)
