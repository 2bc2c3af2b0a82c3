"""Sizes that the demo is trained in."""

from __future__ import annotations

from typing import Any

from jaxsplice.models.qwen3_5 import Config, RopeConfig

CONTEXT_TOKENS = 1024

# Linear layers and then a full one, each with a mixture of experts and a shared expert.
SIZES: dict[str, dict[str, Any]] = {
    # Heads large enough that chunks of tokens pay in the gated delta rule.
    "demo": {
        "num_hidden_layers": 4,
        "hidden_size": 192,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 64,
        "linear_value_head_dim": 128,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "num_experts": 8,
        "moe_intermediate_size": 96,
        "shared_expert_intermediate_size": 96,
    },
    "tiny": {
        "num_hidden_layers": 2,
        "hidden_size": 32,
        "linear_num_key_heads": 1,
        "linear_num_value_heads": 2,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "num_experts": 4,
        "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 16,
    },
}


def demo_config(size: str, vocab_size: int) -> Config:
    """The configuration of a size.

    Args:
        size: a name in `SIZES`.
        vocab_size: tokens of the tokenizer.

    Example:
        >>> demo_config("demo", 2048).layer_types.count("linear_attention")
        3
    """
    sizes = SIZES[size]
    return Config(
        vocab_size=vocab_size,
        full_attention_interval=sizes["num_hidden_layers"],
        num_experts_per_tok=2,
        head_dim=32,
        linear_conv_kernel_dim=4,
        rms_norm_eps=1e-6,
        rope_parameters=RopeConfig(rope_theta=10_000.0, partial_rotary_factor=0.5, mrope_section=(4, 2, 2)),
        max_position_embeddings=CONTEXT_TOKENS,
        tie_word_embeddings=True,
        eos_token_id=0,
        **sizes,
    )
