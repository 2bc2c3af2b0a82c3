"""The use-def form: values and calls, and editing by splice, redirect and kill."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxsplice.passes.errors import VerifyError
from jaxsplice.passes.ir import jaxprs
from jaxsplice.passes.ir.check import verify_graph
from jaxsplice.passes.ir.emit import emit
from jaxsplice.passes.ir.region import INLINE_EQNS, OUTPUT, Program, Value

from . import programs

F = jnp.float32
X = np.linspace(-1.0, 1.5, 6, dtype=np.float32)


def region_of(fn, *args):
    """The root region of a function, and its jaxpr."""
    return Program(jax.make_jaxpr(fn)(*args)).root


def only(region, primitive):
    """The one node with a primitive."""
    (node,) = region.by_primitive[primitive]
    return node


def replace(region, node, fn) -> list:
    """Put a function of a node's operands where the node is."""
    closed = jax.make_jaxpr(fn)(*[a.aval for a in node.inputs])
    results, new = region.splice(closed, node.inputs, node)
    for old, result in zip(node.outputs, results, strict=True):
        region.redirect(old, result)
    region.kill(node)
    return new


def emitted(region):
    """The checked jaxpr of an edited region, and the names of its equations."""
    closed = emit(region)
    verify_graph(closed)
    return closed, [e.primitive.name for e in closed.eqns]


def evaluate(closed, *args):
    """Results, equation by equation."""
    return jaxprs.as_function(closed)(*args)


# ---------------------------------------------------------------- reading
def test_values_know_their_node_and_their_users():
    region = region_of(lambda x: (jnp.sin(x) * jnp.sin(x), x), X)
    first, second = region.by_primitive["sin"]
    product = only(region, "mul")
    (x,) = region.inputs
    assert x.node is None and x.role == ("input", 0)
    assert x.uses == [first, second, OUTPUT]
    assert product.inputs == [first.outputs[0], second.outputs[0]]
    assert region.outputs == [product.outputs[0], x]
    assert [n.position for n in region.nodes] == [0, 1, 2]


def test_calls_of_one_jaxpr_have_values_of_their_own():
    call = jax.jit(lambda a: jnp.tanh(a) * 2.0)
    region = region_of(lambda x: call(x) + call(x + 1.0), X)
    first, second = region.by_primitive["tanh"]
    assert first.eqn is second.eqn  # JAX shares it
    assert first.outputs[0] is not second.outputs[0]
    assert first.site is not second.site and first.site.jaxpr is second.site.jaxpr


def test_dissolved_calls_of_one_jaxpr_are_renamed():
    call = jax.jit(lambda a: jnp.tanh(a) * 2.0)
    region = region_of(lambda x: call(x) + call(x + 1.0), X)
    for node in region.by_primitive["tanh"]:
        replace(region, node, lambda a: jnp.sin(a))
    closed, names = emitted(region)
    assert names == ["sin", "mul", "add", "sin", "mul", "add"]
    defined = [v for e in closed.eqns for v in e.outvars]
    assert len(set(defined)) == len(defined)
    np.testing.assert_allclose(evaluate(closed, X)[0], 2 * np.sin(X) + 2 * np.sin(X + 1), rtol=1e-5)


@pytest.mark.parametrize(
    ("length", "times", "through"), [(INLINE_EQNS, 2, True), (INLINE_EQNS + 1, 2, False), (500, 1, True)]
)
def test_large_calls_are_seen_through_only_when_called_once(length, times, through):
    @jax.jit
    def long(a):
        for _ in range(length):
            a = -a
        return a

    region = region_of(lambda x: sum(long(x) for _ in range(times)), X)
    assert ("jit" not in region.by_primitive) == through


def test_a_node_is_written_where_the_user_wrote_it():
    region = region_of(lambda x: jax.nn.silu(x), X)
    node = only(region, "logistic")
    assert node.source.file == __file__ and "lambda" in node.source.function
    assert str(node) == f"<Node logistic at {node.source}>" and str(node.source).startswith(f"{__file__}:")
    assert repr(node.outputs[0]) == "<Value f32[6] of logistic>"
    assert repr(region.inputs[0]) == "<Value f32[6] of input>"


