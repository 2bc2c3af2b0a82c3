"""The verifier: each invariant, broken by hand, is found and named."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxsplice.passes.errors import JaxspliceError, VerifyError
from jaxsplice.passes.ir import jaxprs
from jaxsplice.passes.ir.check import same_aval, same_signature, verify_graph

X = np.ones((3,), np.float32)


def three_steps():
    """sin, cos, mul of one argument."""
    return jax.make_jaxpr(lambda x: jnp.sin(x) * jnp.cos(x))(X)


def with_body(closed, **changes):
    """A closed jaxpr with parts of its body replaced, whatever comes of it."""
    body = jaxprs.open_jaxpr(closed).replace(**changes)
    return body if jaxprs.ONE_JAXPR_CLASS else jaxprs.ClosedJaxpr(body, closed.consts)


def broken_inside(fn, *args, primitive, breaks):
    """A program whose first jaxpr inside an equation is broken."""
    closed = jax.make_jaxpr(fn)(*args)
    eqns = list(closed.eqns)
    i = next(i for i, e in enumerate(eqns) if e.primitive.name == primitive)
    inner = [c.jaxpr for c in jaxprs.children(eqns[i])]
    eqns[i] = jaxprs.with_children(eqns[i], [breaks(inner[0]), *inner[1:]])
    return with_body(closed, eqns=eqns)


def refused(jaxpr) -> str:
    """Why the verifier refuses it."""
    with pytest.raises(VerifyError) as caught:
        verify_graph(jaxpr, "this program")
    assert isinstance(caught.value, JaxspliceError)
    assert str(caught.value).startswith("this program: ")
    return str(caught.value)


def test_a_sound_program_passes():
    assert verify_graph(three_steps()) is None
    assert verify_graph(jaxprs.open_jaxpr(three_steps())) is None


def test_a_value_that_nobody_defines():
    closed = three_steps()
    message = refused(with_body(closed, eqns=closed.eqns[1:]))
    assert "mul at " in message and f"{__file__}:" in message and "reads undefined" in message


def test_a_value_that_is_defined_too_late():
    closed = three_steps()
    assert "mul" in refused(with_body(closed, eqns=closed.eqns[::-1]))


def test_a_result_that_nobody_defines():
    closed = three_steps()
    assert "the result reads undefined" in refused(with_body(closed, eqns=closed.eqns[:2]))


def test_a_value_that_is_defined_twice():
    closed = three_steps()
    message = refused(with_body(closed, eqns=[*closed.eqns, closed.eqns[0]]))
    assert "is defined twice, the second time by sin at " in message


def test_an_equation_that_defines_an_argument():
    closed = three_steps()
    again = closed.eqns[0].replace(outvars=list(jaxprs.open_jaxpr(closed).invars))
    assert "defined twice" in refused(with_body(closed, eqns=[again, *closed.eqns]))


def test_an_argument_that_is_there_twice():
    body = jaxprs.open_jaxpr(three_steps())
    (x,) = body.invars
    twice = jaxprs.new_jaxpr([], [x, x], body.outvars, body.eqns, set())
    assert "the second time by argument" in refused(jaxprs.close(twice, ()))


def test_a_value_of_another_scope():
    """The body of a loop reads a value of the program around it."""
    outer = jax.make_jaxpr(lambda x: jnp.sin(x))(X[0])
    (stolen,) = outer.eqns[0].outvars

    def breaks(body):
        inner = jaxprs.open_jaxpr(body)
        return jaxprs.rebuild(body, eqns=[inner.eqns[0].replace(invars=[stolen]), *inner.eqns[1:]])

    program = broken_inside(
        lambda x: lax.scan(lambda c, a: (jnp.sin(c) + a, None), 0.0, x)[0], X, primitive="scan", breaks=breaks
    )
    assert "sin at " in refused(program)


@pytest.mark.parametrize("aval", [jax.ShapeDtypeStruct((4,), jnp.float32), jax.ShapeDtypeStruct((3,), jnp.int32)])
def test_a_result_of_another_type_than_its_equation_gives(aval):
    closed = three_steps()
    wrong = jaxprs.Var(jax.make_jaxpr(lambda x: x)(aval).in_avals[0])
    eqns = [closed.eqns[0].replace(outvars=[wrong]), closed.eqns[1]]
    assert "types do not agree" in refused(with_body(closed, eqns=eqns, outvars=[wrong]))


def test_operands_that_do_not_fit():
    closed = jax.make_jaxpr(lambda x, y: (x * x, y))(X, np.ones((2,), np.float32))
    (product,) = closed.eqns
    x, y = jaxprs.open_jaxpr(closed).invars
    assert "types do not agree" in refused(with_body(closed, eqns=[product.replace(invars=[x, y])]))


def test_a_call_with_operands_of_other_types():
    def breaks(inner):
        return jax.make_jaxpr(jnp.sin)(np.ones((5,), np.float32))

    program = broken_inside(lambda x: jax.jit(jnp.sin)(x), X, primitive="jit", breaks=breaks)
    assert "types do not agree" in refused(program)


def test_an_effect_that_its_program_does_not_declare():
    def fn(x):
        jax.debug.callback(lambda a: None, x)
        return x

    closed = jax.make_jaxpr(fn)(X)
    assert closed.effects
    message = refused(with_body(closed, effects=frozenset()))
    assert "an effect of debug_callback is missing on its jaxpr" in message


def test_an_effect_that_a_region_does_not_declare():
    def fn(x):
        def body(c, a):
            jax.debug.callback(lambda a: None, a)
            return c + a, None

        return lax.scan(body, 0.0, x)[0]

    def breaks(body):
        return with_body(body, effects=frozenset())

    assert "an effect of debug_callback" in refused(broken_inside(fn, X, primitive="scan", breaks=breaks))


def test_references_made_inside_need_not_be_declared():
    def fn(x):
        ref = jax.new_ref(x)
        ref[...] += 1.0
        return ref[...]

    verify_graph(jax.make_jaxpr(fn)(X))


@pytest.mark.parametrize("value", [None, np.zeros((4,), np.float32)])
def test_a_constant_without_its_value(value):
    table = np.ones(3, np.float32)
    closed = jax.make_jaxpr(lambda x: x * table)(X)
    assert "constant " in refused(closed.replace(consts=[value]))


def test_a_constant_of_a_region_without_its_value():
    table = np.ones(3, np.float32)
    call = jax.jit(lambda x: x * table)
    program = broken_inside(
        lambda x: call(x), X, primitive="jit", breaks=lambda inner: inner.replace(consts=[np.zeros((7,))])
    )
    assert "constant " in refused(program)


# ---------------------------------------------------------------- signatures
def test_signatures_are_compared_one_by_one():
    x = jax.make_jaxpr(lambda a, b: (a, b))(X, 1.0).in_avals
    same_signature(x, list(x), "argument")
    with pytest.raises(VerifyError, match="argument: 2 values before, 1 after"):
        same_signature(x, x[:1], "argument")
    with pytest.raises(VerifyError, match=r"argument 1: .* before, .* after"):
        same_signature(x, [x[0], x[0]], "argument")


def test_types_are_equal_in_every_respect():
    def aval(*args, **kwargs):
        return jax.make_jaxpr(lambda a: a)(jax.ShapeDtypeStruct(*args, **kwargs)).in_avals[0]

    one = aval((3,), jnp.float32)
    assert same_aval(one, aval((3,), jnp.float32))
    others = [aval((4,), jnp.float32), aval((3,), jnp.bfloat16), aval((3,), jnp.float32, weak_type=True)]
    assert not any(same_aval(one, other) for other in others)
