"""Instruments: told of every stage and rewrite, in order; they cost nothing when absent and cannot break a program."""

import jax.numpy as jnp
import numpy as np
import pytest

import jaxsplice
from jaxsplice import Case, Instrument, Op, Pass, Rule
from jaxsplice.passes.errors import InstrumentError
from jaxsplice.passes.instrument import Instruments

X = np.linspace(-1.0, 1.0, 32, dtype=np.float32).reshape(4, 8)
SINE = Op("sine", jnp.sin)
RULE = Rule("sine", jnp.sin, lambda x: SINE(x), cases=[Case(X)])


def program(x):
    return jnp.sin(x) + jnp.sin(x + 1.0)


class Log(Instrument):
    """Keeps all it is told, with the primitives of the program at that moment."""

    def __init__(self):
        self.seen = []

    def start(self, pipeline, graph):
        self.seen.append(("start", str(pipeline), graph.primitives()))

    def before_stage(self, stage, graph):
        self.seen.append(("before", stage, graph().primitives()))

    def after_stage(self, stage, graph):
        self.seen.append(("after", stage, graph().primitives()))

    def before_rewrite(self, match, certificate, graph):
        self.seen.append((match.rule.name, certificate.kind, graph().primitives()))

    def after_rewrite(self, row, nodes, graph):
        self.seen.append((row.rule, [n.primitive for n in nodes], graph().primitives()))

    def finish(self, graph, report):
        self.seen.append(("finish", report.counts, graph.primitives()))


def test_stages_and_rewrites_are_told_in_order_with_the_program_as_it_is_then():
    log = Log()
    result = jaxsplice.rewrite(jaxsplice.trace(program, X), ["normalize", RULE], instruments=log)
    none, one, two = ({"sin": 2, "add": 2}, {"sin": 1, "sine": 1, "add": 2}, {"sine": 2, "add": 2})
    assert [(*head, dict(sorted(p.items()))) for *head, p in log.seen] == [
        (*head, dict(sorted(p.items())))
        for *head, p in [
            ("start", "normalize,raise{sine}", none),
            ("before", "normalize", none), ("after", "normalize", none),
            ("before", "raise{sine}", none),
            ("sine", "exact", none), ("sine", ["sine"], one),
            ("sine", "exact", one), ("sine", ["sine"], two),
            ("after", "raise{sine}", two),
            ("finish", {"sine": 2}, two),
        ]
    ]  # fmt: skip
    assert result.after.primitives() == two


def test_programs_written_on_the_way_are_lawful_and_leave_the_result_as_it_is():
    class Check(Instrument):
        graphs = []  # noqa: RUF012

        def after_rewrite(self, row, nodes, graph):
            self.graphs.append(graph())

    watched = jaxsplice.rewrite(jaxsplice.trace(program, X), [RULE, "lower", "cleanup"], instruments=[Check(), Log()])
    plain = jaxsplice.rewrite(jaxsplice.trace(program, X), [RULE, "lower", "cleanup"])
    assert str(watched.after) == str(plain.after)
    for graph in Check.graphs:
        np.testing.assert_allclose(graph(X), program(X), rtol=1e-6)
    assert len(Check.graphs) == 2


def test_nothing_is_written_for_nobody(monkeypatch):
    class Silent(Instrument):
        pass

    graph = jaxsplice.trace(program, X)
    emitted = []
    real = jaxsplice.passes.pipeline.emit
    monkeypatch.setattr(jaxsplice.passes.pipeline, "emit", lambda region: emitted.append(1) or real(region))
    for instruments in ((), [Silent()]):
        jaxsplice.rewrite(graph, ["normalize", RULE, "lower"], instruments=instruments)
    assert len(emitted) == 2  # the results


def test_own_passes_are_stages_too():
    class Nothing(Pass):
        def run(self, graph, context):
            return graph

    log = Log()
    jaxsplice.rewrite(jaxsplice.trace(program, X), [Nothing("nothing")], instruments=[log])
    assert [seen[:2] for seen in log.seen[1:3]] == [("before", "nothing"), ("after", "nothing")]


def test_optimize_tells_once_per_signature():
    log = Log()
    fast = jaxsplice.optimize(program, passes=[RULE], instruments=log)
    for x in (X, X, X[:2]):
        fast(x)
    assert [seen[0] for seen in log.seen].count("start") == 2


@pytest.mark.parametrize("event", ["start", "before_stage", "after_stage", "before_rewrite", "after_rewrite", "finish"])
def test_an_instrument_that_fails_is_named(event):
    def fails(self, *facts):
        raise ZeroDivisionError("no luck")

    broken = type("Broken", (Instrument,), {event: fails})()
    message = rf"instrument Broken failed in {event}: ZeroDivisionError: no luck \(.*test_instrument\.py:\d+\)"
    with pytest.raises(InstrumentError, match=message):
        jaxsplice.rewrite(jaxsplice.trace(program, X), [RULE], instruments=[broken])


@pytest.mark.parametrize("given", [[Log], ["dump"], [None]])
def test_what_is_no_instrument_is_refused(given):
    with pytest.raises(jaxsplice.JaxspliceError, match=r"give objects of classes that derive from jaxsplice\.Instr"):
        jaxsplice.rewrite(jaxsplice.trace(program, X), instruments=given)
    with pytest.raises(jaxsplice.JaxspliceError, match=r"instruments="):
        jaxsplice.optimize(program, instruments=given)


def test_no_instruments_is_the_default():
    assert Instruments().each == () and Instruments().tell("after_stage", "raise") is None
