"""Places that look the same are searched once; places that only nearly look the same are searched again."""

from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsplice
from jaxsplice.passes.ir.region import Program
from jaxsplice.passes.ir.values import Reads, watched
from jaxsplice.passes.rewrite import agenda, recall
from jaxsplice.passes.rewrite.neighbourhood import neighbourhood_of

X = jnp.linspace(-1.0, 1.0, 12).reshape(3, 4)
W = jnp.linspace(-2.0, 2.0, 16).reshape(4, 4)
PIPELINE = "normalize,raise{swiglu,rms-norm}"


@pytest.fixture(autouse=True)
def nothing_remembered():
    recall.forget()


@pytest.fixture
def searches(monkeypatch):
    """Anchors that are searched at, in order."""
    seen, find_at = [], agenda.find_at

    def counted(anchor, *rest):
        seen.append(anchor)
        return find_at(anchor, *rest)

    monkeypatch.setattr(agenda, "find_at", counted)
    return seen


def gated(x, a=W, b=W + 1.0):
    return jax.nn.silu(x @ a) * (x @ b)


def layers(count, layer=gated):
    def run(x):
        for _ in range(count):
            x = layer(x)
        return x

    return run


def rewritten(fn, passes=PIPELINE):
    return jaxsplice.rewrite(jaxsplice.trace(fn, X), passes)


def test_later_layers_and_later_programs_are_not_searched(searches):
    assert rewritten(layers(12)).report.counts == {"swiglu": 12}
    first = len(searches)
    assert rewritten(layers(30)).report.counts == {"swiglu": 30}
    assert len(searches) - first <= 4  # one layer more lies between the ends than the longest neighbourhood reached
    again = len(searches)
    assert rewritten(layers(30)).report.counts == {"swiglu": 30}
    assert len(searches) == again


def test_remembered_and_searched_places_give_the_same_program_and_report():
    fn = layers(5, lambda x: gated(x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * W[0]))
    cold, warm = rewritten(fn), rewritten(fn)
    assert str(cold.after) == str(warm.after)
    assert [(r.rule, r.what, str(r.certificate), r.replaced) for r in cold.report.rows] == [
        (r.rule, r.what, str(r.certificate), r.replaced) for r in warm.report.rows
    ]
    for name, statistics in cold.report.statistics.items():
        assert warm.report.statistics[name].refusals == statistics.refusals


def test_each_remembered_rewrite_has_its_own_source_line():
    def fn(x):
        x = gated(x)
        return gated(x) + jax.nn.silu(x @ W) * (x @ (W + 1.0))

    rewritten(fn)
    lines = [c.source for c in rewritten(fn).certificates]
    assert len(lines) == 3 and len(set(lines)) == 2


def test_an_escaping_value_is_seen_at_a_remembered_place():
    def fn(x):
        outs = []
        for i in range(6):
            gate = x @ W
            x = jax.nn.silu(gate) * (x @ (W + 1.0))
            if i == 3:
                outs.append(gate)
        return x, outs

    rewritten(layers(6))
    result = rewritten(fn)
    assert result.report.counts == {"swiglu": 5}
    np.testing.assert_allclose(result(X)[0], fn(X)[0], rtol=1e-5)
    np.testing.assert_allclose(result(X)[1][0], fn(X)[1][0], rtol=1e-5)


@pytest.mark.parametrize(
    "odd",
    [
        lambda x: jax.nn.silu(x @ W) * ((x + 1.0) @ (W + 1.0)),
        lambda x: jax.nn.silu((x @ W) * 1.5) * (x @ (W + 1.0)),
        lambda x: jax.nn.sigmoid(x @ W) * (x @ (W + 1.0)),
        lambda x: jax.nn.silu(x @ W) * (x @ (W + 1.0))[:, :1],
    ],
    ids=["another x", "scaled gate", "no silu", "broadcast up"],
)
def test_an_odd_layer_among_equal_ones_is_left_alone(odd):
    rewritten(layers(4))

    def fn(x):
        return layers(2)(odd(layers(2)(x)))

    result = rewritten(fn)
    assert result.report.counts == {"swiglu": 4}
    np.testing.assert_allclose(result(X), fn(X), rtol=1e-4)


