import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsplice.kernels.gated_delta_rule import chunk, reference, xla

from . import float64_truth

BOTH = pytest.mark.parametrize("module", [reference, xla], ids=["reference", "xla"])
FIXTURES = {"delta_rule_small": 2e-6, "delta_rule_real_heads": 2e-6, "delta_rule_stress": 2e-3}


def more_than_one_token(tokens, state_shape):
    return tokens > 1


@pytest.fixture
def always_chunks(monkeypatch):
    """Sends even small heads through chunks."""
    monkeypatch.setattr(xla, "chunks_pay", more_than_one_token)


@functools.cache
def compiled(module, chunks_pay):
    """One compiled function per choice of path, which all tests share."""
    del chunks_pay
    return jax.jit(lambda *args: module.gated_delta_rule(*args))


def run(module, *args):
    return compiled(module, xla.chunks_pay)(*args)


def arguments(batch, tokens, heads, key_features, value_features, *, steep=1.0, dtype=jnp.float32, seed=0):
    rng = np.random.default_rng(seed)
    normal = lambda *shape: rng.normal(size=shape)
    unit = lambda x: x / np.linalg.norm(x, axis=-1, keepdims=True)
    lead = (batch, tokens, heads)
    q, k = unit(normal(*lead, key_features)), unit(normal(*lead, key_features))
    g, beta = -steep * np.abs(normal(*lead)), float64_truth.sigmoid(2 * normal(*lead))
    arrays = [q * key_features**-0.5, k, normal(*lead, value_features), g, beta]
    return *(jnp.asarray(x, dtype) for x in arrays), jnp.asarray(normal(batch, heads, key_features, value_features))


def fixture_arguments(f, tokens, start):
    repeats = f["value"].shape[2] // f["key"].shape[2]
    q, k = (float64_truth.unit_length(f[n].astype(np.float64)).repeat(repeats, axis=2) for n in ("query", "key"))
    q = q * q.shape[-1] ** -0.5
    state = f["initial_state"] if start == "given" else np.zeros_like(f["initial_state"])
    of_tokens = (q, k, f["value"], f["g"], f["beta"])
    return *(jnp.asarray(x[:, :tokens], jnp.float32) for x in of_tokens), jnp.asarray(state)


@BOTH
@pytest.mark.parametrize("tokens", [1, 65, 130])
@pytest.mark.parametrize("name", FIXTURES)
def test_equals_the_fixtures(module, name, tokens, oracle, always_chunks):
    f = oracle("ops", name)
    limit = 5e-5 if module is reference and "stress" in name else FIXTURES[name]
    for start in ("zero", "given"):
        out, state = run(module, *fixture_arguments(f, tokens, start))
        np.testing.assert_allclose(out, f[f"{start}.out"][:, :tokens], rtol=0, atol=limit)
        if f"{start}.T{tokens}.state" in f:
            np.testing.assert_allclose(state, f[f"{start}.T{tokens}.state"], rtol=0, atol=limit)


def test_chunks_stay_near_the_token_rule_on_the_stress_fixture(oracle, always_chunks):
    # Sums of g of their own for every pair of tokens: differences of a running sum are off by 2e-4 here.
    f = oracle("ops", "delta_rule_stress")
    out, state = run(xla, *fixture_arguments(f, 130, "given"))
    np.testing.assert_allclose(out, f["given.out"], rtol=0, atol=2e-5)
    np.testing.assert_allclose(state, f["given.T130.state"], rtol=0, atol=5e-5)


