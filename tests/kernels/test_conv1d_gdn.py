import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsplice.kernels.conv1d_gdn import reference, xla

from . import float64_truth

BOTH = pytest.mark.parametrize("module", [reference, xla], ids=["reference", "xla"])


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
    return jax.jit(lambda *args: module.conv1d_gdn(*args))


def run(module, *args):
    return compiled(module, xla.chunks_pay)(*args)


def arguments(tokens, key_heads, ratio, features, *, batch=2, taps=4, past=True, dtype=jnp.float32, seed=0):
    rng = np.random.default_rng(seed)
    array = lambda *shape, dtype=dtype: jnp.asarray(rng.normal(size=shape), dtype)
    key_features, value_features = features
    value_heads = key_heads * ratio
    channels = 2 * key_heads * key_features + value_heads * value_features
    return (
        array(batch, tokens, channels),
        array(taps, channels),
        array(batch, taps - 1, channels) if past else None,
        array(batch, tokens, value_heads),
        array(batch, tokens, value_heads),
        array(value_heads, dtype=jnp.float32),
        array(value_heads),
        array(batch, value_heads, key_features, value_features, dtype=jnp.float32),
    )


CASES = [
    {"tokens": 1, "key_heads": 1, "ratio": 1, "features": (4, 4)},
    {"tokens": 1, "key_heads": 2, "ratio": 4, "features": (8, 6)},
    {"tokens": 2, "key_heads": 2, "ratio": 1, "features": (8, 8), "past": False},
    {"tokens": 3, "key_heads": 1, "ratio": 2, "features": (6, 10), "taps": 2},
    {"tokens": 5, "key_heads": 3, "ratio": 1, "features": (8, 4), "taps": 3},
    {"tokens": 33, "key_heads": 2, "ratio": 4, "features": (8, 12), "past": False},
    {"tokens": 40, "key_heads": 2, "ratio": 2, "features": (8, 8)},
]


@BOTH
@pytest.mark.parametrize("case", CASES, ids=lambda c: "-".join(str(v) for v in c.values()))
def test_equals_float64(module, case, always_chunks):
    args = arguments(**case)
    for got, truth in zip(run(module, *args), float64_truth.conv1d_gdn(*args)):
        np.testing.assert_allclose(got, truth, rtol=0, atol=5e-6 * np.abs(truth).max(initial=1.0))


@pytest.mark.parametrize("features", [(16, 24), (64, 128)], ids=str)
@pytest.mark.parametrize("tokens", [0, 1, 70])
def test_own_choice_equals_float64(tokens, features):
    args = arguments(tokens, 2, 2, features, batch=1)
    for got, truth in zip(run(xla, *args), float64_truth.conv1d_gdn(*args)):
        np.testing.assert_allclose(got, truth, rtol=0, atol=5e-6 * np.abs(truth).max(initial=1.0))


@BOTH
@pytest.mark.parametrize("model", ["moe_tiny", "dense_tiny"])
def test_equals_the_models_fixtures(module, model, oracle, always_chunks):
    weights, taps, prefill = (oracle(model, name) for name in ("model", "taps", "prefill"))
    of_layer = lambda name: weights[f"model.language_model.layers.0.linear_attn.{name}"]
    u, b, a = (taps[f"layer0.gdn.in_proj_{name}"] for name in ("qkv", "b", "a"))
    states = {tokens: prefill[f"T{tokens}.layer0.recurrent_state"] for tokens in (5,)}
    for tokens, state in states.items():
        out, end = run(
            module,
            u[:, :tokens],
            of_layer("conv1d.weight")[:, 0].T,
            None,
            b[:, :tokens],
            a[:, :tokens],
            of_layer("A_log"),
            of_layer("dt_bias"),
            np.zeros_like(state),
        )
        core = taps["layer0.gdn.core"].reshape(2, 7, *out.shape[2:])[:, :tokens]
        np.testing.assert_allclose(out, core, rtol=0, atol=5e-6)
        np.testing.assert_allclose(end, state, rtol=0, atol=1e-5)


@BOTH
def test_masked_tokens_change_nothing(module, always_chunks):
    u, weight, past, b, a, *rest = arguments(40, 2, 2, (8, 8))
    kept = (jnp.arange(40) < 10)[:, None]
    b, a = (jnp.where(kept, x, -jnp.inf) for x in (b, a))
    _, long = run(module, u, weight, past, b, a, *rest)
    _, short = run(module, u[:, :10], weight, past, b[:, :10], a[:, :10], *rest)
    np.testing.assert_allclose(long, short, rtol=0, atol=5e-6)


def test_masked_tokens_gates_are_exactly_zero():
    minus_infinity, numbers = jnp.full((1, 1, 3), -jnp.inf), jnp.array([-4.0, 0.0, 4.0])
    g, beta = reference.gates(minus_infinity, minus_infinity, numbers, numbers)
    assert not g.any()
    assert not beta.any()


