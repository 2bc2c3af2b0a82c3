"""The optimised tiny models against the public implementation's results, at the limits that float32 allows.

Nothing passes unfused: each test names the exact number of rewrites. One batch of 28 rows holds the prompts of most
fixtures, so that two programs (a prompt, a step) are rewritten and compiled for all of them.
"""

import dataclasses

import numpy as np
import pytest

from jaxsplice.models.qwen3_5 import RopeConfig, init_cache

LOGITS, CACHES = 3e-4, 1e-4
DENSE = {"rms-norm": 11, "gated-rms-norm": 3, "causal-conv1d": 3, "gated-delta-rule": 3, "conv1d-gdn": 3, "swiglu": 4}
MOE = DENSE | {"grouped-swiglu": 4, "router-top-k": 4}
COUNTS = {"dense_tiny": DENSE, "moe_tiny": MOE}
LENGTHS = [1, 2, 3, 4, 5, 63, 64, 65, 129, 130]
PREFILL, GREEDY = slice(0, 20), slice(20, 22)
RAGGED = {"left": slice(22, 25), "right": slice(25, 28)}
WIDTH, STEPS = 130, 24


def batch(oracle, name):
    """Token ids [28, 130] and their mask: ten prefills in two rows each, greedy prompts, ragged ones on both sides."""
    decode, ragged = oracle(name, "decode"), oracle(name, "ragged")
    ids, mask = np.zeros((28, WIDTH), np.int32), np.zeros((28, WIDTH), bool)
    ids[PREFILL] = np.tile(decode["input_ids"][:, :WIDTH], (len(LENGTHS), 1))
    mask[PREFILL] = np.arange(WIDTH) < np.repeat(LENGTHS, 2)[:, None]
    prompt = decode["greedy.prompt"]
    ids[GREEDY, : prompt.shape[1]], mask[GREEDY, : prompt.shape[1]] = prompt, True
    for side, rows in RAGGED.items():
        given, width = ragged[f"{side}.input_ids"], ragged[f"{side}.input_ids"].shape[1]
        columns = slice(WIDTH - width, WIDTH) if side == "left" else slice(0, width)
        ids[rows, columns], mask[rows, columns] = given, ragged[f"{side}.attention_mask"]
    return ids, mask


@pytest.fixture(scope="module")
def prompts(tiny, oracle, run_fast):
    """The batch, its logits at every token, and the caches after it."""
    ids, mask = batch(oracle, tiny.name)
    cache = init_cache(tiny.config, len(ids), WIDTH + STEPS)
    logits, cache = run_fast(COUNTS[tiny.name], tiny.params, tiny.config, ids, mask=mask, cache=cache)
    return ids, mask, logits, cache


@pytest.fixture(scope="module")
def steps(tiny, oracle, run_fast, prompts):
    """Logits [28, 24, V] and caches of 24 single tokens after the prompts: given ones first, then the likeliest."""
    _, mask, logits, cache = prompts
    decode, ragged = oracle(tiny.name, "decode"), oracle(tiny.name, "ragged")
    last = np.where(mask, np.arange(WIDTH), 0).max(axis=1)
    logits, out, caches = logits[np.arange(28), last], [], []
    for step in range(STEPS):
        token = np.argmax(logits, axis=-1)[:, None].astype(np.int32)
        if step < 6:
            token[PREFILL] = np.take_along_axis(
                np.tile(decode["input_ids"], (10, 1)), np.repeat(LENGTHS, 2)[:, None] + step, axis=1
            )
        if step < 4:
            for rows in RAGGED.values():
                token[rows] = ragged["next_ids"][:, step : step + 1]
        logits, cache = run_fast(COUNTS[tiny.name], tiny.params, tiny.config, token, cache=cache)
        logits = logits[:, 0]
        out.append(logits)
        caches.append(cache)
    return np.stack(out, axis=1), caches


