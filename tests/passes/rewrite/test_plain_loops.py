"""Loops in plain form compute what they did; loops of another kind are left alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from jaxsplice.passes.ir import jaxprs
from jaxsplice.passes.ir.region import Program
from jaxsplice.passes.rewrite.plain_loops import plainly

STEPS = 5
X, W = np.random.default_rng(0).standard_normal((2, STEPS, 3)).astype(np.float32)


def scan_in(fn, *args):
    """The only scan of a program."""
    region = Program(jax.make_jaxpr(fn)(*args)).root
    (node,) = region.by_primitive["scan"]
    return node


def operands_of(node):
    """Random values for a scan's operands, its counters and positions as they are."""
    rng = np.random.default_rng(1)
    out = []
    for a in node.inputs:
        if type(a) is jaxprs.Literal:
            out.append(jaxprs.literal_array(a))
        elif a.node is not None and a.node.primitive == "iota":
            out.append(np.arange(a.aval.shape[0], dtype=a.aval.dtype))
        else:
            out.append(rng.standard_normal(a.aval.shape).astype(a.aval.dtype))
    return out


def assert_equal_loops(node, closed):
    args = operands_of(node)
    before, after = node.eqn.primitive.bind(*map(jnp.asarray, args), **node.params), jaxprs.as_function(closed)(*args)
    for a, b in zip(before, after, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def work_before(x, w):
    return lax.scan(lambda h, x: (jnp.tanh(h + jnp.exp(x) * w[0]), h.sum()), x[0], x)


def positions(x, w):
    return lax.scan(lambda h, t: (h * 0.5 + x[t], w[t] + t), x[0], jnp.arange(STEPS))


def counted(x, w):
    def body(t, carry):
        h, out = carry
        h = h * 0.5 + jnp.exp(x[t])
        return h, out.at[t].set(h + w[t])

    return lax.fori_loop(0, STEPS, body, (x[0], jnp.zeros_like(x)))


def counted_by_slices(x, w):
    def body(t, carry):
        h, out = carry
        h = h * 0.5 + lax.dynamic_index_in_dim(x, t, 0, keepdims=False)
        return h, lax.dynamic_update_slice(out, h[:, None], (0, t))

    return lax.fori_loop(0, STEPS, body, (x[0], jnp.zeros_like(x.T)))


def counted_late(x, w):
    return lax.fori_loop(2, 2 + STEPS, lambda t, h: h * 0.5 + t + x[t - 2], w[0])


LOOPS = {f.__name__: f for f in (work_before, positions, counted, counted_by_slices, counted_late)}


@pytest.mark.parametrize("name", LOOPS)
def test_a_plain_loop_computes_the_same(name):
    node = scan_in(LOOPS[name], X, W)
    closed = plainly(node)
    assert closed is not None
    assert_equal_loops(node, closed)


@pytest.mark.parametrize("name", ["counted", "counted_by_slices", "positions"])
def test_nothing_is_counted_in_a_plain_loop(name):
    closed = plainly(scan_in(LOOPS[name], X, W))
    (node,) = Program(closed).root.by_primitive["scan"]
    (body,) = node.children()
    assert not {"dynamic_slice", "dynamic_update_slice", "gather", "scatter"} & set(body.by_primitive)
    assert jaxprs.scan_parts(node.eqn).carry == 1


@settings(deadline=None, max_examples=15, derandomize=True, database=None)
@given(st.lists(st.sampled_from(["early", "late", "both"]), min_size=1, max_size=6), st.booleans())
def test_any_mixture_of_early_and_late_work_computes_the_same(kinds, returned):
    def loop(x, w):
        def step(h, x):
            early = jnp.sin(x)
            for kind in kinds:
                early = jnp.cos(early) * w[0] if kind == "early" else early
                h = {"early": h, "late": jnp.tanh(h) + 0.1, "both": h * 0.5 + early}[kind]
            return h, (early if returned else h)

        return lax.scan(step, x[0], x)

    node = scan_in(loop, X, W)
    closed = plainly(node)
    assert closed is not None
    assert_equal_loops(node, closed)


def plain_already(x, w):
    return lax.scan(lambda h, x: (h * 0.5 + x, h), x[0], x)


def backwards(x, w):
    return lax.scan(lambda h, x: (h + jnp.exp(x), h), x[0], x, reverse=True)


@pytest.mark.parametrize("fn", [plain_already, backwards])
def test_other_loops_are_left_alone(fn):
    assert plainly(scan_in(fn, X, W)) is None


def half_written(x, w):
    """A buffer longer than the loop stays a carry: what was there before is still in it."""
    return lax.fori_loop(0, STEPS - 1, lambda t, out: out.at[t].set(x[t]), w)


def written_elsewhere(x, w):
    return lax.fori_loop(0, STEPS, lambda t, out: out.at[(t * 2) % STEPS].set(x[t]), w)


def read_back(x, w):
    return lax.fori_loop(0, STEPS, lambda t, out: out.at[t].set(x[t] + out[t - 1]), w)


@pytest.mark.parametrize("fn", [half_written, written_elsewhere, read_back])
def test_a_buffer_that_is_not_filled_step_by_step_stays_a_carry(fn):
    node = scan_in(fn, X, W)
    closed = plainly(node)
    assert closed is not None
    assert_equal_loops(node, closed)
    (inner,) = Program(closed).root.by_primitive["scan"]
    assert jaxprs.scan_parts(inner.eqn).carry == 1