def test_equations_of_unknown_origin_say_so():
    eqn = jax.make_jaxpr(jnp.sin)(1.0).eqns[0]
    bare = jaxprs.new_eqn(eqn.invars, eqn.outvars, eqn.primitive, eqn.params, eqn.effects)
    assert str(jaxprs.source_line(bare)) == "unknown" or jaxprs.source_line(bare).file == __file__


# ---------------------------------------------------------------- editing
def test_splice_puts_equations_where_it_is_told():
    region = region_of(lambda x, y: jnp.sin(x) + jnp.cos(y), X, X)
    new = replace(region, only(region, "sin"), lambda a: jnp.tanh(a) * 3.0)
    assert [n.primitive for n in new] == ["tanh", "mul"] and all(n.spliced for n in new)
    closed, names = emitted(region)
    assert names == ["tanh", "mul", "cos", "add"]
    np.testing.assert_allclose(evaluate(closed, X, X)[0], 3 * np.tanh(X) + np.cos(X), rtol=1e-5)


def test_splice_brings_its_constants():
    table = np.arange(6, dtype=np.float32)
    region = region_of(lambda x: jnp.sin(x) + x, X)
    replace(region, only(region, "sin"), lambda a: a * table)
    closed, _ = emitted(region)
    assert len(closed.consts) == 1
    np.testing.assert_array_equal(evaluate(closed, X)[0], X * table + X)


def test_splice_twice_of_one_jaxpr_gives_new_names():
    region = region_of(lambda x: jnp.sin(x) + jnp.sin(x + 1.0), X)
    closed = jax.make_jaxpr(lambda a: jnp.exp(a) - 1.0)(X)
    for node in region.by_primitive["sin"]:
        (result,), _ = region.splice(closed, node.inputs, node)
        region.redirect(node.outputs[0], result)
        region.kill(node)
    after, _ = emitted(region)
    np.testing.assert_allclose(evaluate(after, X)[0], np.exp(X) + np.exp(X + 1) - 2, rtol=1e-5)


def test_a_spliced_function_may_return_its_own_input_or_a_number():
    region = region_of(lambda x: (jnp.sin(x), jnp.cos(x)), X)
    replace(region, only(region, "sin"), lambda a: a)
    (number,), _ = region.splice(jax.make_jaxpr(lambda: 3.0)(), [], region.nodes[0])
    region.redirect(only(region, "cos").outputs[0], number)
    closed, names = emitted(region)
    assert names == ["cos"]  # nobody killed it
    x, three = evaluate(closed, X)
    np.testing.assert_array_equal(x, X)
    assert float(three) == 3.0


def test_splice_takes_literals_for_arguments():
    region = region_of(lambda x: x * 2.0, X)
    replace(region, only(region, "mul"), lambda a, b: a + b)
    closed, _ = emitted(region)
    np.testing.assert_array_equal(evaluate(closed, X)[0], X + 2)


def test_new_equations_may_need_what_comes_later():
    """Several results, the first of them before an input of the match is there."""
    region = region_of(lambda x: (jnp.sin(x) + 1.0, jnp.cos(jnp.exp(x))), X)
    sin, cos = only(region, "sin"), only(region, "cos")
    closed = jax.make_jaxpr(lambda a, b: (jnp.tanh(b) * a, jnp.cos(b)))(X, X)
    results, _ = region.splice(closed, [sin.inputs[0], cos.inputs[0]], sin)
    for node, result in zip((sin, cos), results):
        region.redirect(node.outputs[0], result)
        region.kill(node)
    after, names = emitted(region)
    assert names == ["exp", "tanh", "mul", "cos", "add"]
    np.testing.assert_allclose(evaluate(after, X)[0], np.tanh(np.exp(X)) * X + 1, rtol=1e-5)


def test_a_cycle_is_noticed():
    region = region_of(lambda x: jnp.cos(jnp.sin(x)), X)
    sin, cos = only(region, "sin"), only(region, "cos")
    (result,), _ = region.splice(jax.make_jaxpr(jnp.exp)(X), [cos.outputs[0]], region.nodes[0])
    region.redirect(sin.outputs[0], result)
    with pytest.raises(VerifyError, match="a rewrite made a cycle"):
        emit(region)