def test_prompts_of_all_lengths(tiny, oracle, prompts, assert_near, assert_states):
    want = oracle(tiny.name, "prefill")
    assert want.meta["lengths"] == LENGTHS
    _, _, logits, cache = prompts
    for i, length in enumerate(LENGTHS):
        rows = slice(2 * i, 2 * i + 2)
        assert_near(logits[rows, length - 1], want[f"T{length}.logits_last"], LOGITS, f"last logits of {length}")
        assert_states(cache, want, f"T{length}.", rows)
        for name in ("key", "value"):
            got = getattr(cache.layers[3], name)[rows]
            assert_near(got[:, :, :length], want[f"T130.layer3.{name}"][:, :, :length], CACHES, name)
            assert not np.any(got[:, :, length:]), "slots beyond the prompt are written"
        assert np.all(cache.layers[3].length[rows] == length)


def test_text(tiny, oracle, prompts, assert_near):
    _, _, logits, _ = prompts
    assert_near(logits[18:20], oracle(tiny.name, "text")["logits"], LOGITS, "logits")


def test_decode(tiny, oracle, steps, assert_near, assert_states):
    want = oracle(tiny.name, "decode")
    assert want.meta["starts"] == [1, 3, 5, 64, 65] and want.meta["steps"] == 6
    logits, caches = steps
    for start in want.meta["starts"]:
        rows = slice(2 * LENGTHS.index(start), 2 * LENGTHS.index(start) + 2)
        assert_near(logits[rows, :6], want[f"P{start}.logits"], LOGITS, f"logits after {start}")
        assert_states(caches[5], want, f"P{start}.", rows)


def test_greedy_continuation(tiny, oracle, prompts, steps):
    want = oracle(tiny.name, "decode")
    first = np.argmax(prompts[2][GREEDY, want["greedy.prompt"].shape[1] - 1], axis=-1)
    rest = np.argmax(steps[0][GREEDY, : STEPS - 1], axis=-1)
    np.testing.assert_array_equal(np.concatenate([first[:, None], rest], axis=1), want["greedy.tokens"])


@pytest.mark.parametrize("side", ["left", "right"])
def test_ragged_batch(tiny, oracle, prompts, steps, assert_near, assert_states, side):
    want = oracle(tiny.name, "ragged")
    _, mask, logits, cache = prompts
    for seq in range(3):
        row = RAGGED[side].start + seq
        assert_near(logits[row][mask[row]], want[f"seq{seq}.logits"], LOGITS, f"logits of {seq}")
        assert_states(cache, want, f"seq{seq}.", row)
        assert_near(steps[0][row, :4], want[f"seq{seq}.decode_logits"], LOGITS, f"steps of {seq}")
        assert_states(steps[1][3], want, f"seq{seq}.decode.", row)


@pytest.mark.parametrize("tiny", ["dense_tiny", pytest.param("moe_tiny", marks=pytest.mark.slow)], indirect=True)
def test_three_axis_positions(tiny, oracle, run_fast, assert_near):
    want = oracle(tiny.name, "positions3")
    equal_axes = np.broadcast_to(np.arange(12, dtype=np.int32), (3, 2, 12))
    for positions, key in ((want["position_ids"], "logits"), (equal_axes, "logits_default_positions")):
        logits, _ = run_fast(COUNTS[tiny.name], tiny.params, tiny.config, want["input_ids"], positions=positions)
        assert_near(logits, want[key], LOGITS, key)


