"""optimize: used like jax.jit, rewritten once per abstract signature."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

import jaxsplice
from jaxsplice import JaxspliceError

rng = np.random.default_rng(0)
X, A, B = (rng.standard_normal(s).astype(np.float32) for s in ((4, 8), (8, 16), (8, 16)))


def gate(x, a, b):
    return jax.nn.silu(x @ a) * (x @ b)


def close(got, expected):
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def signatures(fast) -> int:
    return int(repr(fast).rsplit(": ", 1)[1].split()[0])


# ---------------------------------------------------------------- arguments
def test_keeps_name_documentation_and_result():
    @jaxsplice.optimize
    def fn(x, a, b):
        """What it does."""
        return gate(x, a, b)

    assert (fn.__name__, fn.__doc__) == ("fn", "What it does.")
    close(fn(X, A, B), gate(X, A, B))
    assert fn.lower(X, A, B).report.counts == {"swiglu": 1}


def test_as_a_decorator_with_options():
    @jaxsplice.optimize(passes="raise{rms-norm}", static_argnames="flip")
    def fn(x, a, b, flip=False):
        return gate(x, b, a) if flip else gate(x, a, b)

    close(fn(X, A, B, flip=True), gate(X, B, A))
    assert fn.lower(X, A, B).report.counts == {}


def test_keyword_arguments_in_any_order():
    fast = jaxsplice.optimize(gate)
    close(fast(X, b=B, a=A), gate(X, A, B))
    close(fast(X, a=A, b=B), gate(X, A, B))
    close(fast(b=B, x=X, a=A), gate(X, A, B))
    assert signatures(fast) == 2


class Weights(NamedTuple):
    gate: jax.Array
    up: jax.Array


def test_pytrees_in_and_out():

    def fn(x, layers):
        outs = {name: gate(x, w.gate, w.up) for name, w in layers.items()}
        return outs, [x, (), None], Weights(x, x.sum())

    layers = {"b": Weights(A, B), "a": Weights(B, A)}
    fast = jaxsplice.optimize(fn)
    close(fast(X, layers), fn(jnp.asarray(X), layers))
    assert fast.lower(X, layers).report.counts == {"swiglu": 2}


def test_none_scalars_and_python_numbers():
    def fn(x, a, b, scale, mask=None):
        out = gate(x, a, b) * scale
        return out if mask is None else jnp.where(mask, out, 0.0)

    fast = jaxsplice.optimize(fn)
    close(fast(X, A, B, 2.0), fn(X, A, B, 2.0))
    close(fast(X, A, B, 3.0), fn(X, A, B, 3.0))  # a number's value is not part of the signature
    assert signatures(fast) == 1
    close(fast(X, A, B, np.float32(2.0)), fn(X, A, B, np.float32(2.0)))
    close(fast(X, A, B, 2.0, mask=np.ones((4, 1), bool)), fn(X, A, B, 2.0))
    assert signatures(fast) == 3


# ---------------------------------------------------------------- static arguments
def sized(x, a, b, times, *, mode="plain"):
    assert isinstance(times, int) and isinstance(mode, str)
    for _ in range(times):
        x = gate(x, a, b) @ a.T
    return -x if mode == "negative" else x


@pytest.mark.parametrize(
    "static",
    [
        {"static_argnums": 3, "static_argnames": "mode"},
        {"static_argnums": (3,), "static_argnames": ["mode"]},
        {"static_argnums": -1, "static_argnames": "mode"},
        {"static_argnames": ("times", "mode")},
    ],
)
@pytest.mark.parametrize("by_name", [False, True])
def test_static_arguments_by_number_and_by_name(static, by_name):
    fast = jaxsplice.optimize(sized, **static)
    for times in (1, 2):
        args, named = ((X, A, B), {"times": times}) if by_name else ((X, A, B, times), {})
        close(fast(*args, **named, mode="negative"), sized(X, A, B, times, mode="negative"))
        assert fast.lower(*args, **named, mode="plain").report.counts == {"swiglu": times}
    assert signatures(fast) == 4


def test_static_values_tell_signatures_apart_by_equality():
    fast = jaxsplice.optimize(lambda x, key: x * len(key), static_argnums=1)
    assert fast(X, ("a", "b"))[0, 0] == 2 * X[0, 0]
    assert fast(X, ("a", "b"))[0, 0] == 2 * X[0, 0]
    assert signatures(fast) == 1
    assert fast(X, ("a",))[0, 0] == X[0, 0] and signatures(fast) == 2


# ---------------------------------------------------------------- one rewrite per signature
def test_traced_once_per_abstract_signature():
    traced = []

    @jaxsplice.optimize
    def fn(x, a, b):
        traced.append(x.shape)
        return gate(x, a, b)

    for _ in range(3):
        fn(X, A, B)
    fn.lower(X, A, B)
    fn.lower(*[jax.ShapeDtypeStruct(t.shape, t.dtype) for t in (X, A, B)])
    assert traced == [(4, 8)]
    fn(X[:2], A, B)
    fn(jnp.asarray(X, jnp.bfloat16), A, B)
    assert traced == [(4, 8), (2, 8), (4, 8)] and signatures(fn) == 3


def test_a_setting_that_changes_the_trace_is_another_signature():
    fast = jaxsplice.optimize(lambda x: x @ x.T)
    with jax.default_matmul_precision("highest"):
        high = fast.lower(X).before
    low = fast.lower(X).before
    assert signatures(fast) == 2 and "HIGHEST" in str(high) and "HIGHEST" not in str(low)


def test_lower_executes_nothing():
    ran = []

    def fn(x, a, b):
        jax.debug.callback(lambda: ran.append(1))
        return gate(x, a, b)

    result = jaxsplice.optimize(fn).lower(X, A, B)
    jax.effects_barrier()
    assert ran == [] and result.report.counts == {"swiglu": 1}
    assert jaxsplice.optimize(fn).lower(X, A, B).after is not result.after


# ---------------------------------------------------------------- composes with JAX
TRANSFORMATIONS = {
    "jit": lambda f: jax.jit(f)(X, A, B),
    "jit of jit": lambda f: jax.jit(jax.jit(f))(X, A, B),
    "grad": lambda f: jax.grad(lambda *t: f(*t).sum(), argnums=(0, 1, 2))(X, A, B),
    "jvp": lambda f: jax.jvp(f, (X, A, B), (X, A, B)),
    "hessian": lambda f: jax.hessian(lambda s: f(s * X[:1, :2], A[:2, :2], B[:2, :2]).sum())(jnp.float32(0.5)),
    "vmap": lambda f: jax.vmap(f, (0, None, None))(np.stack([X, 2 * X]), A, B),
    "remat": lambda f: jax.grad(lambda x: jax.checkpoint(f)(x, A, B).sum())(X),
    "scan": lambda f: jax.lax.scan(lambda c, _: (f(c, A, B) @ A.T, None), X, None, length=2)[0],
    "eval_shape": lambda f: jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), jax.eval_shape(f, X, A, B)),
    "closed over, in jit": lambda f: jax.jit(lambda w: jaxsplice.optimize(lambda x: f(x, w, w + 1))(X))(A),
    "closed over, in grad": lambda f: jax.grad(lambda w: jaxsplice.optimize(lambda x: f(x, w, w + 1))(X).sum())(A),
}


@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_composes_with(name):
    apply = TRANSFORMATIONS[name]
    close(apply(jaxsplice.optimize(gate)), apply(gate))


def test_rewritten_under_jit_and_exported():
    fast = jaxsplice.optimize(gate)
    assert "swiglu" in str(jax.make_jaxpr(fast)(X, A, B))
    exported = export.export(jax.jit(fast))(X, A, B)
    close(export.deserialize(exported.serialize()).call(X, A, B), gate(X, A, B))


@pytest.mark.parametrize("donated", [0, (0,), [0]])
def test_donated_arguments_are_given_away(donated):
    fast = jaxsplice.optimize(lambda w, x: {k: v + x for k, v in w.items()}, donate_argnums=donated)
    weights, x = {"a": jnp.ones((4, 8)), "b": jnp.ones((4, 8))}, jnp.ones((4, 8))
    close(fast(weights, x), {"a": 2 * x, "b": 2 * x})
    assert weights["a"].is_deleted() and weights["b"].is_deleted() and not x.is_deleted()


def test_methods_and_partials():
    class Layer:
        def __init__(self):
            self.a, self.b = A, B

        def __call__(self, x):
            return gate(x, self.a, self.b)

    close(jaxsplice.optimize(Layer())(X), gate(X, A, B))
    close(jaxsplice.optimize(Layer().__call__)(X), gate(X, A, B))
    close(jaxsplice.optimize(functools.partial(gate, b=B))(X, A), gate(X, A, B))
    close(jaxsplice.optimize(jax.jit(gate))(X, A, B), gate(X, A, B))


# ---------------------------------------------------------------- wrong use
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: jaxsplice.optimize(3), r"optimize needs a function and was given 3"),
        (lambda: jaxsplice.optimize(gate, target="tpu9"), r"there is no target 'tpu9'"),
        (lambda: jaxsplice.optimize(gate, passes="rais"), r"Did you mean 'raise'"),
        (lambda: jaxsplice.optimize(gate, verify="sometimes")(X, A, B), r"verify='sometimes' is none of off, auto"),
        (lambda: jaxsplice.optimize(gate)(X, A), r"gate could not be traced .*missing 1 required .*'b'"),
        (lambda: jaxsplice.optimize(gate)(X, A, A[:3]), r"gate could not be traced with arguments \(float32\[4, 8\]"),
        (lambda: jaxsplice.optimize(lambda x, m: x)(X, "mode"), r"static_argnums=\(1,\) marks those"),
        (lambda: jaxsplice.optimize(lambda x, m: x)(X, m="mode"), r"static_argnames=\('m',\) marks those"),
        (lambda: jaxsplice.optimize(lambda x: x if x.sum() > 0 else -x)(X), r"may not look at their values"),
    ],
)
def test_wrong_use_is_one_clear_error(call, message):
    with pytest.raises(JaxspliceError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_unknown_options_fail_at_once():
    for options in ({"target": "tpu9"}, {"passes": "rais"}, {"verify": "sometimes"}):
        with pytest.raises(JaxspliceError):
            jaxsplice.optimize(gate, **options)


def test_a_static_argument_that_cannot_be_hashed():
    fast = jaxsplice.optimize(lambda x, shape: x.reshape(shape), static_argnums=1)
    with pytest.raises((JaxspliceError, TypeError, ValueError), match="hash"):
        fast(X, [8, 4])
