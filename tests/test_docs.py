"""What the documentation says is true: its code runs, its commands succeed, its generated pages are up to date."""

import doctest
import importlib
import os
import pkgutil
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

import jaxsplice
from jaxsplice.runtime import catalogue

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FOLDERS = ("passes", "patterns", "kernels", "models", "runtime")
_BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.M | re.S)
_COMMAND = re.compile(r"^\$ (?:jaxsplice|python3? -m jaxsplice)(?: (.*))?$")


class Block(NamedTuple):
    """A fenced block of a page: its language, its text without indentation, and the line it starts at."""

    language: str
    text: str
    line: int


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(language, re.sub(rf"^{indent}", "", body, flags=re.M), text[: found.start()].count("\n") + 2)
        for found in _BLOCK.finditer(text)
        for indent, language, body in [found.groups()]
    ]


def commands_of(block: Block) -> list[list[str]]:
    """The arguments of every `$ jaxsplice ...` of a console block; a line may go on after a backslash."""
    lines = block.text.replace("\\\n", " ").splitlines()
    found = [_COMMAND.match(line) for line in lines]
    return [shlex.split(f[1] or "", comments=True) for f in found if f is not None]


def shown(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


LOADS_A_MODEL = ("demo", "generate", "run")  # commands that take a minute: in the slow set
WITH_CODE = [page for page in PAGES if any(b.language in ("python", "console") for b in blocks_of(page))]


def run_python(block: Block, page: Path, namespace: dict) -> None:
    """Run a block; an error names the page and its own line in it."""
    code = compile("\n" * (block.line - 1) + block.text, str(page), "exec")
    exec(code, namespace)


def run_command(words: list[str], folder: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "jaxsplice", *words]
    ran = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, f"jaxsplice {shlex.join(words)} failed:\n{ran.stdout}{ran.stderr}"


def pages_by_time():
    """Pages with code; those that run a whole model for a minute are for the slow set."""
    return [
        pytest.param(page, marks=[pytest.mark.slow] if page.stem == "5-a-model" else [], id=shown(page))
        for page in WITH_CODE
    ]


@pytest.mark.parametrize("page", pages_by_time())
def test_code_and_commands_of_a_page_run_in_order(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    name = f"page_{page.stem.replace('-', '_')}"
    module = type(sys)(name)
    monkeypatch.setitem(sys.modules, name, module)
    for block in blocks_of(page):
        if block.language == "python":
            run_python(block, page, module.__dict__)
        elif block.language == "console":
            for words in commands_of(block):
                if words[:1] not in [[command] for command in LOADS_A_MODEL]:
                    run_command(words, tmp_path)


MODEL_COMMANDS = [
    pytest.param(words, id=f"{shown(page)}: {' '.join(words)[:60]}")
    for page in WITH_CODE
    for block in blocks_of(page)
    if block.language == "console"
    for words in commands_of(block)
    if words and words[0] in LOADS_A_MODEL
]


@pytest.mark.slow
@pytest.mark.parametrize("words", MODEL_COMMANDS)
def test_commands_that_load_a_model_succeed(words, tmp_path):
    run_command(words, tmp_path)


def test_pages_with_code_are_found():
    assert shown(PAGES[0]) == "README.md" and PAGES[0] in WITH_CODE
    assert any(page.is_relative_to(ROOT / "docs" / "tutorial") for page in WITH_CODE)


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_fences_are_closed_and_say_what_they_hold(page):
    fences = re.findall(r"^ *```(.*)$", page.read_text(encoding="utf-8"), re.M)
    assert len(fences) % 2 == 0
    assert all(language.strip() for language in fences[::2]), "a block without a language"
    assert not any(language.strip() for language in fences[1::2])


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_links_between_pages_lead_somewhere(page):
    text = re.sub(_BLOCK, "", page.read_text(encoding="utf-8"))
    links = re.findall(r"\]\((?!https?://|mailto:)([^)#\s]*)(?:#[^)\s]*)?\)", text)
    assert not [link for link in links if link and not (page.parent / link).exists()]


# ---------------------------------------------------------------- generated pages
@pytest.mark.parametrize(("name", "made"), [("rules", catalogue.rules_page), ("ops", catalogue.ops_page)])
def test_generated_page_is_up_to_date(name, made):
    flags = "--ops --markdown" if name == "ops" else "--markdown"
    page = ROOT / "docs" / f"{name}.md"
    assert page.exists(), f"jaxsplice rules {flags} >docs/{name}.md writes it"
    assert page.read_text(encoding="utf-8") == made(), f"jaxsplice rules {flags} >docs/{name}.md writes it anew"


# ---------------------------------------------------------------- doctests
MODULES = sorted(
    info.name
    for info in pkgutil.walk_packages(jaxsplice.__path__, "jaxsplice.")
    if not info.name.endswith("__main__") and ".training" not in info.name and not info.name.endswith(".train_demo")
)


@pytest.mark.parametrize("name", ["jaxsplice", *MODULES])
def test_examples_in_docstrings(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    failed, _ = doctest.testmod(importlib.import_module(name), optionflags=doctest.IGNORE_EXCEPTION_DETAIL)
    assert failed == 0
    assert not list(tmp_path.iterdir()), "an example left files behind"


def test_examples_exist():
    finder = doctest.DocTestFinder()
    count = sum(len(t.examples) > 0 for name in MODULES for t in finder.find(importlib.import_module(name)))
    assert count >= 30


# ---------------------------------------------------------------- packaging
def test_folders_of_the_repository_are_never_imported_on_their_own():
    """Tests and tools of others may have modules of these names; ours are reached as jaxsplice.passes and so on."""
    for name in FOLDERS:
        found = sys.modules.get(name)
        places = [getattr(found, "__file__", None), *getattr(found, "__path__", ())]
        assert not [p for p in places if p and Path(p).resolve().is_relative_to(ROOT)], f"{name} was imported"
        assert sys.modules[f"jaxsplice.{name}"].__name__ == f"jaxsplice.{name}"
