"""Nests of any depth, and jaxprs held many times: checked, printed, drawn and counted without recursion, once each."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec

from jaxsplice.passes.errors import VerifyError
from jaxsplice.passes.ir import jaxprs
from jaxsplice.passes.ir.check import verify_graph
from jaxsplice.passes.ir.graph import Graph
from jaxsplice.passes.ir.nesting import nesting, returned, unrolled
from jaxsplice.passes.ir.region import Program
from jaxsplice.passes.ir.walk import callees_last, places_of
from jaxsplice.passes.rewrite.numbering import same_program

from .test_deep import NESTS, nest

DEEP = 1000  # Python gives up at this many calls
WIDE, LEVELS = 70, 30  # a base that is too large to be seen through, doubled 30 times
X = np.float32(0.5)
NAMES = {"jit": "jit", "scan": "scan", "remat": "remat2"}


def diamond(levels: int, top: float = 2.0):
    """Functions of which each calls the one below twice: 2^levels ways lead to the base."""

    def base(x):
        for _ in range(WIDE):
            x = jnp.sin(x)
        return x

    def above(below, factor):
        return jax.jit(lambda x: below(x) + below(x * factor))

    fn = jax.jit(base)
    for level in range(levels):
        fn = above(fn, top if level == levels - 1 else 2.0)
    return jax.make_jaxpr(fn)(X)


def within_seconds(limit: float, work):
    started = time.process_time()
    out = work()
    assert time.process_time() - started < limit
    return out


# ---------------------------------------------------------------- deep
@pytest.mark.parametrize("kind", sorted(NESTS))
def test_deep_nests_are_checked_printed_drawn_and_compared(kind):
    closed = nest(NESTS[kind], DEEP)
    verify_graph(closed)
    text = str(Graph.from_jaxpr(closed))
    assert text.count(f" = {NAMES[kind]}(") == DEEP and text.count("sin(") == 1
    assert len(Graph.from_jaxpr(closed).to_networkx()) > DEEP
    assert same_program(closed, closed) and nesting(closed).depth == DEEP


@pytest.mark.parametrize("kind", ["scan", "remat"])
def test_nodes_of_deep_nests_are_counted(kind):
    graph = Graph.from_jaxpr(nest(NESTS[kind], DEEP))
    assert graph.primitives() == {NAMES[kind]: DEEP, "sin": 1, "mul": 1}


def wrong_at_the_bottom(kind: str, depth: int):
    """A nest whose innermost equation claims to give another type than it does."""
    closed = nest(NESTS[kind], depth)
    bodies = []
    while True:
        body = jaxprs.open_jaxpr(closed)
        bodies.append(closed)
        inner = jaxprs.children(body.eqns[0])
        if not inner:
            break
        closed = inner[0].jaxpr
    innermost = jaxprs.open_jaxpr(bodies[-1])
    sin, *rest = innermost.eqns
    wrong = jaxprs.Var(jax.typeof(np.int32(1)))
    rest = [e.replace(invars=[wrong if a is sin.outvars[0] else a for a in e.invars]) for e in rest]
    rebuilt = jaxprs.rebuild(bodies[-1], eqns=[sin.replace(outvars=[wrong]), *rest])
    for outer in reversed(bodies[:-1]):
        eqns = jaxprs.open_jaxpr(outer).eqns
        rebuilt = jaxprs.rebuild(outer, eqns=[jaxprs.with_children(eqns[0], [rebuilt]), *eqns[1:]])
    return rebuilt


@pytest.mark.parametrize("kind", sorted(NESTS))
@pytest.mark.parametrize("depth", [1, 150])
def test_a_wrong_type_is_found_at_any_depth(kind, depth):
    with pytest.raises(VerifyError, match="types do not agree"):
        verify_graph(wrong_at_the_bottom(kind, depth))


def test_operands_of_a_nested_jaxpr_are_checked_at_any_depth():
    closed = nest(NESTS["jit"], 150)
    (outer,) = jaxprs.open_jaxpr(closed).eqns
    other = jax.make_jaxpr(lambda x: jnp.sin(x))(np.ones(3, np.float32))
    wrong = jaxprs.rebuild(closed, eqns=[outer.replace(params={**outer.params, "jaxpr": deepened(other)})])
    with pytest.raises(VerifyError, match="types do not agree"):
        verify_graph(wrong)


def deepened(closed):
    """A closed jaxpr inside many calls."""
    x = jax.ShapeDtypeStruct(closed.in_avals[0].shape, closed.in_avals[0].dtype)
    around = jax.make_jaxpr(jax.jit(jnp.sin))(x)
    (eqn,) = around.eqns
    for _ in range(100):
        closed = jaxprs.rebuild(around, eqns=[jaxprs.with_children(eqn, [closed])])
    return closed


EFFECTS = {
    "print": lambda x: (jax.debug.print("{}", x), x)[1],
    "collective": lambda x: jax.shard_map(
        lambda x: lax.scan(lambda c, _: (lax.psum(c, "i"), None), x, None, length=2)[0],
        mesh=jax.make_mesh((2,), ("i",)),
        in_specs=PartitionSpec(),
        out_specs=PartitionSpec(),
    )(x),
    "branches": lambda x: lax.cond(x > 0, jnp.sin, jnp.cos, x),
    "loop": lambda x: lax.while_loop(lambda c: c < 3.0, lambda c: c + 1.0, x),
    "a number": lambda x: x * 2.0,
}


@pytest.mark.parametrize("effect", EFFECTS)
def test_lawful_programs_pass(effect):
    def fn(x):
        return jax.jit(lambda x: lax.scan(lambda c, _: (jax.jit(EFFECTS[effect])(c), None), x, None, length=2)[0])(x)

    closed = jax.make_jaxpr(fn)(X)
    verify_graph(closed)


# ---------------------------------------------------------------- shared
def test_jaxprs_held_many_times_cost_no_more_than_once():
    closed = diamond(LEVELS)
    graph = Graph.from_jaxpr(closed)
    within_seconds(1.0, lambda: verify_graph(closed))
    text = within_seconds(1.0, lambda: str(graph))
    assert text.count(" = sin(") == WIDE and len(text.splitlines()) < 40 * LEVELS + 2 * WIDE
    drawn = within_seconds(1.0, graph.to_networkx)
    assert sum(d["primitive"] == "sin" for _, d in drawn.nodes(data=True)) == WIDE
    assert within_seconds(1.0, lambda: same_program(closed, diamond(LEVELS)))
    assert within_seconds(1.0, lambda: len(list(graph.nodes))) < 10 * LEVELS + WIDE
    assert within_seconds(1.0, graph.primitives) == {
        "jit": 2 ** (LEVELS + 1) - 2, "sin": WIDE * 2**LEVELS, "mul": 2**LEVELS - 1, "add": 2**LEVELS - 1
    }  # fmt: skip


def test_a_difference_below_shared_jaxprs_is_seen():
    assert not same_program(diamond(4), diamond(4, top=3.0))
    assert same_program(diamond(4, top=3.0), diamond(4, top=3.0))


def test_a_large_shared_jaxpr_is_printed_once_and_then_referred_to():
    text = str(Graph.from_jaxpr(diamond(1)))
    assert text.count("jaxpr @0(") == 1 and text.count("jaxpr @0\n") == 1
    first, second = text.index("jaxpr @0("), text.index("jaxpr @0\n")
    assert first < second


def test_small_shared_jaxprs_are_printed_wherever_they_are_held():
    silu = jax.jit(jax.nn.silu)
    text = str(Graph.from_jaxpr(jax.make_jaxpr(lambda x: silu(x) + silu(x * 2.0))(X)))
    assert text.count("logistic(") == 2 and "@" not in text


def test_drawings_say_where_a_shared_jaxpr_is_drawn():
    drawn = Graph.from_jaxpr(diamond(1)).to_networkx()
    calls = [d for _, d in drawn.nodes(data=True) if d["primitive"] == "jit" and d["region"].count("/") == 1]
    region = next(d["region"] for _, d in drawn.nodes(data=True) if d["primitive"] == "sin")
    assert [f"as in {region}" in d["params"] for d in calls] == [False, True]


# ---------------------------------------------------------------- regions of one equation
@pytest.mark.parametrize(
    ("fn", "labels"),
    [
        (lambda x: lax.cond(x > 0, jnp.sin, jnp.cos, x), {"branches[0]", "branches[1]"}),
        (lambda x: lax.while_loop(lambda c: jnp.sin(c) < 3.0, jnp.cos, x), {"cond_jaxpr", "body_jaxpr"}),
    ],
    ids=["cond", "while"],
)
def test_several_jaxprs_of_one_equation_are_regions_of_their_own(fn, labels):
    drawn = Graph.from_jaxpr(jax.make_jaxpr(fn)(X)).to_networkx()
    regions = {d["primitive"]: d["region"] for _, d in drawn.nodes(data=True) if d["primitive"] in ("sin", "cos")}
    assert {region.partition(".")[2] for region in regions.values()} == labels
    assert len({region.partition(".")[0] for region in regions.values()}) == 1


# ---------------------------------------------------------------- walks
def test_regions_come_before_those_they_call_and_know_their_places():
    def below(x):
        return lax.scan(lambda c, _: (jnp.sin(c), None), x, None, length=3)[0]

    shared = jax.jit(lambda x: below(x) + below(x))
    closed = jax.make_jaxpr(lambda x: lax.cond(x > 0, lambda x: shared(x) + shared(x + 1.0), lambda x: x, x))(X)
    program = Program(closed)
    ordered = callees_last(program.root)
    position = {id(region): i for i, region in enumerate(ordered)}
    for region in ordered:
        for node in region.nodes:
            assert all(position[id(child)] > position[id(region)] for child in node.children())
    assert places_of(program.root) == {id(region): region.sites for region in ordered}


def test_generators_stand_for_what_they_give_or_return():
    def count(n):
        if n:
            yield n
            yield count(n - 1)

    def add(n):
        return n + (yield add(n - 1)) if n else 0

    assert list(unrolled(count(5000))) == list(range(5000, 0, -1))
    assert returned(add(5000)) == sum(range(5001))
