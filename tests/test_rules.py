"""What every rule must do, written once. A new rule file is tested by being there."""

import functools
import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsplice
from jaxsplice.passes.ir import jaxprs
from jaxsplice.passes.rewrite import measure

from . import rule_cases
from .rule_cases import GRAPH_RULES, Program, all_programs, first_programs, pipeline_of

GOLDEN = Path(__file__).parent / "golden"
by_rule = pytest.mark.parametrize("program", first_programs(), ids=lambda p: p.name)
by_case = pytest.mark.parametrize("program", all_programs(), ids=lambda p: p.name)


def rewrite(fn, args, rule, **options):
    return jaxsplice.rewrite(jaxsplice.trace(fn, *args), list(pipeline_of(rule)), **options)


def close(got, expected, factor=1.0):
    got, expected = jax.tree.leaves(got), jax.tree.leaves(expected)
    limit = factor * measure.default_tolerance([jax.typeof(x) for x in expected])
    error = measure.largest_error([np.asarray(x, _wide(x)) for x in got], [np.asarray(x, _wide(x)) for x in expected])
    assert error <= limit, f"{error:.1e} > {limit:.1e}"


def _wide(x):
    return np.float64 if jnp.issubdtype(jnp.result_type(x), jnp.floating) else None


@by_case
def test_fires_once_on_its_own_pattern_and_computes_the_same(program: Program):
    args = program.arrays()
    result = rewrite(program.fn, args, program.rule)
    assert result.report.counts == {program.rule.name: 1}
    close(result.after(*args), program.fn(*args), factor=4.0)


@by_case
def test_certificate_is_recorded_with_its_claims(program: Program):
    result = rewrite(program.fn, program.case.args, program.rule)
    (certificate,) = result.certificates
    assert certificate.rule == program.rule.name
    assert certificate.match.kind == "exact"  # its own pattern, spelled its own way
    assert certificate.rewrite.kind in ("exact", "reassociated", "numeric")
    assert "patterns" in certificate.source or "jaxsplice" in certificate.source


@by_rule
def test_golden_dumps(program: Program):
    result = rewrite(program.fn, program.case.args, program.rule)
    check_golden(program.name, result)


@by_rule
def test_idempotent(program: Program):
    once = rewrite(program.fn, program.case.args, program.rule)
    twice = jaxsplice.rewrite(once.after, list(pipeline_of(program.rule)))
    assert twice.after is once.after
    assert twice.report.counts == {}


@by_rule
def test_fires_under_jit(program: Program):
    result = rewrite(jax.jit(lambda *a: jax.jit(program.fn)(*a)), program.case.args, program.rule)
    assert result.report.counts == {program.rule.name: 1}


@by_rule
def test_fires_inside_scan(program: Program):
    def looped(*args):
        return jax.lax.scan(lambda carry, _: (carry, program.fn(*args)), 0, None, length=3)[1]

    result = rewrite(looped, program.case.args, program.rule)
    assert result.report.counts == {program.rule.name: 1}
    assert result.report.trip_counts == {program.rule.name: 3}


@by_rule
def test_fires_inside_cond(program: Program):
    def branched(flag, *args):
        return jax.lax.cond(flag, lambda: program.fn(*args), lambda: program.fn(*[-a for a in args if a is not None]))

    args = [a for a in program.case.args if a is not None]
    result = rewrite(branched, (jax.ShapeDtypeStruct((), bool), *args), program.rule)
    assert result.report.counts.get(program.rule.name, 0) >= 1


@by_rule
def test_twice_in_one_program(program: Program):
    def twice(*args):
        return program.fn(*args), program.fn(*[a * 2 if _is_float(a) else a for a in args])

    args = [a for a in program.case.args if a is not None]
    result = rewrite(twice, args, program.rule)
    assert result.report.counts == {program.rule.name: 2}


def _is_float(a) -> bool:
    return jnp.issubdtype(a.dtype, jnp.floating)


@by_rule
def test_operands_commuted(program: Program):
    graph = jaxsplice.trace(program.fn, *program.case.args)
    swapped = jaxsplice.Graph.from_jaxpr(_commuted(graph.to_jaxpr()))
    result = jaxsplice.rewrite(swapped, list(pipeline_of(program.rule)))
    assert result.report.counts == {program.rule.name: 1}


def _commuted(closed):
    """Every product, sum and maximum with its operands in the other order, at any depth."""
    body = jaxprs.open_jaxpr(closed)
    eqns = []
    for eqn in body.eqns:
        inner = jaxprs.children(eqn)
        if inner:
            eqn = jaxprs.with_children(eqn, [_commuted(c.jaxpr) for c in inner])
        elif eqn.primitive.name in ("mul", "add", "max"):
            eqn = eqn.replace(invars=eqn.invars[::-1])
        eqns.append(eqn)
    return jaxprs.rebuild(closed, eqns=eqns)


