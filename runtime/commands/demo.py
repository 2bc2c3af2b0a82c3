"""`jaxsplice demo`: the whole idea on a small trained Qwen3.5 that comes with the package."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
from absl import flags

from jaxsplice.models import qwen3_5

from .generate import stream_text
from .models import DEMO_CHECKPOINT, Model
from .run import interleaved_ms

SUMMARY = "load a small trained Qwen3.5, optimise it, see what changed, read what it writes"


def define(values: flags.FlagValues) -> None:
    """The command's flags."""
    flags.DEFINE_string("prompt", "The for statement is used to", "Text to continue.", flag_values=values)
    flags.DEFINE_integer("max_tokens", 60, "Tokens to generate.", flag_values=values)
    flags.DEFINE_string("out", "out/demo", "Folder for the graphs before and after.", flag_values=values)


def run(values: flags.FlagValues, words: list[str]) -> int:
    """Trace, recognise, splice, prove, run."""
    from jaxsplice.runtime.dump import dump_result
    from jaxsplice.runtime.generate import STATIC, Generator
    from jaxsplice.runtime.optimize import optimize

    params, config = qwen3_5.load(DEMO_CHECKPOINT, np.float32)
    model = Model("demo Qwen3.5", params, config, qwen3_5.load_tokenizer(DEMO_CHECKPOINT))
    print(f"1. load      {model.summary()}")
    ids = np.array([(model.encode(values.prompt) * 256)[:256]], np.int32)
    fast, plain = optimize(qwen3_5.forward, static_argnames=STATIC), jax.jit(qwen3_5.forward, static_argnames=STATIC)
    result = fast.lower(params, config, ids)
    print(f"2. trace     {sum(result.before.primitives().values()):,} nodes, 3. recognise, splice and prove:\n")
    print(_indented("\n".join(result.report.table())))
    call = lambda fn: fn(params, config, ids)
    difference = np.abs(np.asarray(call(plain)[0]) - np.asarray(call(fast)[0])).max()
    slow_ms, fast_ms = interleaved_ms(lambda: call(plain), lambda: call(fast))
    print(f"\n4. run       {ids.size} tokens: reference {slow_ms:.1f} ms, optimised {fast_ms:.1f} ms "
          f"({slow_ms / fast_ms:.1f}x), logits differ by at most {difference:.0e}\n")  # fmt: skip
    generator = Generator(params, config)
    stream_text(generator, model, model.encode(values.prompt), values.max_tokens, {})
    print(f"\n             {generator.timing}")
    files = dump_result(result, Path(values.out))
    print(f"5. dump      {values.out}/: {', '.join(f.name for f in files)}")
    return 0


def _indented(text: str) -> str:
    return "\n".join(f"  {line}"[:80] for line in text.splitlines())
