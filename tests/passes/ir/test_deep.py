"""Long chains and deep nests: linear time, no recursion errors."""

import gc
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxsplice.passes.ir import jaxprs
from jaxsplice.passes.ir.check import verify_graph
from jaxsplice.passes.ir.emit import emit
from jaxsplice.passes.ir.extract import extract
from jaxsplice.passes.ir.graph import Graph
from jaxsplice.passes.ir.region import Program

from . import programs

LENGTH, DEPTH = 10_000, 200
X = np.float32(0.5)


def chain(length: int):
    """`length` negations in a row, made by hand: tracing them would take longer than all else here."""
    one = jax.make_jaxpr(jnp.negative)(X)
    (eqn,) = one.eqns
    values = [*jaxprs.open_jaxpr(one).invars]
    eqns = []
    for _ in range(length):
        out = jaxprs.Var(eqn.outvars[0].aval)
        eqns.append(eqn.replace(invars=[values[-1]], outvars=[out]))
        values.append(out)
    return jaxprs.rebuild(one, eqns=eqns, outvars=[values[-1]])


def nest(wrap, depth: int):
    """A body inside `depth` calls or loops, made by hand: JAX traces and prints far fewer levels."""
    around = jax.make_jaxpr(wrap)(X)
    inner = jax.make_jaxpr(lambda x: jnp.sin(x) * 2.0)(X)
    (eqn,) = around.eqns
    for _ in range(depth):
        inner = jaxprs.rebuild(around, eqns=[jaxprs.with_children(eqn, [inner])])
    return inner


NESTS = {
    "jit": lambda x: jax.jit(jnp.cos)(x),
    "scan": lambda x: lax.scan(lambda c, _: (jnp.cos(c), None), x, None, length=2)[0],
    "remat": lambda x: jax.checkpoint(jnp.cos)(x),
}


def touched(closed):
    """A program with everything marked as changed, and what it is written as."""
    whole = Program(closed)
    for region in programs.all_regions(whole):
        region.changed = True
        for node in region.nodes:
            if node.site is not None:
                node.site.touch()
    return whole, emit(whole.root)


@pytest.mark.parametrize("kind", sorted(NESTS))
def test_deep_nests_are_read_written_checked_and_printed(kind):
    closed = nest(NESTS[kind], DEPTH)
    graph = Graph.from_jaxpr(closed)
    whole, again = touched(closed)
    verify_graph(closed)
    verify_graph(again)
    depth = 1 if kind == "jit" else DEPTH + 1
    assert len(list(whole.regions())) == depth
    assert graph.primitives()["sin"] == 1 and str(graph).count("\n") > DEPTH
    assert len(graph.to_networkx()) > DEPTH
    deepest = list(whole.regions())[-1]
    assert (deepest.sites, deepest.trips) == (1, 2**DEPTH if kind == "scan" else 1)


def test_an_edit_at_the_bottom_of_a_deep_nest_reaches_the_top():
    closed = nest(NESTS["scan"], DEPTH)
    whole = Program(closed)
    bottom = programs.all_regions(whole)[-1]
    (sin,) = bottom.by_primitive["sin"]
    (result,), _ = bottom.splice(jax.make_jaxpr(jnp.tanh)(X), sin.inputs, sin)
    bottom.redirect(sin.outputs[0], result)
    bottom.kill(sin)
    again = emit(whole.root)
    verify_graph(again)
    assert {"tanh", "mul", "scan"} == set(Graph.from_jaxpr(again).primitives())


def test_long_chains_are_read_written_and_checked():
    closed = chain(LENGTH)
    started = time.perf_counter()
    whole, again = touched(closed)
    verify_graph(again)
    assert len(again.eqns) == LENGTH
    assert str(Graph.from_jaxpr(again)).count("neg(") == LENGTH
    region = whole.root
    part = extract(region.nodes, region.inputs, region.outputs)
    assert len(part.eqns) == LENGTH
    assert time.perf_counter() - started < 10.0


def test_an_equation_that_needs_the_end_of_a_long_chain_may_stand_at_its_beginning():
    """Emission follows operands backwards through the whole chain."""
    closed, (cos,) = chain(LENGTH), jax.make_jaxpr(jnp.cos)(X).eqns
    first = cos.replace(invars=list(jaxprs.open_jaxpr(closed).invars))
    (end,) = jaxprs.open_jaxpr(closed).outvars
    region = Program(jaxprs.rebuild(closed, eqns=[first, *closed.eqns], outvars=[end, *first.outvars])).root
    (result,), _ = region.splice(jax.make_jaxpr(jnp.tanh)(X), region.outputs[:1], region.nodes[0])
    region.redirect(region.outputs[1], result)
    region.kill(region.nodes[0])
    again = emit(region)
    verify_graph(again)
    assert [e.primitive.name for e in again.eqns] == ["neg"] * LENGTH + ["tanh"]


def test_calls_dissolved_one_inside_the_other_cost_no_more_than_their_equations():
    started = time.perf_counter()
    whole, again = touched(nest(NESTS["jit"], DEPTH))
    assert [e.primitive.name for e in again.eqns] == ["sin", "mul"]
    assert len(whole.root.nodes) == 2
    assert time.perf_counter() - started < 2.0


def test_cost_is_linear_in_length():
    def cpu_seconds(length):
        closed, best = chain(length), 1e9
        for _ in range(3):
            gc.collect()
            gc.disable()  # what it costs depends on all the tests before
            started = time.process_time()
            touched(closed)
            best = min(best, time.process_time() - started)
            gc.enable()
        return best

    assert cpu_seconds(16_000) < 10 * cpu_seconds(4_000)
