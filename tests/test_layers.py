"""The architecture, checked by machine: who may import whom, what files may be called and how long they may be."""

import ast
import os
import pathlib
import subprocess
import sys

import pytest

import jaxsplice

ROOT = pathlib.Path(__file__).parent.parent
FOLDERS = ("passes", "patterns", "kernels", "models", "runtime")
JAX = {"jax", "numpy"}
ALLOWED = {  # folder -> (other folders of ours, packages of others); None: any that is a dependency
    "passes": (set(), JAX | {"networkx"}),
    "kernels": (set(), JAX | {"jaxtyping"}),
    "patterns": ({"passes", "kernels"}, JAX | {"jaxtyping"}),
    "models": (set(), None),
    "runtime": (set(FOLDERS), None),
}
MAY_TOUCH_JAXPR_CLASSES = {"passes/ir/jaxprs.py", "kernels/op.py"}
FORBIDDEN_NAMES = {"utils", "util", "common", "helpers", "helper", "misc", "v2"}
LONGEST_FILE, LONGEST_FUNCTION = 500, 60
# What users are promised under `jaxsplice.`, as far as it is written.
PUBLIC = (
    "Case", "Certificate", "Compiled", "Culprit", "Diff", "Explanation", "Graph", "Instrument", "JaxspliceError",
    "NearMiss", "Op", "Optimized", "Pass", "Pipeline", "Refuse", "Report", "Result", "Rule", "Target", "TargetReport",
    "audit", "bisect", "compile", "diff", "explain", "models", "optimize", "report", "rewrite", "trace", "verify",
)  # fmt: skip


def python_files(*folders: str) -> list[pathlib.Path]:
    """Source files of some folders of the repository."""
    return sorted(p for folder in folders for p in (ROOT / folder).rglob("*.py"))


def shown(path: pathlib.Path) -> str:
    """A path as seen from the repository's root."""
    return path.relative_to(ROOT).as_posix()


OURS = python_files(*FOLDERS)
EVERYTHING = [*OURS, *python_files("tests"), *(ROOT / "src" / "jaxsplice").glob("*.py")]
TREES = {path: ast.parse(path.read_text()) for path in EVERYTHING}


def imports(path: pathlib.Path) -> set[str]:
    """Full names of all that a file imports, anywhere in it; relative ones resolved."""
    package = ["jaxsplice", *path.relative_to(ROOT).parts[:-1]]
    found = set()
    for node in ast.walk(TREES[path]):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            found.update(f"{module}.{alias.name}" for alias in node.names)
    return found


def attributes(path: pathlib.Path) -> set[str]:
    """Dotted names that a file spells out, such as `jax.extend.core`."""
    return {ast.unparse(node) for node in ast.walk(TREES[path]) if isinstance(node, ast.Attribute)}


# ---------------------------------------------------------------- who may import whom
def test_the_five_folders_have_files():
    """Or the tests below would test nothing."""
    assert {path.relative_to(ROOT).parts[0] for path in OURS} == set(FOLDERS)


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_imports_only_what_it_may(folder):
    ours, others = ALLOWED[folder]
    wrong = []
    for path in python_files(folder):
        for name in sorted(imports(path)):
            first, *rest = name.split(".")
            if first == "jaxsplice":
                lawful = bool(rest) and rest[0] in {folder, *ours}
            else:
                lawful = others is None or first in others or first in sys.stdlib_module_names
            if not lawful:
                wrong.append(f"{shown(path)} imports {name}")
    assert not wrong, "\n".join(wrong)


def test_folders_are_never_imported_as_top_level_packages():
    wrong = [
        f"{shown(path)} imports {name}"
        for path in EVERYTHING
        for name in imports(path)
        if name.split(".")[0] in FOLDERS and "tests" not in path.parts
    ]
    assert not wrong, "\n".join(wrong)


def test_relative_imports_stay_in_their_folder():
    wrong = [
        f"{shown(path)}: from {'.' * node.level}{node.module or ''} import ..."
        for path in OURS
        for node in ast.walk(TREES[path])
        if isinstance(node, ast.ImportFrom) and node.level >= len(path.relative_to(ROOT).parts)
    ]
    assert not wrong, "\n".join(wrong)


