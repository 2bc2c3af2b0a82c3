"""Generation: one prefill and steps through the caches give the tokens that the whole forward pass gives."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsplice import JaxspliceError
from jaxsplice.models import qwen3_5
from jaxsplice.runtime.commands.generate import stop_ids
from jaxsplice.runtime.commands.models import Model
from jaxsplice.runtime.generate import Generator, Timing
from jaxsplice.runtime.sampling import Sampler

TOKENS = 5
PROMPTS = [[3, 1, 4, 1, 5, 9, 2, 6], [2, 7, 1], [8]]


@pytest.fixture(scope="module")
def model(oracle):
    """Random weights: one layer of each kind."""
    whole = qwen3_5.Config.from_json(oracle.folder("dense_tiny") / "config.json")
    kinds = ("linear_attention", "full_attention")
    config = dataclasses.replace(whole, num_hidden_layers=len(kinds), layer_types=kinds)
    return qwen3_5.random_params(config, jax.random.key(0), jnp.float32), config


@pytest.fixture(scope="module")
def generator(model):
    return Generator(*model)


@pytest.fixture(scope="module")
def whole_forward(model):
    """Greedy tokens without any cache: everything is computed anew for every token."""
    params, config = model
    length = max(map(len, PROMPTS)) + TOKENS
    forward = jax.jit(lambda ids, mask: qwen3_5.forward(params, config, ids, mask=mask)[0])

    def tokens(prompt: list[int]) -> list[int]:
        ids = list(prompt)
        for _ in range(TOKENS):
            padded = np.array([ids + [0] * (length - len(ids))], np.int32)
            logits = forward(padded, np.arange(length)[None] < len(ids))
            ids.append(int(np.argmax(logits[0, len(ids) - 1])))
        return ids[len(prompt) :]

    return tokens


@pytest.fixture(scope="module")
def batch(generator):
    return generator.generate(PROMPTS, TOKENS)


def test_every_row_of_a_batch_is_what_the_whole_forward_pass_gives_alone(whole_forward, batch):
    assert batch == [whole_forward(prompt) for prompt in PROMPTS]


def test_optimised_and_plain_agree(model, batch):
    assert Generator(*model, optimized=False).generate(PROMPTS, TOKENS) == batch


def test_streaming_gives_a_token_per_row_and_step(generator, batch):
    steps = generator.stream(PROMPTS, TOKENS)
    first = next(steps)
    assert first.shape == (3,) and first.tolist() == [row[0] for row in batch]
    assert np.stack([first, *steps], 1).tolist() == batch


def test_a_row_ends_at_its_stop_token_and_the_others_go_on(generator, batch):
    stop = batch[0][2]
    ends = [row.index(stop) + 1 if stop in row else TOKENS for row in batch]
    assert generator.generate(PROMPTS, TOKENS, stop=[stop]) == [row[:n] for row, n in zip(batch, ends)]
    steps = list(generator.stream(PROMPTS, TOKENS, stop=[row[0] for row in batch]))
    assert len(steps) == 1  # nobody goes on


def test_seeds_decide_what_is_sampled(generator):
    sampler = Sampler(temperature=5.0)
    runs = [generator.generate(PROMPTS, TOKENS, sampler=sampler, seed=s) for s in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]
    assert generator.generate(PROMPTS, TOKENS, sampler=Sampler(5.0, top_k=1), seed=3) == generator.generate(
        PROMPTS, TOKENS
    )


def test_timing_counts_known_shapes_apart_from_first_calls(generator):
    generator.generate(PROMPTS, TOKENS)  # shapes are known by now
    generator.generate(PROMPTS, TOKENS)
    timing = generator.timing
    assert (timing.prefill_tokens, timing.decode_tokens) == (sum(map(len, PROMPTS)), len(PROMPTS) * (TOKENS - 1))
    assert timing.compile_seconds == 0.0 and timing.prefill_seconds > 0 and timing.decode_seconds > 0
    assert str(timing).startswith("prefill 12 tokens in ") and ", decode 12 tokens in " in str(timing)
    assert str(Timing(compile_seconds=2.0)) == "first calls 2.0 s (tracing, proofs, compiling)"


def test_the_cache_has_the_models_type(model):
    params, config = model
    types = []

    def forward(params, config, ids, positions, mask, cache, *, logits, taps=False, expert_axis=None):
        types.append(cache.layers[1].key.dtype)
        return jnp.zeros((1, config.vocab_size)), cache

    halves = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
    assert Generator(halves, config, forward, optimized=False).generate([[1, 2, 3]], 1) == [[0]]
    assert types == [jnp.bfloat16]


@pytest.mark.parametrize(
    ("prompts", "count", "message"),
    [
        ([], 3, "give at least one prompt, and no empty one"),
        ([[1], []], 3, "give at least one prompt, and no empty one"),
        ([[1]], 0, "max_tokens=0: at least 1 is needed"),
        ([[1]], -2, "max_tokens=-2: at least 1 is needed"),
        ([[1, 10**6]], 3, "token id 1000000 is outside the vocabulary of "),
        ([[1, -1]], 3, "token id -1 is outside the vocabulary of "),
    ],
)
def test_wrong_input_is_one_clear_error_before_anything_runs(generator, prompts, count, message):
    with pytest.raises(JaxspliceError, match=message):
        generator.generate(prompts, count)


@pytest.mark.parametrize("verify", ["off", "strict"])
def test_rewrites_are_proved_as_asked(model, verify):
    assert Generator(*model, verify=verify)._run._options["verify"] == verify


@pytest.mark.parametrize(("named", "ids"), [(None, []), (7, [7]), ((7, 9), [7, 9])])
def test_all_ids_that_end_a_text_are_stops(model, named, ids):
    params, config = model
    config = dataclasses.replace(config, eos_token_id=named)
    assert stop_ids(Model("model", params, config, None)) == ids