@BOTH
def test_bfloat16(module, always_chunks):
    args = arguments(40, 2, 2, (8, 8), dtype=jnp.bfloat16)
    out, state = run(module, *args)
    assert (out.dtype, state.dtype) == (jnp.bfloat16, jnp.float32)
    for got, truth in zip((out, state), float64_truth.conv1d_gdn(*args)):
        limit = 2e-2 * np.abs(truth).max(initial=1.0)
        np.testing.assert_allclose(np.asarray(got, np.float64), truth, rtol=0, atol=limit)


def test_bfloat16_rounds_where_the_reference_does(always_chunks):
    args = arguments(40, 2, 2, (8, 8), dtype=jnp.bfloat16)
    (out, state), (wanted_out, wanted_state) = run(xla, *args), run(reference, *args)
    np.testing.assert_allclose(state, wanted_state, rtol=0, atol=3e-2)
    assert (np.asarray(out) == np.asarray(wanted_out)).mean() > 0.8


@pytest.mark.parametrize("tokens", [1, 40])
def test_gradients_equal_the_references(tokens, always_chunks):
    args = arguments(tokens, 2, 2, (8, 6), batch=1)
    rng = np.random.default_rng(1)
    directions = [jnp.asarray(rng.normal(size=s), jnp.float32) for s in ((1, tokens, 4, 6), (1, 4, 8, 6))]

    def loss(module, *args):
        return sum(jnp.sum(x * d) for x, d in zip(module.conv1d_gdn(*args), directions))

    gradients = [jax.jit(jax.grad(functools.partial(loss, module), range(8))) for module in (xla, reference)]
    masked = [jnp.where(jnp.arange(tokens)[:, None] % 3 == 0, -jnp.inf, x) for x in args[3:5]]
    for b_and_a in (args[3:5], masked):
        for got, wanted in zip(*(f(*args[:3], *b_and_a, *args[5:]) for f in gradients)):
            assert np.isfinite(wanted).all()
            np.testing.assert_allclose(got, wanted, rtol=0, atol=2e-5 * max(1.0, float(jnp.abs(wanted).max())))


@pytest.mark.parametrize("tokens", [1, 35])
def test_vmap(tokens, always_chunks):
    u, weight, past, b, a, A_log, dt_bias, state = arguments(tokens, 1, 2, (8, 8), batch=4)
    split = [x.reshape(2, 2, *x.shape[1:]) for x in (u, past, b, a, state)]
    of_batch = lambda u, past, b, a, state: xla.conv1d_gdn(u, weight, past, b, a, A_log, dt_bias, state)
    mapped = jax.jit(jax.vmap(of_batch))(*split)
    for got, wanted in zip(mapped, run(xla, u, weight, past, b, a, A_log, dt_bias, state)):
        np.testing.assert_allclose(got.reshape(wanted.shape), wanted, rtol=0, atol=2e-6)


def test_pieces_equal_the_whole(always_chunks):
    u, weight, past, b, a, A_log, dt_bias, state = arguments(40, 2, 2, (8, 8))
    whole, end = run(xla, u, weight, past, b, a, A_log, dt_bias, state)
    for first, last in ((0, 1), (1, 2), (2, 21), (21, 40)):
        of_piece = slice(first, last)
        out, state = run(xla, u[:, of_piece], weight, past, b[:, of_piece], a[:, of_piece], A_log, dt_bias, state)
        np.testing.assert_allclose(out, whole[:, of_piece], rtol=0, atol=5e-6)
        past = jnp.concatenate([past, u[:, of_piece]], axis=1)[:, -3:]
    np.testing.assert_allclose(state, end, rtol=0, atol=5e-6)


def test_keys_are_multiplied_once_per_key_head(always_chunks):
    # [queries; keys] times keys, [64, DK] x [DK, 32]: for 2 key heads, not for 8 value heads.
    jaxpr = str(jax.make_jaxpr(xla.conv1d_gdn)(*arguments(64, 2, 4, (16, 8), batch=1)))
    assert "f32[1,2,64,32]" in jaxpr
    assert "f32[1,8,64,32]" not in jaxpr


@BOTH
@pytest.mark.parametrize("spare", [1, -16, 16 + 8])
def test_channels_that_make_no_heads_are_refused(module, spare):
    u, weight, _, *rest = arguments(5, 1, 2, (8, 8))
    channels = u.shape[-1] + spare
    u, weight = jnp.zeros((2, 5, channels)), jnp.zeros((4, channels))
    with pytest.raises(ValueError, match=f"u has {channels} channels .* HK a divisor of 2"):
        module.conv1d_gdn(u, weight, None, *rest)
