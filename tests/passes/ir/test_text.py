"""Text of graphs: the same on every run and every JAX version, and differences that show only what differs."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax

from jaxsplice.passes.ir import jaxprs
from jaxsplice.passes.ir.emit import emit
from jaxsplice.passes.ir.graph import Graph
from jaxsplice.passes.ir.region import Program
from jaxsplice.passes.ir.text import Diff, Names, diff, dtype_name, param_text, to_text, type_text

from . import programs

X = np.ones((6,), np.float32)


def graph_of(fn, *args, name="graph"):
    """The graph of a function."""
    return Graph.from_jaxpr(jax.make_jaxpr(fn)(*args), name)


def text_of(name):
    """Text of one of the shared programs."""
    return str(Graph.from_jaxpr(programs.traced(name)))


GOLDEN = {
    "plain": """
graph(%0: f32[6]) {
  %1: f32[6] = sin(%0)
  %2: f32[6] = mul(%1, 2.0)
  %3: f32[6] = add(%2, %0)
  return %3
}""",
    "cond": """
graph(%0: f32[6]) {
  %1: f32[1] = slice(%0) {limit_indices=(1), start_indices=(0)}
  %2: f32[] = squeeze(%1) {dimensions=(0)}
  %3: bool[] = gt(%2, 0.0)
  %4: i32[] = convert_element_type(%3) {new_dtype=i32}
  %5: f32[6] = cond(%4, %0) {
    branches[0](%6: f32[6]):
      %7: f32[6] = jit(%6) {name=silu} {
        jaxpr(%8: f32[6]):
          %9: f32[6] = logistic(%8)
          %10: f32[6] = mul(%8, %9)
          return %10
      }
      %11: f32[6] = mul(%7, 2.0)
      return %11
    branches[1](%12: f32[6]):
      %13: f32[6] = jit(%12) {name=silu} {
        jaxpr(%8: f32[6]):
          %9: f32[6] = logistic(%8)
          %10: f32[6] = mul(%8, %9)
          return %10
      }
      return %13
  }
  return %5
}""",
    "scan_with_everything": """
graph(%0: f32[3,4]) {
  %1: f32[1,4] = slice(%0) {limit_indices=(1,4), start_indices=(0,0)}
  %2: f32[4] = squeeze(%1) {dimensions=(0)}
  %3: f32[4], %4: f32[3,4], %5: f32[3,4] = scan(%0, %2, %0) {carry=1, consts=1, length=3, reverse=True} {
    jaxpr(%6: f32[3,4], %7: f32[4], %8: f32[4]):
      %9: f32[4] = mul(%7, 0.5)
      %10: f32[4] = add(%9, %8)
      %11: f32[4] = jit(%8) {name=silu} {
        jaxpr(%12: f32[4]):
          %13: f32[4] = logistic(%12)
          %14: f32[4] = mul(%12, %13)
          return %14
      }
      %15: f32[1,4] = slice(%6) {limit_indices=(1,4), start_indices=(0,0)}
      %16: f32[4] = squeeze(%15) {dimensions=(0)}
      %17: f32[4] = mul(%11, %16)
      return %10, %7, %17
  }
  return %3, %4, %5
}""",
    "fori_loop": """
graph(%0: f32[6]) {
  %1: i32[]~, %2: f32[6] = scan(%0, 0, %0) {carry=2, consts=1, length=3} {
    jaxpr(%3: f32[6], %4: i32[]~, %5: f32[6]):
      %6: i32[]~ = add(%4, 1)
      %7: f32[6] = cos(%3)
      %8: f32[6] = mul(%5, %7)
      %9: f32[] = convert_element_type(%4) {new_dtype=f32}
      %10: f32[6] = add(%8, %9)
      return %6, %10
  }
  return %2
}""",
    "call_with_a_constant": """
graph(%0: f32[6]) {
  const %1: f32[6]
  %2: f32[6] = jit(%0) {name=<lambda>} {
    jaxpr(%3: f32[6]):
      const %4: f32[6]
      %5: f32[6] = mul(%3, %4)
      return %5
  }
  %6: f32[6] = add(%2, %1)
  return %6
}""",
    "odd_results": """
