import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsplice.kernels.causal_conv1d import reference, xla

from . import float64_truth

JITTED = [jax.jit(module.causal_conv1d, static_argnames="activation") for module in (reference, xla)]
BOTH = pytest.mark.parametrize("causal_conv1d", JITTED, ids=["reference", "xla"])


def arguments(tokens, taps, with_state, dtype=jnp.float32, batch=2, channels=11, seed=0):
    rng = np.random.default_rng(seed)
    array = lambda *shape: jnp.asarray(rng.normal(size=shape), dtype)
    state = array(batch, taps - 1, channels) if with_state else None
    return array(batch, tokens, channels), array(taps, channels), state


@BOTH
def test_equals_the_fixture(causal_conv1d, oracle):
    f = oracle("ops", "conv")
    time_last = lambda x: jnp.swapaxes(x, 1, 2)
    weight = f["weight"].T
    y = causal_conv1d(time_last(f["x"]), weight, None, activation="silu")
    np.testing.assert_allclose(time_last(y), f["y"], rtol=0, atol=2e-6)
    state = time_last(f["state_after_prefill"])
    for step, after in enumerate(f["next_states"]):
        # The fixture keeps K columns; only the last K-1 are read.
        y = causal_conv1d(time_last(f["next_x"][:, :, step : step + 1]), weight, state[:, 1:], activation="silu")
        np.testing.assert_allclose(y[:, 0], f["next_y"][:, :, step], rtol=0, atol=2e-6)
        state = time_last(after)


@BOTH
@pytest.mark.parametrize("with_state", [False, True])
@pytest.mark.parametrize(("tokens", "taps"), [(0, 4), (1, 4), (3, 4), (4, 4), (33, 4), (6, 2), (1, 3), (5, 1)])
def test_equals_float64(causal_conv1d, tokens, taps, with_state):
    x, weight, state = arguments(tokens, taps, with_state)
    truth = float64_truth.causal_conv1d(x, weight, state)
    np.testing.assert_allclose(causal_conv1d(x, weight, state, activation=None), truth, rtol=0, atol=2e-6)


@BOTH
def test_silu(causal_conv1d):
    x, weight, state = arguments(9, 4, True)
    truth = float64_truth.silu(float64_truth.causal_conv1d(x, weight, state))
    np.testing.assert_allclose(causal_conv1d(x, weight, state, activation="silu"), truth, rtol=0, atol=2e-6)


@pytest.mark.parametrize(
    ("x_dtype", "weight_dtype"), [("bfloat16", "bfloat16"), ("float32", "bfloat16"), ("bfloat16", "float32")]
)
def test_rounds_to_the_weights_type_then_to_xs(x_dtype, weight_dtype):
    x, weight, state = arguments(40, 4, True)
    x, weight, state = x.astype(x_dtype), weight.astype(weight_dtype), state.astype(x_dtype)
    truth = float64_truth.silu(float64_truth.causal_conv1d(x, weight, state))
    for module in (reference, xla):
        # Not compiled as a whole: XLA may leave out roundings inside one program.
        y = module.causal_conv1d(x, weight, state, activation="silu")
        assert y.dtype == x.dtype
        np.testing.assert_array_equal(y, y.astype(weight_dtype).astype(x_dtype))
        np.testing.assert_allclose(np.asarray(y, np.float64), truth, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(("tokens", "with_state"), [(1, True), (3, True), (12, True), (12, False)])
def test_gradients_equal_the_references(tokens, with_state):
    args = [a for a in arguments(tokens, 4, with_state) if a is not None]
    direction = jnp.asarray(np.random.default_rng(1).normal(size=args[0].shape), jnp.float32)

    def loss(f, x, weight, state=None):
        return jnp.sum(f(x, weight, state, activation="silu") * direction)

    gradients = (jax.grad(loss, tuple(range(1, len(args) + 1)))(f, *args) for f in JITTED)
    for wanted, got in zip(*gradients):
        np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("with_state", [False, True])
def test_pieces_equal_the_whole(with_state):
    causal_conv1d = JITTED[1]
    x, weight, state = arguments(20, 4, with_state)
    whole = causal_conv1d(x, weight, state, activation=None)
    past = jnp.zeros((2, 3, 11)) if state is None else state
    for start, end in ((0, 1), (1, 2), (2, 9), (9, 20)):
        piece = causal_conv1d(x[:, start:end], weight, past, activation=None)
        np.testing.assert_allclose(piece, whole[:, start:end], rtol=0, atol=1e-6)
        past = jnp.concatenate([past, x[:, start:end]], axis=1)[:, -3:]


@BOTH
def test_vmap(causal_conv1d):
    x, weight, state = arguments(9, 4, True, batch=6)
    split = lambda a: a.reshape(3, 2, *a.shape[1:])
    of_batch = lambda x, state: causal_conv1d(x, weight, state, activation="silu")
    mapped = jax.jit(jax.vmap(of_batch))(split(x), split(state))
    whole = causal_conv1d(x, weight, state, activation="silu")
    np.testing.assert_allclose(mapped.reshape(whole.shape), whole, rtol=0, atol=1e-6)


@BOTH
def test_bad_arguments_are_named(causal_conv1d):
    x, weight, state = arguments(9, 4, True)
    with pytest.raises(ValueError, match=r"state has shape \(2, 2, 11\).*need \(2, 3, 11\)"):
        causal_conv1d(x, weight, state[:, 1:], activation="silu")
    with pytest.raises(ValueError, match="activation is 'relu'; use \"silu\" or None"):
        causal_conv1d(x, weight, state, activation="relu")
