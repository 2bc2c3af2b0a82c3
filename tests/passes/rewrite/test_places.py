"""Every region of a program is a place for rules: calls, loops, branches, custom derivatives, shards."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec

import jaxsplice
from jaxsplice import Op

from . import rules
from .rules import damped, normal, rule_for

X = normal(8, 8)
FLAG = np.bool_(True)
damped_call = jax.jit(damped)


def with_own_derivative(x):
    @jax.custom_vjp
    def inner(x):
        return damped(x)

    inner.defvjp(lambda x: (damped(x), x), lambda x, dy: (3.0 * dy,))
    return inner(x)


def with_own_jvp(x):
    @jax.custom_jvp
    def inner(x):
        return damped(x)

    inner.defjvp(lambda primals, tangents: (damped(*primals), 3.0 * tangents[0]))
    return inner(x)


def sharded(x):
    mesh = jax.make_mesh((4,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = PartitionSpec("d")
    run = jax.shard_map(lambda x: damped(x) + lax.psum(x, "d"), mesh=mesh, in_specs=spec, out_specs=spec)
    return run(x)


def looped(length):
    return lambda x: lax.scan(lambda c, _: (damped(c), damped(c + 1.0)), x, None, length=length)


def nested(x):
    return lax.scan(lambda c, _: (lax.scan(lambda d, _: (damped(d), None), c, None, length=3)[0], None), x, None, 5)[0]


def counted(x):
    return lax.while_loop(lambda c: c[1] < 3, lambda c: (damped(c[0]), c[1] + 1), (x, 0))[0]


def condition_of_while(x):
    return lax.while_loop(lambda c: damped(c)[0, 0] < 0.1, lambda c: c + 0.5, x)


PLACES = {  # name -> (function, arguments, sites, runs)
    "top": (damped, (X,), 1, 1),
    "jit": (lambda x: jax.jit(damped)(x), (X,), 1, 1),
    "jit in jit": (lambda x: jax.jit(lambda x: jax.jit(damped)(x) + 1.0)(x), (X,), 1, 1),
    "one call shared by three sites": (lambda x: damped_call(x) + damped_call(x + 1) + damped_call(-x), (X,), 3, 3),
    "cond, both branches": (lambda f, x: lax.cond(f, damped, lambda x: damped(x) + 1, x), (FLAG, X), 2, 2),
    "switch": (lambda i, x: lax.switch(i, [damped, jnp.sin, damped], x), (np.int32(2), X), 2, 2),
    "scan, carry and output": (looped(6), (X,), 2, 12),
    "scan in scan": (nested, (X,), 1, 15),
    "fori_loop": (lambda x: lax.fori_loop(0, 7, lambda _, c: damped(c), x), (X,), 1, 7),
    "while": (counted, (X,), 1, None),
    "condition of while": (condition_of_while, (X,), 1, None),
    "map": (lambda x: lax.map(damped, x), (X,), 1, 8),
    "remat": (lambda x: jax.checkpoint(damped)(x), (X,), 1, 1),
    "custom_vjp": (with_own_derivative, (X,), 1, 1),
    "custom_jvp": (with_own_jvp, (X,), 1, 1),
    "vmap": (lambda x: jax.vmap(damped)(x), (X,), 1, 1),
    "shard_map": (sharded, (X,), 1, 1),
    "scan in shard_map": (lambda x: lax.scan(lambda c, _: (sharded(c), None), x, None, length=2)[0], (X,), 1, 2),
}
by_place = pytest.mark.parametrize("place", PLACES)


def new_rule():
    return rule_for(Op("damped", damped))


@by_place
def test_found_there_counted_and_the_same_numbers(place):
    fn, args, sites, runs = PLACES[place]
    result = jaxsplice.rewrite(jaxsplice.trace(fn, *args), [new_rule()])
    assert result.report.counts == {"damped": sites}
    assert result.report.trip_counts == {"damped": runs}
    kind = "reassociated" if place == "map" else "exact"  # rows without the rule's leading axis
    assert [c.kind for c in result.certificates] == [kind] * len(result.report.rows)
    assert "tanh" not in result.after.primitives()
    for got, expected in zip(
        jax.tree.leaves(jax.jit(result.after)(*args)), jax.tree.leaves(jax.jit(fn)(*args)), strict=True
    ):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


@by_place
def test_gradients_through_it_stay_the_same(place):
    if "while" in place:
        pytest.skip("JAX does not differentiate while loops backwards")
    fn, args, _, _ = PLACES[place]
    fast = jaxsplice.optimize(fn, passes=[new_rule()])

    def gradient(f):
        total = lambda x: sum(jnp.sum(jnp.sin(y)) for y in jax.tree.leaves(f(*args[:-1], x)))
        return jax.jit(jax.grad(total))(args[-1])

    np.testing.assert_allclose(gradient(fast), gradient(fn), rtol=1e-4, atol=1e-4)


@by_place
def test_under_vmap_it_stays_the_same(place):
    if "shard_map" in place:
        pytest.skip("vmap over what is sharded already is another program")
    fn, args, _, _ = PLACES[place]
    fast = jaxsplice.optimize(fn, passes=[new_rule()])
    stacked = np.stack([args[-1], 0.5 * args[-1]])
    call = lambda f: jax.tree.leaves(jax.vmap(functools.partial(f, *args[:-1]))(stacked))
    for got, expected in zip(call(fast), call(fn), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_a_loop_in_a_shared_call_is_rewritten_once_and_counted_twice():
    loop = jax.jit(looped(6))
    fn = lambda x: jax.tree.map(jnp.add, loop(x), loop(x + 1.0))
    result = jaxsplice.rewrite(jaxsplice.trace(fn, X), [new_rule()])
    assert result.report.counts == {"damped": 4} and result.report.trip_counts == {"damped": 24}
    for got, expected in zip(jax.tree.leaves(result.after(X)), jax.tree.leaves(fn(X)), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_a_shared_call_is_changed_only_where_it_matches():
    """The second call's inner value is used, the first one's is not."""
    call = jax.jit(lambda x: (lambda t: (t * jnp.exp(-x), t))(jnp.tanh(x)))
    fn = lambda x: (call(x)[0], call(x + 1.0))
    result = jaxsplice.rewrite(jaxsplice.trace(fn, X), [new_rule()])
    (reason,) = result.report.statistics["damped"].refusals
    assert result.report.counts == {"damped": 1} and "its inner tanh at " in reason
    for got, expected in zip(jax.tree.leaves(result.after(X)), jax.tree.leaves(fn(X)), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_a_pattern_across_the_border_of_a_call_is_found():
    fn = lambda x: jax.jit(jnp.tanh)(x) * jax.jit(lambda x: jnp.exp(-x))(x)
    result = jaxsplice.rewrite(jaxsplice.trace(fn, X), [new_rule()])
    assert result.report.counts == {"damped": 1}
    np.testing.assert_allclose(result.after(X), rules.damped(X), rtol=1e-5, atol=1e-6)


def test_a_pattern_across_the_border_of_a_loop_is_not():
    fn = lambda x: lax.scan(lambda c, row: (c, jnp.tanh(row)), 0, x)[1] * jnp.exp(-x)
    graph = jaxsplice.trace(fn, X)
    assert jaxsplice.rewrite(graph, [new_rule()]).after is graph
