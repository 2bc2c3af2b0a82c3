"""The command line as a process of its own: both ways to start it, exit codes, and nothing but what was asked for."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from .command_line import GATE, write_module

SOURCES = Path(__file__).parents[2] / "src"


def start(*words: str, cwd: Path, module: str = "jaxsplice", **environment: str | None):
    """`python -m jaxsplice WORDS` in a new process; None takes a variable out of the environment."""
    env = {**os.environ, "PYTHONPATH": str(SOURCES), **environment}
    env = {k: v for k, v in env.items() if v is not None}
    return subprocess.run(
        [sys.executable, "-m", module, *words], cwd=cwd, env=env, capture_output=True, text=True, timeout=300
    )


@pytest.fixture
def folder(tmp_path):
    write_module(tmp_path, "own")
    return tmp_path


@pytest.mark.parametrize("module", ["jaxsplice", "jaxsplice.runtime"])
def test_both_modules_start_it(module, tmp_path):
    ran = start("rules", cwd=tmp_path, module=module)
    assert ran.returncode == 0 and ran.stderr == "" and "\nswiglu " in ran.stdout


def test_a_failure_is_one_line_and_an_exit_code(folder):
    ran = start("dump", "own:gate", GATE, "--out=out", "--passes=rais", cwd=folder)
    assert (ran.returncode, ran.stdout) == (1, "") and len(ran.stderr.splitlines()) == 1
    assert "Traceback" not in ran.stderr and not (folder / "out").exists()
    assert start("nothing", cwd=folder).returncode == 2


def test_output_is_clean_where_a_tpu_library_finds_no_tpu(folder):
    if importlib.util.find_spec("libtpu") is None:
        pytest.skip("libtpu is not installed here: nothing could print")
    ran = start("explain", "own:gate", GATE, "--rule=swiglu", cwd=folder, JAX_PLATFORMS=None, XLA_FLAGS=None)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.startswith("swiglu matches at ") and len(ran.stdout.splitlines()) == 2


def test_warnings_of_python_are_none(folder):
    ran = start("dump", "own:gate", GATE, "--out=out", cwd=folder, PYTHONWARNINGS="error")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert (folder / "out" / "after.txt").exists()
