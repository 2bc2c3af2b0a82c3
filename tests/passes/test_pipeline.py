"""Pipelines: text prints back to itself, and whatever it cannot mean is one clear error."""

import hypothesis
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

import jaxsplice
from jaxsplice import Case, Op, Pass, Rule
from jaxsplice.passes.errors import PipelineError, VerifyError
from jaxsplice.passes.normalize import VIEWS
from jaxsplice.passes.pipeline import ApplyRules, Library, Normalize
from jaxsplice.passes.rewrite.rule import STAGES
from jaxsplice.runtime.library import PIPELINES, library

X = np.linspace(-1.0, 1.0, 32, dtype=np.float32).reshape(4, 8)


def twice(x):
    return jnp.sin(x) + jnp.sin(x)


def rule_named(name: str, stage: str = "raise") -> Rule:
    op = Op(name, twice)
    return Rule(name, twice, lambda x: op(x), stage=stage, cases=[Case(X)])


# ---------------------------------------------------------------- text
@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("normalize,raise{swiglu,rms-norm},fuse,place,lower,cleanup", None),
        ("normalize{casts,marks},raise,lower", None),
        ("lower", None),
        ("", None),
        ("default", "normalize,raise,fuse,place,lower,cleanup"),
        ("none", "normalize"),
        ("swiglu", "raise{swiglu}"),
        ("conv1d-gdn,reduce-scatter,lower", "fuse{conv1d-gdn},place{reduce-scatter},lower"),
        ("  raise { swiglu , rms-norm } ,  lower ", "raise{swiglu,rms-norm},lower"),
        ("raise{},lower", "raise,lower"),
        (["swiglu", "lower"], "raise{swiglu},lower"),
        (["normalize", "raise{swiglu},lower"], "normalize,raise{swiglu},lower"),
        (["default"], "normalize,raise,fuse,place,lower,cleanup"),
        ([], ""),
    ],
)
def test_prints_as_it_is_written_and_back(text, printed):
    pipeline = library().pipeline(text)
    assert str(pipeline) == (text if printed is None else printed)
    again = library().pipeline(str(pipeline))
    assert again == pipeline and str(again) == str(pipeline)
    assert library().pipeline(pipeline) is pipeline


@st.composite
def texts(draw):
    """Any pipeline text there can be: stages with and without rules, views, rules and passes alone, whole pipelines."""
    rules = {stage: [r.name for r in library().rules if r.stage == stage] for stage in STAGES}
    some = lambda names: draw(st.lists(st.sampled_from(sorted(set(names))), max_size=3, unique=True))
    steps = []
    for _ in range(draw(st.integers(0, 6))):
        name = draw(st.sampled_from(["normalize", *STAGES, *library().passes, *PIPELINES, "swiglu", "reduce-scatter"]))
        options = some(VIEWS if name == "normalize" else rules.get(name, ())) if name in (*STAGES, "normalize") else ()
        blank = draw(st.sampled_from(["", " "]))
        steps.append(f"{blank}{name}{blank}{{{','.join(options)}}}" if options else f"{name}{blank}")
    return ",".join(steps)


@hypothesis.settings(deadline=None, derandomize=True)
@hypothesis.given(texts())
def test_any_text_prints_to_what_means_the_same(text):
    pipeline = library().pipeline(text)
    again = library().pipeline(str(pipeline))
    assert again == pipeline and str(again) == str(pipeline) and again.hash == pipeline.hash


def test_every_view_rule_and_pass_can_be_named():
    names = [*VIEWS, *{r.name for r in library().rules}, *library().passes]
    for name in names:
        step = f"normalize{{{name}}}" if name in VIEWS else name
        (parsed,) = library().pipeline(step).passes
        assert name in str(parsed)


@pytest.mark.parametrize("name", PIPELINES)
def test_a_pipelines_name_inside_text_stands_for_its_text(name):
    assert str(library().pipeline(f"{name},lower")) == f"{PIPELINES[name]},lower"
    assert str(library().pipeline(["swiglu", f" {name} ,lower"])) == f"raise{{swiglu}},{PIPELINES[name]},lower"


def test_pipelines_may_be_made_of_pipelines_but_not_of_themselves():
    own = Library((), {}, {"one": "normalize,two", "two": "raise", "three": "four", "four": "lower,three"})
    assert str(own.pipeline("one,place")) == "normalize,raise,place"
    own.passes["lower"] = Note("lower")
    with pytest.raises(PipelineError, match="pipeline 'three' holds itself: three -> four -> three"):
        own.pipeline("three")


