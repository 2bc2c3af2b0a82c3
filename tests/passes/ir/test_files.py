"""Graphs as files: every format is written whole, can be read back, and a failure leaves nothing behind."""

import json
import os
import stat
import xml.etree.ElementTree as ET

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import pytest

from jaxsplice.kernels import Op
from jaxsplice.passes.errors import JaxspliceError
from jaxsplice.passes.ir import files
from jaxsplice.passes.ir.graph import Graph

from . import programs

X = np.ones((6,), np.float32)


def graph_of(name):
    """Graph of one of the shared programs."""
    return Graph.from_jaxpr(programs.traced(name), name=name)


# ---------------------------------------------------------------- networkx
def test_one_node_per_equation_and_one_edge_per_use():
    out = Graph.from_jaxpr(jax.make_jaxpr(lambda x: jnp.sin(x) * jnp.sin(x) + 1.0)(X)).to_networkx()
    assert isinstance(out, nx.MultiDiGraph)
    assert [out.nodes[n]["primitive"] for n in out] == ["input", "sin", "sin", "mul", "add", "output"]
    uses = [(a, b, d["operand"], d["result"], d["type"]) for a, b, d in out.edges(data=True)]
    assert sorted(uses) == [
        (0, 1, 0, 0, "f32[6]"), (0, 2, 0, 0, "f32[6]"), (1, 3, 0, 0, "f32[6]"), (2, 3, 1, 0, "f32[6]"),
        (3, 4, 0, 0, "f32[6]"), (4, 5, 0, 0, "f32[6]"),
    ]  # fmt: skip


def test_the_same_value_twice_is_two_edges():
    out = Graph.from_jaxpr(jax.make_jaxpr(lambda x: x * x)(X)).to_networkx()
    assert out.number_of_edges(0, 1) == 2


def test_nodes_say_what_and_where_they_are():
    out = graph_of("scan_with_everything").to_networkx()
    by_name = {d["primitive"]: d for _, d in out.nodes(data=True)}
    assert set(by_name["scan"]) == {"primitive", "kind", "region", "params", "source", "type", "certificate"}
    assert by_name["scan"]["kind"] == "loop" and "length=3" in by_name["scan"]["params"]
    assert programs.__file__ in by_name["scan"]["source"] and by_name["scan"]["type"] == "f32[4]"
    assert by_name["logistic"]["region"].startswith("/scan[") and "/jit[" in by_name["logistic"]["region"]
    assert by_name["input"]["kind"] == "input" and by_name["input"]["region"] == ""


def test_kinds_of_nodes_are_told_apart():
    double = Op("double", lambda x: x + x)

    def fn(x, w):
        return double(x @ w)

    kinds = {
        d["primitive"]: d["kind"] for _, d in Graph.from_jaxpr(jax.make_jaxpr(fn)(X, X)).to_networkx().nodes(data=True)
    }
    assert kinds == {"input": "input", "dot_general": "matmul", "double": "op", "output": "other"}
    sharded = {d["kind"] for _, d in graph_of("shard_map_checked").to_networkx().nodes(data=True)}
    assert "collective" in sharded


def test_values_from_outside_lead_into_regions():
    out = graph_of("cond").to_networkx()
    (x,) = (n for n, d in out.nodes(data=True) if d["primitive"] == "input")
    inside = {out.nodes[b]["primitive"] for _, b in out.out_edges(x) if out.nodes[b]["region"].startswith("/cond")}
    assert "logistic" in inside
    assert nx.is_directed_acyclic_graph(out)


def test_constants_are_nodes():
    out = graph_of("call_with_a_constant").to_networkx()
    assert [d["type"] for _, d in out.nodes(data=True) if d["primitive"] == "const"] == ["f32[6]", "f32[6]"]


def test_references_to_networkx_are_the_function():
    graph = graph_of("plain")
    assert nx.utils.graphs_equal(graph.to_networkx(), files.to_networkx(graph))


# ---------------------------------------------------------------- formats
@pytest.mark.parametrize("name", sorted(programs.PROGRAMS))
def test_every_program_can_be_saved_and_read_back(name, tmp_path):
    graph = graph_of(name)
    expected = graph.to_networkx()
    data = json.loads(graph.save(tmp_path / "graph.json").read_text())
    assert data["name"] == name and len(data["nodes"]) == len(expected)
    assert len(data["edges"]) == expected.number_of_edges()
    back = nx.read_graphml(graph.save(tmp_path / "graph.graphml"), force_multigraph=True)
    assert [d["primitive"] for _, d in back.nodes(data=True)] == [d["primitive"] for _, d in expected.nodes(data=True)]
    assert back.number_of_edges() == expected.number_of_edges()
    dot = graph.save(tmp_path / "graph.dot").read_text()
    assert dot.startswith(f'digraph "{name}" {{') and dot.count("{") == dot.count("}") == dot.count("subgraph") + 1
    assert dot.count(" -> ") == expected.number_of_edges()
    text = graph.save(tmp_path / "graph.txt").read_text()
    assert text.startswith(f"{name}(") and text.endswith("}\n")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["graph.dot", "graph.graphml", "graph.json", "graph.txt"]


def test_saving_makes_the_folder_and_gives_back_the_path(tmp_path):
    path = tmp_path / "new" / "folder" / "graph.txt"
    assert graph_of("plain").save(str(path)) == path
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    graph_of("nothing").save(path)  # and over what is there
    assert path.read_text().startswith("nothing(")


def test_an_unknown_suffix_names_those_there_are(tmp_path):
    with pytest.raises(JaxspliceError, match=r"'graph\.png'; suffixes: .*\.dot .*\.graphml .*\.json .*\.svg .*\.txt"):
        graph_of("plain").save(tmp_path / "sub" / "graph.png")
    assert not list(tmp_path.iterdir())


def test_a_failed_write_leaves_what_was_there(tmp_path, monkeypatch):
    path = graph_of("plain").save(tmp_path / "graph.txt")
    before = path.read_text()

    def fails(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(OSError, match="disk full"):
        graph_of("cond").save(path)
    assert path.read_text() == before
    assert [p.name for p in tmp_path.iterdir()] == ["graph.txt"]


def test_a_drawing_needs_graphviz(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with pytest.raises(JaxspliceError, match=r"install it .* or save \.dot, \.json or \.graphml"):
        graph_of("plain").save(tmp_path / "sub" / "graph.svg")
    assert not list(tmp_path.iterdir())


def _fake_dot(folder, script: str):
    folder.mkdir()
    program = folder / "dot"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return str(folder)


def test_a_drawing_is_what_graphviz_draws(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", _fake_dot(tmp_path / "bin", "/bin/cat > /dev/null; echo '<svg/>'"))
    path = graph_of("plain").save(tmp_path / "graph.svg")
    assert ET.fromstring(path.read_text()).tag == "svg"


def test_what_graphviz_says_is_passed_on(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", _fake_dot(tmp_path / "bin", "/bin/cat > /dev/null; echo 'syntax error' >&2; exit 1"))
    with pytest.raises(JaxspliceError, match="could not draw plain: syntax error"):
        graph_of("plain").save(tmp_path / "graph.svg")
    assert not (tmp_path / "graph.svg").exists()
