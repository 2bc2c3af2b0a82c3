"""A part of a region as a program of its own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsplice.passes.ir import jaxprs
from jaxsplice.passes.ir.check import verify_graph
from jaxsplice.passes.ir.extract import extract
from jaxsplice.passes.ir.region import Program

X = np.linspace(-1.0, 1.5, 6, dtype=np.float32)


def region_of(fn, *args):
    """The root region of a function."""
    return Program(jax.make_jaxpr(fn)(*args)).root


def run(closed, *args):
    """Results of a checked jaxpr."""
    verify_graph(closed)
    return jaxprs.as_function(closed)(*args)


def test_a_part_computes_its_results_from_its_inputs():
    region = region_of(lambda x: jnp.cos(jnp.sin(x) * 2.0) + x, X)
    part = region.nodes[1:3]
    closed = extract(part, [region.nodes[0].outputs[0]], part[-1].outputs)
    assert [e.primitive.name for e in closed.eqns] == ["mul", "cos"]
    np.testing.assert_allclose(run(closed, X)[0], np.cos(2 * X), rtol=1e-5)


@pytest.mark.parametrize("array", [np.asarray, jnp.asarray])
def test_constants_that_it_reads_come_with_it(array):
    table = array(np.arange(6, dtype=np.float32))
    region = region_of(lambda x: jnp.sin(x) * table + table, X)
    closed = extract(region.nodes, region.inputs, region.outputs)
    assert len(closed.consts) == 1
    np.testing.assert_allclose(run(closed, X)[0], np.sin(X) * table + table, rtol=1e-5)


def test_parts_of_dissolved_calls_get_names_of_their_own():
    call = jax.jit(lambda a: jnp.tanh(a) * 2.0)
    region = region_of(lambda x: call(call(x)), X)
    closed = extract(region.nodes, region.inputs, region.outputs)
    assert [e.primitive.name for e in closed.eqns] == ["tanh", "mul", "tanh", "mul"]
    np.testing.assert_allclose(run(closed, X)[0], 2 * np.tanh(2 * np.tanh(X)), rtol=1e-5)


def test_an_input_may_be_given_twice_and_be_a_result():
    region = region_of(lambda x: x * x, X)
    closed = extract(region.nodes, [region.inputs[0]] * 2, [region.outputs[0], region.inputs[0], region.outputs[0]])
    product, x, again = run(closed, X, 7.0 * X)
    np.testing.assert_array_equal(product, X * X)
    np.testing.assert_array_equal(x, X)
    np.testing.assert_array_equal(product, again)


def test_a_bound_value_stays_bound_though_a_node_makes_it():
    region = region_of(lambda x: jnp.cos(jnp.sin(x)), X)
    bound = region.nodes[0].outputs[0]
    closed = extract(region.nodes, [*region.inputs, bound], region.outputs)
    np.testing.assert_allclose(run(closed, X, 2.0 * X)[0], np.cos(2 * X), rtol=1e-5)


def test_literals_are_results_too():
    region = region_of(lambda x: (x, 3.0), X)
    assert float(run(extract([], region.inputs, region.outputs), X)[1]) == 3.0


def test_a_value_from_nowhere_is_an_error():
    region = region_of(lambda x, y: jnp.sin(x) * y, X, X)
    with pytest.raises(ValueError, match="neither among the inputs nor made by the nodes nor a constant"):
        extract(region.nodes, region.inputs[:1], region.outputs)
    with pytest.raises(ValueError, match="of sin"):
        extract(region.nodes[1:], region.inputs, region.outputs)
