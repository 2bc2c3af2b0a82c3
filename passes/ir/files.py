"""Graphs as files: text, JSON, Graphviz, GraphML, networkx."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import networkx as nx

from ..errors import JaxspliceError
from . import jaxprs
from .graph import Graph
from .jaxprs import Literal
from .nesting import nesting, unrolled
from .text import param_text, to_text, type_text

# Node colours by kind, readable in black and white print too.
_COLOURS = {"op": "#b7e1cd", "matmul": "#cfe2f3", "collective": "#f9cb9c", "loop": "#ead1dc", "input": "#fff2cc"}
_KINDS = {
    "dot_general": "matmul", "ragged_dot_general": "matmul", "conv_general_dilated": "matmul", "scan": "loop",
    "while": "loop", "cond": "loop", "all_gather": "collective", "psum": "collective", "psum_invariant": "collective",
    "reduce_scatter": "collective", "all_to_all": "collective", "ppermute": "collective",
}  # fmt: skip


def to_networkx(graph: Graph) -> nx.MultiDiGraph:
    """A directed multigraph: one node per equation, input and constant; one edge per use.

    Node attributes: `primitive` ("input" and "const" for those), `kind`, `type` (of its first result), `params`,
    `source`, `region` (the path of regions it lies in), `certificate` (of the rewrite that put it there; else empty).
    Edge attributes: `type`, `operand` (position) and `result` (of the producer). A large jaxpr that several equations
    hold is drawn at the first; the `params` of the others name that region.

    Args:
        graph: any Graph.

    Returns:
        A networkx MultiDiGraph; nodes are numbered in program order.

    Example:
        >>> import jax
        >>> from jaxsplice.passes.ir.graph import Graph
        >>> g = to_networkx(Graph.from_jaxpr(jax.make_jaxpr(lambda x: x + x)(1.0)))
        >>> [g.nodes[n]["primitive"] for n in g], g.number_of_edges()
        (['input', 'add', 'output'], 3)
    """
    return _Builder(graph).out


class _Builder:
    def __init__(self, graph: Graph):
        self.out = nx.MultiDiGraph(name=graph.name)
        self.certified: dict[int, Any] = {}  # node -> certificate
        self.certificates, self.shared = graph.certificates, nesting(graph.to_jaxpr()).shared()
        self.drawn: dict[int, str] = {}  # large shared jaxpr -> the region it is drawn in
        for _ in unrolled(self._body(jaxprs.open_jaxpr(graph.to_jaxpr()), "", {})):
            pass

    def _add(self, primitive: str, region: str, aval: Any = None, params: str = "", source: str = "") -> int:
        number = self.out.number_of_nodes()
        self.out.add_node(
            number, primitive=primitive, kind=_KINDS.get(primitive, "other"), region=region, params=params,
            source=source, type="" if aval is None else type_text(aval), certificate="",
        )  # fmt: skip
        return number

    def _use(self, atom, user: int, operand: int, env: dict) -> None:
        if type(atom) is not Literal and atom in env:
            maker, result = env[atom]
            self.out.add_edge(maker, user, type=type_text(atom.aval), operand=operand, result=result)

    def _body(self, body, region: str, env: dict) -> Generator:
        """Add a jaxpr's inputs, equations and result; nested jaxprs after the equation that holds them."""
        for kind, variables in (("input", body.invars), ("const", body.constvars)):
            for var in variables:
                if var not in env:
                    env[var] = (self._add(kind, region, var.aval), 0)
                    self.out.nodes[env[var][0]]["kind"] = "input"
        for eqn in body.eqns:
            yield self._equation(eqn, region, env)
        out = self._add("output", region)
        for i, atom in enumerate(body.outvars):
            self._use(atom, out, i, env)

    def _equation(self, eqn, region: str, env: dict) -> Generator:
        params = ", ".join(f"{k}={param_text(v)}" for k, v in sorted(eqn.params.items()) if _plain(v))
        aval = eqn.outvars[0].aval if eqn.outvars else None
        node = self._add(eqn.primitive.name, region, aval, params, str(jaxprs.source_line(eqn)))
        attributes = self.out.nodes[node]
        if "op" in eqn.params:
            attributes["kind"] = "op"
        for certificate in filter(None, map(self.certificates.get, eqn.outvars)):
            self.certified[node], attributes["certificate"] = certificate, f"{certificate.rule}: {certificate}"
        for i, atom in enumerate(eqn.invars):
            self._use(atom, node, i, env)
        env.update({v: (node, i) for i, v in enumerate(eqn.outvars)})
        children = jaxprs.children(eqn)
        for child in children:
            part = f".{child.label}" if len(children) > 1 else ""
            yield self._nested(child, eqn, node, f"{region}/{eqn.primitive.name}[{node}]{part}", env)

    def _nested(self, child: jaxprs.Child, eqn, node: int, region: str, env: dict) -> Generator:
        inner = jaxprs.open_jaxpr(child.jaxpr)
        if id(inner) in self.drawn:
            attributes = self.out.nodes[node]
            attributes["params"] = ", ".join(filter(None, (attributes["params"], f"as in {self.drawn[id(inner)]}")))
            return
        if id(inner) in self.shared:
            self.drawn[id(inner)] = region
        known = _same_count(inner.invars, eqn.invars[child.operands])
        bound = {v: env[a] for v, a in known if type(a) is not Literal and a in env}
        yield self._body(inner, region, bound)


