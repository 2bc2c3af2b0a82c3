"""Certificates: on the nodes of a rewrite, in every dump, counted by kind; strict takes the strongest only."""

import collections
import json

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import pytest

import jaxsplice
from jaxsplice import Case, Implementation, Instrument, Op, Pass, Rule
from jaxsplice.passes.ir import jaxprs
from jaxsplice.passes.report import Report, Row
from jaxsplice.passes.rewrite import prove
from jaxsplice.passes.rewrite.certificate import EXACT, KINDS, REASSOCIATED, Certificate, Claim

from .rewrite import rules

X = np.linspace(-1.0, 1.0, 32, dtype=np.float32).reshape(4, 8)
A = jax.ShapeDtypeStruct((8, 16), jnp.float32)


def gate(x, a, b):
    return jnp.tanh(jax.nn.silu(x @ a) * (x @ b))


def loop(x):
    return jax.lax.scan(lambda c, _: (rules.damped(c) + 1.0, None), x, None, length=3)[0]


def damped_rule(reference=rules.damped, **options) -> Rule:
    return rules.rule_for(Op("damped", reference), **options)


def certificates_by_primitive(graph) -> dict[str, set]:
    found = collections.defaultdict(set)
    for node in graph.nodes:
        found[node.primitive].add(node.certificate)
    return dict(found)


# ---------------------------------------------------------------- on the nodes
@pytest.mark.parametrize("program", [rules.damped, loop], ids=["straight", "in a loop"])
def test_the_nodes_of_a_rewritten_graph_have_their_certificates(program):
    result = jaxsplice.rewrite(jaxsplice.trace(program, X), [damped_rule(), "lower", "cleanup"])
    found = certificates_by_primitive(result.after)
    assert found.pop("damped") == {result.certificates[0]}
    assert set().union(*found.values(), set()) <= {None}
    assert result.certificates[0].implementation == EXACT  # the final one, lower included


def test_all_nodes_of_one_rewrite_have_one_certificate():
    sine, cosine = Op("sine", jnp.sin), Op("cosine", jnp.cos)
    rule = Rule("both", lambda x: jnp.sin(x) / jnp.cos(x), lambda x: sine(x) / cosine(x), cases=[Case(X)])
    result = jaxsplice.rewrite(jaxsplice.trace(rule.before, X), [rule, "lower"])
    (certificate,) = result.certificates
    assert {n.primitive for n in result.after.nodes} == {"sine", "cosine", "div"}
    assert all(n.certificate is certificate for n in result.after.nodes)


@pytest.mark.parametrize("measured_first", [True, False])
def test_the_weakest_of_several_implementations_stands(measured_first):
    sine = Op("sine", jnp.sin)
    damped = Op("damped", rules.damped, implementations=(Implementation("other", rules.by_exponentials),))
    if measured_first:
        before, after = lambda x: jnp.sin(rules.damped(x)), lambda x: sine(damped(x))
    else:
        before, after = lambda x: rules.damped(jnp.sin(x)), lambda x: damped(sine(x))
    rule = Rule("both", before, after, cases=[Case(X)])
    (certificate,) = jaxsplice.rewrite(jaxsplice.trace(before, X), [rule, "lower"], "cpu").certificates
    assert certificate.implementation.kind == "numeric"


def test_a_fused_node_has_the_certificate_of_its_fusion():
    op = Op("damped", rules.damped)
    pair = lambda x: op(x) + op(-x)
    fuse = rules.rule_for(Op("even", pair), pair, stage="fuse")
    result = jaxsplice.rewrite(
        jaxsplice.trace(lambda x: rules.damped(x) + rules.damped(-x), X), [rules.rule_for(op), fuse]
    )
    (node,) = result.after.nodes
    assert (node.primitive, node.certificate.rule) == ("even", "even")


def test_own_passes_in_between_lose_none():
    class Same(Pass):
        def run(self, graph, context):
            return graph

    class Another(Pass):
        """Gives another jaxpr, as an edit would."""

        def run(self, graph, context):
            closed = graph.to_jaxpr()
            return graph.with_jaxpr(jaxprs.rebuild(closed, eqns=jaxprs.open_jaxpr(closed).eqns))

    passes = [damped_rule(), Same("same"), Another("another"), "lower", "cleanup"]
    result = jaxsplice.rewrite(jaxsplice.trace(loop, X), passes)
    assert certificates_by_primitive(result.after)["damped"] == {result.certificates[0]}
    assert result.certificates[0].implementation == EXACT


