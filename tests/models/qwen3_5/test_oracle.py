"""The tiny models against the public implementation's results, at the limits that float32 allows."""

import dataclasses

import numpy as np
import pytest

from jaxsplice.models.qwen3_5 import RopeConfig, init_cache

LOGITS, CACHES = 3e-4, 1e-4
MAX_LENGTH = 136  # room for every fixture; one value, so that runs share compiled functions


def test_text_logits_and_hidden_states(tiny, oracle, run, assert_near):
    want = oracle(tiny.name, "text")
    logits, _, taps = run(tiny.params, tiny.config, want["input_ids"], taps=True)
    assert_near(logits, want["logits"], LOGITS, "logits")
    hidden = [name for name in want if name.startswith("hidden.")]
    assert len(hidden) == 6
    for name in hidden:
        assert_near(taps[name], want[name], LOGITS, name)


def test_taps(tiny, oracle, run, assert_near):
    want = oracle(tiny.name, "taps")
    logits, _, taps = run(tiny.params, tiny.config, want["input_ids"], taps=True)
    assert_near(logits, want["logits"], LOGITS, "logits")
    inside = {name for name in want if name.startswith("layer")}
    assert inside == {name for name in taps if name.startswith(("layer0.", "layer3."))}
    for name in inside:
        if name.endswith("topk_indices"):
            np.testing.assert_array_equal(taps[name], want[name], err_msg=name)
        else:
            assert_near(taps[name], want[name], 5e-5, name)


def test_prompts_of_all_lengths_then_single_tokens(tiny, oracle, run, assert_near, assert_states):
    """Each prompt of the prefill fixtures in two rows of one right-padded batch, then six tokens after each."""
    prefill, decode = oracle(tiny.name, "prefill"), oracle(tiny.name, "decode")
    ids, lengths = decode["input_ids"], prefill.meta["lengths"]
    assert lengths == [1, 2, 3, 4, 5, 63, 64, 65, 129, 130] and set(decode.meta["starts"]) < set(lengths)
    batch, ends = np.tile(ids, (len(lengths), 1)), np.repeat(lengths, 2)
    rows = {length: slice(2 * i, 2 * i + 2) for i, length in enumerate(lengths)}

    mask = np.arange(130) < ends[:, None]
    cache = init_cache(tiny.config, len(batch), MAX_LENGTH)
    logits, cache = run(tiny.params, tiny.config, batch[:, :130], mask=mask, cache=cache, logits="last")
    for length, row in rows.items():
        assert_near(logits[row], prefill[f"T{length}.logits_last"], LOGITS, f"last logits of {length}")
        assert_states(cache, prefill, f"T{length}.", row)
        for name in ("key", "value"):
            got, want = getattr(cache.layers[3], name)[row], prefill[f"T130.layer3.{name}"]
            assert_near(got[:, :, :length], want[:, :, :length], CACHES, f"{name} of {length}")
            assert not np.any(got[:, :, length:]), "slots beyond the prompt are written"
    np.testing.assert_array_equal(cache.layers[3].length, ends)

    steps = []
    for step in range(decode.meta["steps"]):
        token = np.take_along_axis(batch, ends[:, None] + step, axis=1)
        logits, cache = run(tiny.params, tiny.config, token, cache=cache)
        steps.append(logits[:, 0])
    for start in decode.meta["starts"]:
        got = np.stack(steps, axis=1)[rows[start]]
        assert_near(got, decode[f"P{start}.logits"], LOGITS, f"logits after {start}")
        assert_states(cache, decode, f"P{start}.", rows[start])


def test_prompt_in_pieces(tiny, oracle, run, assert_near, assert_states):
    want, prefill = oracle(tiny.name, "text"), oracle(tiny.name, "prefill")
    cache, logits, at = init_cache(tiny.config, 2, MAX_LENGTH), [], 0
    for size in (5, 1, 58, 2, 64):
        piece, cache = run(tiny.params, tiny.config, want["input_ids"][:, at : at + size], cache=cache)
        logits.append(piece)
        at += size
        if f"T{at}.logits_last" in prefill:
            assert_near(piece[:, -1], prefill[f"T{at}.logits_last"], LOGITS, f"logits after {at}")
            assert_states(cache, prefill, f"T{at}.")
    assert at == 130
    assert_near(np.concatenate(logits, axis=1), want["logits"], LOGITS, "logits")
    assert_near(cache.layers[3].key[:, :, :130], prefill["T130.layer3.key"], CACHES, "key")


