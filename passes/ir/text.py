"""Text of a graph, equal on every JAX version, and the difference of two graphs as text."""

from __future__ import annotations

import difflib
import re
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import JaxspliceError
from . import jaxprs
from .jaxprs import DropVar, Literal
from .nesting import nesting, unrolled

if TYPE_CHECKING:
    from .graph import Graph

_HIDDEN = {  # parameters that say nothing about the numbers, or differ between JAX versions
    "sharding", "out_sharding", "is_stable", "ft_in", "ft_out", "inline", "ctx_mesh", "keep_unused", "in_shardings",
    "out_shardings", "in_layouts", "out_layouts", "donated_invars", "compiler_options_kvs", "jvp_jaxpr_fun",
    "fwd_jaxpr_thunk", "bwd", "out_trees", "symbolic_zeros", "num_consts", "num_carry", "unroll", "linear",
    "_split_transpose", "prevent_cse", "differentiated", "newly_manual_axes", "op", "jaxpr", "call_jaxpr", "branches",
    "cond_jaxpr", "body_jaxpr", "update_jaxpr", "update_consts", "call", "dimensions_none", "out_dtype",
}  # fmt: skip
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # differs from run to run
_DTYPES = {"float": "f", "bfloat": "bf", "int": "i", "uint": "u", "complex": "c"}


def dtype_name(dtype) -> str:
    """`f32`, `bf16`, `i32`, `bool`, `f8_e4m3fn`, ..."""
    name = np.dtype(dtype).name if isinstance(dtype, np.dtype | type) else str(dtype)
    for long, short in sorted(_DTYPES.items(), key=lambda kv: -len(kv[0])):
        if name.startswith(long) and name[len(long) : len(long) + 1].isdigit():
            return short + name[len(long) :]
    return name


def type_text(aval) -> str:
    """`f32[8,16]`; a trailing `~` marks a weak type, `ref` before it a mutable reference."""
    if not hasattr(aval, "shape"):
        return str(aval)
    weak = "~" if getattr(aval, "weak_type", False) else ""
    ref = "ref " if jaxprs.is_ref(aval) else ""
    return f"{ref}{dtype_name(aval.dtype)}[{','.join(map(str, aval.shape))}]{weak}"


class Names(dict):
    """Var -> `%n`; shared between two graphs so that equal values have equal names in a difference."""

    def of(self, var) -> str:
        """The name of a Var, given at first sight."""
        if isinstance(var, DropVar):
            return "_"
        return self.setdefault(var, f"%{len(self)}")


def to_text(graph: Graph, names: Names | None = None, sources: bool = False) -> str:
    """The whole graph as text.

    Args:
        graph: graph to print.
        names: names given so far, to share them between graphs.
        sources: put behind each equation the user's line, and the certificate of the rewrite that put it there.

    Returns:
        One line per equation, nested regions indented. A large jaxpr that several equations hold is written once, with
        a label, and then referred to.
    """
    return "\n".join(_Printer(graph, Names() if names is None else names, sources).lines())


class _Printer:
    """One graph being printed. Nested parts are generators that `unrolled` runs: there is no limit on nesting."""

    def __init__(self, graph: Graph, names: Names, sources: bool):
        self.graph, self.names, self.sources = graph, names, sources
        self.shared = nesting(graph.to_jaxpr()).shared()
        self.labels: dict[int, str] = {}

    def lines(self) -> Iterator[str]:
        body = jaxprs.open_jaxpr(self.graph.to_jaxpr())
        yield f"{self.graph.name}({self._params_text(body.invars)}) {{"
        yield from unrolled(self._body(body, "  "))
        yield "}"

    def _params_text(self, invars) -> str:
        return ", ".join(f"{self.names.of(v)}: {type_text(v.aval)}" for v in invars)

    def _body(self, body, indent: str) -> Generator:
        yield from (f"{indent}const {self.names.of(v)}: {type_text(v.aval)}" for v in body.constvars)
        for eqn in body.eqns:
            yield self._equation(eqn, indent)
        yield f"{indent}return {', '.join(map(self._atom, body.outvars))}".rstrip()

    def _equation(self, eqn, indent: str) -> Generator:
        operands = ", ".join(map(self._atom, eqn.invars))
        made = f"{self._params_text(eqn.outvars)} = " if eqn.outvars else ""
        inner = jaxprs.children(eqn)
        head = f"{indent}{made}{eqn.primitive.name}({operands}){_params(eqn)}"
        yield f"{head} {{{self._remark(eqn)}" if inner else head + self._remark(eqn)
        for child in inner:
            yield self._nested(child, indent)
        if inner:
            yield f"{indent}}}"

    def _nested(self, child: jaxprs.Child, indent: str) -> Generator:
        nested, name = jaxprs.open_jaxpr(child.jaxpr), child.label
        if id(nested) in self.labels:
            yield f"{indent}  {name} {self.labels[id(nested)]}"
            return
        if id(nested) in self.shared:
            self.labels[id(nested)] = f"@{len(self.labels)}"
            name = f"{name} {self.labels[id(nested)]}"
        yield f"{indent}  {name}({self._params_text(nested.invars)}):"
        yield self._body(nested, indent + "    ")

    def _remark(self, eqn) -> str:
        """Where an equation comes from: the user's line, and the proof of the rewrite that put it there."""
        if not self.sources:
            return ""
        certificate = next((c for c in map(self.graph.certificates.get, eqn.outvars) if c is not None), None)
        proof = "" if certificate is None else f"  # {certificate.rule}: {certificate}"
        return f"  # {jaxprs.source_line(eqn)}{proof}"

    def _atom(self, atom) -> str:
        return _number(atom.val) if type(atom) is Literal else self.names.of(atom)