@pytest.mark.parametrize("tiny", ["dense_tiny", pytest.param("moe_tiny", marks=pytest.mark.slow)], indirect=True)
def test_taps(tiny, oracle, run_fast, assert_near):
    """Values inside are results here, so the convolution and the delta rule stay two Ops: their seam is looked at."""
    want = oracle(tiny.name, "taps")
    expected = {name: n for name, n in COUNTS[tiny.name].items() if name != "conv1d-gdn"}
    logits, _, taps = run_fast(expected, tiny.params, tiny.config, want["input_ids"], taps=True)
    assert_near(logits, want["logits"], LOGITS, "logits")
    inside = {name for name in want if name.startswith("layer")}
    assert inside == {name for name in taps if name.startswith(("layer0.", "layer3."))}
    for name in inside:
        if name.endswith("topk_indices"):
            np.testing.assert_array_equal(taps[name], want[name], err_msg=name)
        else:
            assert_near(taps[name], want[name], 5e-5, name)


@pytest.mark.parametrize("tiny", ["dense_tiny", pytest.param("moe_tiny", marks=pytest.mark.slow)], indirect=True)
def test_yarn(tiny, oracle, run_fast, assert_near):
    want = oracle(tiny.name, "yarn")
    config = dataclasses.replace(tiny.config, rope_parameters=RopeConfig(**want.meta["rope_parameters"]))
    logits, _ = run_fast(COUNTS[tiny.name], tiny.params, config, want["input_ids"])
    assert_near(logits, want["logits"], LOGITS, "logits")


@pytest.mark.slow
def test_hidden_states(tiny, oracle, run_fast, assert_near):
    want = oracle(tiny.name, "text")
    expected = {name: n for name, n in COUNTS[tiny.name].items() if name != "conv1d-gdn"}
    logits, _, taps = run_fast(expected, tiny.params, tiny.config, want["input_ids"], taps=True)
    assert_near(logits, want["logits"], LOGITS, "logits")
    for name in (name for name in want if name.startswith("hidden.")):
        assert_near(taps[name], want[name], LOGITS, name)


@pytest.mark.slow
@pytest.mark.parametrize("length", LENGTHS)
def test_one_prompt_of_each_length(tiny, oracle, run_fast, assert_near, assert_states, length):
    """Prompts without a mask, behind a cache of zeros that the program makes itself, shorter than the taps as well."""
    want, ids = oracle(tiny.name, "prefill"), oracle(tiny.name, "text")["input_ids"][:, :length]
    logits, cache = run_fast(COUNTS[tiny.name], tiny.params, tiny.config, ids, logits="last")
    assert_near(logits, want[f"T{length}.logits_last"], LOGITS, "logits")
    assert_states(cache, want, f"T{length}.")


@pytest.mark.slow
@pytest.mark.parametrize("side", ["left", "right"])
def test_ragged_batch_as_given(tiny, oracle, run_fast, assert_near, assert_states, side):
    """With the fixture's own width and positions."""
    want = oracle(tiny.name, "ragged")
    ids, mask, positions = (want[f"{side}.{name}"] for name in ("input_ids", "attention_mask", "position_ids"))
    cache = init_cache(tiny.config, 3, 69)
    logits, cache = run_fast(
        COUNTS[tiny.name], tiny.params, tiny.config, ids, positions=positions, mask=mask, cache=cache
    )
    for seq in range(3):
        assert_near(logits[seq][mask[seq] == 1], want[f"seq{seq}.logits"], LOGITS, f"logits of {seq}")
        assert_states(cache, want, f"seq{seq}.", seq)


@pytest.mark.slow
def test_prompt_in_pieces(tiny, oracle, run_fast, assert_near, assert_states):
    want, prefill = oracle(tiny.name, "text"), oracle(tiny.name, "prefill")
    cache, logits, at = init_cache(tiny.config, 2, 136), [], 0
    for size in (5, 1, 58, 2, 64):
        ids = want["input_ids"][:, at : at + size]
        piece, cache = run_fast(COUNTS[tiny.name], tiny.params, tiny.config, ids, cache=cache)
        logits.append(piece)
        at += size
        if f"T{at}.logits_last" in prefill:
            assert_states(cache, prefill, f"T{at}.")
    assert_near(np.concatenate(logits, axis=1), want["logits"], LOGITS, "logits")
