"""Fingerprints: equal for equal code and options, also in another process; other when anything that counts is other."""

import dataclasses
import functools
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsplice
from jaxsplice import Case, Op, Refuse, Rule
from jaxsplice.passes.fingerprint import combined, fingerprint
from jaxsplice.passes.pipeline import Library, Normalize, Pass
from jaxsplice.runtime.library import library

X = np.ones((4, 8), np.float32)
SINE = Op("sine", jnp.sin)
LIMIT = 3


def rule(limit=4, before=jnp.sin, tolerance=None, name="sine", factor=None) -> Rule:
    def where(x):
        if x.shape[0] > limit:
            raise Refuse(f"more than {limit} rows")

    after = (lambda x: SINE(x)) if factor is None else (lambda x: SINE(x) * factor)
    return Rule(name, before, after, where=where, cases=[Case(X)], tolerance=tolerance)


def hash_of(*passes) -> str:
    return library().pipeline(list(passes)).hash


def test_equal_rules_have_equal_hashes():
    assert hash_of(rule()) == hash_of(rule())
    assert hash_of("normalize", rule(), "lower") == hash_of("normalize", rule(), "lower")
    assert len(hash_of("default")) == 16 and int(hash_of("default"), 16)


@pytest.mark.parametrize(
    "other",
    [
        [rule(5)], [rule(before=lambda x: jnp.sin(x))], [rule(tolerance=1e-3)], [rule(name="sinus")],
        [rule(factor=np.ones(3))], [rule(), "lower"], ["normalize{casts}", rule()], [rule(), rule()], [],
    ],
)  # fmt: skip
def test_whatever_counts_changes_the_hash(other):
    assert hash_of(*other) != hash_of(rule())


def test_what_a_function_uses_counts(monkeypatch):
    def hashed():
        fingerprint.cache_clear()
        return combined([uses_the_limit])

    first = hashed()
    assert hashed() == first
    monkeypatch.setitem(globals(), "LIMIT", 4)
    assert hashed() != first
    monkeypatch.undo()
    monkeypatch.setitem(globals(), "inner", lambda x: x + 2)
    assert hashed() != first


def inner(x):
    return x + 1


def uses_the_limit(x):
    return inner(x) if x.shape[0] < LIMIT else (lambda y: y + LIMIT)(x)


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (np.ones(3), np.zeros(3)), (np.ones(3), np.ones(3, np.float32)), ((1, 2), (2, 1)), (1, True), (1, 1.0),
        ({"a": 1}, {"a": 2}), ({1, 2}, {1, 3}), ("a", b"a"), (jnp.ones(3), jnp.zeros(3)),
        (functools.partial(inner, 1), functools.partial(inner, 2)),
        (jax.jit(lambda x: x + 1), jax.jit(lambda x: x + 2)),
        (jax.custom_jvp(lambda x: x + 1), jax.custom_jvp(lambda x: x + 2)),
        ((lambda f: lambda x: f(x))(jax.jit(lambda x: x + 1)), (lambda f: lambda x: f(x))(jax.jit(lambda x: x + 2))),
         (lambda x, n=1: x, lambda x, n=2: x),
        (lambda x: x + 1, lambda x: x + 2), (lambda x: jnp.sin(x), lambda x: jnp.cos(x)), (jnp.sin, jnp.cos),
    ],
)  # fmt: skip
def test_values_are_told_apart(one, two):
    assert combined([one]) == combined([one]) != combined([two])


def test_order_of_sets_and_mappings_does_not_count():
    assert combined([{"a": 1, "b": 2}]) == combined([{"b": 2, "a": 1}])
    assert combined([set("abc")]) == combined([set("cba")])


def test_functions_that_call_themselves_end():
    def loop(x):
        return loop(x - 1) if x > 0 else x

    circle = []
    circle.append(circle)
    assert combined([loop]) == combined([loop]) and combined([circle])


def test_own_passes_count_by_their_code_and_options():
    @dataclasses.dataclass(frozen=True)
    class Scale(Pass):
        factor: float = 1.0

        def run(self, graph, context):
            return graph

    class Other(Pass):
        def run(self, graph, context):
            return graph.with_jaxpr(graph.to_jaxpr())

    hashes = {hash_of(p) for p in (Scale("s"), Scale("s", 2.0), Other("s"), Normalize("s"))}
    assert len(hashes) == 4 and hash_of(Scale("s", 2.0)) in hashes


def test_another_process_gives_the_same_hash():
    code = "from jaxsplice.runtime.library import library; print(library().pipeline('default').hash)"
    env = {**os.environ, "PYTHONPATH": "src", "PYTHONHASHSEED": "7"}
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
    assert ran.stdout.strip() == hash_of("default")


def test_optimised_functions_are_kept_by_their_pipelines_hash():
    """One cache may hold signatures of several pipelines without mixing them up."""
    fast = jaxsplice.optimize(jnp.sin, passes=[rule()])
    fast(X)
    (key,) = fast._cache
    assert key[0] == hash_of(rule())


def test_rules_with_other_options_are_not_served_from_what_was_proved_before():
    for limit, hits in ((4, 1), (3, 0), (4, 1)):
        assert jaxsplice.optimize(jnp.sin, passes=[rule(limit)]).lower(X).report.counts.get("sine", 0) == hits


def test_hashing_all_rules_is_quick_and_kept():
    own = Library(library().rules, library().passes, library().pipelines)
    assert own.pipeline("default").hash == library().pipeline("default").hash
