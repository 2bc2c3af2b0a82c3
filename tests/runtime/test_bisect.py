"""bisect: the first rewrite that breaks a check is found with few checks, and shown with all that is known of it."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsplice
from jaxsplice import Case, JaxspliceError, Op, Pass, Rule

X = np.linspace(-1.0, 1.0, 32, dtype=np.float32).reshape(4, 8)
SHAPE = jax.ShapeDtypeStruct((4, 8), jnp.float32)
SINE, COSINE = Op("sine", jnp.sin), Op("cosine", jnp.cos)
GOOD = Rule("sine", jnp.sin, lambda x: SINE(x), cases=[Case(X)])
# right where it is measured, wrong for large numbers: only trusted with verify="off"
WRONG = Rule("cosine", jnp.cos, lambda x: COSINE(x) * 1.01, cases=[Case(X)])
HARMLESS = Rule("tangent", jnp.tan, lambda x: jnp.tan(x) * 1.0, cases=[Case(X)])


def waves(x):
    for i in range(20):
        x = jnp.sin(x + i)
    y = jnp.cos(x) * 3.0
    for i in range(11):
        x = jnp.sin(x - i)
    return x + y


def line_of_the_cosine() -> int:
    return waves.__code__.co_firstlineno + 3


# ---------------------------------------------------------------- what is found
@pytest.mark.parametrize("order", [[GOOD, WRONG], [WRONG, GOOD]], ids=["last rule", "first rule"])
def test_the_rewrite_that_changes_numbers_is_found(order):
    culprit = jaxsplice.bisect(waves, X, passes=order, verify="off")
    assert (culprit.row.rule, culprit.rewrites) == ("cosine", 32)
    assert culprit.number == (32 if order[0] is GOOD else 1)
    assert (culprit.row.source.file, culprit.row.source.line) == (__file__, line_of_the_cosine())
    assert culprit.row.certificate.kind == "assumed" and culprit.complaint.startswith("AssertionError: results are off")
    before, after = culprit.before.primitives(), culprit.after.primitives()
    assert before["cos"] == 1 and "cosine" not in before and after["cosine"] == 1 and "cos" not in after
    np.testing.assert_allclose(culprit.before(X), waves(X), rtol=1e-5, atol=1e-6)


def test_what_is_printed_and_written_says_rule_certificate_and_line(tmp_path):
    culprit = jaxsplice.bisect(waves, SHAPE, passes=[GOOD, WRONG], verify="off")
    first, replaced, certificate, said = str(culprit).splitlines()
    assert first == f"rewrite 32 of 32 breaks the check: rule cosine at {culprit.row.source}"
    assert replaced == "  replaced: cos" and certificate.startswith("  certificate: match exact, rewrite assumed")
    assert said.startswith("  check: AssertionError: results are off by ")
    files = culprit.save(tmp_path / "new")
    assert [file.name for file in files] == ["culprit.txt", "before.txt", "after.txt", "diff.txt"]
    texts = {file.name: file.read_text() for file in files}
    assert texts["culprit.txt"] == f"{culprit}\n"
    changed = [line for line in texts["diff.txt"].splitlines() if line[0] in "+-" and line[:3] not in ("+++", "---")]
    assert [line.split(" = ")[1].split("(")[0] for line in changed] == ["cos", "cosine", "mul"]
    assert "# cosine: match exact, rewrite assumed" in texts["after.txt"] and "cosine" not in texts["before.txt"]


def test_sound_rewrites_give_nothing():
    assert jaxsplice.bisect(waves, X, passes=[GOOD, HARMLESS]) is None
    assert jaxsplice.bisect(jnp.exp, X, passes=[GOOD]) is None


@pytest.mark.parametrize("breaking", [1, 2, 3, 16, 30, 31])
def test_a_check_of_ones_own_is_asked_about_log_n_programs(breaking):
    asked = []

    def check(before, after):
        asked.append(after.primitives().get("sine", 0))
        assert before.primitives()["sin"] == 31
        return asked[-1] < breaking

    culprit = jaxsplice.bisect(waves, SHAPE, passes=[GOOD], check=check)
    assert culprit.number == breaking and culprit.row.rule == "sine" and culprit.complaint == "it gave False"
    assert len(asked) <= 2 + math.ceil(math.log2(31))
    assert culprit.before.primitives().get("sine", 0) == breaking - 1


def test_a_check_that_raises_says_what():
    def check(before, after):
        if after.primitives().get("sine", 0) >= 3:
            raise ValueError("three sines")

    culprit = jaxsplice.bisect(waves, SHAPE, passes=[GOOD], check=check)
    assert culprit.number == 3 and culprit.complaint.startswith("ValueError: three sines (")


def test_arrays_given_are_used_as_they_are():
    """The wrong rule below is wrong for numbers that random arguments do not reach."""
    far = Rule("far", jnp.cos, lambda x: jnp.where(jnp.abs(x) < 50.0, COSINE(x), 0.0), cases=[Case(X)])
    assert jaxsplice.bisect(jnp.cos, SHAPE, passes=[far]) is None
    assert jaxsplice.bisect(jnp.cos, 100.0 * np.ones((4, 8), np.float32), passes=[far]).row.rule == "far"


def test_graphs_static_arguments_and_pytrees():
    def fn(tree, n, *, flip):
        return {"out": jnp.cos(tree["x"]) * n * (-1 if flip else 1)}

    options = {"passes": [WRONG], "verify": "off", "static_argnums": 1, "static_argnames": "flip"}
    assert jaxsplice.bisect(fn, {"x": X}, 2, flip=True, **options).number == 1
    assert jaxsplice.bisect(jaxsplice.trace(waves, X), passes=[WRONG], verify="off").number == 1


# ---------------------------------------------------------------- what cannot be searched
def test_a_check_that_fails_anyway_is_no_culprit():
    with pytest.raises(JaxspliceError, match="the check fails before any rewrite: it gave False"):
        jaxsplice.bisect(waves, SHAPE, passes=[GOOD], check=lambda before, after: False)


def test_a_pipeline_that_fails_itself_is_said(tmp_path, monkeypatch):
    class Breaks(Pass):
        def run(self, graph, context):
            raise KeyError("missing")

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(JaxspliceError, match="nothing to bisect, the pipeline itself fails: internal error, KeyError"):
        jaxsplice.bisect(waves, SHAPE, passes=[GOOD, Breaks("breaks")])


def test_types_without_random_values_need_arrays_or_a_check():
    key = jax.eval_shape(lambda: jax.random.key(0))
    fn = lambda key: jnp.sin(jax.random.normal(key, (4, 8)))
    with pytest.raises(JaxspliceError, match=r"no random arguments of dtype key<fry>: give arrays, or a check"):
        jaxsplice.bisect(fn, key, passes=[GOOD])
    assert jaxsplice.bisect(fn, jax.random.key(0), passes=[GOOD]) is None


def test_a_folder_that_cannot_be_written_is_one_clear_error(tmp_path):
    (tmp_path / "taken").write_text("mine")
    culprit = jaxsplice.bisect(waves, SHAPE, passes=[WRONG], verify="off")
    with pytest.raises(JaxspliceError, match=r"cannot write into .*taken: .*give a folder"):
        culprit.save(tmp_path / "taken")