graph(%0: f32[6]) {
  %1: f32[6] = sin(%0)
  return %1, %1, %0, 1.0, 3, %0, %1
}""",
    "nothing": """
graph(%0: f32[6]) {
  return
}""",
    "weak_types": """
graph(%0: f32[]~, %1: f32[6]) {
  %2: f32[]~ = mul(%0, 3.0)
  %3: f32[] = convert_element_type(%0) {new_dtype=f32}
  %4: f32[6] = add(%3, %1)
  %5: bf16[] = convert_element_type(%0) {new_dtype=bf16}
  %6: bf16[] = mul(%5, 2.0)
  %7: f32[]~ = jit(%0) {name=<lambda>} {
    jaxpr(%8: f32[]~):
      %9: f32[]~ = add(%8, 1.0)
      return %9
  }
  return %2, %4, %6, %7
}""",
    "symbolic_dimensions": """
graph(%0: f32[b,3]) {
  %1: f32[b,3] = jit(%0) {name=silu} {
    jaxpr(%2: f32[b,3]):
      %3: f32[b,3] = logistic(%2)
      %4: f32[b,3] = mul(%2, %3)
      return %4
  }""",
}


@pytest.mark.parametrize("name", sorted(GOLDEN))
def test_text_is_what_it_always_was(name):
    assert text_of(name).startswith(GOLDEN[name].strip())
    if GOLDEN[name].endswith("\n}"):
        assert text_of(name) == GOLDEN[name].strip()


def test_effects_have_no_results_to_name():
    lines = [line for line in text_of("prints").splitlines() if "debug_callback" in line]
    assert len(lines) == 3 and all(line.lstrip().startswith("debug_callback(%") for line in lines)


def test_references_are_marked():
    lines = text_of("references").splitlines()
    assert lines[1] == "  %1: ref f32[6] = new_ref(%0)"
    assert "    jaxpr(%2: ref f32[6], %3: f32[6]):" in lines


@pytest.mark.parametrize("name", sorted(programs.PROGRAMS))
def test_text_has_nothing_that_changes_from_run_to_run(name):
    text = text_of(name)
    assert text == text_of(name)  # traced anew, other addresses
    assert "0x" not in text and " object " not in text
    assert all(line == line.rstrip() for line in text.splitlines())


def test_every_value_is_introduced_once_before_it_is_used():
    """In each program, `%n` first stands where it is defined; regions that JAX shares are printed once per call."""
    for name in programs.PROGRAMS:
        known: set[str] = set()
        for line in text_of(name).splitlines():
            words = [w.strip("(),{}:") for w in line.replace("(", " ").split()]
            introduced = {w for w, raw in zip(words, line.replace("(", " ").split()) if raw.endswith(":")}
            used = {w for w in words if w[:1] == "%"} - introduced
            assert used <= known, (name, line)
            known |= introduced


def test_policies_are_shown_alike_on_every_version():
    assert text_of("remat_with_policies").count("{policy=given}") == 2


def test_results_nobody_wants_are_underscores():
    closed = jax.make_jaxpr(lambda x: lax.top_k(x, 2))(X)
    (eqn,) = closed.eqns
    values, index = eqn.outvars
    dropped = jaxprs.rebuild(closed, eqns=[eqn.replace(outvars=[values, jaxprs.DropVar(index.aval)])], outvars=[values])
    assert str(Graph.from_jaxpr(dropped)).splitlines()[1].startswith("  %1: f32[2], _: i32[2] = top_k(%0)")


def test_sources_are_put_behind_equations_when_asked_for():
    graph = graph_of(lambda x: jnp.sin(x), X)
    line = to_text(graph, sources=True).splitlines()[1]
    assert line.startswith("  %1: f32[6] = sin(%0)  # ") and f"{__file__}:" in line
    loop = graph_of(lambda x: lax.map(jnp.sin, x), X)
    assert " {  # " in to_text(loop, sources=True)


def test_the_graphs_name_comes_first():
    assert str(graph_of(jnp.sin, X, name="my_layer")).startswith("my_layer(%0: f32[6]) {")


@pytest.mark.parametrize(
    ("dtype", "text"),
    [
        (np.float32, "f32"),
        (np.dtype("float64"), "f64"),
        (ml_dtypes.bfloat16, "bf16"),
        (jnp.int8, "i8"),
        (np.bool_, "bool"),
        (np.uint16, "u16"),
        (np.complex64, "c64"),
        (ml_dtypes.float8_e4m3fn, "f8_e4m3fn"),
        (ml_dtypes.int4, "i4"),
        (jax.random.key(0).dtype, "key<fry>"),
    ],
)
def test_dtypes_are_short(dtype, text):
    assert dtype_name(dtype) == text


def test_types_of_what_is_no_array():
    assert type_text(np.zeros((2, 0), np.int8)) == "i8[2,0]"
    assert type_text("token") == "token"


def test_params_are_short_and_stable():
    numbers = lax.GatherDimensionNumbers((0,), (), (1,))
    values = [True, "x", (1, (2, 3)), [np.int64(4)], np.dtype("int8"), np.float32, np.float32(0.5), numbers, jnp.tanh]
    values += [object()]
    assert [param_text(v) for v in values] == [
        "True", "x", "(1,(2,3))", "(4)", "i8", "f32", "0.5", "(offset_dims=(0),start_index_map=(1))", "tanh",
        "<object object>",
    ]  # fmt: skip


def test_literals_are_exact():
    text = str(graph_of(lambda x: (x * 0.1 + jnp.inf, (x * 1j), x.astype(int) + 7, x > 0), X))
    assert "mul(%0, 0.10000000149011612)" in text
    assert ", inf)" in text and ", 1j)" in text and ", 7)" in text


def test_text_is_the_same_in_another_process(tmp_path):
    """Other hash seeds, other addresses."""
    script = tmp_path / "print_graph.py"
    script.write_text(
        "import jax, jax.numpy as jnp\n"
        "from jaxsplice.passes.ir.graph import Graph\n"
        "fn = lambda m: jax.lax.scan(lambda c, r: (c + jax.nn.softmax(r), c @ r), m[0], m)\n"
        "print(Graph.from_jaxpr(jax.make_jaxpr(fn)(jnp.ones((3, 4)))))\n"
    )
    source = str(jaxprs.__file__).split("/jaxsplice/")[0]
    runs = [
        subprocess.run(
            [sys.executable, str(script)], capture_output=True, text=True, check=True,
            env={"PYTHONPATH": source, "JAX_PLATFORMS": "cpu", "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    ]  # fmt: skip
    assert runs[0] == runs[1] and runs[0].count("\n") > 10


# ---------------------------------------------------------------- differences
def test_two_graphs_share_names():
    names = Names()
    closed = jax.make_jaxpr(jnp.sin)(X)
    first, second = Graph.from_jaxpr(closed), graph_of(jnp.cos, X)
    assert to_text(first, names) == to_text(first, names)
    assert "%2" in to_text(second, names) and "%0" not in to_text(second, names)


def test_a_difference_shows_what_was_replaced_and_keeps_the_other_names():
    closed = jax.make_jaxpr(lambda x: jnp.cos(jnp.sin(x) * 2.0) + x)(X)
    region = Program(closed).root
    product = region.by_primitive["mul"][0]
    (result,), _ = region.splice(jax.make_jaxpr(jnp.tanh)(X), product.inputs[:1], product)
    region.redirect(product.outputs[0], result)
    region.kill(product)
    found = diff(Graph.from_jaxpr(closed), Graph.from_jaxpr(emit(region)))
    changed = [line for line in found.lines() if line[0] in "+-"][2:]
    assert changed == [
        "-  %2: f32[6] = mul(%1, 2.0)",
        "-  %3: f32[6] = cos(%2)",
        "+  %5: f32[6] = tanh(%1)",
        "+  %3: f32[6] = cos(%5)",
    ]
    assert bool(found) and str(found).startswith("--- before\n+++ after")


def test_equal_graphs_do_not_differ():
    graph = graph_of(jnp.sin, X)
    assert not Diff(graph, graph)
    assert str(Diff(graph, graph)) == "no difference"
    assert not Diff(graph, Graph.from_jaxpr(graph.to_jaxpr()))
