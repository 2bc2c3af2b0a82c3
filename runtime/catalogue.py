"""Tables and pages of all rules and Ops, made from the rules and Ops themselves."""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
from collections.abc import Iterable

from jax import lax

from jaxsplice import kernels
from jaxsplice.kernels import Op
from jaxsplice.passes.rewrite.rule import GraphRule, Rule

from .library import PIPELINES, library


def _rules_by_name() -> dict[str, list[Rule | GraphRule]]:
    out: dict[str, list[Rule | GraphRule]] = {}
    for rule in library().rules:
        out.setdefault(rule.name, []).append(rule)
    order = {"raise": 0, "fuse": 1, "place": 2}
    return dict(sorted(out.items(), key=lambda kv: (order[kv[1][0].stage], kv[0])))


def _module_of(rule: Rule | GraphRule):
    fn = rule.find if isinstance(rule, GraphRule) else rule.before
    return sys.modules[fn.__module__]


def rules_table() -> str:
    """One line per rule: name, stage, what it buys."""
    lines = [f"{'rule':<18} {'stage':<6} benefit"]
    for name, rules in _rules_by_name().items():
        head = f"{name:<18} {rules[0].stage:<6} "
        lines += textwrap.wrap(head + rules[0].benefit, 80, subsequent_indent=" " * len(head))
    return "\n".join(lines) + "\n"


def rules_page() -> str:
    """docs/rules.md."""
    lines = [
        "# Rules", "",
        "Made by `jaxsplice rules --markdown`; do not edit. Each rule is one file of `patterns/`: its `before` is what",
        "is recognised, its `after` what takes its place. `jaxsplice explain` says why a rule does not apply.", "",
        f"The default pipeline is `{PIPELINES['default']}`.", "",
        "| rule | stage | variants | near misses | needs |", "| --- | --- | --- | --- | --- |",
    ]  # fmt: skip
    by_name = _rules_by_name()
    for name, rules in by_name.items():
        cases = sum(len(r.cases) for r in rules)
        misses = sum(len(r.near_misses) for r in rules)
        needs = ", ".join(rules[0].needs) or "-"
        lines.append(f"| [{name}](#{name}) | {rules[0].stage} | {cases} | {misses} | {needs} |")
    for name, rules in by_name.items():
        module = _module_of(rules[0])
        file = module.__name__.removeprefix("jaxsplice.").replace(".", "/") + ".py"
        lines += ["", f"## {name}", "", f"`{file}`", "", "```text", inspect.cleandoc(module.__doc__ or ""), "```"]
    return "\n".join(lines) + "\n"


def ops_table() -> str:
    """One line per Op: name, implementations, derivative."""
    lines = [f"{'op':<18} {'implementations':<28} derivative"]
    for op in kernels.ops().values():
        names = ", ".join(i.name for i in op.implementations) or "reference"
        lines.append(f"{op.name:<18} {names:<28} {op.derivative or 'reference'}"[:80])
    return "\n".join(lines) + "\n"


def ops_page() -> str:
    """docs/ops.md."""
    lines = [
        "# Ops", "",
        "Made by `jaxsplice rules --ops --markdown`; do not edit. Each Op is one folder of `kernels/`. In a graph an",
        "Op is one node whose inner program is its *reference*; `lower` chooses an implementation and proves it.", "",
        "| op | implementations | platforms | backward pass | tolerance (f32, bf16) |",
        "| --- | --- | --- | --- | --- |",
    ]  # fmt: skip
    ops = kernels.ops()
    for op in ops.values():
        lines.append(f"| [{op.name}](#{op.name}) | {_names(op)} | {_platforms(op)} | {_backward(op)} | {_limits(op)} |")
    for op in ops.values():
        call = f"{op.name.replace('-', '_')}{inspect.signature(op.reference)}"
        lines += ["", f"## {op.name}", "", "```text", _plain(call), "```", "", _first_paragraph(op.reference), ""]
        lines += [f"Tolerance: {op.tolerance.reason}. Named shapes: {_listed(op.shapes)}."]
    return "\n".join(lines) + "\n"


def _names(op: Op) -> str:
    return ", ".join(i.name for i in op.implementations) or "reference"


def _platforms(op: Op) -> str:
    return ", ".join(dict.fromkeys(p for i in op.implementations for p in (i.platforms or ("all",)))) or "all"


def _backward(op: Op) -> str:
    return f"of the {op.derivative} implementation" if op.derivative else "of the reference"


def _limits(op: Op) -> str:
    return f"{op.tolerance.float32:.0e}, {op.tolerance.bfloat16:.0e}"


def _plain(signature: str) -> str:
    """`Float[jaxlib._jax.Array, 'B T C']` -> `Float[B T C]`."""
    signature = signature.replace(inspect.formatannotation(lax.PrecisionLike), "PrecisionLike")
    return re.sub(r"(?:jaxtyping\.)?(\w+)\[[\w.]+, '([^']*)'\]", r"\1[\2]", signature)


def _first_paragraph(fn) -> str:
    return inspect.cleandoc(fn.__doc__ or "").split("\n\n")[0]


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{n}`" for n in names)
