"""Checkpoint folders in the published format: config.json, and one safetensors file or shards with an index."""

import json
import tempfile
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from .config import Config
from .params import Params, StackedParams
from .published import SKIPPED_PREFIXES, TEXT_PREFIX, Published, published_parameters
from .stacked import unstack_blocks

SINGLE_FILE, INDEX_FILE = "model.safetensors", "model.safetensors.index.json"


def load(path: str | Path, dtype=None, sharding: Any = None) -> tuple[Params, Config]:
    """Loads a published checkpoint's language model.

    Tensors are read lazily, one parameter at a time; with `sharding`, only the parts that this process's devices hold.
    The vision tower and the multi-token prediction head are skipped.

    Args:
        path: folder with config.json and model.safetensors, or shards and model.safetensors.index.json.
        dtype: type of the parameters; None = as stored.  A_log and the gated norm's weight are float32 in any case.
        sharding: one `jax.sharding.Sharding` for all parameters or a tree of them (a prefix of `Params`); None = the
            default device.

    Returns:
        (params, config).  Linear weights are transposed to [in, out].

    Raises:
        FileNotFoundError: no such folder, no config.json, no weights, or a shard is missing.
        ValueError: a file is corrupt, tensors are missing or unknown, or a shape is not the configuration's.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise FileNotFoundError(f"load({str(path)!r}): no such folder; give the folder of a Qwen3.5 checkpoint")
    config = Config.from_json(folder)
    places = published_parameters(config)
    files = _tensor_files(folder)
    _check_names({place.name for place in jax.tree.leaves(places)}, set(files), folder)
    with ExitStack() as stack:
        opened = {file: stack.enter_context(_open(file)) for file in {file for file, _ in files.values()}}
        tensors = {place.name: _lazy(opened, *files[place.name]) for place in jax.tree.leaves(places)}
        _check_shapes(jax.tree.leaves(places), tensors, folder)
        if sharding is None:
            params = jax.tree.map(lambda place: jax.device_put(_read(place, tensors, dtype)), places)
        else:
            shardings = jax.tree.broadcast(sharding, places)
            params = jax.tree.map(lambda place, where: _read_sharded(place, tensors, dtype, where), places, shardings)
    return params, config


def save(
    path: str | Path, params: Params | StackedParams, config: Config, max_shard_bytes: int = 5 * 10**9, dtype=None
) -> None:
    """Saves parameters as a checkpoint folder in the published format; `load` gives them back bit for bit.

    Files are written under other names and put in place at the end, config.json last: where saving fails or is killed,
    the folder holds no checkpoint, not a part of one.

    Args:
        path: folder to write; made if absent.
        params: parameters in either form.
        config: their configuration.
        max_shard_bytes: above this size the tensors go into several files, none larger (unless one tensor is).
        dtype: type to store; None = as they are.  A_log and the gated norm's weight are float32 in any case.

    Raises:
        FileExistsError: the folder already holds a checkpoint.
        ValueError: a parameter's shape is not the configuration's.
    """
    params = unstack_blocks(params) if isinstance(params, StackedParams) else params
    parts = _parts_by_tensor(params, config, dtype)
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    if existing := [*folder.glob("model*.safetensors"), *folder.glob(INDEX_FILE)]:
        raise FileExistsError(f"save: {folder} already holds {existing[0].name}; remove it or give an empty folder")
    with tempfile.TemporaryDirectory(prefix=".saving-", dir=folder) as unfinished:
        _write(Path(unfinished), parts, max_shard_bytes)
        for file in sorted(Path(unfinished).iterdir(), reverse=True):  # weights before their index
            file.rename(folder / file.name)
        config_file = Path(unfinished) / "config.json"
        config_file.write_text(json.dumps(config.to_dict(), indent=2) + "\n")
        config_file.replace(folder / config_file.name)


# reading


def _read(place: Published, tensors: dict[str, Any], dtype, index: tuple[slice, ...] | None = None) -> np.ndarray:
    array = place.read(tensors[place.name], index)
    wanted = np.float32 if place.float32 else dtype
    return array if wanted is None else array.astype(wanted)


def _read_sharded(place: Published, tensors: dict[str, Any], dtype, sharding: jax.sharding.Sharding) -> jax.Array:
    parts: dict[tuple, np.ndarray] = {}  # devices that hold the same part share one reading of it

    def part(index):
        key = tuple((piece.start, piece.stop) for piece in index)
        if key not in parts:
            parts[key] = _read(place, tensors, dtype, index)
        return parts[key]

    return jax.make_array_from_callback(place.shape, sharding, part)


def _tensor_files(folder: Path) -> dict[str, tuple[Path, str]]:
    """For each tensor by its published name: the file that holds it and its name there."""
    index, single = folder / INDEX_FILE, folder / SINGLE_FILE
    if index.is_file():
        weight_map = _weight_map(index)
        if lost := sorted({file for file in weight_map.values() if not (folder / file).is_file()}):
            raise FileNotFoundError(f"{index} names {_some(lost)}, which is not there; download the whole checkpoint")
    elif single.is_file():
        with _open(single) as handle:
            weight_map = dict.fromkeys(handle.keys(), SINGLE_FILE)
    else:
        raise FileNotFoundError(f"{folder} holds neither {SINGLE_FILE} nor {INDEX_FILE}; download the whole checkpoint")
    return {_published_name(name): (folder / file, name) for name, file in weight_map.items()}


def _weight_map(index: Path) -> dict[str, str]:
    way_out = "download it again, or remove it if the folder holds a single model.safetensors"
    try:
        weight_map = json.loads(index.read_text())["weight_map"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{index} is corrupt: no JSON object with a weight_map ({error!r}); {way_out}") from error
    if not isinstance(weight_map, dict) or not all(isinstance(file, str) for file in weight_map.values()):
        raise ValueError(f"{index} is corrupt: weight_map does not map tensor names to file names; {way_out}")
    return weight_map


def _published_name(name: str) -> str:
    """Checkpoints of the text model alone say `model.layers...` for `model.language_model.layers...`."""
    if name.startswith("model.") and not name.startswith((TEXT_PREFIX, *SKIPPED_PREFIXES)):
        return TEXT_PREFIX + name.removeprefix("model.")
    return name


def _open(file: Path):
    try:
        return safe_open(file, framework="np")
    except SafetensorError as error:
        raise ValueError(f"{file} is not a valid safetensors file ({error}); download it again") from error


def _lazy(opened: dict[Path, Any], file: Path, name: str):
    try:
        return opened[file].get_slice(name)
    except SafetensorError as error:
        raise ValueError(f"{file.parent / INDEX_FILE} is corrupt: {file.name} does not hold {name}") from error


def _check_names(needed: set[str], found: set[str], folder: Path) -> None:
    if any(name.endswith("weight_scale_inv") for name in found):
        raise ValueError(f"{folder} is an FP8 checkpoint, which is not supported yet; give the bfloat16 one")
    if missing := sorted(needed - found):
        raise ValueError(
            f"{folder} lacks {len(missing)} of {len(needed)} tensors that its config.json calls for: {_some(missing)}; "
            "download the whole checkpoint, or take the config.json that belongs to it"
        )
    # lm_head.weight may be stored although it is tied to the embedding
    unknown = sorted(n for n in found - needed - {"lm_head.weight"} if not n.startswith(SKIPPED_PREFIXES))
    if unknown:
        raise ValueError(
            f"{folder} holds {len(unknown)} tensors that its config.json has no place for: {_some(unknown)}; "
            "take the config.json that belongs to the checkpoint"
        )


def _check_shapes(places: Iterable[Published], tensors: dict[str, Any], folder: Path) -> None:
    for place in places:
        found = tuple(tensors[place.name].get_shape())
        if found != place.stored:
            raise ValueError(
                f"{folder}: {place.name} has shape {list(found)}, but config.json calls for {list(place.stored)}; "
                "take the config.json that belongs to the checkpoint"
            )


def _some(names: list[str], shown: int = 4) -> str:
    return ", ".join(names[:shown]) + (f" and {len(names) - shown} more" if len(names) > shown else "")


# writing


def _write(folder: Path, parts: dict[str, list[tuple[Published, jax.Array]]], max_shard_bytes: int) -> None:
    """The files of weights, and their index when there are several."""
    sizes = {name: sum(array.nbytes for _, array in part) for name, part in parts.items()}
    shards = _shards(sizes, max_shard_bytes)
    weight_map = {}
    for number, names in enumerate(shards, start=1):
        file = SINGLE_FILE if len(shards) == 1 else f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        weight_map |= dict.fromkeys(names, file)
        save_file({name: _assemble(parts[name]) for name in names}, folder / file, metadata={"format": "pt"})
        (folder / file).chmod(0o644)  # safetensors makes files that nobody else may read
    if len(shards) > 1:
        index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": weight_map}
        (folder / INDEX_FILE).write_text(json.dumps(index, indent=2) + "\n")


def _parts_by_tensor(params: Params, config: Config, dtype) -> dict[str, list[tuple[Published, jax.Array]]]:
    """The parameters that make up each tensor, in the tensor's order: two for the experts' gate and up, else one."""
    places = published_parameters(config)
    if jax.tree.structure(places) != jax.tree.structure(params):
        raise ValueError("save: params and config belong to different models; give the config that belongs to params")
    parts: dict[str, list[tuple[Published, jax.Array]]] = {}
    for place, parameter in zip(jax.tree.leaves(places), jax.tree.leaves(params)):
        if parameter.shape != place.shape:
            raise ValueError(
                f"save: the parameter for {place.name} has shape {list(parameter.shape)}, but config calls for "
                f"{list(place.shape)}; give the config that belongs to params"
            )
        stored = parameter if dtype is None else parameter.astype(np.float32 if place.float32 else dtype)
        parts.setdefault(place.name, []).append((place, stored))
    return parts


def _shards(sizes: dict[str, int], max_bytes: int) -> list[list[str]]:
    """Tensor names in order, cut into groups of at most `max_bytes` (or one larger tensor)."""
    shards, filled_bytes = [[]], 0
    for name, size_bytes in sizes.items():
        if shards[-1] and filled_bytes + size_bytes > max_bytes:
            shards.append([])
            filled_bytes = 0
        shards[-1].append(name)
        filled_bytes += size_bytes
    return shards


def _assemble(part: list[tuple[Published, jax.Array]]) -> np.ndarray:
    blocks = [place.write(np.asarray(parameter)) for place, parameter in part]
    return np.ascontiguousarray(blocks[0] if len(blocks) == 1 else np.concatenate(blocks, axis=1))