def test_threads_do_not_disturb_each_other():
    graphs = [jaxsplice.trace(layers(n), X) for n in range(1, 7)]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda g: jaxsplice.rewrite(g, PIPELINE), graphs * 2))
    assert [r.report.counts["swiglu"] for r in results] == [*range(1, 7)] * 2
    for n, result in zip(range(1, 7), results):
        np.testing.assert_allclose(result(X), layers(n)(X), rtol=1e-4)


def test_what_a_where_says_is_not_remembered():
    allowed = True

    def where(x):
        if not allowed:
            raise jaxsplice.Refuse("not now")

    shape = jax.ShapeDtypeStruct((3, 4), jnp.float32)
    rule = jaxsplice.Rule(
        "twice",
        lambda x: jnp.sin(x) * 2.0,
        lambda x: jnp.sin(x) + jnp.sin(x),
        where=where,
        cases=[jaxsplice.Case(shape)],
    )
    fn = layers(3, lambda x: jnp.sin(x) * 2.0)
    for allowed in (True, False, True, False):
        assert rewritten(fn, [rule]).report.counts == ({"twice": 3} if allowed else {})


# ---------------------------------------------------------------- neighbourhoods
def last_node(fn, *args):
    return Program(jax.make_jaxpr(fn)(*args)).root.nodes[-1]


def neighbourhood(fn, *args):
    """All that lies above the last equation, and its users."""
    node, reads = last_node(fn, *args), Reads()
    with watched(reads):
        stack = [node]
        while stack:
            stack += [a.node for a in stack.pop().inputs if hasattr(a, "uses") and a.node is not None]
        assert any(out.uses for out in node.outputs)
    made = neighbourhood_of(node, reads)
    assert made is not None
    return made[0]


def test_a_neighbourhood_is_found_where_it_was_made():
    fn = lambda x: jnp.sin(x * 2.0) + x
    assert neighbourhood(fn, X).around(last_node(fn, X)) is not None


@pytest.mark.parametrize(
    ("fn", "other"),
    [
        (lambda x, y: x * 2.0 + y, lambda x, y: x * 3.0 + y),
        (lambda x, y: x * 0.0 + y, lambda x, y: x * -0.0 + y),
        (lambda x, y: jnp.sin(x) * jnp.sin(x), lambda x, y: jnp.sin(x) * jnp.sin(y)),
        (lambda x, y: x * y, lambda x, y: x * x),
        (lambda x, y: x * x, lambda x, y: x * y),
        (lambda x, y: jnp.cumsum(x, 0) + y, lambda x, y: jnp.cumsum(x, 0, dtype=jnp.float32)[::-1] + y),
        (lambda x, y: jax.lax.cumsum(x, 0) + y, lambda x, y: jax.lax.cumsum(x, 1) + y),
        (lambda x, y: jnp.sin(x) + y, lambda x, y: jnp.sin(x).astype(jnp.bfloat16) + y.astype(jnp.bfloat16)),
        (lambda x, y: (x + y,), lambda x, y: [x + y] * 2),
        (lambda x, y: x + np.arange(4.0, dtype=np.float32), lambda x, y: x + np.arange(1.0, 5.0, dtype=np.float32)),
    ],
)
def test_other_neighbourhoods_are_told_apart(fn, other):
    assert neighbourhood(fn, X, X).around(last_node(fn, X, X)) is not None
    assert neighbourhood(fn, X, X).around(last_node(other, X, X)) is None


def test_equal_loops_look_the_same_and_other_loops_do_not():
    def loop(step):
        return lambda x: jax.lax.scan(lambda c, r: (c * step, r + c), jnp.float32(1.0), x[:, 0])[1]

    assert neighbourhood(loop(2.0), X).around(last_node(loop(2.0), X)) is not None
    assert neighbourhood(loop(2.0), X).around(last_node(loop(3.0), X)) is None
