"""Trains the checkpoint that `jaxsplice demo` uses: a small Qwen3.5 on Python's own documentation.

    python -m jaxsplice.runtime.train_demo --out=my_checkpoint

The loss goes through `jaxsplice.optimize` under `jax.value_and_grad`, so this is also an example of training an
optimised model.  Needs optax and tqdm: pip install 'jaxsplice[train]'.
"""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

from jaxsplice.models import qwen3_5
from jaxsplice.passes.errors import JaxspliceError

from .cli import choose_platform, flag_help
from .training.corpus import all_windows, random_windows, token_stream, topics_corpus, train_tokenizer
from .training.sizes import SIZES, demo_config
from .training.steps import Trainer, check_agreement, next_token_loss

NAME = "train_demo"
NEEDED = ("optax", "tqdm")
LEAST_VOCABULARY = 257  # the bytes and the end of text


def define(values: flags.FlagValues) -> None:
    """The script's flags."""
    flags.DEFINE_string("out", None, "Folder to write; must not exist, or be empty.", flag_values=values)
    flags.DEFINE_integer("steps", 1500, "Updates.", lower_bound=1, flag_values=values)
    flags.DEFINE_integer("seed", 1, "Of the weights, the batches and the held-out text.", flag_values=values)
    flags.DEFINE_enum("size", "demo", list(SIZES), "Size of the model.", flag_values=values)
    flags.DEFINE_integer("vocabulary", 2048, "Tokens at most.", lower_bound=LEAST_VOCABULARY, flag_values=values)
    flags.DEFINE_integer("batch", 2, "Windows per gradient.", lower_bound=1, flag_values=values)
    flags.DEFINE_integer("batches", 2, "Gradients per update.", lower_bound=1, flag_values=values)
    flags.DEFINE_integer("length", 256, "Tokens per window.", lower_bound=2, flag_values=values)
    flags.DEFINE_float("learning_rate", 3e-3, "Highest learning rate.", lower_bound=0.0, flag_values=values)
    flags.DEFINE_integer("report_every", 100, "Updates between two printed losses.", lower_bound=1, flag_values=values)


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the flags and train.

    Args:
        argv: words after the program's name; the process' own when None.

    Returns:
        0 on success, 1 when it failed, 2 when the words are no flags.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    values = flags.FlagValues()
    define(values)
    if any(word in ("-h", "--help") for word in words):
        print(f"{__doc__}\n{flag_help(values)}")
        return 0
    try:
        values([NAME, *words])
    except flags.Error as error:
        print(f"{NAME}: {error}\nSee --help", file=sys.stderr)
        return 2
    choose_platform()
    try:
        train(values)
    except (JaxspliceError, OSError) as error:
        print(f"{NAME}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{NAME}: stopped; nothing was written", file=sys.stderr)
        return 130
    return 0


def train(values: flags.FlagValues) -> None:
    """Text, tokenizer, model, steps, checkpoint."""
    if lacking := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        raise JaxspliceError(f"training needs {' and '.join(lacking)}: pip install 'jaxsplice[train]'")
    if not values.out:
        raise JaxspliceError("--out is missing: the folder to write the checkpoint to")
    with new_folder(Path(values.out)) as folder:
        corpus = topics_corpus(values.seed)
        tokenizer = train_tokenizer(corpus.training, values.vocabulary)
        training, held_out = (token_stream(tokenizer, part) for part in (corpus.training, corpus.held_out))
        if len(training) <= values.length:
            raise JaxspliceError(f"--length={values.length}: the training text has only {len(training)} tokens")
        config = demo_config(values.size, tokenizer.get_vocab_size())
        params = qwen3_5.random_params(config, jax.random.key(values.seed))
        print(f"text {corpus.digest}: {len(training):,} tokens to train on, {len(held_out):,} held out")
        print(f"model: {sum(x.size for x in jax.tree.leaves(params)):,} parameters")
        validation = all_windows(held_out, values.batch, values.length)
        trainer = Trainer(config, values.learning_rate, values.steps)
        params = run_steps(trainer, params, training, validation, values)
        tokenizer.save(str(folder / "tokenizer.json"))
        qwen3_5.save(folder, params, config, dtype=jnp.bfloat16)
        stored = trainer.held_out_loss(qwen3_5.load(folder, np.float32)[0], validation)
        print(f"held-out loss of the checkpoint as stored: {stored:.3f}")
    print(f"wrote {values.out}")


def run_steps(trainer: Trainer, params, training, validation, values: flags.FlagValues):
    """All updates; returns the trained parameters."""
    from tqdm import tqdm

    rng = np.random.default_rng(values.seed)

    def draw():
        rows = random_windows(training, rng, values.batches * values.batch, values.length)
        return rows.reshape(values.batches, values.batch, -1)

    batches = draw()
    agreement = check_agreement(trainer.loss, next_token_loss, params, trainer.config, batches[0])
    print(f"first batch: loss {agreement.loss:.3f}; optimised and reference differ by {agreement.loss_error:.0e} in "
          f"the loss, {agreement.gradient_error:.0e} in the gradient")  # fmt: skip
    print(f"rewrites: {', '.join(f'{count} {rule}' for rule, count in agreement.rewrites.items())}")
    state, losses = trainer.start(params), []
    progress = tqdm(range(1, values.steps + 1), unit="step", file=sys.stderr, mininterval=1.0, disable=None)
    for step in progress:
        params, state, loss, norm = trainer.step(params, state, batches)
        losses.append(float(loss))
        if not np.isfinite([losses[-1], float(norm)]).all():
            raise JaxspliceError(
                f"step {step}: loss {losses[-1]}, gradient norm {float(norm)}; take a smaller --learning_rate"
            )
        progress.set_postfix(loss=f"{losses[-1]:.2f}", refresh=False)
        if step % values.report_every == 0 or step == values.steps:
            recent = float(np.mean(losses[-values.report_every :]))
            held_out = trainer.held_out_loss(params, validation)
            progress.write(f"step {step}: loss {recent:.3f}, held-out {held_out:.3f}", file=sys.stdout)
            sys.stdout.flush()
        batches = draw()
    return params


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder that appears at `path` when the block ends well, and leaves nothing when it does not."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise JaxspliceError(f"--out={path} exists already; remove it or name another folder")
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.mkdir()
    except FileExistsError:
        raise JaxspliceError(f"{partial} exists: another run writes it, or one was killed; remove it") from None
    try:
        yield partial
        if path.exists():
            path.rmdir()
        partial.rename(path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