def test_redirect_reaches_every_use():
    region = region_of(lambda x: (jnp.sin(x) * jnp.sin(x), jnp.sin(x)), X)
    first, second, third = region.by_primitive["sin"]
    for node in (second, third):
        region.redirect(node.outputs[0], first.outputs[0])
        region.kill(node)
        assert not region.is_used(node.outputs[0])
    closed, names = emitted(region)
    assert names == ["sin", "mul"]
    assert region.is_used(first.outputs[0]) and region.outputs[1] is first.outputs[0]
    np.testing.assert_allclose(evaluate(closed, X)[0], np.sin(X) ** 2, rtol=1e-5)


def test_killed_nodes_are_gone_and_their_operands_unused():
    region = region_of(lambda x: (jnp.exp(jnp.sin(x)), x)[1], X)
    exp, sin = only(region, "exp"), only(region, "sin")
    assert region.is_used(sin.outputs[0])
    region.kill(exp)
    assert not region.is_used(sin.outputs[0])
    closed, names = emitted(region)
    assert names == ["sin"] and evaluate(closed, X)[0] is X


# ---------------------------------------------------------------- calls around an edit
def test_a_call_behind_an_edit_stays_whole():
    """relu's own derivative is 0 at 0; that of max(x, 0), which it is made of, is a half."""
    region = region_of(lambda x: jax.nn.relu(jnp.sin(x)), X)
    replace(region, only(region, "sin"), lambda a: a * 1.0)
    closed, names = emitted(region)
    assert names == ["mul", "custom_jvp_call"]
    slopes = jax.grad(lambda x: evaluate(closed, x)[0].sum())(0.0 * X)
    assert not slopes.any()


def test_calls_inside_calls_behind_an_edit_stay_whole():
    inner = jax.jit(lambda a, b: jnp.tanh(a) * b)
    outer = jax.jit(lambda a, b: inner(a, b) + inner(b, a))
    region = region_of(lambda x: outer(jnp.sin(x), x), X)
    replace(region, only(region, "sin"), jnp.cos)
    closed, names = emitted(region)
    assert names == ["cos", "jit"]
    np.testing.assert_allclose(evaluate(closed, X)[0], np.tanh(np.cos(X)) * X + np.tanh(X) * np.cos(X), rtol=1e-5)


def test_a_call_around_an_edit_is_dissolved_and_the_calls_in_it_are_not():
    inner = jax.jit(lambda a: jnp.tanh(a) * 2.0)
    region = region_of(lambda x: jax.jit(lambda a: inner(jnp.sin(a)))(x), X)
    replace(region, only(region, "sin"), jnp.cos)
    _, names = emitted(region)
    assert names == ["cos", "jit"]


def test_a_call_takes_only_values_of_its_own_type():
    """A weakly typed value where the call was traced with a strong one: the call is dissolved."""
    region = region_of(lambda x: jax.jit(lambda a: jnp.sin(a) * 2.0)(jnp.cos(x)), X[0])
    (result,), _ = region.splice(jax.make_jaxpr(lambda: jnp.sin(1.0))(), [], region.nodes[0])
    assert result.aval.weak_type
    cos = only(region, "cos")
    region.redirect(cos.outputs[0], result)
    region.kill(cos)
    _, names = emitted(region)
    assert names == ["sin", "sin", "mul"]


def test_a_value_used_from_outside_its_call_dissolves_it():
    region = region_of(lambda x: jax.jit(lambda a: jnp.sin(a).T)(x).T * 2.0, X.reshape(2, 3))
    first, second = region.by_primitive["transpose"]
    region.redirect(second.outputs[0], first.inputs[0])
    region.kill(second)
    closed, names = emitted(region)
    assert names == ["sin", "transpose", "mul"]
    np.testing.assert_allclose(evaluate(closed, X.reshape(2, 3))[0], 2 * np.sin(X).reshape(2, 3), rtol=1e-5)


