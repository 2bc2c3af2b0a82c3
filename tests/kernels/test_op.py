"""The Op primitive: calls, signatures, traces, and which implementation runs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxsplice.kernels import Implementation, Op, Tolerance

from .op_examples import MARK, B, W, X, close, layer, layer_reference, marked_op


# ---------------------------------------------------------------- calling
def test_an_op_is_one_node_that_holds_its_reference():
    closed = jax.make_jaxpr(lambda x, w: layer(x, w, power=2) * 2.0)(X, W)
    node, _ = closed.eqns
    assert node.primitive.name == "layer" and node.params["implementation"] == "auto"
    assert [e.primitive.name for e in node.params["jaxpr"].eqns] == ["dot_general", "tanh", "integer_pow"]
    signature = node.params["op"]
    assert signature.op is layer and signature.static == (("power", 2),) and signature.vmaps == ()


def test_a_jaxpr_prints_what_the_op_is():
    text = str(jax.make_jaxpr(lambda x, w: layer(x, w, power=2))(X, W))
    assert "layer[" in text and "op=layer(power=2)" in text and "dot_general" in text
    batched = str(jax.make_jaxpr(jax.vmap(lambda x: layer(x, W)))(X[None]))
    assert "op=layer().vmap(0, None)" in batched
    assert repr(layer) == "<Op layer>" and layer.__name__ == "layer" and layer.__doc__ == layer_reference.__doc__
    assert Op("two-words", jnp.sin).__name__ == "two_words"


@pytest.mark.parametrize("power", [1, 3])
@pytest.mark.parametrize("bias", [None, B])
def test_eager_and_jitted_it_computes_its_reference(bias, power):
    expected = layer_reference(X, W, bias, power=power)
    close(layer(X, W, bias, power=power), expected)
    close(jax.jit(lambda x, w: layer(x, w, bias, power=power))(X, W), expected)


def test_an_optional_argument_makes_another_signature():
    with_bias = jax.make_jaxpr(lambda x: layer(x, W, B))(X).eqns[0].params
    without = jax.make_jaxpr(lambda x: layer(x, W, None))(X).eqns[0].params
    assert with_bias["op"] != without["op"]
    assert with_bias["op"].arguments([1, 2, 3]) == (1, 2, 3)
    assert without["op"].arguments([1, 2]) == (1, 2, None)
    assert jax.make_jaxpr(lambda x: layer(x, W))(X).eqns[0].params["op"].arguments([1, 2]) == (1, 2)


def test_results_are_the_references_pytree():
    op = Op("parts", lambda x: {"sum": x.sum(0), "rest": (x, None, [2 * x])})
    found = op(X)
    assert jax.tree.structure(found) == jax.tree.structure({"sum": 0, "rest": (0, None, [0])})
    close(found["rest"][2][0], 2 * X)
    assert Op("none", lambda x: None)(X) is None
    close(Op("constant", lambda: jnp.ones(2))(), np.ones(2))


def test_arguments_are_pytrees_too():
    op = Op("pair", lambda pair, scale=None: pair["a"] - pair["b"])
    close(op({"a": X, "b": 1.0}), X - 1)
    close(jax.grad(lambda a: op({"a": a, "b": X}).sum())(X), np.ones_like(X))


def test_numbers_and_numpy_arrays_are_arguments():
    closed = jax.make_jaxpr(lambda: (layer(X, W), Op("twice", lambda x: x + x)(2)))()
    assert [v.aval.dtype for v in closed.eqns[1].invars] == [jnp.int32]
    with pytest.raises(TypeError):
        layer("text", W)


@pytest.mark.parametrize("one, other", [(2, 2.0), (1, True), (0.0, -0.0)])
def test_keywords_that_are_equal_and_not_the_same_are_kept_apart(one, other):
    divide = Op("divide", lambda x, *, k: (x / k, x * k))
    for k in (one, other, one):
        found, expected = divide(jnp.arange(1, 3), k=k), (jnp.arange(1, 3) / k, jnp.arange(1, 3) * k)
        assert [a.dtype for a in found] == [a.dtype for a in expected]
        np.testing.assert_array_equal(found[0], expected[0])


def test_keywords_must_be_hashable():
    with pytest.raises(TypeError, match="unhashable"):
        layer(X, W, power=[1])


def test_a_wrong_call_is_the_references_error():
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'w'"):
        layer(X)


def test_a_reference_may_not_close_over_traced_values():
    def inside(y):
        return Op("closure", lambda x: x * y)(2.0)

    for transformed in (jax.jit(inside), jax.grad(inside)):
        with pytest.raises(TypeError, match=r"reference of <Op closure> closes over a traced value; pass that as an"):
            transformed(3.0)


def test_integers_and_keys_go_in_and_out():
    op = Op("ranked", lambda x, i, key: (x[i], i + 1, jnp.argsort(x), jax.random.bits(key, ())))
    value, index, order, bits = op(jnp.array([3.0, 1.0]), 1, jax.random.key(0))
    assert (float(value), int(index), order.tolist()) == (1.0, 2, [1, 0])
    assert bits.dtype == jnp.uint32 and order.dtype == jnp.int32


def test_it_runs_without_jit():
    with jax.disable_jit():
        close(layer(X, W), layer_reference(X, W))
        assert marked_op()(X[0]).min() > MARK / 2


# ---------------------------------------------------------------- what is traced how often
def test_the_reference_is_traced_once_per_signature():
    calls = []

    def counted(x, *, k=1):
        calls.append(x.shape)
        return x * k

    op = Op("counted", counted)
    jaxprs = [jax.make_jaxpr(lambda x: op(x) + op(x + 1.0))(X) for _ in range(3)]
    assert len(calls) == 1
    held = {id(e.params["jaxpr"]) for j in jaxprs for e in j.eqns if e.primitive.name == "counted"}
    assert len(held) == 1
    jax.make_jaxpr(op)(X[0])
    jax.make_jaxpr(lambda x: op(x, k=2))(X)
    assert calls == [(2, 3), (3,), (2, 3)]


def test_an_eager_call_is_compiled_once():
    calls = []

    def counted(x):
        calls.append(x.shape)
        return x + 1.0

    op = Op("counted_again", counted)
    op(X)
    first = len(calls)
    op(X)
    op(2.0 * X)
    assert len(calls) == first


def test_what_shapes_a_trace_is_not_mixed_up():
    """The same types under another precision or x64 mode are another trace."""
    op = Op("positions", lambda x: (x + jnp.arange(3), x @ x))
    x = jnp.ones((3, 3), jnp.int32)
    plain = jax.make_jaxpr(op)(x)
    with jax.enable_x64(True):
        assert op(x)[0].dtype == jnp.int64
    with jax.default_matmul_precision("highest"):
        precise = jax.make_jaxpr(op)(x)
    dots = [
        next(e for e in j.eqns[0].params["jaxpr"].eqns if e.primitive.name == "dot_general") for j in (plain, precise)
    ]
    assert dots[0].params["precision"] is None and dots[1].params["precision"][0] == lax.Precision.HIGHEST
    assert op(x)[0].dtype == jnp.int32


def test_a_named_axis_of_another_size_is_another_trace():
    op = Op("axis_size", lambda x: x * lax.axis_size("i"))
    sizes = [jax.make_jaxpr(op, axis_env=[("i", n)])(1.0).eqns[0].params["jaxpr"] for n in (3, 5)]
    assert [float(j.eqns[0].invars[1].val) for j in sizes] == [3.0, 5.0]


# ---------------------------------------------------------------- implementations
def ran(op, x, implementation) -> float:
    """The mark of what ran."""
    return round(float(op(x, implementation=implementation).min()) / MARK)


@pytest.mark.parametrize(
    ("implementation", "elements", "expected"),
    [
        (None, 6, 0),  # the reference
        ("auto", 6, 2),  # the first that serves
        ("auto", 3, 1),  # "wide" refuses small ones
        ("small", 6, 1),
        ("wide", 6, 2),
        ("wide", 3, 1),  # refused, so the best that serves
        ("elsewhere", 6, 2),  # not on this platform, so the best that serves
    ],
)
def test_which_implementation_runs(implementation, elements, expected):
    assert ran(marked_op(), X.reshape(-1)[:elements], implementation) == expected


def test_without_implementations_the_reference_runs():
    assert layer.choose("cpu", (X, W), {}) is None
    close(layer(X, W, implementation="auto"), layer_reference(X, W))


def test_refusals_are_sentences():
    elsewhere, wide, small = marked_op().implementations
    assert elsewhere.refusal("cpu", (X,), {}) == "elsewhere runs on tpu, not on cpu"
    assert elsewhere.refusal("tpu", (X,), {}) is None
    assert wide.refusal("cpu", (X[0],), {}) == "x is small"
    assert small.refusal("rocm", (X[0],), {}) is None
    assert marked_op().named("wide").name == "wide"
    with pytest.raises(KeyError):
        marked_op().named("unknown")


def test_supports_sees_arguments_and_keywords_as_the_reference_does():
    seen = []

    def supports(x, bias, *, k):
        seen.append((x.shape, bias, k))

    op = Op(
        "seen",
        lambda x, bias, *, k: x * k,
        implementations=(Implementation("xla", lambda x, b, *, k: x * k, supports=supports),),
    )
    op(X, None, k=3)
    assert seen[0] == ((2, 3), None, 3)


def test_a_vmapped_implementation_sees_one_example():
    shapes = []

    def supports(x):
        shapes.append(x.shape)

    op = Op("one", jnp.sin, implementations=(Implementation("xla", lambda x: jnp.sin(x) + MARK, supports=supports),))
    found = jax.vmap(jax.vmap(op), in_axes=1)(X)
    assert set(shapes) == {()}
    close(found, np.sin(X).T + MARK)


def test_tolerances_depend_on_the_type():
    limits = Tolerance(1e-5, 2e-2, "roundings")
    assert [limits.of(d) for d in (jnp.float32, jnp.float64, jnp.bfloat16, jnp.float16)] == [1e-5, 1e-5, 2e-2, 2e-2]


def test_an_unknown_implementation_is_an_error_that_names_those_there_are():
    double = Op("double-named", lambda x: x + x)
    with pytest.raises(ValueError, match="no implementation 'fast'; it has"):
        double(jnp.ones(3), implementation="fast")
