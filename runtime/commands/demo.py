"""`jaxsplice demo`: the whole idea on a small trained Qwen3.5 that comes with the package."""

from __future__ import annotations

import textwrap
from pathlib import Path

import jax
import numpy as np
from absl import flags

from jaxsplice.models import qwen3_5
from jaxsplice.passes.errors import JaxspliceError

from .generate import stop_ids
from .models import DEMO_CHECKPOINT, Model
from .programs import refuse_words
from .run import interleaved_ms

SUMMARY = "load a small trained Qwen3.5, optimise it, see what changed, read what it writes"
TOKENS = 256  # of the run that is timed
WIDTH, INDENT = 80, 13
CERTIFICATES = (
    "Every replacement is proved or measured on its own. exact: the same arithmetic; reassociated: the same but "
    "for the order of sums; numeric: the error against float64, measured here and within the rule's limit."
)


def define(values: flags.FlagValues) -> None:
    """The command's flags."""
    flags.DEFINE_string("prompt", "The with statement is used to wrap", "Text to continue.", flag_values=values)
    flags.DEFINE_integer("max_tokens", 60, "Tokens to generate.", flag_values=values)
    flags.DEFINE_string("out", "out/demo", "Folder for the graphs before and after.", flag_values=values)


def run(values: flags.FlagValues, words: list[str]) -> int:
    """Trace, recognise, splice, prove, run."""
    refuse_words(words)
    from jaxsplice.runtime.dump import dump_result
    from jaxsplice.runtime.generate import STATIC, Generator
    from jaxsplice.runtime.optimize import optimize

    model = load_demo()
    step(1, "load", model.summary(), "Qwen3.5's layers, trained on Python's documentation, partly known by heart")
    # as many tokens as are timed, whatever the length of the prompt
    ids = np.resize(np.array(model.encode(values.prompt) or [0], np.int32), (1, TOKENS))
    fast, plain = optimize(qwen3_5.forward, static_argnames=STATIC), jax.jit(qwen3_5.forward, static_argnames=STATIC)
    step(2, "trace", f"the model on {TOKENS} tokens, and look for what can be replaced ...")
    result = fast.lower(model.params, model.config, ids)
    before, after = (sum(graph.primitives().values()) for graph in (result.before, result.after))
    step(3, "splice", f"{sum(result.report.counts.values())} rewrites: {before:,} operations became {after:,}")
    print("\n" + "\n".join(result.report.table()) + "\n")
    print(textwrap.fill(CERTIFICATES, WIDTH) + "\n")
    step(4, "run", *compare(model, ids, plain, fast))
    step(5, "write", f"the prompt, and {values.max_tokens} tokens that the optimised model continues it with:")
    generator, prompt = Generator(model.params, model.config), model.encode(values.prompt)
    tokens = generator.generate([prompt], values.max_tokens, stop=stop_ids(model))[0]
    lines = model.decode([*prompt, *tokens]).split("\n")
    print("\n" + "\n".join(textwrap.fill(line, WIDTH) for line in lines) + "\n")
    print(f"{textwrap.fill(str(generator.timing), WIDTH)}\n")
    files = dump_result(result, Path(values.out))
    step(6, "dump", f"{values.out}/: {', '.join(file.name for file in files)}")
    return 0


def load_demo() -> Model:
    """The demo's model, in float32."""
    if not DEMO_CHECKPOINT.is_dir():
        raise JaxspliceError(
            f"{DEMO_CHECKPOINT} is not there, though the package ships it: install jaxsplice again, or train it with "
            f"python -m jaxsplice.runtime.train_demo --out={DEMO_CHECKPOINT}"
        )
    params, config = qwen3_5.load(DEMO_CHECKPOINT, np.float32)
    return Model("demo", params, config, qwen3_5.load_tokenizer(DEMO_CHECKPOINT))


def compare(model: Model, ids: np.ndarray, plain, fast) -> tuple[str, str]:
    """Run both; sentences about their difference and their times."""
    call = lambda fn: fn(model.params, model.config, ids)
    expected, got = (np.asarray(call(fn)[0]) for fn in (plain, fast))
    slow_ms, fast_ms = interleaved_ms(lambda: call(plain), lambda: call(fast))
    return (
        f"{ids.size} tokens: as written {slow_ms:.1f} ms, optimised {fast_ms:.1f} ms ({slow_ms / fast_ms:.1f}x)",
        f"logits differ by at most {np.abs(expected - got).max():.0e}; their spread is {expected.std():.1f}",
    )


def step(number: int, name: str, *sentences: str) -> None:
    """Print what is happening, at once and at most 80 columns wide."""
    head = f"{number}. {name}".ljust(INDENT)
    for sentence in sentences:
        print(textwrap.fill(sentence, WIDTH, initial_indent=head, subsequent_indent=" " * INDENT), flush=True)
        head = " " * INDENT