@pytest.mark.parametrize(
    ("passes", "message"),
    [
        ("rais", r"there is no pass, pipeline or rule 'rais'\. Did you mean 'raise'\? Known: .*rms-norm.*"),
        ("normalize,swigl", r"there is no pass, pipeline or rule 'swigl'\. Did you mean 'swiglu'\? Known: .*"),
        ("raise{nope}", r"there is no rule of stage 'raise' 'nope'\. Known: .*swiglu.*"),
        ("raise{conv1d-gdn}", r"there is no rule of stage 'raise' 'conv1d-gdn'\. .*"),
        ("normalize{mark}", r"there is no view 'mark'\. Did you mean 'marks'\? Known: .*"),
        ("lower{x}", r"'lower' takes no options in braces"),
        ("swiglu{x}", r"'swiglu' takes no options in braces"),
        ("raise{swiglu", r"pipeline text 'raise\{swiglu' does not parse at 'raise\{swiglu': write names .*"),
        ("raise,,lower", r"pipeline text 'raise,,lower' does not parse at ',lower': write names .*"),
        ("raise;lower", r"pipeline text 'raise;lower' does not parse at 'raise;lower': write names .*"),
        ("Raise", r"pipeline text 'Raise' does not parse at 'Raise': write names .*"),
        (3, r"passes=3: give a pipeline's name, text such as 'normalize,raise\{swiglu\},lower', or a list .*"),
        (None, r"passes=None: give a pipeline's name, .*"),
        ([3], r"a pipeline holds names, Rules and Passes, not 3"),
    ],
)
def test_what_cannot_be_meant_is_one_clear_error(passes, message):
    for ask in (library().pipeline, lambda p: jaxsplice.optimize(twice, passes=p)):
        with pytest.raises(PipelineError, match=rf"^{message}$") as caught:
            ask(passes)
        assert "\n" not in str(caught.value)


# ---------------------------------------------------------------- lists of Rules and Passes
class Note(Pass):
    """Says how many nodes it saw."""

    def run(self, graph, context):
        context.report.notes.append(f"{self.name}: {sum(graph.primitives().values())} nodes")
        return graph


def test_own_rules_and_passes_run_in_order():
    rule = rule_named("twice")
    graph = jaxsplice.trace(twice, X)
    result = jaxsplice.rewrite(graph, [Note("first"), rule, Note("second")])
    assert result.report.counts == {"twice": 1}
    assert result.report.notes == ["first: 3 nodes", "second: 1 nodes"]
    assert str(library().pipeline([Note("first"), rule])) == "first,raise{twice}"
    np.testing.assert_allclose(result.after(X), twice(X), rtol=1e-6)


@pytest.mark.parametrize("single", [rule_named("twice"), Note("note")], ids=["rule", "pass"])
def test_one_rule_or_pass_needs_no_list(single):
    (step,) = library().pipeline(single).passes
    assert step is single if isinstance(single, Pass) else step.rules == (single,)


def test_a_pass_that_does_nothing_says_so():
    with pytest.raises(PipelineError, match=r"pass 'lazy' defines neither run\(graph, context\) nor edit"):
        jaxsplice.rewrite(jaxsplice.trace(twice, X), [Pass("lazy")])


def test_a_pass_that_breaks_the_signature_is_caught_and_the_original_unharmed(tmp_path):
    class Shorten(Pass):
        def run(self, graph, context):
            return graph.with_jaxpr(jaxsplice.trace(lambda x: x[:2], X).to_jaxpr())

    graph = jaxsplice.trace(twice, X)
    with pytest.raises(VerifyError, match=r"internal error, VerifyError: result 0: .*a reproducer is in "):
        jaxsplice.rewrite(graph, [Shorten("shorten")], verify="strict", dump_dir=tmp_path)
    result = jaxsplice.rewrite(graph, [Shorten("shorten")], dump_dir=tmp_path)
    assert result.after is graph and "internal error, VerifyError: result 0" in result.report.warnings[0]


def test_an_empty_pipeline_gives_the_graph_itself():
    graph = jaxsplice.trace(twice, X)
    for passes in ("", "none", []):
        assert jaxsplice.rewrite(graph, passes).after is graph


def test_rules_asked_for_by_name_that_never_fire_are_noted():
    graph = jaxsplice.trace(jnp.sin, X)
    assert jaxsplice.rewrite(graph, "raise").report.notes == []
    (note,) = jaxsplice.rewrite(graph, "raise{swiglu}").report.notes
    assert note.startswith("rule swiglu was asked for and never fired")


# ---------------------------------------------------------------- a library of one's own
def test_a_library_knows_only_its_own_names():
    own = Library((rule_named("twice"), rule_named("pair", "fuse")), {"note": Note("note")}, {"mine": "raise,note"})
    assert str(own.pipeline("mine")) == "raise,note"
    assert own.pipeline("pair,twice").passes == (
        ApplyRules("fuse", own.rules[1:], ("pair",)), ApplyRules("raise", own.rules[:1], ("twice",))
    )  # fmt: skip
    with pytest.raises(
        PipelineError, match=r"'swiglu'\. Known: fuse, mine, normalize, note, pair, place, raise, twice"
    ):
        own.pipeline("swiglu")


@pytest.mark.parametrize(("views", "hits"), [((), 1), (("functions",), 0)])
def test_normalize_chooses_the_views_that_later_stages_use(views, hits):
    op = Op("flat", lambda x: jnp.tanh(x) * 2.0)
    rule = Rule("flat", op.reference, lambda x: op(x), cases=[Case(X)])
    other = lambda x: 2.0 * jnp.tanh(x)
    result = jaxsplice.rewrite(jaxsplice.trace(other, X), [Normalize("normalize", views), rule])
    assert result.report.counts.get("flat", 0) == hits
