"""Text generation: one prefill of a batch of prompts, then one token per row and step, with caches."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from jaxsplice.models import qwen3_5
from jaxsplice.passes.errors import JaxspliceError

from .optimize import optimize
from .sampling import Sampler

STATIC = ("logits", "taps", "expert_axis")


@dataclass
class Timing:
    """Seconds and tokens of one generation; the first call of each shape, which compiles, is counted apart."""

    compile_seconds: float = 0.0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    prefill_tokens: int = 0
    decode_tokens: int = 0

    def __str__(self) -> str:
        parts = []
        for phase, tokens, seconds in (
            ("prefill", self.prefill_tokens, self.prefill_seconds),
            ("decode", self.decode_tokens, self.decode_seconds),
        ):
            if seconds:
                parts.append(f"{phase} {tokens:,} tokens in {seconds:.2f} s ({tokens / seconds:,.0f}/s)")
        return ", ".join([*parts, f"first calls {self.compile_seconds:.1f} s (tracing, proofs, compiling)"])


@dataclass
class Generator:
    """A model ready to generate.

    Args:
        params: parameters.
        config: the model's Config.
        forward: `qwen3_5.forward`, or another function of the same form; optimised when `optimized`.
        optimized: whether to run it through `jaxsplice.optimize`.
        passes: pipeline for that.
        target: hardware for that.
        verify: how its rewrites are proved.
    """

    params: Any
    config: Any
    forward: Callable = qwen3_5.forward
    optimized: bool = True
    passes: Any = "default"
    target: Any = None
    verify: str = "auto"
    timing: Timing = field(default_factory=Timing)

    def __post_init__(self):
        self._seen: set[tuple] = set()
        if self.optimized:
            self._run = optimize(
                self.forward, self.target, self.passes, self.verify, static_argnames=STATIC, donate_argnums=5
            )  # the cache is updated in place
        else:
            self._run = jax.jit(self.forward, static_argnames=STATIC, donate_argnums=5)

    def stream(
        self,
        prompts: Sequence[Sequence[int]],
        max_tokens: int,
        sampler: Sampler = Sampler(),  # noqa: B008 - frozen
        seed: int = 0,
        stop: Sequence[int] = (),
    ) -> Iterator[np.ndarray]:
        """Generate step by step.

        Args:
            prompts: token ids per row; rows may differ in length.
            max_tokens: steps at most.
            sampler: how tokens are chosen.
            seed: of the random numbers.
            stop: ids that end a row; rows that ended give -1.

        Yields:
            [B] int32: each row's next token.

        Raises:
            JaxspliceError: no prompt, an empty one, an id outside the vocabulary, or too few tokens asked for.
        """
        self.timing = Timing()
        ids, mask = self._batch(prompts, max_tokens)
        rows, length = ids.shape
        cache = qwen3_5.init_cache(self.config, rows, length + max_tokens, self.params.embed.dtype)
        logits, cache = self._timed("prefill", ids, None if mask.all() else mask, cache)
        choose, key, ended = jax.jit(sampler), jax.random.key(seed), np.zeros(rows, bool)
        for step in range(max_tokens):
            tokens = choose(logits, jax.random.fold_in(key, step))
            shown = np.where(ended, -1, np.asarray(tokens))
            ended |= np.isin(shown, list(stop))
            yield shown
            if ended.all() or step + 1 == max_tokens:
                return
            logits, cache = self._timed("decode", tokens[:, None], None, cache)

    def generate(self, prompts: Sequence[Sequence[int]], max_tokens: int, **options) -> list[list[int]]:
        """All tokens at once: one list per row, without what comes after its stop token; options as for `stream`."""
        steps = list(self.stream(prompts, max_tokens, **options))
        return [[int(t) for t in row if t >= 0] for row in np.stack(steps, axis=1)] if steps else [[] for _ in prompts]

    def _timed(self, phase: str, ids, mask, cache):
        """Run and book the seconds; a shape's first run compiles, so it is booked apart."""
        known, started = (phase, ids.shape) in self._seen, time.perf_counter()
        out = self._run(self.params, self.config, ids, None, mask, cache, logits="last")
        jax.block_until_ready(out)
        spent = time.perf_counter() - started
        self._seen.add((phase, ids.shape))
        name = f"{phase}_seconds" if known else "compile_seconds"
        setattr(self.timing, name, getattr(self.timing, name) + spent)
        if known:
            tokens = int(mask.sum()) if mask is not None else ids.size
            setattr(self.timing, f"{phase}_tokens", getattr(self.timing, f"{phase}_tokens") + tokens)
        return out

    def _batch(self, prompts, max_tokens: int) -> tuple[np.ndarray, np.ndarray]:
        """Right-padded ids and their mask."""
        if not prompts or any(len(p) == 0 for p in prompts):
            raise JaxspliceError("give at least one prompt, and no empty one")
        if max_tokens < 1:
            raise JaxspliceError(f"max_tokens={max_tokens}: at least 1 is needed")
        unknown = next((i for p in prompts for i in p if not 0 <= i < self.config.vocab_size), None)
        if unknown is not None:
            raise JaxspliceError(f"token id {unknown} is outside the vocabulary of {self.config.vocab_size}")
        longest = max(map(len, prompts))
        ids = np.zeros((len(prompts), longest), np.int32)
        mask = np.zeros((len(prompts), longest), bool)
        for row, prompt in enumerate(prompts):
            ids[row, : len(prompt)], mask[row, : len(prompt)] = prompt, True
        return ids, mask
