"""Spellings of convolutions, delta rules and collectives: recognised as often as promised, computing what they did."""

import pytest

import jaxsplice

from . import causal_conv1d, gated_delta_rule, pack_collectives, reduce_scatter
from .same_numbers import assert_computes_the_same

FAMILIES = {
    "causal-conv1d": ("raise", causal_conv1d),
    "gated-delta-rule": ("raise", gated_delta_rule),
    "pack-collectives": ("place", pack_collectives),
    "reduce-scatter": ("place", reduce_scatter),
}
# Stated misses: the bias is added first; a chunked form with its own solve; one that is written out for its chunk size.
MISSED = {"C6 shift and add, bias first", "G1 chunks, triangular solve", "G3 chunks written out"}
QUICK = 2  # of each family in the default set, the others in the slow one


def cases(table: str):
    """Every entry of a table of every family; most of them marked slow."""
    for rule, (_, family) in FAMILIES.items():
        for i, name in enumerate(getattr(family, table)):
            marks = [pytest.mark.slow] if i % (len(getattr(family, table)) // QUICK) else []
            if name in MISSED:
                marks.append(pytest.mark.xfail(reason="a stated miss", strict=True))
            yield pytest.param(rule, name, id=f"{rule}: {name}", marks=marks)


def rewritten(rule, fn, args):
    graph = jaxsplice.trace(fn, *args)
    return graph, jaxsplice.rewrite(graph, f"normalize,{FAMILIES[rule][0]}{{{rule}}},lower,cleanup")


def test_the_tables_are_as_long_as_promised():
    for _, family in FAMILIES.values():
        names = set(family.POSITIVES)
        assert len(names) >= 25 and len(family.NEAR_MISSES) >= 8
        assert len(names & MISSED) <= 0.1 * len(names)


@pytest.mark.parametrize(("rule", "name"), [*cases("POSITIVES")])
def test_spelling_is_recognised_and_computes_the_same(rule, name):
    fn, args, hits = FAMILIES[rule][1].POSITIVES[name]
    _, result = rewritten(rule, fn, args)
    assert result.report.counts == hits
    assert_computes_the_same(result, fn, args)


@pytest.mark.parametrize(("rule", "name"), [*cases("NEAR_MISSES")])
def test_near_miss_is_left_exactly_as_it_was(rule, name):
    fn, args, reason = FAMILIES[rule][1].NEAR_MISSES[name]
    graph, result = rewritten(rule, fn, args)
    assert result.report.counts == {}
    assert result.after is graph
    said = jaxsplice.explain(graph, rule=rule)
    assert not said.hits and reason and reason in str(said)


LOOPS = [
    "gates inside",
    "norms and scale inside",
    "everything inside, G5",
    "counted loop, at[].set",
    "scan over positions",
]


@pytest.mark.slow
@pytest.mark.parametrize("name", LOOPS)
def test_the_whole_loop_is_replaced_not_its_step(name):
    fn, args, _ = gated_delta_rule.POSITIVES[name]
    _, result = rewritten("gated-delta-rule", fn, args)
    assert result.report.trip_counts == {"gated-delta-rule": 1}
    assert "scan" not in result.after.primitives()


def test_a_step_stays_inside_a_loop_that_is_more_than_the_rule():
    fn, args, _ = gated_delta_rule.POSITIVES["step by step: documents reset the state"]
    _, result = rewritten("gated-delta-rule", fn, args)
    assert result.report.trip_counts == {"gated-delta-rule": gated_delta_rule.TIME}