@by_rule
def test_inner_value_also_returned_is_refused_or_kept(program: Program):
    args = program.arrays()
    graph = jaxsplice.trace(program.fn, *args)
    closed = graph.to_jaxpr()
    body = jaxprs.open_jaxpr(closed)
    inner = [v for e in body.eqns for v in e.outvars if v not in body.outvars and not isinstance(v, jaxprs.DropVar)]
    for var in inner[:: max(1, len(inner) // 4)]:
        exposed = jaxsplice.Graph.from_jaxpr(jaxprs.rebuild(closed, eqns=body.eqns, outvars=[*body.outvars, var]))
        result = jaxsplice.rewrite(exposed, list(pipeline_of(program.rule)))
        flat = jax.tree.leaves(args)
        close(result.after(*flat), exposed(*flat), factor=4.0)


@by_rule
def test_same_gradients(program: Program):
    args = program.arrays()
    moving = [i for i, a in enumerate(args) if a is not None and _is_float(jnp.asarray(a))]

    def loss(fn, *values):
        full = list(args)
        for i, v in zip(moving, values):
            full[i] = v
        return sum(jnp.sum(jnp.sin(x.astype(jnp.float32))) for x in jax.tree.leaves(fn(*full)) if _is_float(x))

    fast = jaxsplice.optimize(program.fn, passes=[*pipeline_of(program.rule), "lower"])
    values = [args[i] for i in moving]
    argnums = tuple(range(len(values)))
    got = jax.grad(functools.partial(loss, fast), argnums)(*values)
    close(got, jax.grad(functools.partial(loss, program.fn), argnums)(*values), factor=100.0)


@by_rule
def test_vmapped_call_computes_the_same(program: Program):
    args = program.arrays()
    if program.rule.name == "grouped-swiglu":
        pytest.skip("JAX has no batching rule for ragged_dot with shared weights") if len(args) == 4 else None
    stacked = [jnp.stack([a, a * 2 if _is_float(jnp.asarray(a)) else a]) for a in map(jnp.asarray, args)]
    fast = jaxsplice.optimize(program.fn, passes=[*pipeline_of(program.rule), "lower"])
    close(jax.vmap(fast)(*stacked), jax.vmap(program.fn)(*stacked), factor=10.0)


@by_rule
def test_new_equations_keep_the_users_line(program: Program):
    result = rewrite(program.fn, program.case.args, program.rule)
    for node in result.after.nodes:
        assert node.source.file, f"{node} has lost its source line"


@by_rule
def test_before_and_after_take_the_same_and_are_documented(program: Program):
    rule = program.rule
    assert rule.benefit and rule.before.__doc__ and rule.after.__doc__
    assert rule.tolerance is None or rule.tolerance_reason


NEAR_MISSES = [(r, m) for r in [*rule_cases.PATTERN_RULES, *GRAPH_RULES] for m in r.near_misses]
MISS_NAMES = [f"{r.name}-{getattr(m.fn, '__name__', '').strip('_<>')}-{i}" for i, (r, m) in enumerate(NEAR_MISSES)]


@pytest.mark.parametrize(("rule", "miss"), NEAR_MISSES, ids=MISS_NAMES)
def test_near_miss_is_refused_with_its_reason(rule, miss):
    fn, args = sharded(miss.fn, miss.args, miss.axis_sizes)
    graph = jaxsplice.trace(fn, *args)
    result = jaxsplice.rewrite(graph, list(pipeline_of(rule)))
    assert result.report.counts.get(rule.name, 0) == 0
    assert result.after is graph
    said = str(jaxsplice.explain(graph, rule=rule.name, limit=50))
    assert miss.reason and miss.reason in said, said


def sharded(fn, args, axis_sizes):
    """A program with collectives inside a shard_map over as many devices as its axes need; others as they are."""
    if not axis_sizes:
        return fn, args
    names, count = tuple(axis_sizes), int(np.prod(list(axis_sizes.values())))
    devices = np.array(jax.devices()[:count]).reshape(tuple(axis_sizes.values()))
    mesh = jax.sharding.Mesh(devices, names)
    rows = jax.sharding.PartitionSpec(names)
    outer = [jax.ShapeDtypeStruct((count * a.shape[0], *a.shape[1:]), a.dtype) for a in args]
    run = jax.shard_map(fn, mesh=mesh, in_specs=rows, out_specs=rows, check_vma=False)
    return run, outer


GRAPH_CASES = [(r, c) for r in GRAPH_RULES for c in r.cases]
by_graph_case = pytest.mark.parametrize(
    ("rule", "case"), GRAPH_CASES, ids=[f"{r.name}-{c.fn.__name__.strip('_')}" for r, c in GRAPH_CASES]
)


@by_graph_case
def test_graph_rule_fires_and_computes_the_same_on_devices(rule, case):
    fn, shapes = sharded(case.fn, case.args, case.axis_sizes)
    args = rule_cases.random_arrays(shapes)
    result = jaxsplice.rewrite(jaxsplice.trace(fn, *args), [rule])
    assert result.report.counts == {rule.name: case.hits}
    before, after = jax.jit(fn)(*args), jax.jit(result.after)(*args)
    for a, b in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
        if rule.equation == "exact":
            np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
        else:
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)


@by_graph_case
def test_graph_rule_golden_and_idempotent(rule, case):
    fn, shapes = sharded(case.fn, case.args, case.axis_sizes)
    result = jaxsplice.rewrite(jaxsplice.trace(fn, *shapes), [rule])
    assert jaxsplice.rewrite(result.after, [rule]).after is result.after
    check_golden(f"{rule.name}-{case.fn.__name__.strip('_')}-{case.args[-1].dtype}", result)


def check_golden(name: str, result) -> None:
    file, text = GOLDEN / f"{name}.txt", f"{result.before}\n\n{result.after}\n"
    if os.environ.get("JAXSPLICE_UPDATE_GOLDEN"):
        file.write_text(text)
    assert text == file.read_text(), f"{file.name} differs; JAXSPLICE_UPDATE_GOLDEN=1 writes it anew"
