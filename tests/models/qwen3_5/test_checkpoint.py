"""Checkpoint folders: exact round trips, shards, types, shardings, and clear refusals."""

import dataclasses
import json
import shutil
import stat

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from safetensors.numpy import load_file, save_file

from jaxsplice.models.qwen3_5 import abstract_params, checkpoint, load, param_specs, save, stack_blocks
from jaxsplice.models.qwen3_5.checkpoint import INDEX_FILE, SINGLE_FILE
from jaxsplice.models.qwen3_5.published import Published, published_parameters


def assert_same(got, want):
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(got), jax.tree.leaves(want)):
        assert a.dtype == b.dtype and np.array_equal(a, b), jax.tree_util.keystr(path)


@pytest.fixture
def copy(oracle, tmp_path):
    """A copy of the dense checkpoint, to be damaged."""
    for name in ("config.json", SINGLE_FILE):
        shutil.copyfile(oracle.folder("dense_tiny") / name, tmp_path / name)
    return tmp_path


def damage(folder, change):
    """Applies `change` to the dict of tensors of a checkpoint."""
    tensors = load_file(folder / SINGLE_FILE)
    change(tensors)
    save_file(tensors, folder / SINGLE_FILE)


@pytest.mark.parametrize("max_shard_bytes", [10**9, 200_000])
def test_saved_tensors_are_the_published_ones(tiny, oracle, tmp_path, max_shard_bytes):
    save(tmp_path / "saved", tiny.params, tiny.config, max_shard_bytes)
    files = sorted((tmp_path / "saved").glob("*.safetensors"))
    if max_shard_bytes == 10**9:
        assert [file.name for file in files] == [SINGLE_FILE]
    else:
        assert len(files) > 3
        index = json.loads((tmp_path / "saved" / INDEX_FILE).read_text())
        assert set(index["weight_map"].values()) == {file.name for file in files}
        assert index["metadata"]["total_size"] == sum(leaf.nbytes for leaf in jax.tree.leaves(tiny.params))
        for tensors in map(load_file, files):
            assert len(tensors) == 1 or sum(tensor.nbytes for tensor in tensors.values()) <= max_shard_bytes
    published = load_file(oracle.folder(tiny.name) / SINGLE_FILE)
    saved = {name: tensor for file in files for name, tensor in load_file(file).items()}
    assert saved.keys() == {name for name in published if not name.startswith("mtp.")}
    assert all(np.array_equal(saved[name], published[name]) for name in saved)
    params, config = load(tmp_path / "saved")
    assert config == tiny.config
    assert_same(params, tiny.params)


def test_bfloat16_round_trip_of_the_stacked_form(oracle, tmp_path):
    params, config = load(oracle.folder("moe_tiny"), dtype=jnp.bfloat16)
    save(tmp_path / "saved", stack_blocks(params), config)
    assert_same(load(tmp_path / "saved")[0], params)


def test_save_converts_to_a_type(moe_tiny, oracle, tmp_path):
    save(tmp_path / "saved", moe_tiny.params, moe_tiny.config, dtype=jnp.bfloat16)
    assert_same(load(tmp_path / "saved")[0], load(oracle.folder("moe_tiny"), dtype=jnp.bfloat16)[0])


def test_saved_files_may_be_read_by_others(moe_tiny, tmp_path):
    save(tmp_path / "saved", moe_tiny.params, moe_tiny.config, 200_000)
    modes = {stat.S_IMODE(file.stat().st_mode) & 0o444 for file in (tmp_path / "saved").iterdir()}
    assert modes == {0o444}


def test_a_failed_save_leaves_no_checkpoint(moe_tiny, tmp_path, monkeypatch):
    (tmp_path / "tokenizer.json").write_text("{}")
    written = []

    def fail_on_the_third(tensors, file, metadata):
        written.append(file)
        if len(written) == 3:
            raise OSError("disk full")
        save_file(tensors, file, metadata)

    monkeypatch.setattr(checkpoint, "save_file", fail_on_the_third)
    with pytest.raises(OSError, match="disk full"):
        save(tmp_path, moe_tiny.params, moe_tiny.config, 200_000)
    assert len(written) == 3 and [file.name for file in tmp_path.iterdir()] == ["tokenizer.json"]
    monkeypatch.undo()
    save(tmp_path, moe_tiny.params, moe_tiny.config, 200_000)
    assert_same(load(tmp_path)[0], moe_tiny.params)


def test_types(oracle):
    params, config = load(oracle.folder("moe_tiny"), dtype=jnp.bfloat16)
    like = abstract_params(config)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), params) == jax.tree.map(lambda x: (x.shape, x.dtype), like)


def test_tied_head_is_none(dense_tiny, moe_tiny):
    assert dense_tiny.params.head is None
    assert moe_tiny.params.head.shape == (64, 199)


def test_one_sharding_for_all(oracle, tiny):
    mesh = jax.make_mesh((8,), ("x",))
    params, _ = load(oracle.folder(tiny.name), sharding=NamedSharding(mesh, P()))
    assert_same(params, tiny.params)
    assert all(len(leaf.sharding.device_set) == 8 for leaf in jax.tree.leaves(params))


