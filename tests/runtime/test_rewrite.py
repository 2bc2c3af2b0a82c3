"""trace and rewrite: a function to a Graph, a Graph to a Result, with pytrees, options and clear errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsplice
from jaxsplice import Graph, JaxspliceError, Result
from jaxsplice.passes.errors import TraceError
from jaxsplice.runtime.rewrite import as_result

rng = np.random.default_rng(0)
X, A, B = (rng.standard_normal(s).astype(np.float32) for s in ((4, 8), (8, 16), (8, 16)))


def gate(x, a, b):
    return jax.nn.silu(x @ a) * (x @ b)


# ---------------------------------------------------------------- trace
def test_nothing_is_executed_and_abstract_arguments_do():
    ran = []

    def fn(x):
        jax.debug.callback(lambda: ran.append(1))
        return x["a"] * 2.0

    graph = jaxsplice.trace(fn, {"a": jax.ShapeDtypeStruct((3,), jnp.bfloat16)})
    jax.effects_barrier()
    assert ran == [] and [str(a) for a in graph.out_avals] == ["bfloat16[3]"]


def test_graph_is_called_with_the_pytrees_it_was_traced_with():
    def fn(tree, *, scale):
        return {"sum": tree["a"] + tree["b"][0], "scaled": (tree["a"] * scale, None)}

    tree = {"a": X, "b": [2 * X]}
    graph = jaxsplice.trace(fn, tree, scale=3.0)
    assert graph.name == "fn" and len(graph.in_avals) == 3
    out = graph(tree, scale=4.0)
    np.testing.assert_array_equal(out["sum"], 3 * X)
    np.testing.assert_array_equal(out["scaled"][0], 4 * X)
    assert out["scaled"][1] is None
    with pytest.raises(JaxspliceError, match=r"called with arguments of structure .* the graph was traced with"):
        graph(tree)


def test_static_arguments_are_left_out_of_the_call():
    def fn(x, times, *, mode):
        return -x * times if mode == "negative" else x * times

    graph = jaxsplice.trace(fn, X, 3, static_argnums=1, static_argnames="mode", mode="negative")
    np.testing.assert_array_equal(graph(X), -3 * X)
    with pytest.raises(JaxspliceError, match="Leave out static arguments"):
        graph(X, 3, mode="negative")


@pytest.mark.parametrize(
    ("fn", "name"), [(gate, "gate"), (jax.jit(gate), "gate"), (lambda x, a, b: gate(x, a, b), "graph")]
)
def test_names_of_graphs(fn, name):
    graph = jaxsplice.trace(fn, X, A, B)
    assert graph.name == name and str(graph).startswith(f"{name}(%0: f32[4,8], %1: f32[8,16]")


def test_constants_and_functions_already_jitted():
    graph = jaxsplice.trace(jax.jit(lambda x: gate(x, A, jnp.asarray(B))), X)
    np.testing.assert_allclose(graph(X), gate(X, A, B), rtol=1e-5, atol=1e-6)
    assert jaxsplice.rewrite(graph).report.counts == {"swiglu": 1}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: jaxsplice.trace(3), r"trace needs a function and was given 3"),
        (lambda: jaxsplice.trace(gate, X, A), r"gate could not be traced with arguments \(float32\[4, 8\], float32"),
        (lambda: jaxsplice.trace(gate, X, A, B[1:]), r"gate could not be traced .*TypeError: dot_general"),
        (lambda: jaxsplice.trace(lambda x: float(x.sum()), X), r"may not look at their values"),
        (lambda: jaxsplice.trace(lambda x, m: x, X, "mode"), r"static_argnums=\(1,\) marks those that are none"),
        (lambda: jaxsplice.trace(lambda x, m: x, X, m=len), r"static_argnames=\('m',\) marks those that are none"),
        (lambda: jaxsplice.trace(lambda x: 1 / 0, X), r"ZeroDivisionError: division by zero"),
    ],
)
def test_what_cannot_be_traced_is_one_clear_error(call, message):
    with pytest.raises(TraceError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


# ---------------------------------------------------------------- rewrite
def test_a_result_holds_both_programs_and_runs_the_new_one():
    graph = jaxsplice.trace(gate, X, A, B)
    before = str(graph)
    result = jaxsplice.rewrite(graph, "raise", "tpu7x:2x2x1")
    assert isinstance(result, Result) and result.before is graph and str(graph) == before
    assert result.after.primitives() == {"swiglu": 1} and str(result.target) == "tpu7x:2x2x1"
    np.testing.assert_allclose(result(X, A, B), gate(X, A, B), rtol=1e-5, atol=1e-6)
    assert result.certificates == result.report.certificates and len(result.certificates) == 1


def test_nothing_to_do_gives_the_same_graph():
    graph = jaxsplice.trace(jnp.sin, X)
    assert jaxsplice.rewrite(graph).after is graph


def test_a_graph_from_a_jaxpr_is_rewritten_and_takes_flat_values():
    closed = jax.make_jaxpr(lambda p, x: gate(x, *p))((A, B), X)
    graph = Graph.from_jaxpr(closed)
    result = jaxsplice.rewrite(graph)
    assert result.report.counts == {"swiglu": 1}
    np.testing.assert_allclose(result(A, B, X), gate(X, A, B), rtol=1e-5, atol=1e-6)


def test_stop_after_bisects():
    fn = lambda x: gate(gate(x, A, B) @ A.T, A, B)
    graph = jaxsplice.trace(fn, X)
    counts = [jaxsplice.rewrite(graph, stop_after=n).report.counts.get("swiglu", 0) for n in range(4)]
    assert counts == [0, 1, 2, 2]


def one_line(x):
    return jax.nn.silu(x @ A) * (x @ B)


def another_line(x):
    return jax.nn.silu(x @ A) * (x @ B)


def test_new_equations_stand_at_the_users_own_line_also_when_the_same_was_replaced_before():
    for fn in (one_line, another_line, one_line):
        (node,) = jaxsplice.rewrite(jaxsplice.trace(fn, X), "raise").after.nodes
        assert (node.source.file, node.source.function) == (__file__, fn.__name__)


def test_rewriting_is_repeatable():
    graphs = [jaxsplice.rewrite(jaxsplice.trace(gate, X, A, B)).after for _ in range(2)]
    assert str(graphs[0]) == str(graphs[1])
    assert not jaxsplice.diff(*graphs)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda g: jaxsplice.rewrite(gate), r"rewrite needs a Graph and was given .*; jaxsplice\.trace\(fn, \*args\)"),
        (lambda g: jaxsplice.rewrite(g, "rais"), r"no pass, pipeline or rule 'rais'"),
        (lambda g: jaxsplice.rewrite(g, target="tpu"), r"there is no target 'tpu'.*Known: cpu, gpu"),
        (lambda g: jaxsplice.rewrite(g, target="tpu7x:2x"), r"'2x' is no topology; write it as in tpu7x:2x2x1"),
        (lambda g: jaxsplice.rewrite(g, verify=True), r"verify=True is none of off, auto, strict"),
    ],
)
def test_wrong_use(call, message):
    with pytest.raises(JaxspliceError, match=message):
        call(jaxsplice.trace(gate, X, A, B))


@pytest.mark.parametrize("form", ["function", "graph", "result"])
def test_as_result_takes_all_three(form):
    graph = jaxsplice.trace(gate, X, A, B)
    if form == "result":
        made = jaxsplice.rewrite(graph)
        assert as_result(made) is made
        return
    result = as_result(gate, X, A, B, passes="raise") if form == "function" else as_result(graph, passes="raise")
    assert result.report.counts == {"swiglu": 1} and result.after.primitives() == {"swiglu": 1}


# ---------------------------------------------------------------- diff
def test_diff_shows_what_changed_and_only_that():
    fn = lambda x: jnp.sin(gate(x, A, B))
    result = jaxsplice.rewrite(jaxsplice.trace(fn, X), "raise")
    lines = str(jaxsplice.diff(result.before, result.after)).splitlines()
    gone = [line for line in lines if line.startswith("-") and not line.startswith("---")]
    new = [line for line in lines if line.startswith("+") and not line.startswith("+++")]
    assert any("dot_general" in line for line in gone) and any("swiglu" in line for line in new)
    assert not any("swiglu" in line for line in gone) and not any("dot_general" in line for line in new)


def test_diff_of_equal_graphs_is_empty():
    graph = jaxsplice.trace(gate, X, A, B)
    again = jaxsplice.trace(gate, X, A, B)
    for other in (graph, again):
        assert str(jaxsplice.diff(graph, other)) == "no difference" and not jaxsplice.diff(graph, other)


def test_diff_takes_a_result_as_its_first():
    result = jaxsplice.rewrite(jaxsplice.trace(gate, X, A, B), "raise")
    assert str(jaxsplice.diff(result, result.after)) == str(jaxsplice.diff(result.before, result.after))
