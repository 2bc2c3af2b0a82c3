"""When something fails inside: a rule's own code is a logged non-match, all else gives the program as it was.

With verify="strict" both are raised. What is left behind is a folder to look into.
"""

import os
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl import logging

import jaxsplice
from jaxsplice import Case, GraphRule, JaxspliceError, Op, Pass, Rule
from jaxsplice.passes import pipeline
from jaxsplice.passes.errors import InternalError, RuleError, VerifyError
from jaxsplice.runtime import rewrite as runtime_rewrite

X = np.linspace(-1.0, 1.0, 32, dtype=np.float32).reshape(4, 8)
SINE = Op("sine", jnp.sin)
GOOD = Rule("sine", jnp.sin, lambda x: SINE(x), cases=[Case(X)])


def program(x):
    return jnp.sin(x) * jnp.cos(x)


def fails(*_, **__):
    raise ZeroDivisionError("no luck")


def fails_when_large(x):
    return jnp.cos(x) if x.shape[0] < 4 else fails()


def find_fails_late(region, refuse):
    yield from ()
    fails()


SMALL = jax.ShapeDtypeStruct((2, 8), jnp.float32)
BROKEN = {
    "where": lambda: Rule("broken", jnp.cos, lambda x: jnp.cos(x), where=fails, cases=[Case(X)]),
    "after": lambda: Rule("broken", jnp.cos, fails_when_large, cases=[Case(SMALL)]),
    "before": lambda: Rule("broken", lambda x: fails(x), jnp.cos, cases=[Case(X)]),
    "unless": lambda: Rule("broken", jnp.cos, jnp.cos, unless={"nothing": lambda x: fails()}, cases=[Case(X)]),
    "find": lambda: GraphRule("broken", find=find_fails_late, equation="exact", stage="raise"),
    "proof": lambda: Rule("broken", jnp.cos, lambda x: jnp.sin(x + np.pi / 2), sample=fails, cases=[Case(X)]),
}


@pytest.fixture
def warned(monkeypatch):
    seen = []
    monkeypatch.setattr(logging, "warning", lambda text, *args: seen.append(text % args))
    return seen


# ---------------------------------------------------------------- a rule's own code
@pytest.mark.parametrize("part", BROKEN)
def test_a_rule_that_fails_is_a_logged_non_match_and_others_go_on(part, warned):
    result = jaxsplice.rewrite(jaxsplice.trace(program, X), [BROKEN[part](), GOOD])
    assert result.report.counts == {"sine": 1}
    np.testing.assert_allclose(result.after(X), program(X), rtol=1e-6)
    sentence = rf"rule broken: its {part} failed: ZeroDivisionError: no luck \({re.escape(__file__)}:\d+\)"
    assert any(re.fullmatch(sentence, note) for note in result.report.warnings)
    assert any(re.fullmatch(f"jaxsplice, rewriting program: {sentence}", text) for text in warned)
    assert any(re.fullmatch(sentence, why) for why in result.report.statistics["broken"].refusals)
    assert "its" in str(result.report)


@pytest.mark.parametrize("part", BROKEN)
def test_a_rule_that_fails_is_raised_when_strict(part):
    with pytest.raises(RuleError, match=f"rule broken: its {part} failed: ZeroDivisionError: no luck") as caught:
        jaxsplice.rewrite(jaxsplice.trace(program, X), [BROKEN[part]()], verify="strict")
    causes = [caught.value]
    while causes[-1].__cause__ is not None:
        causes.append(causes[-1].__cause__)
    assert any(isinstance(cause, ZeroDivisionError) for cause in causes)


def test_one_place_that_fails_leaves_the_others():
    def where(x):
        return fails() if x.shape[0] == 4 else None

    rule = Rule("sine", jnp.sin, lambda x: SINE(x), where=where, cases=[Case(X)])
    result = jaxsplice.rewrite(jaxsplice.trace(lambda x: (jnp.sin(x), jnp.sin(x[:2]), jnp.sin(x[:3])), X), [rule])
    assert result.report.counts == {"sine": 2}


def test_a_failing_measurement_is_tried_again_and_says_so_each_time():
    """It is no disproof: nothing is remembered of it."""
    for _ in range(2):
        report = jaxsplice.rewrite(jaxsplice.trace(program, X), [BROKEN["proof"]()]).report
        assert report.counts == {} and len(report.warnings) == 2  # the failure, and that it never fired


# ---------------------------------------------------------------- jaxsplice itself
class Breaks(Pass):
    """Fails as a bug of ours would."""

    def run(self, graph, context):
        return {}["missing"]


class Shortens(Pass):
    """Gives a program of another signature."""

    def run(self, graph, context):
        return graph.with_jaxpr(jaxsplice.trace(lambda x: jnp.sin(x)[:2], X).to_jaxpr())


@pytest.mark.parametrize(("step", "error"), [(Breaks("breaks"), "KeyError"), (Shortens("shortens"), "VerifyError")])
def test_an_internal_error_gives_the_program_as_it_was(step, error, warned, tmp_path):
    graph = jaxsplice.trace(program, X)
    result = jaxsplice.rewrite(graph, [GOOD, step], dump_dir=tmp_path)
    assert result.after is graph and result.report.counts == {} and result.certificates == []
    np.testing.assert_array_equal(result(X), graph(X))
    (text,) = [text for text in warned if "internal error" in text]
    assert f"internal error, {error}: " in text and "The program is used as it was given" in text
    folder = Path(re.search(r"a reproducer is in (\S+)\.", text).group(1))
    assert folder.parent == tmp_path and folder.name.startswith("program_crash_")


