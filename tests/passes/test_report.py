"""The report: what happened, how often, how it was proved; nothing is wider than a terminal."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsplice
from jaxsplice import Case, Op, Refuse, Report, Rule
from jaxsplice.passes.report import Row
from jaxsplice.passes.rewrite.certificate import EXACT, Certificate, Claim

X = np.linspace(-1.0, 1.0, 32, dtype=np.float32).reshape(4, 8)
SHAPE = jax.typeof(jnp.asarray(X))
LONG = "a-rule-with-a-name-that-is-longer-than-the-column-for-names"


def rule_named(name: str, before, **options) -> Rule:
    op = Op(name, before)
    return Rule(name, before, lambda x: op(x), cases=[Case(SHAPE)], **options)


def report_of(fn, *passes, **options) -> Report:
    return jaxsplice.rewrite(jaxsplice.trace(fn, X), list(passes), **options).report


def row(rule="rule", sites=1, trips=1, what="mul", match=EXACT) -> Row:
    return Row(rule, "raise", None, 1, 1, Certificate(rule, match, EXACT), sites, trips, what)


def test_counts_sites_and_trips():
    def fn(x):
        inner = lambda c, _: (jnp.sin(c) + jnp.cos(c), None)
        x = jax.lax.scan(inner, x, None, length=5)[0]
        return jnp.sin(jax.lax.while_loop(lambda c: c[0, 0] < 0, lambda c: jnp.cos(c) + 1.0, x))

    report = report_of(fn, rule_named("sine", jnp.sin), rule_named("cosine", jnp.cos))
    assert report.counts == {"sine": 2, "cosine": 2}
    assert report.trip_counts == {"sine": 6, "cosine": None}  # a while loop's length is not known
    assert [r.rule for r in report.rows] == ["sine", "sine", "cosine", "cosine"]
    assert len(report.certificates) == 4


def test_rows_say_where_what_and_how():
    fn = lambda x: jnp.sin(x) * jnp.cos(x) + 1.0
    (found,) = report_of(fn, rule_named("waves", lambda x: jnp.sin(x) * jnp.cos(x))).rows
    assert (found.rule, found.stage, found.replaced, found.added, found.sites, found.trips) == (
        "waves", "raise", 3, 1, 1, 1
    )  # fmt: skip
    assert str(found.source).startswith(__file__) and found.what == "cos sin mul"
    assert found.certificate.source == str(found.source)


def test_statistics_hold_what_was_tried_and_refused():
    def picky(x):
        raise Refuse(f"{x.shape[0]} rows are too few")

    report = report_of(lambda x: jnp.sin(x) + jnp.sin(x + 1.0), rule_named("sine", jnp.sin, where=picky))
    statistics = report.statistics["sine"]
    assert (statistics.tried, statistics.matched) == (2, 0)
    assert dict(statistics.refusals) == {"4 rows are too few": 2}
    assert "refused sine x2: 4 rows are too few" in str(report)


def test_nothing_found_is_said():
    report = report_of(jnp.exp, rule_named("sine", jnp.sin))
    lines = str(report).splitlines()
    assert lines[0] == "no rewrites"
    assert any("sine was asked for and never fired" in line for line in lines)
    assert (report.counts, report.trip_counts, report.certificates) == ({}, {}, [])


def test_a_raise_hit_stays_counted_when_it_is_fused_away():
    sine = Op("sine", jnp.sin)
    fuse = lambda x: sine(x) * 2.0
    rules = [Rule("sine", jnp.sin, lambda x: sine(x), cases=[Case(SHAPE)]), rule_named("doubled", fuse, stage="fuse")]
    report = report_of(lambda x: jnp.sin(x) * 2.0, *rules)
    assert report.counts == {"sine": 1, "doubled": 1}
    assert [r.stage for r in report.rows] == ["raise", "fuse"]


def test_seconds_are_booked_per_stage():
    report = report_of(jnp.sin, "normalize", rule_named("sine", jnp.sin), "lower", "cleanup")
    assert set(report.seconds) == {"normalize", "raise", "prove", "lower", "cleanup"}
    assert all(s >= 0 for s in report.seconds.values())
    assert "time: normalize " in str(report)


def test_the_table_has_a_line_per_rule():
    rows = [row("one", 2, 6), row("two", 1, None), row("one", 1, 1, match=Claim("numeric", 3e-7, 1e-5))]
    header, one, two = Report(rows=rows).table()
    assert header.split() == ["rule", "hits", "runs", "certificate", "error", "replaced"]
    assert one.split() == ["one", "3", "7", "numeric", "3e-07", "mul"]
    assert two.split() == ["two", "1", "?", "exact", "-", "mul"]


@pytest.mark.parametrize(
    "report",
    [
        Report(rows=[row(what=" ".join(["dot_general"] * 30))]),
        Report(rows=[row("short"), row(LONG, 12345, 123456789, match=Claim("numeric@reduced", 1e-6, 1e-5))]),
        Report(notes=["word " * 60, "/a/very/long/path/" + "folder/" * 20 + "file.py:12 (function) is where it is"]),
        Report(seconds={f"stage-{i}": 12.5 for i in range(20)}),
    ],
    ids=["many primitives", "long name, large counts", "long notes", "many stages"],
)
def test_printed_reports_fit_eighty_columns(report):
    text = str(report)
    words = [word for line in text.splitlines() for word in line.split()]
    longest = max(map(len, words))
    assert max(map(len, text.splitlines())) <= max(80, longest + 2)  # a path is never broken
    assert all(line == line.rstrip() for line in text.splitlines())


def test_printed_report_of_a_real_model_fits_eighty_columns(oracle):
    from jaxsplice.models import qwen3_5

    config = qwen3_5.Config.from_json(oracle.folder("moe_tiny") / "config.json")
    ids = jax.ShapeDtypeStruct((2, 16), jnp.int32)
    graph = jaxsplice.trace(qwen3_5.forward, qwen3_5.abstract_params(config), config, ids)
    report = jaxsplice.rewrite(graph, "normalize,raise,fuse").report
    assert report.counts["rms-norm"] == 11 and len(report.certificates) == len(report.rows)
    table = report.table()
    assert len(table) == 1 + len(report.counts) and max(map(len, table)) <= 80
    assert {line.split()[0] for line in table[1:]} == set(report.counts)


def test_reports_that_have_many_reasons_show_the_commonest():
    report = Report()
    for i in range(6):
        report.statistics_of("sine").refusals[f"reason {i}"] = 10 - i
    lines = str(report).splitlines()
    assert lines[1:4] == [f"refused sine x{10 - i}: reason {i}" for i in range(3)]
    assert lines[4] == "refused sine for 3 more reasons; report.rule_table() has all"


def test_statistics_of_every_rule_are_printed_on_demand():
    def picky(x):
        raise Refuse(f"{x.shape[0]} rows are too few " * 6)

    rules = [rule_named("sine", jnp.sin, where=picky), rule_named("cosine", jnp.cos), rule_named("tangent", jnp.tan)]
    report = report_of(lambda x: jnp.sin(x) + jnp.cos(x) * jnp.cos(x + 1.0), *rules)
    head, *lines = report.rule_table().splitlines()
    assert head.split() == ["rule", "tried", "matched", "refused", "seconds"]
    rows = {line.split()[0]: line.split()[1:4] for line in lines if not line.startswith(" ")}
    assert rows == {"sine": ["1", "0", "1"], "cosine": ["2", "2", "0"], "tangent": ["0", "0", "0"]}
    assert "  1 x 4 rows are too few" in "\n".join(lines) and max(map(len, lines)) <= 80
    seconds = [float(line.split()[-1]) for line in lines if not line.startswith(" ")]
    assert seconds == sorted(seconds, reverse=True) and all(s >= 0 for s in seconds)
    assert Report().rule_table() == head