def test_programs_that_nothing_matched_in_have_none():
    graph = jaxsplice.trace(jnp.sin, X)
    result = jaxsplice.rewrite(graph)
    assert result.after is graph and result.after.certificates == {}


# ---------------------------------------------------------------- in dumps
@pytest.fixture(scope="module")
def result():
    return jaxsplice.rewrite(jaxsplice.trace(gate, X, A, A), "default", "cpu")


def test_text_dumps_print_them_behind_the_line(result, tmp_path):
    text = result.after.save(tmp_path / "after.txt").read_text()
    (line,) = [line for line in text.splitlines() if "= swiglu(" in line]
    assert line.endswith(f"  # swiglu: {result.certificates[0]}") and __file__ in line
    assert text.count("match exact") == 1 and "match" not in result.before.save(tmp_path / "before.txt").read_text()
    assert "match" not in str(result.after)  # what is printed in a terminal, and compared, is the program alone


def test_stage_dumps_print_them(tmp_path):
    jaxsplice.rewrite(jaxsplice.trace(gate, X, A, A), "raise,lower", "cpu", dump_dir=tmp_path)
    (folder,) = tmp_path.iterdir()
    raised, lowered = (folder / "01_raise.txt").read_text(), (folder / "02_lower.txt").read_text()
    assert "# swiglu: match exact, rewrite exact\n" in raised
    assert "# swiglu: match exact, rewrite exact, implementation " in lowered


def test_json_has_every_claim(result, tmp_path):
    data = json.loads(result.after.save(tmp_path / "after.json").read_text())
    certified = {node["primitive"]: node["certificate"] for node in data["nodes"] if node["certificate"]}
    (certificate,) = result.certificates
    assert certified == {"swiglu": json.loads(json.dumps(certificate.as_dict()))}
    assert certified["swiglu"]["kind"] == certificate.kind and certified["swiglu"]["match"]["kind"] == "exact"
    assert certified["swiglu"]["source"].startswith(__file__)
    assert all(node["certificate"] is None for node in data["nodes"] if node["primitive"] != "swiglu")


def test_drawings_and_graph_files_have_them_too(result, tmp_path):
    said = f"swiglu: {result.certificates[0]}"
    back = nx.read_graphml(result.after.save(tmp_path / "after.graphml"))
    assert [d["certificate"] for _, d in back.nodes(data=True) if d["primitive"] == "swiglu"] == [said]
    assert said in result.after.save(tmp_path / "after.dot").read_text()


def test_graphs_on_the_way_have_them():
    class Look(Instrument):
        def after_rewrite(self, row, nodes, graph):
            self.seen = certificates_by_primitive(graph())["damped"], row.certificate

    look = Look()
    jaxsplice.rewrite(jaxsplice.trace(loop, X), [damped_rule()], instruments=look)
    assert look.seen[0] == {look.seen[1]}


# ---------------------------------------------------------------- counted
def row(kind: str, rule: str = "rule") -> Row:
    return Row(rule, "raise", None, 1, 1, Certificate(rule, Claim(kind), EXACT))


def test_reports_count_them_by_kind_strongest_first():
    report = Report(rows=[row("numeric"), row("exact"), row("reassociated"), row("exact"), row("numeric@reduced")])
    assert list(report.kinds.items()) == [("exact", 2), ("reassociated", 1), ("numeric", 1), ("numeric@reduced", 1)]
    assert "certificates: 2 exact, 1 reassociated, 1 numeric, 1 numeric@reduced" in str(report).splitlines()
    assert Report().kinds == {} and "certificates" not in str(Report())
    assert sum(report.kinds.values()) == len(report.certificates)


def test_every_kind_has_its_strength():
    ordered = [row(kind).certificate for kind in KINDS]
    assert sorted(ordered, key=lambda c: KINDS.index(c.kind)) == ordered
    assert [Certificate("r", Claim(kind), REASSOCIATED).kind for kind in KINDS[:2]] == ["reassociated"] * 2


# ---------------------------------------------------------------- strict
WEAKER = KINDS[KINDS.index("reassociated") + 1 :]


