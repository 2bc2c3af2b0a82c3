"""Lower: the target picks the implementation, the first that serves it; what cannot serve keeps its reference."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsplice
from jaxsplice import Case, Implementation, Op, Rule
from jaxsplice.kernels.swiglu import swiglu

X = np.linspace(-1.0, 1.0, 32, dtype=np.float32).reshape(4, 8)


def damped(x):
    return jnp.tanh(x) * jnp.exp(-x)


def other(x):
    return jnp.exp(-x) * jnp.tanh(x)


def implementation(name: str, *platforms: str, **options) -> Implementation:
    return Implementation(name, other, platforms, interpreted=other, **options)


def op_with(*implementations: Implementation, **options) -> Op:
    return Op("damped", damped, implementations=implementations, **options)


def lowered(op: Op, target: str | None = "cpu", fn=None, args=(X,), **options):
    graph = jaxsplice.trace(fn or (lambda x: op(x, implementation=None)), *args)
    return jaxsplice.rewrite(graph, "lower", target, **options)


def chosen(result) -> list:
    return [n.params["implementation"] for n in result.after.nodes if "op" in n.params]


ANY, TPU, GPU = implementation("any"), implementation("tpu", "tpu"), implementation("gpu", "cuda", "rocm")


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("cpu", "any"), ("gpu", "gpu"), ("rocm", "gpu"), ("tpu7x", "tpu"), ("tpu7x:2x2x1", "tpu"), ("v6e", "tpu"),
        ("v5p", "tpu"), ("v5e", "tpu"), (None, "any"),
    ],
)  # fmt: skip
def test_the_target_picks_the_implementation(target, expected):
    result = lowered(op_with(TPU, GPU, ANY), target)
    assert chosen(result) == [expected]
    np.testing.assert_allclose(jax.jit(result.after)(X), damped(X), rtol=1e-5)  # runs here all the same


def test_the_first_that_serves_wins():
    assert chosen(lowered(op_with(implementation("first"), implementation("second")))) == ["first"]


def test_without_an_implementation_the_reference_stays_and_the_graph_is_the_same():
    for op, target in ((op_with(), "cpu"), (op_with(TPU), "cpu"), (op_with(TPU), "gpu")):
        result = lowered(op, target)
        assert chosen(result) == [None] and result.after is result.before and result.report.notes == []


def test_shapes_that_an_implementation_declines_go_to_the_next():
    narrow = implementation("narrow", supports=lambda x: None if x.shape[-1] % 128 == 0 else "not a multiple of 128")
    op = op_with(narrow, ANY)
    assert chosen(lowered(op)) == ["any"]
    assert chosen(lowered(op, args=(np.ones((2, 128), np.float32),))) == ["narrow"]


def test_what_cannot_run_here_and_has_no_interpreted_form_is_not_taken():
    result = lowered(op_with(Implementation("tpu", other, ("tpu",)), ANY), "tpu7x")
    assert chosen(result) == ["any"]
    (note,) = result.report.notes
    assert "tpu cannot run on this machine and has no interpreted form to prove it by" in note
    assert "test_lower.py" in note  # the user's own line


def test_a_choice_made_by_name_stays():
    op = op_with(ANY, implementation("mine"))
    assert chosen(lowered(op, fn=lambda x: op(x, implementation="mine"))) == ["mine"]


def test_ops_in_loops_branches_and_calls_are_lowered():
    op = op_with(ANY)
    call = lambda x: op(x, implementation=None)

    def fn(x):
        x = jax.lax.scan(lambda c, _: (call(c), None), x, None, length=3)[0]
        x = jax.lax.cond(x[0, 0] > 0, call, lambda x: call(x) + 1.0, x)
        return jax.jit(call)(x) + jax.vmap(call)(x)

    result = lowered(op, fn=fn)
    assert chosen(result) == ["any"] * 5
    np.testing.assert_allclose(result.after(X), fn(X), rtol=1e-5)


def test_a_vmapped_op_is_proved_at_its_own_shape():
    seen = []
    supports = lambda x: seen.append(x.shape)
    op = op_with(implementation("any", supports=supports))
    result = lowered(op, fn=lambda x: jax.vmap(lambda r: op(r, implementation=None))(x))
    assert chosen(result) == ["any"] and set(seen) == {(8,)}


def test_lowering_twice_changes_nothing():
    once = lowered(op_with(ANY)).after
    assert jaxsplice.rewrite(once, "lower", "cpu").after is once


def test_the_claim_lands_on_the_rewrites_certificate():
    op = op_with(ANY)
    rule = Rule("damped", damped, lambda x: op(x), cases=[Case(X)])
    result = jaxsplice.rewrite(jaxsplice.trace(damped, X), [rule, "lower"], "cpu")
    (certificate,) = result.certificates
    assert certificate.implementation is not None and certificate.implementation.error < 1e-6
    assert "implementation numeric(" in str(certificate)


def test_arguments_too_large_to_measure_are_measured_at_a_named_shape():
    large = jax.ShapeDtypeStruct((1 << 13, 1 << 10), jnp.float32)
    rule_args = {"small": ((jax.ShapeDtypeStruct((16, 8), jnp.float32),), {})}
    named, unnamed = op_with(ANY, shapes=rule_args), op_with(ANY)
    rule = lambda op: Rule("damped", damped, lambda x: op(x), cases=[Case(X)])
    graph = jaxsplice.trace(damped, large)
    (certificate,) = jaxsplice.rewrite(graph, [rule(named), "lower"]).certificates
    assert certificate.implementation.kind == "numeric@reduced"
    result = jaxsplice.rewrite(graph, [rule(unnamed), "lower"])
    assert chosen(result) == [None]
    assert "too large to measure, and damped names no smaller shape" in result.report.notes[0]


@pytest.mark.parametrize("target", ["tpu", "tpu8", "CPU", "", "tpu7x:2", "tpu7x:axb"])
def test_targets_that_do_not_exist(target):
    with pytest.raises(jaxsplice.JaxspliceError, match=r"there is no target '.*Known: cpu, gpu|is no topology"):
        lowered(op_with(ANY), target)


def test_the_shipped_swiglu_is_lowered_by_target():
    x, w = jnp.ones((8, 128), jnp.bfloat16), jnp.ones((128, 128), jnp.bfloat16)
    call = lambda x, a, b: swiglu(x, a, b, implementation=None)
    picked = {t: chosen(lowered(swiglu, t, call, (x, w, w))) for t in ("cpu", "tpu7x")}
    assert picked["cpu"] == ["xla"] and picked["tpu7x"] != picked["cpu"]
