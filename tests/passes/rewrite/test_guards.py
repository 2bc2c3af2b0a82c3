"""Rules that hold their own pattern, or undo each other, end with a diagnosis that names them, quickly."""

import itertools
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsplice
from jaxsplice import Case, JaxspliceError, Op, Rule
from jaxsplice.passes.pipeline import ApplyRules

X = np.linspace(0.1, 1.0, 32, dtype=np.float32).reshape(4, 8)


def rule(name: str, before, after, **options) -> Rule:
    return Rule(name, before, after, cases=[Case(X)], **options)


def pair(one: Rule, other: Rule):
    return jaxsplice.Pipeline((ApplyRules("raise", (one, other)),))


def twice(f):
    return lambda x: f(x) * 2.0


def plus(f):
    return lambda x: f(x) + f(x)


SELF_REPRODUCING = {
    "grows by an operation": rule("grows", jnp.sin, lambda x: jnp.sin(x) * 1.0),
    "around itself": rule("around", jnp.sin, lambda x: jnp.sin(x) + jnp.cos(x) * 0.0),
    "is what it was": rule("same", jnp.sin, lambda x: jnp.sin(x)),
}
UNDOING = {
    "directly": (rule("there", twice(jnp.sin), plus(jnp.sin)), rule("back", plus(jnp.sin), twice(jnp.sin))),
    "by functions": (
        rule("to-division", lambda x: jnp.sin(x) / jnp.cos(x), jnp.tan),
        rule("to-tangent", jnp.tan, lambda x: jnp.sin(x) / jnp.cos(x)),
    ),
}


def diagnosis(program, passes) -> str:
    """What the engine says of rules that do not come to rest; within a second of CPU time."""
    graph = jaxsplice.trace(program, X)
    started = time.process_time()
    with pytest.raises(JaxspliceError) as caught:
        jaxsplice.rewrite(graph, passes, verify="off")
    assert time.process_time() - started < 1.0
    return str(caught.value)


@pytest.mark.parametrize("name", SELF_REPRODUCING)
def test_a_rule_that_makes_its_own_pattern_is_named(name):
    made = SELF_REPRODUCING[name]
    said = diagnosis(made.before, [made])
    assert made.name in said and "holds its own `before`" in said and "Take one of them out" in said


@pytest.mark.parametrize("name", UNDOING)
def test_rules_that_undo_each_other_are_both_named(name):
    one, other = UNDOING[name]
    for program in (one.before, other.before):
        said = diagnosis(program, pair(one, other))
        assert one.name in said and other.name in said and "undo each other" in said


@pytest.mark.parametrize("wrap", ["jit", "scan", "cond", "remat"])
def test_also_inside_regions(wrap):
    grows = SELF_REPRODUCING["grows by an operation"]
    inside = {
        "jit": lambda x: jax.jit(jnp.sin)(x),
        "scan": lambda x: jax.lax.scan(lambda c, _: (jnp.sin(c), None), x, None, length=3)[0],
        "cond": lambda x: jax.lax.cond(x[0, 0] > 0, jnp.sin, jnp.cos, x),
        "remat": lambda x: jax.checkpoint(jnp.sin)(x),
    }[wrap]
    assert "grows" in diagnosis(inside, [grows])


def test_the_diagnosis_is_the_same_when_strict_and_leaves_the_program_alone():
    grows = SELF_REPRODUCING["grows by an operation"]
    graph = jaxsplice.trace(jnp.sin, X)
    text = str(graph)
    for verify in ("off", "auto", "strict"):
        with pytest.raises(JaxspliceError, match="grows"):
            jaxsplice.rewrite(graph, [grows], verify=verify)
    assert str(graph) == text


@pytest.mark.parametrize("length", [5, 40, 200])
def test_programs_with_many_places_are_no_suspects(length):
    """Legal large programs never meet the guard: it is about sweeps, not about matches."""
    sine = Op("sine", jnp.sin)

    def chain(x):
        for i in range(length):
            x = jnp.sin(x + i)
        return x

    result = jaxsplice.rewrite(jaxsplice.trace(chain, X), [rule("sine", jnp.sin, lambda x: sine(x))], verify="off")
    assert result.report.counts == {"sine": length}


def test_rules_that_lead_from_one_to_the_next_come_to_rest():
    """A chain of rules, each making the next one's pattern, is no ping-pong."""
    functions = [jnp.sin, jnp.cos, jnp.tan, jnp.exp, jnp.tanh, jnp.log1p]
    chain = [rule(f"step-{i}", one, other) for i, (one, other) in enumerate(itertools.pairwise(functions))]
    pipeline = jaxsplice.Pipeline((ApplyRules("raise", tuple(chain)),))
    result = jaxsplice.rewrite(jaxsplice.trace(jnp.sin, X), pipeline, verify="off")
    assert result.report.counts == {f"step-{i}": 1 for i in range(5)}
    assert result.after.primitives() == {"log1p": 1}


def test_stop_after_ends_what_would_not_end():
    grows = SELF_REPRODUCING["grows by an operation"]
    for limit in (0, 1, 5):
        result = jaxsplice.rewrite(jaxsplice.trace(jnp.sin, X), [grows], verify="off", stop_after=limit)
        assert result.report.counts.get("grows", 0) == limit
        np.testing.assert_allclose(result(X), jnp.sin(X), rtol=1e-6)
