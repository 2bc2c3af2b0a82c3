"""`jaxsplice run`: a model as it is and optimised, side by side: rewrites, difference, times, tokens."""

from __future__ import annotations

import time

import jax
import numpy as np
from absl import flags

from jaxsplice.models import qwen3_5

from .models import Model, define_model, load_model, prompts_of
from .programs import define_rewriting, define_statistics, refuse_words

SUMMARY = "run a model as it is and optimised, and compare"
REPEATS = 5


def define(values: flags.FlagValues) -> None:
    """The command's flags."""
    define_model(values)
    define_rewriting(values)
    define_statistics(values)


def run(values: flags.FlagValues, words: list[str]) -> int:
    """Compare the two on the prompts' prefill, then generate greedily with both."""
    refuse_words(words)
    model = load_model(values)
    prompts = prompts_of(values, model)
    print(model.summary())
    compare_prefill(model, prompts, values)
    return compare_tokens(model, prompts, values)


def compare_prefill(model: Model, prompts: list[list[int]], values: flags.FlagValues) -> None:
    """Print the rewrite table, the largest difference of logits and both times."""
    from jaxsplice.runtime.generate import STATIC, Generator
    from jaxsplice.runtime.optimize import optimize

    ids, mask = Generator(model.params, model.config)._batch(prompts, 1)
    mask = None if mask.all() else mask
    fast = optimize(qwen3_5.forward, values.target, values.passes, values.verify, static_argnames=STATIC)
    reference = jax.jit(qwen3_5.forward, static_argnames=STATIC)
    call = lambda fn: fn(model.params, model.config, ids, None, mask)
    report = fast.lower(model.params, model.config, ids, None, mask).report
    print(report)
    if values.statistics:
        print(f"\n{report.rule_table()}\n")
    expected, got = (np.asarray(call(fn)[0], np.float64) for fn in (reference, fast))
    if mask is not None:
        expected, got = expected[mask], got[mask]
    print(f"largest difference of logits: {np.abs(expected - got).max():.1e} (their spread: {expected.std():.2f})")
    slow_ms, fast_ms = interleaved_ms(lambda: call(reference), lambda: call(fast))
    print(
        f"prefill of {ids.size} tokens: reference {slow_ms:.1f} ms, optimised {fast_ms:.1f} ms "
        f"({slow_ms / fast_ms:.2f}x)"
    )


def interleaved_ms(*functions) -> list[float]:
    """Median milliseconds of each, taken in turn so that a drifting machine hits all alike."""
    times: list[list[float]] = [[] for _ in functions]
    for _ in range(REPEATS):
        for spent, fn in zip(times, functions):
            started = time.perf_counter()
            jax.block_until_ready(fn())
            spent.append(1e3 * (time.perf_counter() - started))
    return [float(np.median(t)) for t in times]


def compare_tokens(model: Model, prompts: list[list[int]], values: flags.FlagValues) -> int:
    """Generate with both, print the tokens once; 1 when they differ."""
    from jaxsplice.runtime.generate import Generator

    results = []
    for name, optimized in (("reference", False), ("optimised", True)):
        generator = Generator(
            model.params,
            model.config,
            optimized=optimized,
            passes=values.passes,
            target=values.target,
            verify=values.verify,
        )
        results.append(generator.generate(prompts, values.max_tokens))
        print(f"{name}: {generator.timing}")
    for prompt, reference, fast in zip(prompts, *results):
        print(f"\n{model.decode(prompt)}|{model.decode(fast)}")
        if reference != fast:
            at = next(i for i, (a, b) in enumerate(zip(reference, fast)) if a != b)
            print(f"the reference chose otherwise from token {at} on: {model.decode(reference[at:])}")
    return 0
