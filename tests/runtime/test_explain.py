"""explain: where a rule matches, and where it nearly does, with the reason, a hint, and the user's own line."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl import logging

import jaxsplice
from jaxsplice import Case, GraphRule, Op, Rule
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


def by_gelu(x, a, b):
    return jax.nn.gelu(x @ a) * (x @ b)


def by_erf(x, a, b):
    return jax.nn.gelu(x @ a, approximate=False) * (x @ b)


def by_relu(x, a, b):
    return jax.nn.relu(x @ a) * (x @ b)


def sharper(x, a, b):
    inner = x @ a
    return inner * jax.nn.sigmoid(1.702 * inner) * (x @ b)


def read_twice(x, a, b):
    inner = x @ a
    return silu(inner) * (x @ b) + jnp.sin(inner)


def rounded(x, a, b):
    return (silu(x @ a).astype(jnp.bfloat16) * (x @ b).astype(jnp.bfloat16)).astype(jnp.float32)


def printed(x, a, b):
    inner = x @ a
    jax.debug.print("{}", inner)
    return silu(inner) * (x @ b)


BIAS = np.ones(16, np.float32)


@pytest.mark.parametrize(
    ("fn", "args", "line", "reason", "equation", "hint"),
    [
        (with_bias, (X, A, B, BIAS), "gated *", "wanted dot_general, found add", "add(f32[4,16], f32[1,16])",
         "something is added here (a bias?), the rule has nothing of the kind"),
        (changed_input, (X, A, B), "silu(", "found another value than the one", "mul(f32[4,8], f32[4,8]) -> f32[4,8]",
         "the operands differ: x is changed between its uses, by mul at "),
        (returned, (X, A, B), "silu(inner)", "its inner dot_general at ", "",
         "the inner dot_general is also returned: drop it, or compute it apart"),
        (read_twice, (X, A, B), "silu(inner)", "is also used by sin at", "", "sin reads the inner dot_general too"),
        (printed, (X, A, B), "silu(inner)", "is also used by debug", "", "debug_"),
        (one_product, (X, A), "silu(inner)", "already plays another part", "dot_general(f32[4,8], f32[8,16])",
         "the rule needs two separate operations"),
        (by_gelu, (X, A, B), "nn.gelu", "wanted dot_general, found add", "add(f32[4,16], f32[4,16]) -> f32[4,16]",
         "the activation is gelu (by tanh), the rule's is logistic (silu, sigmoid)"),
        (by_erf, (X, A, B), "nn.gelu", "wanted logistic, found erfc", "erfc(f32[4,16]) -> f32[4,16]",
         "the activation is gelu (by erf), the rule's is logistic (silu, sigmoid)"),
        (by_relu, (X, A, B), "nn.relu", "wanted logistic, found max", "max(f32[4,16], f32[])",
         "the activation is relu, the rule's is logistic"),
        (sharper, (X, A, B), "sigmoid", "the number 1 where the program has the number 1.702", "",
         "the number is 1.702, the rule is for 1; "),
        (rounded, (X, A, B), "bfloat16", "would lose that rounding", "", "round once, after the last operation"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)  # fmt: skip
def test_a_near_miss_says_where_it_stopped_and_why(fn, args, line, reason, equation, hint):
    said = jaxsplice.explain(fn, *args, rule="swiglu")
    assert said.hits == [] and said.counts == {}
    miss = said.misses[0]
    assert (miss.source.file, miss.source.line) == (__file__, line_of(fn, line))
    assert reason in miss.reason and miss.hint.startswith(hint)
    assert miss.equation.startswith(equation) and bool(miss.equation) == bool(equation)
    assert not equation or f"wanted {miss.wanted}, found {miss.found}" in miss.reason
    text = str(said)
    assert f"swiglu does not apply at {miss.source}" in text and f"\n    hint: {miss.hint}" in text
    assert not equation or f"\n    first difference: {miss.equation}\n" in text


def test_activations_of_other_layers_do_not_count():
    deep = lambda x, a, b: silu(jnp.tanh(x @ a @ b.T) @ a) * ((x * x) @ b)
    misses = jaxsplice.explain(deep, X, A, B, rule="swiglu").misses
    assert misses and not any("tanh" in miss.hint and "activation" in miss.hint for miss in misses)


def test_another_rule_that_takes_the_place_is_named():
    batched = lambda x, a, b: jax.vmap(gate)(x, a, b)
    many = [np.stack([v] * 3) for v in (X, A, B)]
    said = jaxsplice.explain(batched, *many, rule="swiglu")
    assert said.hits == [] and said.misses[0].hint == "rule grouped-swiglu takes this place"


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


# ---------------------------------------------------------------- a rule of one's own
Y = np.linspace(-1.0, 1.0, 32, dtype=np.float32).reshape(4, 8)
WAVES = Op("waves", lambda x: jnp.sin(x) * jnp.cos(x))
OWN = Rule("waves", lambda x: jnp.sin(x) * jnp.cos(x), lambda x: WAVES(x), cases=[Case(Y)])


def waves(x):
    return jnp.sin(x) * jnp.cos(x)


def shifted(x):
    return jnp.sin(x) * jnp.cos(x + 1.0)


def hyperbolic(x):
    return jnp.sin(x) * jnp.cosh(x)


def test_a_rule_that_nobody_registered_is_explained():
    (hit,) = jaxsplice.explain(waves, Y, rule=OWN).hits
    assert (hit.rule, hit.source.line, hit.replaced) == ("waves", line_of(waves, "return"), "cos sin mul")
    (miss,) = jaxsplice.explain(shifted, Y, rule=OWN).misses
    assert miss.hint.startswith("the operands differ: x is changed between its uses, by add at ")
    (miss,) = jaxsplice.explain(jaxsplice.trace(hyperbolic, Y), rule=OWN).misses
    assert (miss.wanted, miss.found, miss.equation) == ("cos", "cosh", "cosh(f32[4,8]) -> f32[4,8]")


def test_a_rule_of_a_later_stage_is_explained_after_the_earlier_ones():
    from jaxsplice.kernels.swiglu import swiglu

    before = lambda x, a, b: jnp.tanh(swiglu(x, a, b))
    op = Op("tanh-swiglu", before)
    fuse = Rule("tanh-swiglu", before, lambda x, a, b: op(x, a, b), stage="fuse", cases=[Case(X, A, B)])
    assert jaxsplice.explain(lambda x, a, b: jnp.tanh(gate(x, a, b)), X, A, B, rule=fuse).counts == {"tanh-swiglu": 1}
    (miss, *_) = jaxsplice.explain(lambda x, a, b: jnp.sin(gate(x, a, b)), X, A, B, rule=fuse).misses or [None]
    assert miss is None or "tanh" in miss.reason


@pytest.mark.parametrize(
    ("options", "reason", "hint"),
    [
        ({"after": lambda x: jnp.sin(x)}, "rewrite: `after` is not `before`", "the rule itself is wrong here"),
        ({"after": lambda x: (jnp.sin(x) * jnp.cos(x)).astype(jnp.bfloat16)}, "bfloat16[4,8] after",
         "the rule's `after` gives bfloat16[4,8] where its `before` gives float32[4,8]"),
        ({"after": WAVES, "where": lambda x: 1 / 0}, "its where failed: ZeroDivisionError", "mend the rule"),
    ],
    ids=["wrong", "another type", "fails"],
)  # fmt: skip
def test_what_is_wrong_with_the_rule_itself_is_said(options, reason, hint):
    after = options["after"]
    rule = Rule("waves", OWN.before, lambda x: after(x), where=options.get("where"), cases=[Case(Y)])
    (miss,) = jaxsplice.explain(waves, Y, rule=rule).misses
    assert reason in miss.reason and miss.hint.startswith(hint)


def test_another_power_is_told():
    before = lambda x: jnp.exp(jnp.square(jnp.sin(x)) * jnp.cos(x))
    rule = Rule("waves", before, lambda x: before(x), cases=[Case(Y)])
    (miss,) = jaxsplice.explain(lambda x: jnp.exp(jnp.sin(x) * jnp.cos(x)), Y, rule=rule).misses
    assert "wanted sin, found" in miss.reason and "to the power of 1, not 2" in miss.reason
    assert miss.hint == "the rule has a value to the power of 2 here (a square? a root?)"


def test_a_missing_second_result_is_told():
    both, other = lambda x: (jnp.sin(x), jnp.cos(x)), lambda x: (jnp.sin(x), jnp.tan(x))
    op = Op("both", both)
    rule = Rule("both", both, lambda x: op(x), cases=[Case(Y)])
    assert jaxsplice.explain(both, Y, rule=rule).counts == {"both": 1}
    (miss,) = jaxsplice.explain(other, Y, rule=rule).misses
    assert (miss.wanted, miss.found) == ("cos", "no such other result of the same arguments")


def test_arguments_are_named_as_the_rule_names_them():
    def before(pair, *, scale=2.0):
        return jnp.sin(pair["left"]) * pair["right"] * jnp.cos(pair["left"])

    rule = Rule("pair", before, lambda pair, *, scale: before(pair), cases=[Case({"left": Y, "right": Y})])
    fn = lambda x, y: jnp.sin(x) * y * jnp.cos(jnp.exp(x))
    (miss, *_) = jaxsplice.explain(fn, Y, Y, rule=rule).misses
    assert "pair['left'] is changed between its uses, by exp at" in miss.hint


def test_a_graph_rule_of_ones_own_says_what_it_refused():
    def find(region, refuse):
        for node in region.by_primitive.get("sin", ()):
            refuse("sines are fine as they are", node)
        yield from ()

    said = jaxsplice.explain(waves, Y, rule=GraphRule("nothing", find=find, equation="exact", stage="raise"))
    (miss,) = said.misses
    assert miss.reason == "sines are fine as they are" and miss.source.line == line_of(waves, "return")


# ---------------------------------------------------------------- asked for and never fired
@pytest.fixture
def warned(monkeypatch):
    seen = []
    monkeypatch.setattr(logging, "warning", lambda text, *args: seen.append(text % args))
    return seen


@pytest.mark.parametrize("passes", ["raise{swiglu}", ["swiglu"], [OWN]])
def test_a_rule_asked_for_by_name_that_never_fires_is_logged_and_noted(passes, warned):
    report = jaxsplice.rewrite(jaxsplice.trace(jnp.exp, Y), passes).report
    name = "waves" if passes == [OWN] else "swiglu"
    sentence = f"rule {name} was asked for and never fired; jaxsplice.explain says why"
    assert report.warnings == [sentence] and sentence in report.notes
    assert warned == [f"jaxsplice, rewriting exp: {sentence}"]


@pytest.mark.parametrize("passes", ["default", "raise", "raise{swiglu}"])
def test_what_fires_or_was_not_named_is_not_logged(passes, warned):
    jaxsplice.rewrite(jaxsplice.trace(gate, X, A, B), passes)
    assert warned == []


def test_nothing_is_described_unless_it_is_asked_for(monkeypatch):
    """Zero cost when off: no near miss is put into words."""

    def described(*_):
        raise AssertionError("a near miss was described though nobody asked")

    monkeypatch.setattr("jaxsplice.passes.rewrite.unify.describe", described)
    monkeypatch.setattr("jaxsplice.passes.rewrite.unify.node_of", described)
    for fn in (by_gelu, changed_input, gate):
        jaxsplice.rewrite(jaxsplice.trace(fn, X, A, B), "normalize,raise", verify="off")
    with pytest.raises(AssertionError, match="though nobody asked"):
        jaxsplice.explain(by_gelu, X, A, B, rule="swiglu")


# ---------------------------------------------------------------- all rules, and wrong use
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
