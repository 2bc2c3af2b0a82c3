"""The three claims behind a rewrite: whichever is false, the program keeps its numbers and the report says which."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsplice
from jaxsplice import Case, Implementation, Op, Rule, Tolerance

from . import rules
from .rules import X, model, normal, rule_for

CHECKED = pytest.mark.parametrize("verify", ["auto", "strict"])
WRONG = pytest.mark.parametrize("wrong", [rules.slightly_wrong, rules.half_wrong], ids=lambda f: f.__name__)


def rewritten(fn, rule, *args, verify="auto"):
    return jaxsplice.rewrite(jaxsplice.trace(fn, *args), [rule, "lower"], verify=verify)


def refusals(result, rule) -> dict:
    return dict(result.report.statistics[rule.name].refusals)


def implementations(result) -> list:
    return [n.params["implementation"] for n in result.after.nodes if "op" in n.params]


def assert_unharmed(result, fn, *args):
    np.testing.assert_allclose(result.after(*args), jax.jit(fn)(*args), rtol=1e-5, atol=1e-6)


# ---------------------------------------------------------------- match: the region equals `before`
def by_size(x):
    """Another program for other sizes."""
    return jnp.tanh(x) * x.shape[0]


def by_type(x):
    """Another program for other types."""
    return jnp.tanh(x) * (4.0 if x.dtype == jnp.float32 else 5.0)


@pytest.mark.parametrize("verify", ["off", "auto", "strict"])
@pytest.mark.parametrize(
    ("before", "dtype", "differs"),
    [
        (by_size, jnp.float32, "the number 6 where the program has the number 4"),
        (by_type, jnp.bfloat16, "the number 5 where the program has the number 4"),
    ],
)
def test_before_that_says_something_else_at_the_bound_types_is_caught_by_the_match_claim(
    before, dtype, differs, verify
):
    rule = rule_for(Op("sized", before), before)
    x = jnp.asarray(normal(6, 8), dtype)
    result = rewritten(lambda x: jnp.tanh(x) * 4.0, rule, x, verify=verify)
    (reason,) = refusals(result, rule)
    assert reason.startswith("match: ") and differs in reason
    assert result.after is result.before and result.certificates == []


@pytest.mark.parametrize("verify", ["off", "auto", "strict"])
def test_before_that_follows_from_sizes_is_found_at_other_sizes(verify):
    rule = rule_for(Op("sized", by_size), by_size)
    result = rewritten(lambda x: jnp.tanh(x) * 6.0, rule, normal(6, 8), verify=verify)
    assert result.report.counts == {"sized": 1}
    assert result.certificates[0].match.kind == "exact"


@CHECKED
def test_a_rounding_on_purpose_is_never_lost(verify):
    rule = rule_for(Op("damped", rules.damped))
    rounded = lambda x: jnp.tanh(x).astype(jnp.bfloat16).astype(jnp.float32) * jnp.exp(-x)
    result = rewritten(rounded, rule, normal(4, 8), verify=verify)
    (reason,) = refusals(result, rule)
    assert reason.startswith("match: it rounds to bfloat16")
    assert result.after is result.before


# ---------------------------------------------------------------- rewrite: `before` equals `after`
@CHECKED
@WRONG
def test_wrong_after_is_caught_by_the_rewrite_claim(wrong, verify):
    rule = rule_for(Op("damped", wrong))
    result = rewritten(model, rule, normal(4, 8), verify=verify)
    ((reason, times),) = refusals(result, rule).items()
    assert reason.startswith("rewrite: `after` is not `before`: off by ") and times == 1
    assert result.after is result.before
    assert any("damped was asked for and never fired" in note for note in result.report.notes)


def test_wrong_after_is_trusted_when_verify_is_off_and_the_certificate_says_so():
    rule = rule_for(Op("damped", rules.slightly_wrong))
    x = normal(4, 8)
    result = rewritten(model, rule, x, verify="off")
    (certificate,) = result.certificates
    assert (certificate.match.kind, certificate.rewrite.kind, certificate.kind) == ("exact", "assumed", "assumed")
    error = np.abs(np.asarray(result.after(x)) - np.asarray(model(x))).max()
    assert 1e-5 < error < 1e-1


@pytest.mark.parametrize("args", [(X,), (X, X)], ids=["one argument", "two arguments"])
def test_after_of_another_type_is_refused(args):
    shorter = Op("shorter", lambda *xs: jnp.tanh(xs[0]).astype(jnp.bfloat16))
    rule = rule_for(shorter, lambda *xs: jnp.tanh(xs[0]) * 2.0 + sum(x * 0.5 for x in xs[1:]), args)
    values = [normal(4, 8, seed=i) for i in range(len(args))]
    result = rewritten(rule.before, rule, *values, verify="off")
    (reason,) = refusals(result, rule)
    assert "float32" in reason or "f32" in reason
    assert result.after is result.before


@CHECKED
def test_the_same_arithmetic_is_exact(verify):
    (certificate,) = rewritten(model, rule_for(Op("damped", rules.damped)), normal(4, 8), verify=verify).certificates
    assert [c.kind for c in certificate.claims] == ["exact", "exact", "exact"] and certificate.error is None
    assert certificate.rule == "damped" and "rules.py" in certificate.source


@CHECKED
def test_another_association_is_reassociated(verify):
    before, after = (lambda x: (x + jnp.sin(x)) + jnp.cos(x)), (lambda x: x + (jnp.sin(x) + jnp.cos(x)))
    result = rewritten(before, rule_for(Op("added", after), before), normal(4, 8), verify=verify)
    (certificate,) = result.certificates
    assert (certificate.match.kind, certificate.rewrite.kind) == ("exact", "reassociated")


def test_other_functions_are_measured_and_strict_refuses_that():
    rule = rule_for(Op("damped", rules.by_exponentials))
    x = normal(4, 8)
    (certificate,) = rewritten(model, rule, x).certificates
    assert certificate.kind == "numeric" and 0 < certificate.error <= certificate.rewrite.tolerance == 1e-5
    strict = rewritten(model, rule, x, verify="strict")
    (reason,) = refusals(strict, rule)
    assert reason.startswith(
        "verify='strict' accepts exact and reassociated only; this is match exact, rewrite numeric"
    )
    assert strict.after is strict.before


def test_the_rules_own_tolerance_decides():
    tight, loose = (rule_for(Op("damped", rules.slightly_wrong), tolerance=t) for t in (1e-6, 1e-2))
    assert rewritten(model, tight, normal(4, 8)).report.counts == {}
    (certificate,) = rewritten(model, loose, normal(4, 8)).certificates
    assert certificate.rewrite.tolerance == 1e-2 and 1e-4 < certificate.error < 1e-2


# ---------------------------------------------------------------- implementation: it equals its Op's reference
@CHECKED
@WRONG
def test_wrong_implementation_is_caught_by_the_implementation_claim(wrong, verify):
    op = Op("damped", rules.damped, implementations=(Implementation("broken", wrong),))
    x = normal(4, 8)
    result = rewritten(model, rule_for(op), x, verify=verify)
    assert result.report.counts == {"damped": 1} and implementations(result) == [None]
    (note,) = result.report.notes
    assert "implementation: broken is not its reference: off by " in note
    assert result.certificates[0].kind == "exact"  # of the reference, which is what runs
    assert_unharmed(result, model, x)


def test_the_next_implementation_is_taken_when_the_first_is_wrong():
    broken, sound = Implementation("broken", rules.half_wrong), Implementation("sound", rules.by_exponentials)
    op = Op("damped", rules.damped, implementations=(broken, sound))
    x = normal(4, 8)
    result = rewritten(model, rule_for(op), x)
    assert implementations(result) == ["sound"]
    assert result.certificates[0].implementation.kind == "numeric"
    assert_unharmed(result, model, x)


def test_wrong_implementation_is_trusted_when_verify_is_off():
    op = Op("damped", rules.damped, implementations=(Implementation("broken", rules.slightly_wrong),))
    result = rewritten(model, rule_for(op), normal(4, 8), verify="off")
    assert implementations(result) == ["broken"]
    assert result.certificates[0].implementation.kind == "assumed"


def test_strict_keeps_the_reference_of_what_is_only_measured():
    op = Op("damped", rules.damped, implementations=(Implementation("other", rules.by_exponentials),))
    strict = rewritten(model, rule_for(op), normal(4, 8), verify="strict")
    assert implementations(strict) == [None] and "verify='strict'" in strict.report.notes[0]


@pytest.mark.parametrize(("limit", "chosen"), [(1e-6, None), (1e-2, "rough")])
def test_the_ops_own_tolerance_decides(limit, chosen):
    rough = (Implementation("rough", rules.slightly_wrong),)
    op = Op("damped", rules.damped, implementations=rough, tolerance=Tolerance(float32=limit))
    assert implementations(rewritten(model, rule_for(op), normal(4, 8))) == [chosen]


# ---------------------------------------------------------------- wrong use
def test_unknown_verification_level():
    graph = jaxsplice.trace(model, normal(4, 8))
    with pytest.raises(jaxsplice.JaxspliceError, match=r"verify='always' is none of off, auto, strict"):
        jaxsplice.rewrite(graph, verify="always")


def test_a_rule_needs_cases_a_stage_and_equal_parameters():
    with pytest.raises(jaxsplice.JaxspliceError, match=r"rule 'lame' has no cases: give at least one Case"):
        Rule("lame", rules.damped, rules.damped)
    with pytest.raises(jaxsplice.JaxspliceError, match=r"stage 'later' is none of raise, fuse, place"):
        Rule("late", rules.damped, rules.damped, stage="later", cases=[Case(X)])
    with pytest.raises(jaxsplice.JaxspliceError, match=r"must take the same parameters"):
        Rule("odd", rules.damped, lambda y: y, cases=[Case(X)])