SHAPES = [  # batch, tokens, heads, DK, DV
    (1, 1, 1, 1, 1),
    (2, 2, 3, 5, 7),
    (2, 3, 1, 8, 4),
    (1, 7, 2, 16, 8),
    (3, 31, 2, 4, 12),
    (2, 33, 1, 24, 8),
    (1, 64, 2, 8, 8),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_chunks_equal_float64(shape, always_chunks):
    args = arguments(*shape)
    for got, truth in zip(run(xla, *args), float64_truth.gated_delta_rule(*args)):
        np.testing.assert_allclose(got, truth, rtol=0, atol=3e-6)


@pytest.mark.parametrize("heads", [(2, 16, 24), (4, 64, 128)], ids=str)
@pytest.mark.parametrize("tokens", [0, 1, 2, 40])
def test_own_choice_equals_float64(tokens, heads):
    args = arguments(1, tokens, *heads)
    for got, truth in zip(run(xla, *args), float64_truth.gated_delta_rule(*args)):
        np.testing.assert_allclose(got, truth, rtol=0, atol=3e-6)


@BOTH
@pytest.mark.parametrize("steep", [0.0, 1e-4, 60.0, 300.0])
def test_any_decay(module, steep, always_chunks):
    args = arguments(1, 64, 2, 8, 8, steep=steep)
    for got, truth in zip(run(module, *args), float64_truth.gated_delta_rule(*args)):
        np.testing.assert_allclose(got, truth, rtol=0, atol=5e-6)


def test_a_large_jump_does_not_cost_later_decays_their_digits(always_chunks):
    q, k, v, g, beta, state = arguments(1, 64, 2, 8, 8, steep=0.01)
    args = (q, k, v, g.at[:, [5, 40]].set(-300.0), beta, state)
    for got, truth in zip(run(xla, *args), float64_truth.gated_delta_rule(*args)):
        np.testing.assert_allclose(got, truth, rtol=0, atol=2e-6)


@BOTH
def test_one_key_for_all_tokens_with_full_writes(module, always_chunks):
    # A = all ones below the diagonal: its powers have binomial coefficients, its inverse only 1 and -1.
    q, k, v, g, beta, state = arguments(1, 64, 2, 8, 8)
    args = (q, jnp.broadcast_to(k[:, :1], k.shape), v, jnp.zeros_like(g), jnp.ones_like(beta), state)
    for got, truth in zip(run(module, *args), float64_truth.gated_delta_rule(*args)):
        np.testing.assert_allclose(got, truth, rtol=0, atol=1e-5)


@BOTH
def test_tokens_with_zero_gates_change_nothing(module, always_chunks):
    q, k, v, g, beta, state = arguments(1, 64, 2, 8, 8)
    kept = jnp.arange(64) < 31
    g, beta = (jnp.where(kept[:, None], x, 0.0) for x in (g, beta))
    _, long = run(module, q, k, v, g, beta, state)
    _, short = run(module, *(x[:, :31] for x in (q, k, v, g, beta)), state)
    np.testing.assert_allclose(long, short, rtol=0, atol=2e-6)


def test_pieces_equal_the_whole(always_chunks):
    *tokens, state = arguments(1, 64, 2, 8, 8)
    whole, end = run(xla, *tokens, state)
    for first, last in ((0, 1), (1, 32), (32, 33), (33, 64)):
        piece, state = run(xla, *(x[:, first:last] for x in tokens), state)
        np.testing.assert_allclose(piece, whole[:, first:last], rtol=0, atol=3e-6)
    np.testing.assert_allclose(state, end, rtol=0, atol=3e-6)


@BOTH
def test_bfloat16_values_only_round_the_output(module, always_chunks):
    args = arguments(1, 33, 2, 8, 8, dtype=jnp.bfloat16)
    out, state = run(module, *args)
    assert (out.dtype, state.dtype) == (jnp.bfloat16, jnp.float32)
    truth_out, truth_state = float64_truth.gated_delta_rule(*args)
    np.testing.assert_allclose(np.asarray(out, np.float64), truth_out, rtol=2**-8, atol=2e-6)
    np.testing.assert_allclose(state, truth_state, rtol=0, atol=2e-6)


@pytest.mark.parametrize("tokens", [1, 45])
def test_gradients_equal_the_references(tokens, always_chunks):
    rng = np.random.default_rng(1)
    directions = [jnp.asarray(rng.normal(size=s), jnp.float32) for s in ((1, tokens, 2, 6), (1, 2, 8, 6))]

    def loss(module, *args):
        return sum(jnp.sum(x * d) for x, d in zip(module.gated_delta_rule(*args), directions))

    gradients = [jax.jit(jax.grad(functools.partial(loss, module), range(6))) for module in (xla, reference)]
    for steep in (0.0, 0.1, 300.0):
        args = arguments(1, tokens, 2, 8, 6, steep=steep)
        for got, wanted in zip(*(f(*args) for f in gradients)):
            assert np.isfinite(got).all()
            np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-5 * max(1.0, float(jnp.abs(wanted).max())))


@BOTH
def test_vmap(module, always_chunks):
    args = arguments(4, 35, 2, 8, 8)
    split = [x.reshape(2, 2, *x.shape[1:]) for x in args]
    mapped = jax.jit(jax.vmap(module.gated_delta_rule))(*split)
    for got, wanted in zip(mapped, run(module, *args)):
        np.testing.assert_allclose(got.reshape(wanted.shape), wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize("size", [1, 2, 4, 8, 16, 64])
def test_unit_lower_inverse(size):
    a = np.tril(np.random.default_rng(size).normal(size=(3, 2, size, size)), -1) * 0.3
    inverse = jax.jit(chunk.unit_lower_inverse)(jnp.asarray(a, jnp.float32))
    truth = np.linalg.inv(np.eye(size) + a)
    np.testing.assert_allclose(inverse, truth, rtol=0, atol=2e-6 * np.abs(truth).max())


def test_segment_sums():
    g = np.random.default_rng(0).normal(size=(2, 3, 9))
    sums = np.asarray(chunk.segment_sums(jnp.asarray(g, jnp.float32)))
    for i in range(9):
        for j in range(9):
            expected = g[..., j + 1 : i + 1].sum(-1) if j <= i else -np.inf
            np.testing.assert_allclose(sums[..., i, j], expected, rtol=0, atol=1e-6)


def test_small_work_stays_with_single_tokens():
    assert not xla.chunks_pay(130, (2, 8, 16, 24))
    assert not xla.chunks_pay(2, (1, 16, 128, 128))
    assert not xla.chunks_pay(0, (1, 16, 128, 128))
    assert not xla.chunks_pay(1, (64, 64, 128, 128))
    assert xla.chunks_pay(4, (1, 16, 128, 128))
    assert xla.chunks_pay(1024, (1, 2, 128, 128))


@pytest.mark.parametrize(("tokens", "size"), [(2, 2), (3, 4), (17, 32), (32, 32), (1000, 32)])
def test_chunk_size(tokens, size):
    assert xla.chunk_size(tokens) == size


@BOTH
@pytest.mark.parametrize(("which", "name"), [(1, "k"), (3, "g"), (4, "beta"), (5, "state")])
def test_shapes_that_would_broadcast_are_refused(module, which, name):
    args = list(arguments(2, 5, 4, 8, 8))
    args[which] = args[which][:, :, :1] if name != "state" else args[which][:1]
    with pytest.raises(ValueError, match=f"gated_delta_rule: {name} has shape"):
        module.gated_delta_rule(*args)