def test_strict_refuses_what_is_only_measured():
    rule = damped_rule(rules.by_exponentials)
    graph = jaxsplice.trace(rules.damped, X)
    assert jaxsplice.rewrite(graph, [rule]).certificates[0].kind == "numeric"
    strict = jaxsplice.rewrite(graph, [rule], verify="strict")
    assert strict.after is graph and strict.certificates == []
    (why,) = strict.report.statistics["damped"].refusals
    assert why.startswith("verify='strict' accepts exact and reassociated only; this is match exact, rewrite numeric(")


@pytest.mark.parametrize("kind", WEAKER)
@pytest.mark.parametrize("claim", ["match_claim", "rewrite_claim"])
def test_strict_refuses_every_weaker_kind_of_either_claim(kind, claim, monkeypatch):
    monkeypatch.setattr(prove, claim, lambda *_: Claim(kind, 1e-7, 1e-5))
    result = jaxsplice.rewrite(jaxsplice.trace(rules.damped, X), [damped_rule()], verify="strict")
    assert result.certificates == [] and result.after is result.before


def test_strict_keeps_the_reference_where_an_implementation_is_only_measured():
    op = Op("damped", rules.damped, implementations=(Implementation("other", rules.by_exponentials),))
    graph = jaxsplice.trace(rules.damped, X)
    auto, strict = (jaxsplice.rewrite(graph, [rules.rule_for(op), "lower"], verify=v) for v in ("auto", "strict"))
    (node,), (kept,) = auto.after.nodes, strict.after.nodes
    assert (node.params["implementation"], kept.params["implementation"]) == ("other", None)
    assert [c.kind for c in (auto.certificates[0], strict.certificates[0])] == ["numeric", "exact"]


def test_strict_takes_nothing_weak_in_a_whole_model(oracle):
    from jaxsplice.models import qwen3_5

    config = qwen3_5.Config.from_json(oracle.folder("moe_tiny") / "config.json")
    ids = jax.ShapeDtypeStruct((2, 16), jnp.int32)
    graph = jaxsplice.trace(qwen3_5.forward, qwen3_5.abstract_params(config), config, ids)
    result = jaxsplice.rewrite(graph, verify="strict")
    assert result.report.rows and set(result.report.kinds) <= {"exact", "reassociated"}


# ---------------------------------------------------------------- once per signature
@pytest.fixture
def proofs(monkeypatch):
    """Counts how often each claim is made."""
    made = collections.Counter()

    def count(name):
        real = getattr(prove, name)

        def counted(*args):
            made[name] += 1
            return real(*args)

        monkeypatch.setattr(prove, name, counted)

    count("match_claim"), count("rewrite_claim")
    return made


def test_a_proof_is_made_once_per_distinct_signature(proofs):
    rule = damped_rule(rules.by_exponentials)

    def layers(n):
        def fn(x):
            for _ in range(n):
                x = rules.damped(x) + 1.0
            return x

        return fn

    def rewritten(n, shape, **options):
        return jaxsplice.rewrite(jaxsplice.trace(layers(n), np.ones(shape, np.float32)), [rule], **options)

    assert rewritten(5, (4, 8)).report.counts == {"damped": 5}
    assert proofs == {"match_claim": 1, "rewrite_claim": 1}
    rewritten(7, (4, 8)), rewritten(1, (4, 8))
    assert proofs == {"match_claim": 1, "rewrite_claim": 1}  # also in other programs
    rewritten(3, (5, 8))
    assert proofs == {"match_claim": 2, "rewrite_claim": 2}  # another type
    jaxsplice.rewrite(jaxsplice.trace(lambda x: rules.other_order(x), np.ones((4, 8), np.float32)), [rule])
    assert proofs == {"match_claim": 2, "rewrite_claim": 2}  # the same operations, operands exchanged
    spelled = lambda x: jnp.tanh(x) * jnp.exp(-x.T).T
    jaxsplice.rewrite(jaxsplice.trace(spelled, np.ones((4, 8), np.float32)), [rule])
    assert proofs == {"match_claim": 3, "rewrite_claim": 2}  # another spelling is another claim about the match


def test_a_new_rule_is_proved_anew(proofs):
    for _ in range(2):
        jaxsplice.rewrite(jaxsplice.trace(rules.damped, X), [damped_rule()])
    assert proofs == {"match_claim": 2, "rewrite_claim": 2}