def test_sharded_experts_are_read_in_parts(oracle, moe_tiny, monkeypatch):
    mesh = jax.make_mesh((4,), ("x",))
    shardings = jax.tree.map(lambda spec: NamedSharding(mesh, spec), param_specs(abstract_params(moe_tiny.config), "x"))
    largest, read = {}, Published.read

    def watched(place, tensor, index=None):
        block = read(place, tensor, index)
        largest[place.name] = max(largest.get(place.name, 0), block.size)
        return block

    monkeypatch.setattr(Published, "read", watched)
    params, _ = load(oracle.folder("moe_tiny"), sharding=shardings)
    assert_same(params, moe_tiny.params)
    assert params.layers[0].mlp.w_gate.addressable_shards[0].data.shape == (5, 64, 16)
    assert largest["model.language_model.layers.0.mlp.experts.gate_up_proj"] == 5 * 64 * 16


def test_names_of_the_text_model_alone(copy, dense_tiny):
    def rename(tensors):
        for name in list(tensors):
            tensors[name.replace("model.language_model.", "model.")] = tensors.pop(name)

    damage(copy, rename)
    assert_same(load(copy)[0], dense_tiny.params)


def test_missing_folder_and_files(oracle, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere'\): no such folder"):
        load(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"no config\.json at"):
        load(tmp_path)
    shutil.copyfile(oracle.folder("dense_tiny") / "config.json", tmp_path / "config.json")
    with pytest.raises(FileNotFoundError, match=f"holds neither {SINGLE_FILE} nor {INDEX_FILE}"):
        load(tmp_path)


def test_missing_tensors_are_named_and_counted(copy):
    damage(copy, lambda tensors: [tensors.pop(name) for name in list(tensors) if ".layers.1.linear_attn." in name])
    with pytest.raises(ValueError, match=r"lacks 9 of 55 tensors.*layers\.1\.linear_attn\.A_log.* and 5 more"):
        load(copy)


def test_unknown_tensors_are_named(copy):
    damage(copy, lambda tensors: tensors.update({"model.language_model.layers.4.extra": np.zeros(1)}))
    with pytest.raises(ValueError, match=r"holds 1 tensors .* no place for: model\.language_model\.layers\.4\.extra"):
        load(copy)


def test_fp8_checkpoints_are_refused(copy):
    damage(copy, lambda tensors: tensors.update({"model.language_model.x.weight_scale_inv": np.zeros(1)}))
    with pytest.raises(ValueError, match="FP8 checkpoint, which is not supported yet"):
        load(copy)


def test_wrong_shape(copy):
    name = "model.language_model.layers.0.linear_attn.conv1d.weight"
    damage(copy, lambda tensors: tensors.update({name: np.zeros((208, 1, 3), np.float32)}))
    with pytest.raises(ValueError, match=r"conv1d\.weight has shape \[208, 1, 3\], but .* calls for \[208, 1, 4\]"):
        load(copy)


def test_corrupt_weights(copy):
    (copy / SINGLE_FILE).write_bytes(b"not a checkpoint")
    with pytest.raises(ValueError, match="not a valid safetensors file"):
        load(copy)


@pytest.mark.parametrize(
    "text, error, message",
    [
        ("{", ValueError, "is corrupt: no JSON object with a weight_map"),
        ("{}", ValueError, "is corrupt: no JSON object with a weight_map"),
        ('{"weight_map": ["a"]}', ValueError, "does not map tensor names to file names"),
        ('{"weight_map": {"lm_head.weight": "lost.file"}}', FileNotFoundError, "names lost.file, which is not there"),
    ],
)
def test_corrupt_index(copy, text, error, message):
    (copy / INDEX_FILE).write_text(text)
    with pytest.raises(error, match=message):
        load(copy)


def test_index_that_names_the_wrong_shard(copy, dense_tiny):
    names = [place.name for place in jax.tree.leaves(published_parameters(dense_tiny.config))]
    damage(copy, lambda tensors: tensors.pop(names[0]))
    (copy / INDEX_FILE).write_text(json.dumps({"weight_map": dict.fromkeys(names, SINGLE_FILE)}))
    with pytest.raises(ValueError, match=r"index\.json is corrupt: model\.safetensors does not hold .*embed_tokens"):
        load(copy)


def test_save_refuses(dense_tiny, moe_tiny, copy, tmp_path):
    with pytest.raises(FileExistsError, match=f"already holds {SINGLE_FILE}"):
        save(copy, dense_tiny.params, dense_tiny.config)
    with pytest.raises(ValueError, match="params and config belong to different models"):
        save(tmp_path / "new", dense_tiny.params, moe_tiny.config)
    wider = dataclasses.replace(dense_tiny.config, intermediate_size=96)
    with pytest.raises(ValueError, match=r"mlp\.gate_proj\.weight has shape \[48, 80\], .* calls for \[48, 96\]"):
        save(tmp_path / "newer", dense_tiny.params, wider)
