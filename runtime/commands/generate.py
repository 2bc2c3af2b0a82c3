"""`jaxsplice generate`: continue prompts with an optimised model, streaming."""

from __future__ import annotations

import sys

from absl import flags

from .models import Model, define_model, load_model, prompts_of
from .programs import define_rewriting, refuse_words

SUMMARY = "continue prompts with an optimised model, token by token"


def define(values: flags.FlagValues) -> None:
    """The command's flags."""
    define_model(values)
    define_rewriting(values)
    flags.DEFINE_float("temperature", 0.0, "0 takes the most probable token.", flag_values=values)
    flags.DEFINE_integer("top_k", 0, "Choose among the k most probable; 0 for all.", flag_values=values)
    flags.DEFINE_float(
        "top_p", 1.0, "Choose among the most probable with this probability together.", flag_values=values
    )
    flags.DEFINE_bool("optimized", True, "Run through jaxsplice.optimize.", flag_values=values)


def run(values: flags.FlagValues, words: list[str]) -> int:
    """Load, generate, print."""
    refuse_words(words)
    from jaxsplice.runtime.generate import Generator
    from jaxsplice.runtime.sampling import Sampler

    sampler = Sampler(values.temperature, values.top_k, values.top_p)
    model = load_model(values)
    prompts = prompts_of(values, model)
    generator = Generator(
        model.params,
        model.config,
        optimized=values.optimized,
        passes=values.passes,
        target=values.target,
        verify=values.verify,
    )
    options = {"sampler": sampler, "seed": values.seed, "stop": stop_ids(model)}
    if len(prompts) == 1:
        stream_text(generator, model, prompts[0], values.max_tokens, options)
    else:
        for prompt, tokens in zip(prompts, generator.generate(prompts, values.max_tokens, **options)):
            print(f"{model.decode(prompt)}{model.decode(tokens)}\n")
    print(generator.timing, file=sys.stderr)
    return 0


def stop_ids(model: Model) -> list[int]:
    """The ids that end a text, when the configuration names some."""
    end = getattr(model.config, "eos_token_id", None)
    if end is None:
        return []
    return [end] if isinstance(end, int) else list(end)


def stream_text(generator, model: Model, prompt: list[int], max_tokens: int, options: dict) -> list[int]:
    """Print a continuation as it comes; returns its tokens."""
    shown, tokens = "", []
    start = model.decode(prompt) if model.tokenizer is not None else ""
    for step in generator.stream([prompt], max_tokens, **options):
        sys.stdout.write(start)  # not before there is something to continue it with
        start = ""
        if step[0] < 0 or step[0] in options.get("stop", ()):
            break
        tokens.append(int(step[0]))
        text = model.decode(tokens)
        if not text.endswith("\ufffd"):  # half a character: wait for its other bytes
            sys.stdout.write(text[len(shown) :])
            sys.stdout.flush()
            shown = text
    sys.stdout.write("\n")
    return tokens