@pytest.mark.parametrize("size", [1, 2, 5, 64])
def test_prompt_at_once(tiny, oracle, run, assert_near, assert_states, size):
    """Whole prompts without a mask, at the lengths that the pieces above have compiled."""
    want = oracle(tiny.name, "prefill")
    ids, cache = oracle(tiny.name, "text")["input_ids"][:, :size], init_cache(tiny.config, 2, MAX_LENGTH)
    logits, cache = run(tiny.params, tiny.config, ids, cache=cache)
    assert_near(logits[:, -1], want[f"T{size}.logits_last"], LOGITS, "logits")
    assert_states(cache, want, f"T{size}.")


def test_greedy_continuation(tiny, oracle, run):
    want = oracle(tiny.name, "decode")
    prompt, tokens = want["greedy.prompt"], []
    cache = init_cache(tiny.config, 2, MAX_LENGTH)
    for piece in np.split(prompt, [5, 7], axis=1):  # 5, 2 and 2 tokens: lengths that are compiled already
        logits, cache = run(tiny.params, tiny.config, piece, cache=cache)
    for _ in range(want["greedy.tokens"].shape[1]):
        tokens.append(np.argmax(logits[:, -1], axis=-1)[:, None])
        logits, cache = run(tiny.params, tiny.config, tokens[-1], cache=cache)
    np.testing.assert_array_equal(np.concatenate(tokens, axis=1), want["greedy.tokens"])


@pytest.mark.parametrize("side", ["left", "right"])
def test_ragged_batch(tiny, oracle, run, assert_near, assert_states, side):
    want = oracle(tiny.name, "ragged")
    ids, mask = want[f"{side}.input_ids"], want[f"{side}.attention_mask"]
    cache = init_cache(tiny.config, 3, ids.shape[1] + 4)
    logits, cache = run(tiny.params, tiny.config, ids, mask=mask, cache=cache)
    for row in range(3):
        assert_near(logits[row][mask[row] == 1], want[f"seq{row}.logits"], LOGITS, f"logits of row {row}")
        assert_states(cache, want, f"seq{row}.", row)
    np.testing.assert_array_equal(cache.layers[3].length, want.meta["lengths"])
    for step in range(4):
        logits, cache = run(tiny.params, tiny.config, want["next_ids"][:, step : step + 1], cache=cache)
        for row in range(3):
            assert_near(logits[row, 0], want[f"seq{row}.decode_logits"][step], LOGITS, f"step {step} of row {row}")
    for row in range(3):
        assert_states(cache, want, f"seq{row}.decode.", row)


@pytest.mark.parametrize("side", ["left", "right"])
def test_ragged_batch_with_given_positions(dense_tiny, oracle, run, assert_near, side):
    want = oracle("dense_tiny", "ragged")
    names = {"positions": "position_ids", "mask": "attention_mask"}
    given = {name: want[f"{side}.{stored}"] for name, stored in names.items()}
    logits, _ = run(dense_tiny.params, dense_tiny.config, want[f"{side}.input_ids"], **given, logits="last")
    for row in range(3):
        assert_near(logits[row], want[f"seq{row}.logits"][-1], LOGITS, f"row {row}")


def test_three_axis_positions(tiny, oracle, run, assert_near):
    want = oracle(tiny.name, "positions3")
    logits, _ = run(tiny.params, tiny.config, want["input_ids"], positions=want["position_ids"])
    assert_near(logits, want["logits"], LOGITS, "three axes")
    equal_axes = np.broadcast_to(np.arange(12, dtype=np.int32), (3, 2, 12))
    logits, _ = run(tiny.params, tiny.config, want["input_ids"], positions=equal_axes)
    assert_near(logits, want["logits_default_positions"], LOGITS, "equal axes")


def test_yarn(tiny, oracle, run, assert_near):
    want = oracle(tiny.name, "yarn")
    config = dataclasses.replace(tiny.config, rope_parameters=RopeConfig(**want.meta["rope_parameters"]))
    logits, _ = run(tiny.params, config, want["input_ids"])
    assert_near(logits, want["logits"], LOGITS, "logits")
