"""explain: where a rule matches, and how near it came elsewhere, with the user's own lines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from jaxsplice.passes.errors import PipelineError, no_such
from jaxsplice.passes.ir.graph import Graph
from jaxsplice.passes.rewrite.drive import Context

from .library import library
from .target import Target
from .tracing import trace

_REFUSED = 10**6  # depth of a whole pattern that was found and declined; one that failed its proof counts more
_HINTS = {  # what was found -> what the user may do
    "another value than the one this argument is bound to": "the operands differ: is one changed on the way?",
    "a product with more factors": "something else is multiplied in between; multiply before or after instead",
    "a sum with more addends": "something else is added in between (a bias?)",
    "an operation that already plays another part of the pattern": "the rule needs two separate operations here",
    "a value where a literal number is captured": "the rule captures a constant here; pass a Python number",
}


@dataclass(frozen=True)
class Hit:
    """A place where the rule matches.

    Args:
        rule: name.
        source: user's line.
        certificate: its proof, as text.
        replaced: primitives it covers.
    """

    rule: str
    source: Any
    certificate: str
    replaced: str

    def __str__(self) -> str:
        return f"{self.rule} matches at {self.source}: {self.replaced}\n    {self.certificate}"


@dataclass(frozen=True)
class Miss:
    """A place where the rule nearly matches.

    Args:
        rule: name.
        source: user's line of the root.
        depth: how many terms had matched before it stopped; a lawful refusal of a full match counts as very deep.
        reason: where it stopped, and why.
        hint: what could be done.
    """

    rule: str
    source: Any
    depth: int
    reason: str
    hint: str = ""

    def __str__(self) -> str:
        hint = f"\n    hint: {self.hint}" if self.hint else ""
        return f"{self.rule} does not apply at {self.source}\n    {self.reason}{hint}"


@dataclass(frozen=True)
class Explanation:
    """Matches and near misses of a rule (or of all rules) in one program.

    Attributes:
        hits: where it matches.
        misses: where it nearly does, nearest first, one per place.
    """

    hits: list[Hit] = field(default_factory=list)
    misses: list[Miss] = field(default_factory=list)

    @property
    def counts(self) -> dict[str, int]:
        """Rule name -> matches."""
        out: dict[str, int] = {}
        for hit in self.hits:
            out[hit.rule] = out.get(hit.rule, 0) + 1
        return out

    def __str__(self) -> str:
        lines = [str(h) for h in self.hits] + [str(m) for m in self.misses]
        return "\n".join(lines) if lines else "nothing in this program resembles the rule"


def explain(
    program: Callable | Graph,
    *args,
    rule: str | None = None,
    limit: int = 5,
    target: str | Target | None = None,
    static_argnums=None,
    static_argnames=None,
    **kwargs,
) -> Explanation:
    """Say where rules match a program, and for the nearest misses what differs, with the source line and a hint.

    Args:
        program: a function (with its arguments) or a Graph.
        *args: arrays or `jax.ShapeDtypeStruct`s.
        rule: name of the rule to explain; all rules when None. Rules of earlier stages are applied first.
        limit: near misses kept per rule.
        target: as in `jaxsplice.rewrite`.
        static_argnums: as in `jax.jit`.
        static_argnames: as in `jax.jit`.
        **kwargs: keyword arguments of the function.

    Returns:
        An Explanation; `str()` prints it.

    Raises:
        PipelineError: there is no such rule.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> x, w = jnp.ones((4, 8)), jnp.ones((8, 16))
        >>> found = explain(lambda x, a, b: jax.nn.gelu(x @ a) * (x @ b), x, w, w, rule="swiglu")
        >>> len(found.hits), found.misses[0].rule
        (0, 'swiglu')
    """
    names = {r.name for r in library().rules}
    if rule is not None and rule not in names:
        raise PipelineError(no_such("rule", rule, names))
    graph = program if isinstance(program, Graph) else trace(
        program, *args, static_argnums=static_argnums, static_argnames=static_argnames, **kwargs
    )  # fmt: skip
    context = Context(target=Target.parse(target), explain=True)
    library().pipeline("normalize,raise,fuse,place").run(graph, context)
    wanted = sorted(context.searches) if rule is None else [rule]
    hits = [
        Hit(row.rule, row.source, str(row.certificate), row.what) for row in context.report.rows if row.rule in wanted
    ]
    return Explanation(hits, [m for name in wanted for m in _misses(name, context)[:limit]])


def _misses(name: str, context: Context) -> list[Miss]:
    search = context.searches.get(name)
    if search is None:
        return []
    matched = {(row.rule, str(row.source)) for row in context.report.rows}
    refused = [
        Miss(name, node.source, _REFUSED + why.startswith("match"), why) for why, node in search.refusals if node
    ]
    partial = [
        Miss(
            name,
            root.source,
            miss.depth,
            f"after {miss.depth} matching terms: wanted {miss.wanted}, found {miss.found}"
            + (f" ({miss.node.source})" if miss.node is not None else ""),
            _HINTS.get(miss.found, ""),
        )
        for miss, root in search.misses
    ]
    best: dict[str, Miss] = {}
    for miss in sorted([*refused, *partial], key=lambda m: -m.depth):
        if (name, str(miss.source)) not in matched:
            best.setdefault(str(miss.source), miss)
    return list(best.values())
