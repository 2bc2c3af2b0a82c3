"""Proofs: each is made once per signature, also when it failed, and is not disturbed by what is traced around it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsplice
from jaxsplice import Implementation, Op
from jaxsplice.passes.errors import Refuse, RuleError
from jaxsplice.passes.rewrite import measure
from jaxsplice.passes.rewrite.certificate import EXACT, REASSOCIATED, Certificate, Claim
from jaxsplice.passes.rewrite.prove import Proofs

from . import rules
from .rules import normal, rule_for


@pytest.fixture
def measured(monkeypatch):
    """A list that grows by the argument shapes of every measurement."""
    seen, real = [], measure.measure

    def counted(truth, candidate, args, *rest, **options):
        seen.append([np.shape(a) for a in args])
        return real(truth, candidate, args, *rest, **options)

    monkeypatch.setattr(measure, "measure", counted)
    return seen


def run(rule, *shape, fn=rules.damped, **options):
    return jaxsplice.rewrite(jaxsplice.trace(fn, normal(*shape)), [rule, "lower"], **options)


def test_a_measured_rewrite_is_measured_once_per_signature(measured):
    rule = rule_for(Op("damped", rules.by_exponentials))
    first, again = run(rule, 4, 8), run(rule, 4, 8)
    assert measured == [[(4, 8)]]
    assert again.certificates[0].rewrite == first.certificates[0].rewrite
    run(rule, 5, 8)
    assert measured == [[(4, 8)], [(5, 8)]]


def test_several_places_of_one_signature_share_the_proof(measured):
    rule = rule_for(Op("damped", rules.by_exponentials))
    result = run(rule, 4, 8, fn=lambda x: rules.damped(rules.damped(x) + 1.0) * rules.damped(x - 1.0))
    assert result.report.counts == {"damped": 3} and measured == [[(4, 8)]]


def test_a_failed_proof_is_not_tried_again(measured):
    rule = rule_for(Op("damped", rules.slightly_wrong))
    reasons = {str(dict(run(rule, 4, 8).report.statistics["damped"].refusals)) for _ in range(3)}
    assert len(reasons) == 1 and "off by" in reasons.pop()
    assert len(measured) == 1


def test_an_implementation_is_measured_once_per_signature(measured):
    op = Op("damped", rules.damped, implementations=(Implementation("other", rules.by_exponentials),))
    rule = rule_for(op)
    run(rule, 4, 8), run(rule, 4, 8), run(rule, 5, 8), run(rule, 4, 8)
    assert measured == [[(4, 8)], [(5, 8)]]


@pytest.mark.parametrize("verify", ["off", "auto", "strict"])
def test_what_is_the_same_program_is_never_measured(measured, verify):
    run(rule_for(Op("damped", rules.damped)), 4, 8, verify=verify)
    assert measured == []


def test_nothing_is_measured_with_verify_off(measured):
    op = Op("damped", rules.by_exponentials, implementations=(Implementation("broken", rules.half_wrong),))
    assert run(rule_for(op), 4, 8, verify="off").certificates[0].kind == "assumed"
    assert measured == []


def test_large_arguments_are_measured_at_the_rules_own_sizes(measured):
    rule = rule_for(Op("damped", rules.by_exponentials))
    large = jax.ShapeDtypeStruct((1 << 14, 1 << 10), jnp.float32)
    (certificate,) = jaxsplice.rewrite(jaxsplice.trace(rules.damped, large), [rule]).certificates
    assert certificate.kind == "numeric@reduced" and measured == [[(4, 8)]]


@pytest.mark.parametrize("around", ["jit", "grad", "vmap", "x64"])
def test_what_is_traced_around_does_not_reach_the_proof(measured, around):
    fast = jaxsplice.optimize(rules.damped, passes=[rule_for(Op("damped", rules.by_exponentials))])
    x = normal(4, 8)
    summed = lambda f: lambda x: f(x).sum()
    made = {
        "jit": lambda f: jax.jit(f)(x), "grad": lambda f: jax.grad(summed(f))(x),
        "vmap": lambda f: jax.vmap(f)(np.stack([x, 2 * x])), "x64": lambda f: jax.jit(f)(x),
    }[around]  # fmt: skip
    with jax.enable_x64(around == "x64"):
        np.testing.assert_allclose(made(fast), made(rules.damped), rtol=1e-4, atol=1e-5)
    assert measured == [[(4, 8)]]


# ---------------------------------------------------------------- the cache itself
def test_a_claim_is_made_at_first_need_only():
    proofs, calls = Proofs(), []
    for _ in range(3):
        assert proofs.once("key", lambda: calls.append(1) or EXACT) is EXACT
    assert proofs.once("other", lambda: calls.append(1) or REASSOCIATED) is REASSOCIATED
    assert len(calls) == 2


def fail(error):
    raise error


def test_a_refusal_is_remembered_and_a_crash_is_not():
    proofs, calls = Proofs(), []

    def refuses():
        calls.append(1)
        raise Refuse("no way")

    for _ in range(2):
        with pytest.raises(Refuse, match="no way"):
            proofs.once("key", refuses)
    assert len(calls) == 1
    for _ in range(2):
        with pytest.raises(RuleError):
            proofs.once("rule", lambda: fail(RuleError("its where failed")))
    with pytest.raises(ZeroDivisionError):
        proofs.once("crash", lambda: 1 / 0)
    assert proofs.once("crash", lambda: EXACT) is EXACT


@pytest.mark.parametrize(
    ("claims", "kind", "error"),
    [
        ((EXACT, EXACT, None), "exact", None),
        ((EXACT, REASSOCIATED, EXACT), "reassociated", None),
        ((Claim("numeric", 1e-7, 1e-5), EXACT, None), "numeric", 1e-7),
        ((EXACT, Claim("numeric", 1e-6, 1e-5), Claim("numeric@reduced", 1e-7, 1e-5)), "numeric@reduced", 1e-6),
        ((Claim("assumed"), Claim("numeric", 1e-6, 1e-5), EXACT), "assumed", 1e-6),
    ],
)
def test_a_certificate_is_as_strong_as_its_weakest_claim(claims, kind, error):
    certificate = Certificate("rule", *claims)
    assert (certificate.kind, certificate.error) == (kind, error)
    assert str(certificate).startswith(f"match {claims[0]}, rewrite {claims[1]}")