def _number(value) -> str:
    array = np.asarray(value)
    if array.ndim:
        return f"array<{type_text(array)}>"
    if array.dtype.kind in "biu":
        return str(array.item())
    return repr(float(array)) if array.dtype.kind != "c" else str(array.item())


def _params(eqn) -> str:
    shown: dict[str, Any] = {k: v for k, v in eqn.params.items() if k not in _HIDDEN and not _is_default(v)}
    if eqn.primitive.name == "scan":
        parts = jaxprs.scan_parts(eqn)
        shown = {"length": parts.length, "consts": parts.consts, "carry": parts.carry}
        shown |= {"reverse": True} if parts.reverse else {}
    if "policy" in shown:
        shown["policy"] = "given"  # an object in some versions of JAX, a function in others
    if not shown:
        return ""
    return " {" + ", ".join(f"{k}={param_text(v)}" for k, v in sorted(shown.items())) + "}"


def _is_default(value: Any) -> bool:
    return value is None or value is False or (type(value) is tuple and not value)


def param_text(value: Any) -> str:
    """A parameter's value, short and the same on every JAX version."""
    if isinstance(value, bool | str):
        return str(value)
    if type(value) in (tuple, list):
        return "(" + ",".join(param_text(v) for v in value) + ")"
    if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic)):
        return dtype_name(value)
    if isinstance(value, np.generic):
        return str(value.item())
    if hasattr(value, "_asdict"):  # GatherDimensionNumbers and the like
        return "(" + ",".join(f"{k}={param_text(v)}" for k, v in value._asdict().items() if not _is_default(v)) + ")"
    if callable(value) and hasattr(value, "__name__"):
        return value.__name__
    return _ADDRESS.sub("", str(value)).replace("\n", " ")


class Diff:
    """The difference of two graphs; `str()` shows it in a terminal.

    Example:
        >>> import jax
        >>> from jaxsplice.passes.ir.graph import Graph
        >>> one = Graph.from_jaxpr(jax.make_jaxpr(lambda x: x + 1.0)(1.0))
        >>> bool(Diff(one, one))
        False
    """

    def __init__(self, before: Graph, after: Graph, context: int = 2):
        self.before, self.after, self.context = before, after, context

    def lines(self) -> list[str]:
        """Unified difference: `-` only before, `+` only after. Values that survived keep their names."""
        names = Names()
        old = to_text(self.before, names).splitlines()
        new = to_text(self.after, names).splitlines()
        return list(difflib.unified_diff(old, new, "before", "after", lineterm="", n=self.context))

    def __bool__(self) -> bool:
        return self.before.to_jaxpr() is not self.after.to_jaxpr() and bool(self.lines())

    def __str__(self) -> str:
        return "\n".join(self.lines()) or "no difference"


def diff(before: Any, after: Any = None) -> Diff:
    """Compare two graphs.

    Args:
        before: a Graph; or a Result, which stands for the graph before its rewrites.
        after: the Graph to compare it with; of a Result, the one after them when left out.

    Returns:
        A Diff.

    Raises:
        JaxspliceError: one of the two is no Graph.
    """
    if hasattr(before, "after"):
        before, after = before.before, after or before.after
    for name, graph in (("before", before), ("after", after)):
        if not hasattr(graph, "to_jaxpr"):
            kind = type(graph).__name__
            raise JaxspliceError(f"diff compares two Graphs, or the two of one Result; {name} is a {kind}")
    return Diff(before, after)
