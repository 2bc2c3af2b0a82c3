"""Matches that overlap, values that escape, effects: one rewrite wins, nothing is lost, nothing runs twice."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

import jaxsplice
from jaxsplice import Case, Op, Rule

from . import rules
from .rules import X, normal, rule_for, rule_of

VALUE = normal(4, 8)


def applied(fn, passes, *args, **options):
    args = args or (VALUE,)
    result = jaxsplice.rewrite(jaxsplice.trace(fn, *args), passes, **options)
    for got, expected in zip(jax.tree.leaves(result.after(*args)), jax.tree.leaves(fn(*args)), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
    return result


# ---------------------------------------------------------------- overlap
@pytest.mark.parametrize(("depth", "hits"), [(1, 0), (2, 1), (3, 1), (4, 2), (5, 2)])
def test_a_chain_is_cut_into_pieces_that_do_not_overlap(depth, hits):
    def chain(x):
        for _ in range(depth):
            x = jnp.sin(x)
        return x

    result = applied(chain, [rule_of(lambda x: jnp.sin(jnp.sin(x)))])
    assert result.report.counts.get("found", 0) == hits
    assert result.after.primitives() == {k: n for k, n in (("found", hits), ("sin", depth % 2)) if n}


@pytest.mark.parametrize(("small", "large", "winner"), [(0, 0, "small"), (0, 1, "large"), (1, 0, "small")])
def test_priority_decides_between_rules(small, large, winner):
    inner = rule_of(lambda x: jnp.tanh(x) * jnp.exp(-x), name="small", priority=small)
    outer = rule_of(lambda x: jnp.sin(jnp.tanh(x) * jnp.exp(-x)), name="large", priority=large)
    pipeline = jaxsplice.Pipeline((jaxsplice.passes.pipeline.ApplyRules("raise", (inner, outer)),))
    result = applied(lambda x: jnp.sin(rules.damped(x)), pipeline)
    assert result.report.counts == {winner: 1}


def test_what_an_earlier_rule_took_is_no_longer_there():
    first, second = rule_of(rules.damped, name="first"), rule_of(rules.damped, name="second")
    result = applied(rules.model, [first, second])
    assert result.report.counts == {"first": 1}
    assert any("second was asked for and never fired" in note for note in result.report.notes)


def test_a_later_rule_matches_calls_of_an_earlier_rules_op():
    op = Op("damped", rules.damped)
    pair = lambda x: op(x) + op(-x)
    fuse = rule_for(Op("even", pair), pair, stage="fuse")
    result = applied(lambda x: rules.damped(x) + rules.damped(-x), [rule_for(op), fuse])
    assert result.report.counts == {"damped": 2, "even": 1}  # a hit stays counted when a later stage fuses it away
    assert "even" in result.after.primitives() and "damped" not in result.after.primitives()


def test_a_later_rule_matches_plain_equations_of_an_earlier_rule():
    spelled = Rule("spelled", lambda x: jnp.sin(x) / jnp.cos(x), lambda x: jnp.tan(x) * jnp.exp(x - x), cases=[Case(X)])
    found = rule_of(lambda x: jnp.tan(x) * jnp.exp(x - x), stage="fuse")
    result = applied(lambda x: jnp.sin(x) / jnp.cos(x), [spelled, found])
    assert result.report.counts == {"spelled": 1, "found": 1}


def test_rules_that_undo_each_other_are_named():
    there = Rule("there", lambda x: jnp.sin(x) * 2.0, lambda x: jnp.sin(x) + jnp.sin(x), cases=[Case(X)])
    back = Rule("back", lambda x: jnp.sin(x) + jnp.sin(x), lambda x: jnp.sin(x) * 2.0, cases=[Case(X)])
    pipeline = jaxsplice.Pipeline((jaxsplice.passes.pipeline.ApplyRules("raise", (there, back)),))
    with pytest.raises(jaxsplice.JaxspliceError, match=r"rules back, there match what the others make"):
        applied(lambda x: jnp.sin(x) * 2.0, pipeline)


def test_a_rule_that_makes_its_own_pattern_is_named():
    growing = Rule("growing", jnp.sin, lambda x: jnp.sin(x) * 1.0, cases=[Case(X)])
    with pytest.raises(jaxsplice.JaxspliceError, match=r"rule growing matches what it makes itself"):
        jaxsplice.rewrite(jaxsplice.trace(jnp.sin, VALUE), [growing])


@pytest.mark.parametrize("limit", [0, 1, 2, 3, 9])
def test_stop_after_counts_rewrites(limit):
    three = lambda x: rules.damped(x) + rules.damped(x + 1.0) + rules.damped(x + 2.0)
    result = applied(three, [rule_of(rules.damped)], stop_after=limit)
    assert result.report.counts.get("found", 0) == min(limit, 3)


# ---------------------------------------------------------------- escape
def test_a_costly_inner_value_that_is_also_returned_is_refused():
    fn = lambda x: (jnp.sin(x @ x.T), x @ x.T)
    inner = lambda x: (lambda y: (jnp.sin(y), y))(x @ x.T)
    rule = rule_of(lambda x: jnp.sin(x @ x.T))
    assert applied(fn, [rule]).report.counts == {"found": 1}  # computed twice by the user: the other one stays
    result = applied(inner, [rule])
    (reason,) = result.report.statistics["found"].refusals
    assert "its inner dot_general at " in reason and reason.endswith("is also used by the result")
    assert result.after is result.before


def test_a_cheap_inner_value_is_kept_for_its_other_users():
    fn = lambda x: (lambda y: (jnp.sin(y), 2.0 * y))(x + x[::-1])
    result = applied(fn, [rule_of(lambda x, y: jnp.sin(x + y), X, X)])
    assert result.report.counts == {"found": 1} and result.after.primitives()["add"] == 1


def test_a_result_used_several_times_is_computed_once():
    fn = lambda x: (lambda y: (y, y * y, jnp.cos(y)))(rules.damped(x))
    result = applied(fn, [rule_of(rules.damped)])
    assert result.report.counts == {"found": 1} and result.after.primitives()["found"] == 1


def test_a_region_that_is_not_convex_is_refused():
    two = lambda x, y: (jnp.cos(x) * y, jnp.sin(x))
    fn = lambda x: (lambda s: (s, jnp.cos(x) * jnp.tanh(s)))(jnp.sin(x))
    result = applied(fn, [rule_of(two, X, X)])
    assert result.report.counts == {} and result.after is result.before
    assert "an input of it depends on one of its results" in result.report.statistics["found"].refusals


# ---------------------------------------------------------------- effects
def test_a_print_in_between_still_prints_once(capfd):
    def fn(x):
        inner = x + 1.0
        jax.debug.print("inner {}", inner[0, 0])
        return jnp.sin(inner)

    result = jaxsplice.rewrite(jaxsplice.trace(fn, VALUE), [rule_of(lambda x: jnp.sin(x + 1.0))])
    assert result.report.counts == {"found": 1}
    jax.block_until_ready(jax.jit(result.after)(np.zeros((4, 8), np.float32)))
    jax.effects_barrier()
    assert capfd.readouterr().out == "inner 1.0\n"


def test_an_ordered_effect_is_not_moved_into_a_rewrite():
    calls = []

    def fn(x):
        counted = io_callback(lambda v: calls.append(1) or np.asarray(v), X, jnp.tanh(x), ordered=True)
        return counted * jnp.exp(-x)

    result = jaxsplice.rewrite(jaxsplice.trace(fn, VALUE), [rule_of(rules.damped), rule_of(fn, name="with-effect")])
    assert result.report.counts == {}
    jax.block_until_ready(jax.jit(result.after)(VALUE))
    jax.effects_barrier()
    assert calls == [1]


def test_random_numbers_stay_as_they_were():
    def fn(x):
        noise = jax.random.normal(jax.random.key(0), x.shape)
        return rules.damped(x + noise)

    assert applied(fn, [rule_of(rules.damped)]).report.counts == {"found": 1}