def test_new_equations_may_use_a_value_inside_a_call():
    region = region_of(lambda x: jnp.cos(jax.jit(lambda a: jnp.sin(a) * 2.0)(x)), X)
    sin, cos = only(region, "sin"), only(region, "cos")
    (result,), _ = region.splice(jax.make_jaxpr(jnp.exp)(X), sin.outputs, cos)
    region.redirect(cos.outputs[0], result)
    region.kill(cos)
    closed, names = emitted(region)
    assert names == ["sin", "mul", "exp"]
    np.testing.assert_allclose(evaluate(closed, X)[0], np.exp(np.sin(X)), rtol=1e-5)


def test_a_value_that_its_call_returns_leaves_it_whole():
    region = region_of(lambda x: jnp.cos(jax.jit(lambda a: jnp.sin(a))(x)), X)
    replace(region, only(region, "cos"), jnp.exp)
    _, names = emitted(region)
    assert names == ["jit", "exp"]


def test_a_call_does_not_keep_alive_what_it_only_passes_on():
    region = region_of(lambda x, c: jax.jit(lambda h, d: (d * 2.0, h))(jnp.sin(x), c), X, X)
    replace(region, only(region, "sin"), jnp.cos)
    closed, names = emitted(region)
    assert names == ["cos", "mul"]
    np.testing.assert_allclose(evaluate(closed, X, X)[1], np.cos(X), rtol=1e-6)


def test_an_edit_inside_a_loop_renews_the_loop_only():
    region = region_of(lambda m: lax.scan(lambda c, r: (jnp.sin(c) + r, c), m[0], m), np.ones((3, 4), np.float32))
    scan = only(region, "scan")
    (body,) = scan.children()
    replace(body, only(body, "sin"), jnp.cos)
    closed, names = emitted(region)
    assert names == [n.primitive for n in region.nodes]
    assert [a is b.eqn for a, b in zip(closed.eqns, region.nodes)] == [n is not scan for n in region.nodes]
    carry = np.ones(4)
    for _ in range(3):
        carry = np.cos(carry) + 1
    np.testing.assert_allclose(evaluate(closed, np.ones((3, 4), np.float32))[0], carry, rtol=1e-5)


def test_an_edit_inside_a_loop_inside_a_call_dissolves_the_call():
    def fn(m):
        return jax.jit(lambda a: lax.scan(lambda c, r: (jnp.sin(c) + r, None), a[0], a)[0] * 2.0)(m)

    region = region_of(fn, np.ones((3, 4), np.float32))
    (body,) = only(region, "scan").children()
    replace(body, only(body, "sin"), jnp.cos)
    _, names = emitted(region)
    assert "scan" in names and "jit" not in names


# ---------------------------------------------------------------- effects
def _two_prints(x):
    y = jnp.sin(x)
    jax.debug.callback(programs.see, x)
    z = jax.jit(lambda a: (jax.debug.callback(programs.see, a + 1.0), jnp.exp(a))[1])(x)
    return y, jnp.cos(z)


def test_a_call_pulled_forward_does_not_overtake_an_effect():
    """New equations at the place of sin need the call's result; the callback in between stays first."""
    region = region_of(_two_prints, X[0])
    sin, cos = only(region, "sin"), only(region, "cos")
    closed = jax.make_jaxpr(lambda a, b: (jnp.tanh(a) * b, jnp.cos(b)))(X[0], X[0])
    results, _ = region.splice(closed, [sin.inputs[0], cos.inputs[0]], sin)
    for node, result in zip((sin, cos), results):
        region.redirect(node.outputs[0], result)
        region.kill(node)
    _, names = emitted(region)
    assert names == ["tanh", "debug_callback", "jit", "mul", "cos"]


def test_effects_of_dissolved_calls_keep_their_order():
    region = region_of(_two_prints, X[0])
    replace(region, only(region, "exp"), jnp.tanh)
    closed, names = emitted(region)
    assert names == ["sin", "debug_callback", "add", "debug_callback", "tanh", "cos"]
    _, seen = programs.run(closed, [X[0]])
    assert seen == [X[0], X[0] + 1]


