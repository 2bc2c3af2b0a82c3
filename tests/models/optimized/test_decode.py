"""Twenty tokens one by one behind a prompt in two pieces, optimised beside the original, step by step."""

import jax
import numpy as np
import pytest

from jaxsplice.models.qwen3_5 import init_cache

ROWS, PIECE, STEPS = 3, 6, 20
LENGTHS = np.array([[6, 6, 6], [6, 2, 4]])  # real tokens of each row in each piece; the rest is padding on the right
NEAR = 3e-5  # caches carry the differences of 22 calls


def assert_same(got, want, assert_near, what):
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(got), jax.tree.leaves(want), strict=True):
        assert_near(a, b, NEAR, f"{what}{jax.tree_util.keystr(path)}")


@pytest.mark.parametrize("name", ["dense_tiny", pytest.param("moe_tiny", marks=pytest.mark.slow)])
def test_pieces_and_steps(load_tiny, last_two_layers, counts, run, run_fast, assert_near, name):
    """Each side goes on from its own caches and is given the original's choice of tokens."""
    _, params, config = last_two_layers(load_tiny(name))
    rng = np.random.default_rng(7)
    caches = {
        "original": init_cache(config, ROWS, 2 * PIECE + STEPS),
        "fast": init_cache(config, ROWS, 2 * PIECE + STEPS),
    }

    def call(ids, **kwargs):
        want, caches["original"] = run(params, config, ids, cache=caches["original"], **kwargs)
        got, caches["fast"] = run_fast(counts(config), params, config, ids, cache=caches["fast"], **kwargs)
        return got, want

    for piece, lengths in enumerate(LENGTHS):
        ids = rng.integers(0, 180, (ROWS, PIECE), np.int32)
        got, want = call(ids, mask=np.arange(PIECE) < lengths[:, None], logits="last")
        assert_near(got, want, NEAR, f"logits of piece {piece}")
        assert_same(caches["fast"], caches["original"], assert_near, f"piece {piece}")
    for step in range(STEPS):
        got, want = call(np.argmax(want, axis=-1)[:, None].astype(np.int32))
        got, want = got[:, 0], want[:, 0]
        assert_near(got, want, NEAR, f"logits of step {step}")
        np.testing.assert_array_equal(np.argmax(got, -1), np.argmax(want, -1))
        assert_same(caches["fast"], caches["original"], assert_near, f"step {step}")
    np.testing.assert_array_equal(caches["fast"].layers[1].length, LENGTHS.sum(axis=0) + STEPS)


@pytest.mark.slow
def test_two_pieces_are_one_prompt(moe_tiny, last_two_layers, counts, run_fast, assert_near):
    _, params, config = last_two_layers(moe_tiny)
    ids = np.random.default_rng(8).integers(0, 180, (ROWS, 2 * PIECE), np.int32)
    whole, whole_cache = run_fast(counts(config), params, config, ids, cache=init_cache(config, ROWS, 16))
    pieces, cache = [], init_cache(config, ROWS, 16)
    for piece in np.split(ids, 2, axis=1):
        logits, cache = run_fast(counts(config), params, config, piece, cache=cache)
        pieces.append(logits)
    assert_near(np.concatenate(pieces, axis=1), whole, NEAR, "logits")
    assert_same(cache, whole_cache, assert_near, "cache")
