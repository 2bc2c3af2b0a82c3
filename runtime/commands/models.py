"""What `run`, `generate` and `demo` share: models by folder or configuration name, prompts as text or ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from absl import flags

from jaxsplice.models import qwen3_5
from jaxsplice.passes.errors import JaxspliceError

MAX_RANDOM_BYTES = 16 << 30
DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}
DEMO_CHECKPOINT = Path(__file__).parents[1] / "demo_checkpoint"


@dataclass
class Model:
    """Parameters, configuration and tokenizer (None without one)."""

    name: str
    params: Any
    config: Any
    tokenizer: Any

    def encode(self, text: str) -> list[int]:
        """Token ids of a text; refuses when there is no tokenizer."""
        if self.tokenizer is None:
            raise JaxspliceError(
                f"{self.name} has no tokenizer.json: give token ids with --ids=1,2,3 instead of --prompt"
            )
        return self.tokenizer.encode(text).ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids, or the ids themselves without a tokenizer."""
        return self.tokenizer.decode(list(ids)) if self.tokenizer is not None else " ".join(map(str, ids))

    def summary(self) -> str:
        """Name, size and type in a line."""
        leaves = jax.tree.leaves(self.params)
        count = sum(x.size for x in leaves)
        size = f"{count / 1e9:.2f} G" if count > 5e8 else f"{count / 1e6:.2f} M"
        return f"{self.name}: {size} parameters, {self.params.embed.dtype}, {self.config.num_hidden_layers} layers"


def define_model(values: flags.FlagValues) -> None:
    """Flags that choose a model and its input."""
    text = "Checkpoint folder, or the name of a published configuration with --random_weights."
    flags.DEFINE_string("model", None, text, flag_values=values)
    flags.DEFINE_bool("random_weights", False, "Random weights of the named configuration.", flag_values=values)
    flags.DEFINE_integer(
        "layers", 0, "Keep only this many layers of a named configuration; 0 for all.", flag_values=values
    )
    flags.DEFINE_enum("dtype", "float32", list(DTYPES), "Type of the parameters.", flag_values=values)
    flags.DEFINE_multi_string("prompt", [], "Text to continue; repeat for a batch.", flag_values=values)
    flags.DEFINE_multi_string("ids", [], "Token ids to continue, as in 1,2,3; repeat for a batch.", flag_values=values)
    flags.DEFINE_integer("max_tokens", 32, "Tokens to generate per prompt.", flag_values=values)
    flags.DEFINE_integer("seed", 0, "Seed of random weights and of sampling.", flag_values=values)


def load_model(values: flags.FlagValues) -> Model:
    """The model that the flags name."""
    if not values.model:
        raise JaxspliceError("--model is missing: a checkpoint folder, or a configuration's name with --random_weights")
    folder, dtype = Path(values.model), DTYPES[values.dtype]
    if folder.exists():
        params, config = qwen3_5.load(folder, dtype)
        return Model(folder.name, params, config, qwen3_5.load_tokenizer(folder))
    if "/" in values.model or "\\" in values.model:
        raise JaxspliceError(f"--model={values.model}: no such folder")
    config = qwen3_5.Config.named(values.model)
    if not values.random_weights:
        raise JaxspliceError(
            f"{values.model} is a published configuration and no folder here: add --random_weights, "
            "or give the folder of its checkpoint"
        )
    if values.layers:
        config = first_layers(config, values.layers)
    size = sum(x.size * dtype.dtype.itemsize for x in jax.tree.leaves(qwen3_5.abstract_params(config)))
    if size > MAX_RANDOM_BYTES:
        raise JaxspliceError(
            f"{values.model} has {size / 2**30:,.0f} GiB of {values.dtype} weights, more than the "
            f"{MAX_RANDOM_BYTES >> 30} GiB that random weights are made for: take --layers=4, a smaller configuration, "
            "or --dtype=bfloat16"
        )
    return Model(values.model, qwen3_5.random_params(config, jax.random.key(values.seed), dtype), config, None)


def first_layers(config, count: int):
    """The configuration cut to its first layers."""
    import dataclasses

    if not 0 < count <= config.num_hidden_layers:
        raise JaxspliceError(f"--layers={count}: the model has {config.num_hidden_layers}")
    return dataclasses.replace(config, num_hidden_layers=count, layer_types=config.layer_types[:count])


def prompts_of(values: flags.FlagValues, model: Model) -> list[list[int]]:
    """Token ids of all prompts."""
    out = [model.encode(text) for text in values.prompt]
    for text in values.ids:
        try:
            out.append([int(word) for word in text.split(",")])
        except ValueError:
            raise JaxspliceError(f"--ids={text!r}: write whole numbers separated by commas, as in 1,2,3") from None
    if not out:
        raise JaxspliceError("nothing to continue: give --prompt='some text' or --ids=1,2,3")
    return out
