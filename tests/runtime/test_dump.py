"""Dumps: whole files or none, in a folder of their own per program, in every format there is."""

import json
import os

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import pytest

import jaxsplice
from jaxsplice import JaxspliceError
from jaxsplice.runtime.dump import dump_result
from jaxsplice.runtime.library import library

X, A, B = np.ones((4, 8), np.float32), np.ones((8, 16), np.float32), np.ones((8, 16), np.float32)


def gate(x, a, b):
    return jax.nn.silu(x @ a) * (x @ b)


@pytest.fixture
def result():
    return jaxsplice.rewrite(jaxsplice.trace(gate, X, A, B))


def test_all_formats_are_written_and_can_be_read(result, tmp_path):
    written = dump_result(result, tmp_path / "out", (".txt", ".json", ".dot", ".graphml"))
    names = [f"{side}{suffix}" for side in ("before", "after") for suffix in (".txt", ".json", ".dot", ".graphml")]
    assert [p.name for p in written] == [*names, "report.txt", "diff.txt"]
    assert sorted(os.listdir(tmp_path / "out")) == sorted(p.name for p in written)
    text = {p.name: p.read_text() for p in written}
    assert "swiglu" in text["after.txt"] and "swiglu" not in text["before.txt"] and __file__ in text["before.txt"]
    assert "swiglu" in {n["primitive"] for n in json.loads(text["after.json"])["nodes"]}
    assert len(nx.read_graphml(tmp_path / "out" / "after.graphml")) == len(json.loads(text["after.json"])["nodes"])
    assert text["before.dot"].startswith('digraph "gate" {')
    assert text["report.txt"].startswith("rule ") and text["diff.txt"].startswith("--- before")


def test_an_unknown_format_leaves_nothing(result, tmp_path):
    with pytest.raises(JaxspliceError, match=r"there is no format 'png'\..* Known: dot, graphml, json, svg, txt\."):
        dump_result(result, tmp_path / "out", (".txt", ".png"))
    assert not list(tmp_path.iterdir())


def test_a_format_that_cannot_be_made_leaves_nothing(result, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with pytest.raises(JaxspliceError, match=r"an \.svg needs Graphviz"):
        dump_result(result, tmp_path / "out", (".txt", ".svg"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("blocked", ["is a file", "lies in a file"])
def test_a_folder_that_cannot_be_written(result, tmp_path, blocked):
    (tmp_path / "taken").write_text("mine")
    folder = tmp_path / "taken" if blocked == "is a file" else tmp_path / "taken" / "out"
    with pytest.raises(JaxspliceError, match=r"cannot write into .*give a folder that can be written"):
        dump_result(result, folder)
    assert (tmp_path / "taken").read_text() == "mine" and os.listdir(tmp_path) == ["taken"]


# ---------------------------------------------------------------- stages
def stage_folder(folder):
    (made,) = folder.iterdir()
    return made, sorted(os.listdir(made))


def test_every_stage_that_changed_something_is_dumped(tmp_path):
    graph = jaxsplice.trace(gate, X, A, B)
    result = jaxsplice.rewrite(graph, "normalize,raise,fuse,lower,cleanup", "cpu", dump_dir=tmp_path)
    folder, names = stage_folder(tmp_path)
    assert folder.name.startswith("gate_")
    assert names == ["00_before.txt", "02_raise.txt", "04_lower.txt", "diff.txt", "pipeline.txt", "report.txt"]
    assert "implementation=xla" in (folder / "04_lower.txt").read_text()
    assert (folder / "report.txt").read_text() == f"{result.report}\n"
    text, line = (folder / "pipeline.txt").read_text().splitlines()
    assert text == "normalize,raise,fuse,lower,cleanup" and line == f"hash {library().pipeline(text).hash}"


def test_stages_with_options_have_names_that_are_files(tmp_path):
    jaxsplice.rewrite(jaxsplice.trace(gate, X, A, B), "raise{swiglu,rms-norm}", dump_dir=tmp_path)
    assert stage_folder(tmp_path)[1][:2] == ["00_before.txt", "01_raise_swiglu_rms-norm.txt"]


def test_the_environment_variable_names_the_folder_and_an_argument_wins(tmp_path, monkeypatch):
    monkeypatch.setenv("JAXSPLICE_DUMP_DIR", str(tmp_path / "environment"))
    graph = jaxsplice.trace(gate, X, A, B)
    jaxsplice.rewrite(graph)
    jaxsplice.optimize(gate, dump_dir=tmp_path / "argument")(X, A, B)
    assert len(list((tmp_path / "environment").iterdir())) == len(list((tmp_path / "argument").iterdir())) == 1


def test_programs_get_folders_of_their_own(tmp_path):
    fast = jaxsplice.optimize(gate, dump_dir=tmp_path)
    for rows in (2, 3):
        fast(X[:rows], A, B)
        fast(X[:rows], A, B)  # known: nothing is rewritten, nothing dumped
    assert len(list(tmp_path.iterdir())) == 2


def test_dumping_into_what_cannot_be_written_is_one_clear_error(tmp_path):
    (tmp_path / "taken").write_text("mine")
    with pytest.raises(JaxspliceError, match=r"cannot write dumps into .*taken"):
        jaxsplice.rewrite(jaxsplice.trace(gate, X, A, B), dump_dir=tmp_path / "taken")


def test_a_rewrite_that_fails_leaves_what_it_had_seen(tmp_path):
    class Breaks(jaxsplice.Pass):
        def run(self, graph, context):
            raise ZeroDivisionError("broken")

    jaxsplice.rewrite(jaxsplice.trace(gate, X, A, B), ["raise", Breaks("breaks")], dump_dir=tmp_path)
    crash, stages = sorted(tmp_path.iterdir(), key=lambda folder: "crash" not in folder.name)
    assert sorted(os.listdir(stages))[:2] == ["00_before.txt", "01_raise.txt"]
    assert crash.name.startswith("gate_crash_")


# ---------------------------------------------------------------- save
def test_a_result_without_changes_dumps_no_difference(tmp_path):
    dump_result(jaxsplice.rewrite(jaxsplice.trace(jnp.sin, X)), tmp_path)
    assert (tmp_path / "diff.txt").read_text() == "no difference\n"
    assert (tmp_path / "report.txt").read_text().startswith("no rewrites\n")