def _same_count(invars, operands) -> list[tuple]:
    return list(zip(invars, operands)) if len(invars) == len(operands) else []


def _plain(value: Any) -> bool:
    return isinstance(value, int | float | str | tuple) and not any(
        isinstance(v, jaxprs.Jaxpr | jaxprs.ClosedJaxpr) for v in (value if isinstance(value, tuple) else (value,))
    )


# ---------------------------------------------------------------- formats
def to_json(graph: Graph) -> str:
    """The graph as JSON: {"name", "nodes": [...], "edges": [...]}, attributes as in `to_networkx`.

    But `certificate` is null, or has `rule`, `kind`, `error`, `source` and the claims `match`, `rewrite` and
    `implementation`.
    """
    drawn = _Builder(graph)
    for node, attributes in drawn.out.nodes(data=True):
        attributes["certificate"] = drawn.certified[node].as_dict() if node in drawn.certified else None
    data = nx.node_link_data(drawn.out, edges="edges")
    return json.dumps({"name": graph.name, "nodes": data["nodes"], "edges": data["edges"]}, indent=1)


def to_dot(graph: Graph) -> str:
    """The graph in Graphviz' language; regions are boxes, colours tell kinds."""
    out = to_networkx(graph)
    lines = [
        f'digraph "{graph.name}" {{',
        '  node [shape=box, style="rounded,filled", fontname="Helvetica", fontsize=10];',
        '  edge [fontname="Helvetica", fontsize=8, color="#666666"];',
        "  rankdir=TB;",
    ]
    regions: dict[str, list[int]] = {}
    for node, data in out.nodes(data=True):
        regions.setdefault(data["region"], []).append(node)
    for k, (region, members) in enumerate(sorted(regions.items())):
        if region:
            lines.append(f'  subgraph cluster_{k} {{ label="{region.rsplit("/", 1)[-1]}"; color="#999999";')
        lines += [f"    {_dot_node(n, out.nodes[n])}" for n in members]
        if region:
            lines.append("  }")
    lines += [f'  n{a} -> n{b} [label="{d["type"]}"];' for a, b, d in out.edges(data=True)]
    return "\n".join([*lines, "}"])


def _dot_node(number: int, data: dict) -> str:
    label = data["primitive"] + (f"\\n{data['type']}" if data["type"] else "")
    colour = _COLOURS.get(data["kind"], "#f3f3f3")
    tip = "; ".join(filter(None, (data["source"] or data["params"], data["certificate"]))).replace('"', "'")
    return f'n{number} [label="{label}", fillcolor="{colour}", tooltip="{tip}"];'


def to_graphml(graph: Graph) -> str:
    """The graph as GraphML, for Gephi, yEd, Neo4j and the like."""
    return "\n".join(nx.generate_graphml(to_networkx(graph)))


def to_svg(graph: Graph) -> str:
    """The graph drawn by Graphviz.

    Raises:
        JaxspliceError: Graphviz' `dot` is not installed.
    """
    dot = shutil.which("dot")
    if dot is None:
        raise JaxspliceError(
            "an .svg needs Graphviz, whose program `dot` is not on this machine: "
            "install it (apt install graphviz, brew install graphviz), or save .dot, .json or .graphml"
        )
    done = subprocess.run([dot, "-Tsvg"], input=to_dot(graph), capture_output=True, text=True, check=False)
    if done.returncode:
        raise JaxspliceError(f"Graphviz could not draw {graph.name}: {done.stderr.strip()[:300]}")
    return done.stdout


FORMATS: dict[str, Callable[[Graph], str]] = {
    ".txt": lambda g: to_text(g, sources=True) + "\n",
    ".json": to_json,
    ".dot": to_dot,
    ".graphml": to_graphml,
    ".svg": to_svg,
}


def save(graph: Graph, path: Path) -> Path:
    """Write a graph in the format its path's suffix names; a failure leaves no partial file."""
    write = FORMATS.get(path.suffix)
    if write is None:
        raise JaxspliceError(f"cannot save a graph as {path.name!r}; suffixes: {' '.join(sorted(FORMATS))}")
    write_whole(path, write(graph))
    return path


def write_whole(path: Path, text: str) -> None:
    """Write a text file all at once: to a temporary neighbour, then renamed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
