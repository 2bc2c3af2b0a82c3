"""Graphs as files: text, JSON, Graphviz, GraphML, networkx."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx as nx

from ..errors import JaxspliceError
from . import jaxprs
from .graph import Graph
from .jaxprs import Literal
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
    `source`, `region` (the path of regions it lies in). Edge attributes: `type`, `operand` (position) and `result` (of
    the producer).

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
    builder = _Builder(graph.name)
    builder.body(jaxprs.open_jaxpr(graph.to_jaxpr()), "", {})
    return builder.out


class _Builder:
    def __init__(self, name: str):
        self.out = nx.MultiDiGraph(name=name)

    def _add(self, primitive: str, region: str, aval: Any = None, params: str = "", source: str = "") -> int:
        number = self.out.number_of_nodes()
        self.out.add_node(
            number, primitive=primitive, kind=_KINDS.get(primitive, "other"), region=region, params=params,
            source=source, type="" if aval is None else type_text(aval),
        )  # fmt: skip
        return number

    def _use(self, atom, user: int, operand: int, env: dict) -> None:
        if type(atom) is not Literal and atom in env:
            maker, result = env[atom]
            self.out.add_edge(maker, user, type=type_text(atom.aval), operand=operand, result=result)

    def body(self, body, region: str, env: dict) -> None:
        """Add a jaxpr's inputs, equations and result; nested jaxprs after the equation that holds them."""
        for kind, variables in (("input", body.invars), ("const", body.constvars)):
            for var in variables:
                if var not in env:
                    env[var] = (self._add(kind, region, var.aval), 0)
                    self.out.nodes[env[var][0]]["kind"] = "input"
        for eqn in body.eqns:
            params = ", ".join(f"{k}={param_text(v)}" for k, v in sorted(eqn.params.items()) if _plain(v))
            aval = eqn.outvars[0].aval if eqn.outvars else None
            node = self._add(eqn.primitive.name, region, aval, params, str(jaxprs.source_line(eqn)))
            if "op" in eqn.params:
                self.out.nodes[node]["kind"] = "op"
            for i, atom in enumerate(eqn.invars):
                self._use(atom, node, i, env)
            env.update({v: (node, i) for i, v in enumerate(eqn.outvars)})
            for child in jaxprs.children(eqn):
                inner = jaxprs.open_jaxpr(child.jaxpr)
                known = _same_count(inner.invars, eqn.invars[child.operands])
                bound = {v: env[a] for v, a in known if type(a) is not Literal and a in env}
                self.body(inner, f"{region}/{eqn.primitive.name}[{node}]", bound)
        out = self._add("output", region)
        for i, atom in enumerate(body.outvars):
            self._use(atom, out, i, env)


def _same_count(invars, operands) -> list[tuple]:
    return list(zip(invars, operands)) if len(invars) == len(operands) else []


def _plain(value: Any) -> bool:
    return isinstance(value, int | float | str | tuple) and not any(
        isinstance(v, jaxprs.Jaxpr | jaxprs.ClosedJaxpr) for v in (value if isinstance(value, tuple) else (value,))
    )


# ---------------------------------------------------------------- formats
def to_json(graph: Graph) -> str:
    """The graph as JSON: {"name", "nodes": [...], "edges": [...]}, attributes as in `to_networkx`."""
    data = nx.node_link_data(to_networkx(graph), edges="edges")
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
    tip = (data["source"] or data["params"]).replace('"', "'")
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
