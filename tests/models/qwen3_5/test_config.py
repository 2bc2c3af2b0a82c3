"""Configurations: published names, config.json in both forms, and clear refusals."""

import dataclasses
import json

import jax
import pytest

from jaxsplice.models.qwen3_5 import Config, abstract_params, init_cache
from jaxsplice.models.qwen3_5.config import published_sizes
from jaxsplice.models.qwen3_5.published import published_parameters

SIZES = published_sizes()["models"]


@pytest.mark.parametrize("name", SIZES)
def test_published_sizes(name):
    config = Config.named(name)
    assert config == Config.named(name.lower()) == Config.named(name.removeprefix("Qwen3.5-"))
    counts = SIZES[name]["parameters"]
    leaves = jax.tree.leaves(abstract_params(config))
    assert sum(leaf.size for leaf in leaves) == counts["text"]
    # tensors_without_mtp counts the vision tower too: 12 per block of the tower, 3 before its blocks and 6 after
    tensors = {place.name for place in jax.tree.leaves(published_parameters(config))}
    assert config.vision_config is not None
    assert len(tensors) + 12 * config.vision_config.depth + 9 == counts["tensors_without_mtp"]
    assert config.layer_types.count("full_attention") * 4 == config.num_hidden_layers
    assert config.mtp_num_hidden_layers == 1


def test_parameter_count_by_part():
    params = abstract_params(Config.named("397b-a17b"))
    count = lambda tree: sum(leaf.size for leaf in jax.tree.leaves(tree))
    parts = SIZES["Qwen3.5-397B-A17B"]["parameters"]["text_by_part"]
    mlps = [layer.mlp for layer in params.layers]
    assert count(params.embed) == parts["embed"] and count(params.head) == parts["lm_head"]
    assert count([mlp.router for mlp in mlps]) == parts["router"]
    assert count([(mlp.w_gate, mlp.w_up, mlp.w_down) for mlp in mlps]) == parts["experts"]
    assert count([(mlp.shared, mlp.shared_gate) for mlp in mlps]) == parts["shared"]
    full = [layer for i, layer in enumerate(params.layers) if i % 4 == 3]
    assert count([layer.mixer for layer in full]) == parts["attn"]


def test_abstract_types():
    leaves = jax.tree_util.tree_leaves_with_path(abstract_params(Config.named("0.8b")))
    wide = {jax.tree_util.keystr(path) for path, leaf in leaves if leaf.dtype == "float32"}
    assert wide == {f".layers[{i}].mixer.{name}" for i in range(24) if i % 4 != 3 for name in ("A_log", "norm")}


def test_static_pytree_without_leaves():
    config = Config.named("27b")
    assert jax.tree.leaves(config) == []
    assert hash(config) == hash(Config.named("27B")) and config != Config.named("9b")
    assert jax.jit(lambda config, x: x * config.num_hidden_layers)(config, 2) == 128


def test_unknown_name_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"'7b'.*qwen3.5-0.8b.*Config.from_json") as error:
        Config.named("7b")
    assert all(name.lower() in str(error.value) for name in SIZES)


@pytest.mark.parametrize("name", ["dense_tiny", "moe_tiny"])
def test_config_json_in_all_forms(oracle, tmp_path, name):
    folder = oracle.folder(name)
    config = Config.from_json(folder)
    assert config == Config.from_json(folder / "config.json")
    values = json.loads((folder / "config.json").read_text())
    (tmp_path / "text.json").write_text(json.dumps(values["text_config"]))
    bare = Config.from_json(tmp_path / "text.json")
    assert bare.vision_config is None
    outer = dict.fromkeys(name for name in values if name.endswith("_token_id"))
    assert bare == dataclasses.replace(config, vision_config=None, **outer)
    assert Config.from_dict(json.loads(json.dumps(config.to_dict()))) == config


@pytest.mark.parametrize("name", SIZES)
def test_written_form_reads_back_equal(name):
    config = Config.named(name)
    assert Config.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_layer_types_follow_from_the_interval():
    config = dataclasses.replace(Config.named("0.8b"), num_hidden_layers=3, full_attention_interval=2, layer_types=())
    assert config.layer_types == ("linear_attention", "full_attention", "linear_attention")
    assert len(init_cache(config, 1, 4).layers) == 3


@pytest.mark.parametrize(
    "change, message",
    [
        ({"model_type": "llama"}, r"model_type is 'llama'.*'qwen3_5_moe'"),
        ({"hidden_act": "gelu"}, r"hidden_act is 'gelu'.*fixes it to 'silu'"),
        ({"attention_bias": True}, r"attention_bias is True"),
        ({"hidden_size": None, "head_dim": None}, r"missing hidden_size, head_dim"),
        ({"layer_types": ["linear_attention"]}, r"layer_types names 1 layers and num_hidden_layers is 4"),
        ({"layer_types": ["mamba"] * 4}, r"layer_types holds \['mamba'\]"),
        ({"linear_num_value_heads": 3}, r"linear_num_value_heads = 3 is not a multiple of linear_num_key_heads = 2"),
        ({"num_experts_per_tok": 21}, r"num_experts_per_tok = 21 must be from 1 to num_experts = 20"),
        ({"num_experts": None}, r"a dense model .* needs intermediate_size"),
        ({"moe_intermediate_size": None}, r"mixture of experts needs moe_intermediate_size"),
        ({"rope_parameters": {"rope_theta": 1e4}}, r"rope_parameters: missing partial_rotary_factor, mrope_section"),
    ],
)
def test_refusals(oracle, tmp_path, change, message):
    text = json.loads((oracle.folder("moe_tiny") / "config.json").read_text())["text_config"] | change
    (tmp_path / "config.json").write_text(json.dumps({key: value for key, value in text.items() if value is not None}))
    with pytest.raises(ValueError, match=message):
        Config.from_json(tmp_path)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"rope_type": "llama3"}, "knows 'default' and 'yarn'"),
        ({"rope_type": "yarn"}, "needs original_max_position_embeddings"),
        ({"mrope_interleaved": False}, "mrope_interleaved is false"),
        ({"mrope_section": (1, 1, 1)}, "must sum to half of the rotated features"),
    ],
)
def test_rope_refusals(change, message):
    config = Config.named("0.8b")
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(config, rope_parameters=dataclasses.replace(config.rope_parameters, **change))


def test_file_refusals(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no config\.json at"):
        Config.from_json(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match="not valid JSON"):
        Config.from_json(tmp_path)
