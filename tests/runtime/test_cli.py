"""The command line on programs: rules, explain, dump; and what it says when it is used wrongly."""

import os
import re
from pathlib import Path

import pytest

from jaxsplice.runtime.cli import COMMANDS
from jaxsplice.runtime.library import library

from .command_line import GATE, jaxsplice, write_module


@pytest.fixture(scope="module")
def module(tmp_path_factory):
    """The name of a module that lies in the current folder."""
    folder, here = tmp_path_factory.mktemp("module"), Path.cwd()
    os.chdir(folder)
    yield write_module(folder, "programs_of_a_user")
    os.chdir(here)


def assert_failed(ran, code: int, message: str) -> None:
    """One clear message on stderr, nothing on stdout."""
    assert ran.code == code and ran.out == "" and re.search(message, ran.err), ran
    lines = ran.err.splitlines()
    assert lines[0].startswith("jaxsplice") and len(lines) == (2 if "--help" in lines[-1] and code == 2 else 1), ran


# ---------------------------------------------------------------- help
@pytest.mark.parametrize("words", [(), ("help",), ("--help",), ("-h",)])
def test_usage_lists_all_commands(words):
    ran = jaxsplice(*words)
    assert ran.code == 0 and ran.err == ""
    assert re.findall(r"^  (\w+) ", ran.out, re.M) == list(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_every_command_lists_its_flags(command, flag):
    ran = jaxsplice(command, flag)
    assert ran.code == 0 and ran.err == "" and ran.out.startswith(f"jaxsplice {command}: ")
    assert re.search(r"^  --\w+$", ran.out, re.M) and max(map(len, ran.out.splitlines()[1:])) <= 80


# ---------------------------------------------------------------- rules
def test_rules_and_ops_are_listed():
    rules, ops = jaxsplice("rules"), jaxsplice("rules", "--ops")
    assert rules.code == ops.code == 0 and rules.err == ops.err == ""
    heads = [line for line in rules.out.splitlines()[1:] if not line.startswith(" ")]  # long benefits go on below
    assert {line.split()[0] for line in heads} == {r.name for r in library().rules}
    assert "swiglu" in {line.split()[0] for line in ops.out.splitlines()[1:]}
    for text in (rules.out, ops.out):
        assert max(map(len, text.splitlines())) <= 80
        assert not [line for line in text.splitlines() if line != line.rstrip()]


def test_markdown_has_a_section_per_rule():
    page = jaxsplice("rules", "--markdown").out
    assert re.findall(r"^## (.*)$", page, re.M) == list(dict.fromkeys(re.findall(r"\]\(#(.*?)\)", page)))
    assert page.startswith("# Rules\n") and page.count("```") % 2 == 0
    assert jaxsplice("rules", "--ops", "--markdown").out.startswith("# Ops\n")


# ---------------------------------------------------------------- explain
def test_explain_says_where_it_matches(module):
    ran = jaxsplice("explain", f"{module}:gate", GATE, "--rule=swiglu")
    assert ran.code == 0 and ran.err == ""
    assert re.match(rf"swiglu matches at \S+{module}\.py:10 \(gate\): .*dot_general.*\n    match exact", ran.out)


def test_explain_says_why_it_does_not(module):
    ran = jaxsplice("explain", f"{module}:with_bias", GATE + ",f32[16]", "--rule=swiglu", "--limit=1")
    assert ran.code == 0 and ran.err == ""
    first, reason = ran.out.splitlines()[:2]
    assert first.startswith("swiglu does not apply at ") and "wanted dot_general, found add" in reason


def test_a_rule_of_ones_own_is_explained(module):
    ran = jaxsplice("explain", f"{module}:gate", GATE, f"--rule={module}:rule")
    assert ran.code == 0 and ran.err == "" and ran.out.startswith("two-products does not apply at ")
    hint = "the activation is logistic (silu, sigmoid), the rule's is tanh: rule swiglu takes it"
    assert ran.out.endswith(f"    hint: {hint}\n")


def test_functions_may_lie_in_packages_and_objects():
    ran = jaxsplice("explain", "jax.numpy:linalg.norm", "--args=f32[4]", "--rule=swiglu")
    assert ran.code == 0 and ran.out == "nothing in this program resembles the rule\n"


# ---------------------------------------------------------------- dump
def test_dump_writes_and_names_its_files(module, tmp_path):
    out = tmp_path / "new" / "folder"
    ran = jaxsplice("dump", f"{module}:gate", GATE, f"--out={out}", "--formats=txt,graphml")
    assert ran.code == 0 and ran.err == ""
    names = ["before.txt", "before.graphml", "after.txt", "after.graphml", "report.txt", "diff.txt"]
    assert ran.out.splitlines()[-1] == "wrote " + " ".join(str(out / name) for name in names)
    assert sorted(os.listdir(out)) == sorted(names)
    assert re.search(r"^swiglu +1 +1 ", ran.out, re.M) and "swiglu" in (out / "after.txt").read_text()


@pytest.mark.parametrize(("flags", "kept"), [(["--passes=none"], "no rewrites"), (["--verify=off"], "assumed")])
def test_dump_takes_the_options_of_rewrite(module, tmp_path, flags, kept):
    ran = jaxsplice("dump", f"{module}:gate", f"--args={module}:arguments", f"--out={tmp_path}", *flags)
    assert ran.code == 0 and kept in ran.out


def test_statistics_of_rules_are_printed_when_asked_for(module, tmp_path):
    plain = jaxsplice("dump", f"{module}:gate", GATE, f"--out={tmp_path}")
    asked = jaxsplice("dump", f"{module}:gate", GATE, f"--out={tmp_path}", "--statistics")
    assert plain.code == asked.code == 0 and "tried" not in plain.out
    assert re.search(r"^rule +tried +matched +refused +seconds$", asked.out, re.M)
    assert re.search(r"^swiglu +\d+ +1 +0 +\d\.\d{4}$", asked.out, re.M)


# ---------------------------------------------------------------- bisect
def test_bisect_finds_the_rewrite_that_a_check_complains_of(module, tmp_path):
    Path("checks_of_a_user.py").write_text(
        "def no_swiglu(before, after):\n    return 'swiglu' not in after.primitives()\n"
        "def numbers(before, after):\n    import numpy as np\n"
        "    x = np.ones((4, 8), 'f4'), *2 * [np.ones((8, 16), 'f4')]\n"
        "    np.testing.assert_allclose(after(*x), before(*x), rtol=1e-5)\n"
    )
    out = tmp_path / "culprit"
    ran = jaxsplice("bisect", f"{module}:gate", GATE, "--check=checks_of_a_user:no_swiglu", f"--out={out}")
    assert ran.code == 0 and ran.err == ""
    assert re.match(rf"rewrite 1 of 1 breaks the check: rule swiglu at \S+{module}\.py:10 \(gate\)\n", ran.out)
    assert "certificate: match exact" in ran.out and "check: it gave False" in ran.out
    assert sorted(os.listdir(out)) == ["after.txt", "before.txt", "culprit.txt", "diff.txt"]
    for check in ([], ["--check=checks_of_a_user:numbers"]):
        ran = jaxsplice("bisect", f"{module}:gate", GATE, *check, f"--out={tmp_path / 'none'}")
        assert (ran.code, ran.out, ran.err) == (0, "no rewrite breaks the check\n", "")
    assert not (tmp_path / "none").exists()


# ---------------------------------------------------------------- wrong use
@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["rule"], 2, r"there is no command 'rule'\. Did you mean 'rules'\? Known: bisect, demo, dump"),
        (["rules", "--mark"], 2, r"Unknown command line flag 'mark'"),
        (["rules", "swiglu"], 1, r"'swiglu' is not understood: this command takes --flags only, see --help"),
        (["explain"], 1, r"usage: jaxsplice explain package\.module:function --args="),
        (["explain", "{module}:gate"], 1, r"usage: jaxsplice explain"),
        (["dump", "{module}:gate", "{module}:gate", GATE], 1, r"usage: jaxsplice dump"),
        (["bisect", "{module}:gate"], 1, r"usage: jaxsplice bisect package\.module:function --args="),
        (["bisect", "{module}:gate", GATE, "--check={module}:nothing"], 1, r"module '{module}' has no 'nothing'"),
        (["bisect", "{module}:gate", GATE, "--check={module}:NUMBER"], 1, r"{module}:NUMBER is a int, not a function"),
        (["bisect", "{module}:gate", GATE, "--check={module}:gate"], 1, r"the check fails before any rewrite: TypeErr"),
        (["explain", "gate", GATE], 1, r"'gate' names no function: write package\.module:function"),
        (["explain", "no.such.module:f", GATE], 1, r"cannot import 'no\.such\.module'"),
        (["explain", "{module}:nothing", GATE], 1, r"module '{module}' has no 'nothing'"),
        (["explain", "{module}:NUMBER", GATE], 1, r"{module}:NUMBER is a int, not a function"),
        (["explain", "{module}:looks_at_values", "--args=f32[4]"], 1, r"looks_at_values could not be traced"),
        (["explain", "json:loads", "--args=f32[4]"], 1, r"loads could not be traced with arguments \(float32\[4\]\)"),
        (["explain", "{module}:gate", "--args=f32[4,8]"], 1, r"gate could not be traced .*missing 2 required"),
        (["explain", "{module}:gate", "--args=f32[4"], 1, r"--args='f32\[4' does not parse at 'f32\[4'"),
        (["explain", "{module}:gate", "--args=f33[4]"], 1, r"does not parse at 'f33\[4\]'.*Types: f64 f32 f16"),
        (
            ["explain", "{module}:gate", "--args={module}:gate"],
            1,
            r"--args={module}:gate: called without arguments, it",
        ),
        (["explain", "{module}:gate", GATE, "--rule=swigl"], 1, r"there is no rule 'swigl'\. Did you mean 'swiglu'"),
        (["explain", "{module}:gate", GATE, "--rule={module}:gate"], 1, r"{module}:gate is a function, not a jaxspl"),
        (["explain", "{module}:gate", GATE, "--rule={module}:rul"], 1, r"module '{module}' has no 'rul'"),
        (["explain", "{module}:gate", GATE, "--limit=few"], 2, r"flag --limit=few: invalid"),
        (
            ["dump", "{module}:gate", GATE, "--passes=rais"],
            1,
            r"no pass, pipeline or rule 'rais'\. Did you mean 'raise'",
        ),
        (["dump", "{module}:gate", GATE, "--passes=raise{nope}"], 1, r"there is no rule of stage 'raise' 'nope'"),
        (["dump", "{module}:gate", GATE, "--target=tpu9"], 1, r"there is no target 'tpu9'"),
        (["dump", "{module}:gate", GATE, "--formats=txt,png"], 1, r"there is no format 'png'"),
        (["dump", "{module}:gate", GATE, "--verify=maybe"], 2, r"flag --verify=maybe: value should be one of"),
        (["dump", "{module}:gate", GATE, "--out={module}.py"], 1, r"cannot write into {module}\.py: .*give a folder"),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else None,
)
def test_wrong_use_is_one_message_and_leaves_nothing(module, words, code, message):
    before = sorted(os.listdir())
    ran = jaxsplice(*[word.replace("{module}", module) for word in words])
    assert_failed(ran, code, message.replace("{module}", module))
    assert [name for name in sorted(os.listdir()) if name != "__pycache__"] == [
        name for name in before if name != "__pycache__"
    ]


def test_a_module_that_fails_while_it_is_imported(module):
    Path("broken_module.py").write_text("1 / 0\n")
    Path("no_python.py").write_text("def def\n")
    for name, reason in (("broken_module", "ZeroDivisionError: division by zero"), ("no_python", "SyntaxError: ")):
        assert_failed(jaxsplice("explain", f"{name}:f", GATE), 1, f"cannot import '{name}': {reason}")
