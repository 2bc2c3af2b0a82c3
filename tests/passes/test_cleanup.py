"""Cleanup: what rewriting left behind goes, what the user wrote stays, and no bit changes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsplice
from jaxsplice import Case, Op, Rule

X = np.linspace(-1.0, 1.0, 32, dtype=np.float32).reshape(4, 8)
SHAPE = jax.typeof(jnp.asarray(X))


def turned(before, name="turned", op_of=None) -> Rule:
    """A rule that works on the transposed argument and transposes back."""
    op = Op(name, op_of or before)
    return Rule(name, before, lambda x: op(x.T).T, cases=[Case(SHAPE)])


SIN, COS = turned(jnp.sin, "sine"), turned(jnp.cos, "cosine")


def cleaned(fn, *rules, args=(X,)):
    """(after without cleanup, after with it), both checked to be equal bit for bit."""
    graph = jaxsplice.trace(fn, *args)
    plain, clean = (jaxsplice.rewrite(graph, [*rules, *last]) for last in ((), ("cleanup",)))
    for a, b in zip(jax.tree.leaves(plain.after(*args)), jax.tree.leaves(clean.after(*args)), strict=True):
        np.testing.assert_array_equal(a, b)
    assert plain.report.counts == clean.report.counts
    return plain.after.primitives(), clean.after.primitives(), clean


def test_transposes_that_undo_each_other_go():
    plain, clean, _ = cleaned(lambda x: jnp.cos(jnp.sin(x)), SIN, COS)
    assert plain == {"transpose": 4, "sine": 1, "cosine": 1}
    assert clean == {"transpose": 2, "sine": 1, "cosine": 1}


def test_equal_transposes_are_made_once():
    plain, clean, _ = cleaned(lambda x: jnp.sin(x) + jnp.cos(x), SIN, COS)
    assert (plain["transpose"], clean["transpose"]) == (4, 3)


def test_different_transposes_both_stay():
    cube = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    case = Case(jax.typeof(jnp.asarray(cube)))
    first, second = Op("first", jnp.sin), Op("second", jnp.cos)
    rules = [
        Rule("first", jnp.sin, lambda x: first(x.transpose(1, 0, 2)).transpose(1, 0, 2), cases=[case]),
        Rule("second", jnp.cos, lambda x: second(x.transpose(2, 1, 0)).transpose(2, 1, 0), cases=[case]),
    ]
    _, clean, _ = cleaned(lambda x: jnp.sin(x) + jnp.cos(x), *rules, args=(cube,))
    assert clean["transpose"] == 4


def test_a_transpose_that_does_not_undo_the_other_stays():
    cube = np.arange(27, dtype=np.float32).reshape(3, 3, 3)
    spin = Op("spin", jnp.sin)
    rule = Rule("spin", jnp.sin, lambda x: spin(x.transpose(1, 2, 0)).transpose(2, 0, 1),
                cases=[Case(jax.typeof(jnp.asarray(cube)))])  # fmt: skip
    plain, clean, _ = cleaned(lambda x: jnp.sin(jnp.sin(x)), rule, args=(cube,))
    assert (plain["transpose"], clean["transpose"]) == (4, 2)
    twisted = Rule("twisted", jnp.sin, lambda x: jnp.cos(x - jnp.pi / 2).transpose(0, 2, 1).transpose(0, 2, 1),
                   cases=rule.cases)  # fmt: skip
    plain, clean, _ = cleaned(jnp.sin, twisted, args=(cube,))
    assert (plain["transpose"], clean.get("transpose", 0)) == (2, 0)


@pytest.mark.parametrize("used", ["unused", "used twice", "opposite"])
def test_the_users_own_equations_stay(used):
    def fn(x):
        own = jnp.transpose(jnp.transpose(x)) if used == "opposite" else jnp.transpose(x)
        again = jnp.transpose(x) if used == "used twice" else own
        return jnp.sin(x), own.sum() + again.sum() if used != "unused" else jnp.float32(0.0)

    graph = jaxsplice.trace(fn, X)
    own = graph.primitives()["transpose"]
    _, clean, _ = cleaned(fn, SIN)
    assert clean["transpose"] == own + 2


def test_a_region_that_nothing_changed_is_left_as_it_is():
    def fn(x):
        jnp.exp(x)  # not used by anything, and not ours to remove
        return jnp.transpose(jnp.transpose(x))

    graph = jaxsplice.trace(fn, X)
    assert jaxsplice.rewrite(graph, [SIN, "cleanup"]).after is graph


def test_layout_that_only_fed_what_was_replaced_goes():
    op = Op("row-sum", lambda x: x.sum(1))
    rule = Rule("row-sum", lambda x: x.T.sum(0), lambda x: op(x), cases=[Case(SHAPE)])
    _, clean, _ = cleaned(lambda x: x.T.sum(0), rule)
    assert clean == {"row-sum": 1}


def test_effects_stay(capfd):
    def fn(x):
        jax.debug.print("seen {}", x[0, 0])
        return jnp.sin(x)

    result = jaxsplice.rewrite(jaxsplice.trace(fn, X), [SIN, "cleanup"])
    jax.block_until_ready(jax.jit(result.after)(np.zeros_like(X)))
    jax.effects_barrier()
    assert capfd.readouterr().out == "seen 0.0\n" and result.report.counts == {"sine": 1}


def test_loops_are_tidied_inside():
    loop = lambda x: jax.lax.scan(lambda c, _: (jnp.cos(jnp.sin(c)), None), x, None, length=3)[0]
    plain, clean, _ = cleaned(loop, SIN, COS)
    assert (plain["transpose"], clean["transpose"]) == (4, 2)
