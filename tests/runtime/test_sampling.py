"""Sampling: greedy, temperature, top-k, top-p, seeds; exact sets and honest frequencies."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsplice import JaxspliceError
from jaxsplice.runtime.sampling import Sampler

PROBABILITIES = np.array([0.05, 0.4, 0.1, 0.3, 0.15])
LOGITS = jnp.log(jnp.asarray(PROBABILITIES, jnp.float32)) + 3.0  # a constant changes nothing
DRAWS = 4000


def draw(sampler: Sampler, logits=LOGITS, seed: int = 0, draws: int = DRAWS) -> np.ndarray:
    rows = jnp.broadcast_to(logits, (draws, logits.shape[-1]))
    return np.asarray(sampler(rows, jax.random.key(seed)))


def frequencies(sampler: Sampler, **options) -> np.ndarray:
    return np.bincount(draw(sampler, **options), minlength=5) / DRAWS


def assert_frequencies(sampler: Sampler, weights) -> None:
    expected = np.asarray(weights, float) / np.sum(weights)
    got = frequencies(sampler)
    assert set(np.flatnonzero(got)) <= set(np.flatnonzero(expected))
    np.testing.assert_allclose(got, expected, atol=4 * np.sqrt(0.25 / DRAWS))  # four standard deviations


def test_greedy_takes_the_largest_and_needs_no_key():
    logits = jnp.array([[0.0, 3.0, 1.0], [9.0, -1.0, 2.0], [1.0, 1.0, 0.0]])
    got = Sampler()(logits, jax.random.key(0))
    assert got.dtype == jnp.int32 and got.tolist() == [1, 0, 0]
    assert (got == Sampler(0.0, top_k=2, top_p=0.5)(logits, jax.random.key(7))).all()


def test_temperature_one_draws_the_probabilities():
    assert_frequencies(Sampler(1.0), PROBABILITIES)


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_temperature_sharpens_and_flattens(temperature):
    assert_frequencies(Sampler(temperature), PROBABILITIES ** (1.0 / temperature))


def test_a_tiny_temperature_is_greedy():
    assert set(draw(Sampler(1e-4))) == {1}


@pytest.mark.parametrize(("top_k", "kept"), [(1, [1]), (3, [1, 3, 4]), (5, range(5)), (99, range(5))])
def test_top_k_keeps_the_most_probable(top_k, kept):
    assert_frequencies(Sampler(1.0, top_k=top_k), [p if i in kept else 0 for i, p in enumerate(PROBABILITIES)])


@pytest.mark.parametrize(
    ("top_p", "kept"),
    [(1e-6, [1]), (0.39, [1]), (0.41, [1, 3]), (0.71, [1, 3, 4]), (1.0, range(5))],
)  # fmt: skip
def test_top_p_keeps_what_reaches_the_probability(top_p, kept):
    assert_frequencies(Sampler(1.0, top_p=top_p), [p if i in kept else 0 for i, p in enumerate(PROBABILITIES)])


def test_top_p_counts_after_temperature_and_top_k():
    # of the two most probable, tempered to (16, 9) / 25, the first alone reaches 0.6
    assert set(draw(Sampler(0.5, top_k=2, top_p=0.6))) == {1}
    assert set(draw(Sampler(0.5, top_k=2, top_p=0.7))) == {1, 3}


def test_the_seed_decides_and_rows_are_independent():
    sampler = Sampler(1.0)
    first = draw(sampler, seed=3)
    np.testing.assert_array_equal(first, draw(sampler, seed=3))
    assert (first != draw(sampler, seed=4)).mean() > 0.4
    assert len(set(first)) == 5


def test_low_precision_and_masked_logits():
    logits = jnp.where(jnp.arange(5) == 1, -jnp.inf, LOGITS)
    assert 1 not in draw(Sampler(1.0), logits)
    assert set(draw(Sampler(1.0, top_k=1), logits)) == {3}
    assert set(draw(Sampler(1.0, top_p=0.3), LOGITS.astype(jnp.bfloat16))) == {1}


@pytest.mark.parametrize(
    "wrong", [{"temperature": -1.0}, {"top_k": -1}, {"top_p": 0.0}, {"top_p": 1.5}, {"top_p": -0.1},
              {"temperature": float("nan")}, {"top_p": float("nan")}],
)  # fmt: skip
def test_values_out_of_range_are_one_clear_error(wrong):
    (name,) = wrong
    with pytest.raises(JaxspliceError, match=rf"{name}={wrong[name]}.*top_p must lie above 0"):
        Sampler(**wrong)


def test_samplers_are_values():
    assert Sampler(0.5, 3, 0.9) == Sampler(0.5, 3, 0.9) != Sampler(0.5)
    assert hash(Sampler()) == hash(Sampler(0.0))