def test_nothing_touches_jax_from_the_inside():
    inside = ".".join(("jax", "_src"))  # not spelled out here, or this file would be found
    wrong = [shown(path) for path in EVERYTHING if inside in path.read_text()]
    assert not wrong, f"{inside} in {wrong}"


def test_only_two_files_touch_jaxpr_classes():
    def touches(path):
        names = imports(path) | attributes(path)
        return any(name == "jax.extend.core" or name.startswith("jax.extend.core.") for name in names)

    assert {shown(path) for path in EVERYTHING if touches(path)} == MAY_TOUCH_JAXPR_CLASSES


# ---------------------------------------------------------------- names and sizes
def test_no_file_or_function_is_named_for_nothing():
    names = {shown(path): path.stem for path in EVERYTHING}
    names |= {
        shown(folder): folder.name for path in EVERYTHING for folder in path.parents if folder.is_relative_to(ROOT)
    }
    for path in OURS:
        defined = [n for n in ast.walk(TREES[path]) if isinstance(n, ast.FunctionDef | ast.ClassDef)]
        names |= {f"{shown(path)}: {n.name}": n.name.lower().strip("_") for n in defined}
    names.pop(".", None)
    assert not [where for where, name in names.items() if name in FORBIDDEN_NAMES]


def test_files_are_short():
    lengths = {shown(path): len(path.read_text().splitlines()) for path in EVERYTHING}
    assert not {where: n for where, n in lengths.items() if n > LONGEST_FILE}


def lines_of_code(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function without its docstring, which may be as long as it needs to be."""
    length = function.end_lineno - function.lineno + 1
    first = function.body[0]
    documented = ast.get_docstring(function) is not None
    return length - (first.end_lineno - first.lineno + 1 if documented else 0)


def test_functions_are_short():
    lengths = {
        f"{shown(path)}: {node.name}": lines_of_code(node)
        for path in EVERYTHING
        for node in ast.walk(TREES[path])
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert not {where: n for where, n in lengths.items() if n > LONGEST_FUNCTION}


# ---------------------------------------------------------------- packaging
def test_the_links_are_relative_and_lead_to_the_folders():
    package = ROOT / "src" / "jaxsplice"
    links = {path.name: os.readlink(path) for path in package.iterdir() if path.is_symlink()}
    assert links == {folder: f"../../{folder}" for folder in FOLDERS}
    assert all((package / folder).samefile(ROOT / folder) for folder in FOLDERS)


def test_the_repository_itself_is_no_package():
    assert not (ROOT / "__init__.py").exists()
    assert not (ROOT / "src" / "__init__.py").exists()


def test_folders_are_never_top_level_modules():
    code = f"import jaxsplice, sys; print(sorted(set({FOLDERS!r}) & set(sys.modules)), jaxsplice.passes.__name__)"
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env).stdout
    assert out.split() == ["[]", "jaxsplice.passes"]
    assert not set(FOLDERS) & set(sys.modules)


# ---------------------------------------------------------------- the public face
def defined_in_runtime() -> set[str]:
    """Functions and classes that the entry points' folder defines."""
    return {
        node.name
        for path in (ROOT / "runtime").glob("*.py")
        for node in TREES[path].body
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }


def test_promised_names_are_exported_as_soon_as_they_exist():
    missing = [name for name in PUBLIC if not hasattr(jaxsplice, name)]
    assert not set(missing) & defined_in_runtime()
    assert set(missing) <= {"TargetReport", "audit", "report", "verify"}  # not written yet


def test_the_public_face_only_re_exports():
    tree = TREES[ROOT / "src" / "jaxsplice" / "__init__.py"]
    docstring, *rest = tree.body
    assert isinstance(docstring, ast.Expr)
    version = [node for node in rest if not isinstance(node, ast.ImportFrom)]
    assert [ast.unparse(node).split(" = ")[0] for node in version] == ["__version__"]
    names = [alias for node in rest if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert all(alias.asname == alias.name for alias in names)  # explicit re-exports, for type checkers


def test_graph_and_errors_are_whole():
    for method in ("from_jaxpr", "to_jaxpr", "to_networkx", "save", "__call__", "__str__"):
        assert callable(getattr(jaxsplice.Graph, method))
    assert all(issubclass(error, jaxsplice.JaxspliceError) for error in (jaxsplice.Refuse,))
