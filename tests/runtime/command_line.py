"""Running the command line in this process, and programs and a checkpoint for it to read."""

import contextlib
import dataclasses
import io
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from jaxsplice.models import qwen3_5
from jaxsplice.runtime import cli

MODULE = """
import jax
import jax.numpy as jnp
import jaxsplice

NUMBER = 3


def gate(x, a, b):
    return jax.nn.silu(x @ a) * (x @ b)


def with_bias(x, a, b, c):
    return jax.nn.silu(x @ a + c) * (x @ b)


def looks_at_values(x):
    return x if x.sum() > 0 else -x


X = jax.ShapeDtypeStruct((4, 8), jnp.float32)
rule = jaxsplice.Rule(
    "two-products",
    before=lambda x, a, b: jnp.tanh(x @ a) * (x @ b),
    after=lambda x, a, b: jnp.tanh(x @ a) * (x @ b),
    cases=[jaxsplice.Case(X, jax.ShapeDtypeStruct((8, 16), jnp.float32), jax.ShapeDtypeStruct((8, 16), jnp.float32))],
)


def arguments():
    return jnp.ones((4, 8)), jnp.ones((8, 16)), jnp.ones((8, 16))
"""
GATE = "--args=f32[4,8],f32[8,16],f32[8,16]"


class Ran(NamedTuple):
    """Exit code and what was printed."""

    code: int
    out: str
    err: str

    def __repr__(self) -> str:
        return f"exit code {self.code}\n--- stdout\n{self.out}--- stderr\n{self.err}"


def jaxsplice(*words: str) -> Ran:
    """`jaxsplice WORDS` in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.main(words)
    return Ran(code, out.getvalue(), err.getvalue())


def write_module(folder: Path, name: str) -> str:
    """A module of functions in a folder; gives its name."""
    (folder / f"{name}.py").write_text(MODULE)
    return name


def write_checkpoint(folder: Path, config_json: Path, tokenizer: bool = True) -> Path:
    """A checkpoint of two layers with random weights, and a tokenizer of the words w0, w1, ..."""
    whole = qwen3_5.Config.from_json(config_json)
    kinds = ("linear_attention", "full_attention")
    config = dataclasses.replace(whole, num_hidden_layers=len(kinds), layer_types=kinds)
    params = qwen3_5.random_params(config, jax.random.key(0), jnp.float32)
    qwen3_5.save(path=folder, params=params, config=config)
    if tokenizer:
        words = Tokenizer(WordLevel({f"w{i}": i for i in range(config.vocab_size)}, unk_token="w0"))
        words.pre_tokenizer = Whitespace()
        words.save(str(folder / "tokenizer.json"))
    return folder