@pytest.mark.parametrize(
    ("step", "kind"), [(Breaks("breaks"), InternalError), (Shortens("shortens"), VerifyError)], ids=["crash", "types"]
)
def test_an_internal_error_is_raised_when_strict(step, kind, tmp_path):
    with pytest.raises(kind, match=r"internal error, .*; a reproducer is in ") as caught:
        jaxsplice.rewrite(jaxsplice.trace(program, X), [step], verify="strict", dump_dir=tmp_path)
    assert type(caught.value) is kind and caught.value.__cause__ is not None
    assert any(path.name.startswith("program_crash_") for path in tmp_path.iterdir())


def test_an_optimised_function_still_runs_under_every_transformation(warned):
    fast = jaxsplice.optimize(program, passes=[GOOD, Breaks("breaks")])
    np.testing.assert_array_equal(jax.jit(fast)(X), jax.jit(program)(X))
    total = lambda fn: lambda x: fn(x).sum()
    np.testing.assert_allclose(jax.grad(total(fast))(X), jax.grad(total(program))(X), rtol=1e-6)
    np.testing.assert_array_equal(fast(X), jax.jit(program)(X))
    assert any("KeyError" in text for text in warned)


def test_errors_of_the_engine_itself_are_caught_too(monkeypatch, tmp_path):
    monkeypatch.setattr(pipeline, "emit", fails)
    result = jaxsplice.rewrite(jaxsplice.trace(program, X), [GOOD], dump_dir=tmp_path)
    assert result.after is result.before and "ZeroDivisionError" in result.report.warnings[-1]


@pytest.mark.parametrize("passes", ["no-such-pass", [Pass("lazy")]])
def test_what_the_caller_did_wrong_is_still_raised(passes):
    with pytest.raises(JaxspliceError):
        jaxsplice.rewrite(jaxsplice.trace(program, X), passes)


# ---------------------------------------------------------------- the reproducer
def reproducer(fn, *args, folder):
    jaxsplice.rewrite(jaxsplice.trace(fn, *args), ["normalize", Breaks("breaks")], "tpu7x", dump_dir=folder)
    (made,) = [path for path in folder.iterdir() if "_crash_" in path.name]
    return made


def test_a_reproducer_holds_program_pipeline_versions_and_traceback(tmp_path):
    folder = reproducer(program, X, folder=tmp_path)
    assert sorted(os.listdir(folder)) == [
        "graph.txt", "pipeline.txt", "program.jax_export", "traceback.txt", "versions.txt"
    ]  # fmt: skip
    text = {path.name: path.read_text() for path in folder.glob("*.txt")}
    assert text["graph.txt"].startswith("program(%0: f32[4,8]) {") and __file__ in text["graph.txt"]
    first, second, third = text["pipeline.txt"].splitlines()
    assert first == "normalize,breaks" and re.fullmatch("hash [0-9a-f]{16}", second)
    assert third == "target tpu7x, verify auto, stop_after None"
    assert f"jax {jax.__version__}\n" in text["versions.txt"] and "python 3." in text["versions.txt"]
    assert text["traceback.txt"].rstrip().endswith("KeyError: 'missing'")
    exported = jax.export.deserialize(bytearray((folder / "program.jax_export").read_bytes()))
    np.testing.assert_array_equal(exported.call(X)[0], jax.jit(program)(X))


def test_what_cannot_be_exported_says_why(tmp_path):
    def talks(x):
        return jax.pure_callback(lambda a: np.asarray(a), jax.typeof(x), x)

    folder = reproducer(talks, jnp.asarray(X), folder=tmp_path)
    assert "could not be made: " in (folder / "program.jax_export.txt").read_text()


def test_without_a_dump_folder_it_is_a_temporary_one(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    jaxsplice.rewrite(jaxsplice.trace(program, X), [Breaks("breaks")])
    (folder,) = tmp_path.iterdir()
    assert folder.name.startswith("jaxsplice_program_crash_")


def test_a_reproducer_that_cannot_be_written_is_no_second_error(monkeypatch, tmp_path):
    (tmp_path / "taken").write_text("mine")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "taken"))
    result = jaxsplice.rewrite(jaxsplice.trace(program, X), [Breaks("breaks")])
    assert result.after is result.before and "no reproducer could be written: " in result.report.warnings[0]


def test_a_printer_that_fails_does_not_hide_the_error(monkeypatch, tmp_path):
    monkeypatch.setattr(runtime_rewrite.write_reproducer.__globals__["to_text"].__globals__["Names"], "of", fails)
    graph = jaxsplice.trace(program, X)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    result = jaxsplice.rewrite(graph, [Breaks("breaks")])
    (folder,) = tmp_path.iterdir()
    assert "KeyError" in result.report.warnings[0]
    assert (folder / "graph.txt").read_text().startswith("could not be made: ZeroDivisionError: no luck")
