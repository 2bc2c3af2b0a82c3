"""explain: where a rule matches, and where it nearly does, with the reason, a hint, and the user's own line."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsplice
from jaxsplice.passes.errors import PipelineError

X, A, B = np.ones((4, 8), np.float32), np.ones((8, 16), np.float32), np.ones((8, 16), np.float32)
silu = jax.nn.silu


def gate(x, a, b):
    return silu(x @ a) * (x @ b)


def line_of(fn, text: str) -> int:
    lines, first = inspect.getsourcelines(fn)
    return first + next(i for i, line in enumerate(lines) if text in line)


def test_a_match_says_where_what_and_how_it_was_proved():
    said = jaxsplice.explain(gate, X, A, B, rule="swiglu")
    assert said.counts == {"swiglu": 1} and said.misses == []
    (hit,) = said.hits
    assert (hit.rule, hit.source.file, hit.source.line) == ("swiglu", __file__, line_of(gate, "silu(x @ a)"))
    assert hit.certificate.startswith("match exact") and "2xdot_general" in hit.replaced
    assert str(said).splitlines()[0] == f"swiglu matches at {hit.source}: {hit.replaced}"


def with_bias(x, a, b, c):
    gated = silu(x @ a + c)
    return gated * (x @ b)


def changed_input(x, a, b):
    return silu(x @ a) * ((x * x) @ b)


def scaled(x, a, b, s):
    return silu(x @ a) * (x @ b) * s


def returned(x, a, b):
    inner = x @ a
    return silu(inner) * (x @ b), inner


def one_product(x, a):
    inner = x @ a
    return silu(inner) * inner


@pytest.mark.parametrize(
    ("fn", "args", "line", "reason", "hint"),
    [
        (with_bias, (X, A, B, np.ones(16, np.float32)), "gated *", "wanted dot_general, found add", ""),
        (changed_input, (X, A, B), "silu(", "found another value than the one", "the operands differ: is one changed"),
        (returned, (X, A, B), "silu(inner)", "its inner dot_general at ", ""),
        (one_product, (X, A), "silu(inner)", "already plays another part", "the rule needs two separate operations"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_near_miss_says_where_it_stopped_and_why(fn, args, line, reason, hint):
    said = jaxsplice.explain(fn, *args, rule="swiglu")
    assert said.hits == [] and said.counts == {}
    miss = said.misses[0]
    assert (miss.source.file, miss.source.line) == (__file__, line_of(fn, line))
    assert reason in miss.reason and miss.hint.startswith(hint) and bool(miss.hint) == bool(hint)
    text = str(said)
    assert f"swiglu does not apply at {miss.source}" in text
    assert not hint or f"\n    hint: {miss.hint}" in text


def test_scaling_the_result_is_no_obstacle():
    said = jaxsplice.explain(scaled, X, A, B, 2.0, rule="swiglu")
    assert said.counts == {"swiglu": 1}


def test_the_nearest_misses_come_first_and_are_limited():
    def many(x, a, b):
        y = silu(x @ a) * jnp.tanh(x @ b)
        z = silu(x @ a) * ((x * x) @ b)
        return y + z + silu(x @ a) * jnp.exp(x @ b)

    said = jaxsplice.explain(many, X, A, B, rule="swiglu", limit=50)
    depths = [m.depth for m in said.misses]
    assert len(depths) >= 2 and depths == sorted(depths, reverse=True)
    assert len({str(m.source) for m in said.misses}) == len(said.misses)  # one per place
    assert jaxsplice.explain(many, X, A, B, rule="swiglu", limit=1).misses == said.misses[:1]


def test_all_rules_are_explained_when_none_is_named():
    def fn(x, a, b, w):
        normed = x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * w
        return gate(normed, a, b)

    said = jaxsplice.explain(fn, X, A, B, np.ones(8, np.float32))
    assert said.counts == {"rms-norm": 1, "swiglu": 1}


def test_what_resembles_nothing_is_said():
    said = jaxsplice.explain(jnp.sin, X, rule="swiglu")
    assert str(said) == "nothing in this program resembles the rule" and not said.hits and not said.misses


def test_graphs_and_functions_give_the_same():
    graph = jaxsplice.trace(changed_input, X, A, B)
    assert jaxsplice.explain(graph, rule="swiglu") == jaxsplice.explain(changed_input, X, A, B, rule="swiglu")


def test_static_and_keyword_arguments():
    def fn(x, a, b, act, *, up):
        return getattr(jax.nn, act)(x @ a) * (x @ b) * up

    options = {"rule": "swiglu", "static_argnums": 3, "static_argnames": "up"}
    assert jaxsplice.explain(fn, X, A, B, "silu", up=1, **options).counts == {"swiglu": 1}
    assert jaxsplice.explain(fn, X, A, B, "gelu", up=1, **options).counts == {}


def test_an_unknown_rule_names_those_there_are():
    with pytest.raises(PipelineError, match=r"there is no rule 'swigl'\. Did you mean 'swiglu'\? Known: .*rms-norm"):
        jaxsplice.explain(gate, X, A, B, rule="swigl")


def test_arguments_that_cannot_be_traced():
    with pytest.raises(jaxsplice.JaxspliceError, match="gate could not be traced"):
        jaxsplice.explain(gate, X, A, rule="swiglu")
