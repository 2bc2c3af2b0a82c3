import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsplice.kernels.grouped_swiglu import reference, xla

from . import float64_truth

BOTH = pytest.mark.parametrize("module", [reference, xla], ids=["reference", "xla"])


def run(module, *args):
    """One compiled call; a fresh function each time, so that a patched choice is traced again."""
    return jax.jit(lambda *args: module.grouped_swiglu(*args))(*args)


@pytest.fixture
def always_blocks(monkeypatch):
    """Sends even small shapes through the loop over blocks."""
    monkeypatch.setattr(xla, "blocks_pay", lambda rows, *rest: rows > 0)


def arguments(group_sizes, rows=None, features=24, width=20, dtype=jnp.float32, seed=0):
    rng = np.random.default_rng(seed)
    rows = sum(group_sizes) if rows is None else rows
    experts = len(group_sizes)
    weights = [jnp.asarray(rng.normal(size=(experts, features, width)) / features**0.5, dtype) for _ in range(2)]
    return jnp.asarray(rng.normal(size=(rows, features)), dtype), *weights, jnp.asarray(group_sizes, jnp.int32)


SIZES = {
    "even": ([8, 8, 8, 8], None),
    "ragged": ([3, 17, 1, 9], None),
    "empty groups": ([0, 5, 0, 0, 11, 0], None),
    "rows past the end": ([3, 4, 0], 20),
    "all in one": ([0, 0, 37, 0], None),
    "all in the last": ([0, 0, 0, 37], 40),
    "no rows in any": ([0, 0, 0], 9),
    "one expert": ([13], 15),
    "one row": ([0, 1, 0], None),
    "more experts than rows": ([0, 1, 0, 0, 2, 0, 0, 0, 1, 0], None),
    "larger than a block": ([600, 5], None),
}


@BOTH
@pytest.mark.parametrize("name", SIZES)
def test_equals_float64(module, name, always_blocks):
    args = arguments(*SIZES[name])
    np.testing.assert_allclose(run(module, *args), float64_truth.grouped_swiglu(*args), rtol=0, atol=3e-6)


@pytest.mark.parametrize("seed", range(5))
def test_fuzzed_groups(seed, always_blocks):
    rng = np.random.default_rng(seed)
    experts, rows = int(rng.integers(1, 40)), int(rng.integers(1, 400))
    sizes = rng.multinomial(rng.integers(0, rows + 1), rng.dirichlet(np.full(experts, 0.3)))
    args = arguments(sizes.tolist(), rows, features=int(rng.integers(1, 40)), width=int(rng.integers(1, 40)), seed=seed)
    np.testing.assert_allclose(run(xla, *args), float64_truth.grouped_swiglu(*args), rtol=0, atol=5e-6)


@BOTH
def test_bfloat16(module, always_blocks):
    args = arguments([3, 17, 0, 9], 32, dtype=jnp.bfloat16)
    out = run(module, *args)
    assert out.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(out, np.float64), float64_truth.grouped_swiglu(*args), rtol=2e-2, atol=2e-2)


@BOTH
def test_without_group_sizes_every_expert_has_its_own_rows(module):
    rng = np.random.default_rng(0)
    x, w_gate, w_up = (rng.normal(size=s).astype(np.float32) for s in ((3, 5, 8), (3, 8, 6), (3, 8, 6)))
    truth = [float64_truth.swiglu(*of_expert) for of_expert in zip(x, w_gate, w_up)]
    np.testing.assert_allclose(run(module, x, w_gate, w_up), truth, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("name", ["ragged", "empty groups", "rows past the end"])
def test_gradients_equal_the_references(name, always_blocks):
    *arrays, sizes = arguments(*SIZES[name])
    direction = np.random.default_rng(1).normal(size=(arrays[0].shape[0], arrays[1].shape[2])).astype(np.float32)

    def loss(module, *arrays):
        return jnp.sum(module.grouped_swiglu(*arrays, sizes) * direction)

    gradients = (jax.jit(jax.grad(functools.partial(loss, module), range(3)))(*arrays) for module in (xla, reference))
    for got, wanted in zip(*gradients):
        np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-5)


def test_vmap_over_rows_and_sizes(always_blocks):
    runs = [arguments(sizes, 30, seed=seed) for seed, sizes in enumerate(([3, 17, 0, 9], [0, 0, 25, 5]))]
    x, sizes = jnp.stack([r[0] for r in runs]), jnp.stack([r[3] for r in runs])
    w_gate, w_up = runs[0][1:3]
    mapped = jax.jit(jax.vmap(lambda x, sizes: xla.grouped_swiglu(x, w_gate, w_up, sizes)))(x, sizes)
    for got, one_x, one_sizes in zip(mapped, x, sizes):
        np.testing.assert_allclose(got, run(xla, one_x, w_gate, w_up, one_sizes), rtol=0, atol=1e-6)


def test_nan_rows_stay_in_their_row(always_blocks):
    x, *rest = arguments([3, 17, 1, 9], 32)
    clean = run(xla, x, *rest)
    spoilt = run(xla, x.at[20].set(jnp.nan).at[31].set(jnp.nan), *rest)
    assert np.isnan(spoilt[20]).all()
    others = np.arange(32) != 20
    np.testing.assert_array_equal(spoilt[others], clean[others])


def test_precision_reaches_both_products(always_blocks):
    args = arguments([3, 17, 1, 9])
    text = str(jax.make_jaxpr(lambda *a: xla.grouped_swiglu(*a, precision="highest"))(*args))
    assert text.count("Precision.HIGHEST") == 4


def test_products_are_of_blocks_not_of_all_experts():
    args = arguments([64] * 16, features=64, width=64)
    work = [
        jax.jit(f).lower(*args).compile().cost_analysis()["flops"]
        for f in (reference.grouped_swiglu, xla.grouped_swiglu)
    ]
    # The compiler counts a loop's body once: one block of 64 rows beside all rows with all experts.
    assert work[1] < work[0] / 16


@pytest.mark.parametrize(
    ("rows", "experts", "block"),
    [(1, 512, 8), (64, 8, 8), (640, 32, 32), (1024, 64, 16), (10_240, 8, 256), (10_240, 64, 256)],
)
def test_block_is_about_the_mean_group(rows, experts, block):
    assert xla.block_rows(rows, experts) == block


def test_small_work_stays_as_it_is():
    assert not xla.blocks_pay(rows=16, experts=4, features=16, width=16)
    assert not xla.blocks_pay(rows=10_000, experts=1, features=512, width=512)
    assert not xla.blocks_pay(rows=0, experts=8, features=512, width=512)
    assert xla.blocks_pay(rows=64, experts=8, features=256, width=128)
    assert xla.blocks_pay(rows=640, experts=512, features=4096, width=1024)