def test_references_stay_inside_their_calls():
    closed = programs.traced("references")
    region = Program(closed).root
    assert len(region.by_primitive["jit"]) == 2
    assert {type(e).__name__ for e in closed.effects} == {"InternalMutableArrayEffect"}


# ---------------------------------------------------------------- where a region stands
def region_at(fn, args, *path):
    """The region reached by a path of primitive names."""
    region = region_of(fn, *args)
    for name in path:
        region = region.by_primitive[name][0].children()[0]
    return region


def test_trips_are_multiplied_along_nested_loops():
    def fn(m):
        return lax.scan(lambda c, row: lax.scan(lambda a, b: (jnp.sin(a) + b, None), c, row), 0.0, m)[0]

    region = region_at(fn, [np.ones((3, 4), np.float32)], "scan", "scan")
    assert (region.sites, region.trips) == (1, 12)


def test_trips_of_a_while_loop_are_not_known():
    region = region_of(lambda x: lax.while_loop(lambda a: a < 3.0, lambda a: jnp.sin(a) + 2.0, x), X[0])
    assert [(r.sites, r.trips) for r in only(region, "while").children()] == [(1, None), (1, None)]


def test_one_body_of_two_loops_counts_both_lengths():
    region = Program(programs.traced("one_body_of_two_lengths")).root
    first, second = (n.children()[0] for n in region.by_primitive["scan"])
    assert first is second
    assert (first.sites, first.trips) == (2, 4 + 3)


def test_calls_shared_by_calls_are_counted_in_no_time():
    @jax.jit
    def long(a):
        for _ in range(INLINE_EQNS + 1):
            a = -a
        return a

    twice = closed = jax.make_jaxpr(lambda a: long(long(a)))(1.0)
    for _ in range(39):
        closed = jaxprs.rebuild(twice, eqns=[jaxprs.with_children(e, [closed]) for e in twice.eqns])
    started = time.perf_counter()
    deepest = programs.all_regions(Program(closed))[-1]
    assert (deepest.sites, deepest.trips) == (2**40, 2**40)
    assert time.perf_counter() - started < 5.0


def test_surroundings_say_which_axes_and_policies_hold():
    policy = jax.checkpoint_policies.dots_saveable

    def body(x):
        return jax.checkpoint(lambda a: lax.psum(jnp.sin(a), "i"), policy=policy)(x)

    mesh, P = programs.mesh(), programs.P
    fn = jax.shard_map(body, mesh=mesh, in_specs=P("i"), out_specs=P(), axis_names={"i"})

    region = region_at(fn, [np.ones((8,), np.float32)], "shard_map")
    assert region.axis_sizes == {"i": 4} and region.around.remat_policy is None
    (inner,) = (r for n in region.nodes for r in n.children())
    assert inner.axis_sizes == {"i": 4} and inner.around.remat_policy is policy


def test_axes_of_a_shard_map_around_the_trace_are_known():
    seen = []

    def body(x):
        seen.append(region_of(jnp.sin, x.aval if hasattr(x, "aval") else x).axis_sizes)
        return x

    fn = jax.shard_map(body, mesh=programs.mesh(), in_specs=programs.P("i"), out_specs=programs.P("i"))
    jax.eval_shape(fn, np.ones((8,), np.float32))
    assert seen == [{"i": 4, "j": 2}]


def test_equal_jaxprs_in_unequal_surroundings_are_two_regions():
    @jax.jit
    def long(a):
        for _ in range(INLINE_EQNS + 1):
            a = -a
        return a

    def fn(x):
        inside = jax.checkpoint(lambda a: long(a) + long(-a), policy=jax.checkpoint_policies.dots_saveable)(x)
        return inside + long(x) + long(2.0 * x)

    whole = Program(jax.make_jaxpr(fn)(X))
    by_jaxpr: dict[int, int] = {}
    for region in programs.all_regions(whole):
        by_jaxpr[id(region.jaxpr)] = by_jaxpr.get(id(region.jaxpr), 0) + 1
    assert max(by_jaxpr.values()) == 2
    assert type(whole.root.inputs[0]) is Value
    assert len(list(whole.regions())) == len(by_jaxpr) + 1
