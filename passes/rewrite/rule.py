"""Rule: two plain JAX functions of the same arguments, *before* and *after*; its cases and near misses."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from jax.errors import InconclusiveDimensionOperation

from ..errors import JaxspliceError, RuleError, raised_by
from ..errors import Refuse as Refuse  # re-exported: rules raise it

STAGES = ("raise", "fuse", "place")


@dataclass(frozen=True)
class Case:
    """Arguments a rule is traced with to make its pattern, and tested with.

    Args:
        *args: one `jax.ShapeDtypeStruct` (or pytree of them, or None for an absent one) per positional parameter.
        axis_sizes: named axes that collectives in the rule use.
        **params: values of the keyword-only parameters.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> Case(jax.ShapeDtypeStruct((8, 16), jnp.float32), eps=1e-6).params
        {'eps': 1e-06}
    """

    args: tuple[Any, ...]
    axis_sizes: Mapping[str, int]
    params: Mapping[str, Any]

    def __init__(self, *args, axis_sizes: Mapping[str, int] | None = None, **params):
        object.__setattr__(self, "args", args)
        object.__setattr__(self, "axis_sizes", dict(axis_sizes or {}))
        object.__setattr__(self, "params", params)


@dataclass(frozen=True)
class NearMiss:
    """A program that looks like the pattern and must not match, breaking exactly one precondition.

    Args:
        fn: the program.
        *args: abstract arguments.
        reason: a part of the sentence with which the rule must decline it.
        axis_sizes: named axes of its collectives.
    """

    fn: Callable
    args: tuple[Any, ...]
    reason: str
    axis_sizes: Mapping[str, int]

    def __init__(self, fn: Callable, *args, reason: str, axis_sizes: Mapping[str, int] | None = None):
        object.__setattr__(self, "fn", fn)
        object.__setattr__(self, "args", args)
        object.__setattr__(self, "reason", reason)
        object.__setattr__(self, "axis_sizes", dict(axis_sizes or {}))


@dataclass(frozen=True, eq=False)
class Rule:
    """`before` -> `after`.

    Positional parameters are arrays: any value of the program may bind to them. Keyword-only parameters are captured
    from the program: a number in the pattern (such as `eps`) binds to the number found there; one that is listed in
    `captures` binds to a parameter of a primitive (such as top_k's `k`).

    Args:
        name: kebab-case. Several rules may share one name: spellings of one thing, counted together.
        before: the subgraph to recognise, as plain JAX code (a fuse rule may call Ops).
        after: what replaces it; same parameters, same results in shape and dtype.
        stage: "raise", "fuse" or "place".
        where: called with abstract values and captured parameters as `before` is; raises `Refuse` to decline.
        unless: what it is (in words) -> a function of the same arguments; where one of them matches, the rule declines,
            because the place is better known as that.
        captures: keyword -> (primitive, parameter).
        cases: what the pattern is traced with; each gives one variant of the pattern.
        near_misses: programs that must not match.
        tolerance: largest |difference| / (1 + |truth|) of after against the float64 reading; None takes the
            certificate's default for the dtype.
        tolerance_reason: where it comes from.
        sample: `sample(rng, *avals, **params)` -> valid arguments for numeric proofs; standard normals when None.
        needs: names of rules (or Ops) that must have run before it.
        benefit: what it buys, with one number.
        priority: larger is tried first within a stage.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> x = jax.ShapeDtypeStruct((4,), jnp.float32)
        >>> rule = Rule("twice", before=lambda x: x + x, after=lambda x: 2.0 * x, cases=[Case(x)])
        >>> rule
        <Rule twice>
    """

    name: str
    before: Callable
    after: Callable
    stage: str = "raise"
    where: Callable[..., None] | None = None
    unless: Mapping[str, Callable] = field(default_factory=dict)
    captures: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    cases: Sequence[Case] = ()
    near_misses: Sequence[NearMiss] = ()
    tolerance: float | None = None
    tolerance_reason: str = ""
    sample: Callable[..., list] | None = None
    needs: tuple[str, ...] = ()
    benefit: str = ""
    priority: int = 0

    def __post_init__(self):
        if self.stage not in STAGES:
            raise JaxspliceError(f"rule {self.name!r}: stage {self.stage!r} is none of {', '.join(STAGES)}")
        if not self.cases:
            raise JaxspliceError(
                f"rule {self.name!r} has no cases: give at least one Case with abstract arguments, "
                "so that `before` can be traced"
            )
        if parameters(self.before) != parameters(self.after):
            raise JaxspliceError(
                f"rule {self.name!r}: before{inspect.signature(self.before)} and "
                f"after{inspect.signature(self.after)} must take the same parameters"
            )

    def __repr__(self) -> str:
        return f"<Rule {self.name}>"

    def number_captures(self, params: Mapping[str, Any]) -> list[str]:
        """Keyword parameters that bind to numbers standing in the program."""
        return [
            k for k, v in params.items() if k not in self.captures and isinstance(v, float) and not isinstance(v, bool)
        ]


@dataclass(frozen=True, eq=False)
class Candidate:
    """What a graph rule proposes at one place.

    Args:
        roots: Values of the region that the results replace.
        inputs: Values that are the arguments.
        before: flat function of the arguments that gives the roots: what stands there, as plain JAX.
        after: the same, better.
        key: hashable; equal for candidates whose functions are equal.
        small: argument types to measure with when the real ones are large.
        sample: `sample(rng, axis_sizes, *avals)` -> valid arguments to measure with, named axes first; standard normals
            when None.
    """

    roots: Sequence[Any]
    inputs: Sequence[Any]
    before: Callable[..., list]
    after: Callable[..., list]
    key: tuple
    small: Sequence[Any] = ()
    sample: Callable[..., list] | None = None


@dataclass(frozen=True, eq=False)
class GraphRule:
    """A rule whose two sides depend on the place: any number of operands, an index that is computed.

    Args:
        name: kebab-case.
        find: `find(region, refuse)` yields Candidates; it may call `refuse(why, node)` for what came close.
        equation: "exact" when after moves the same bits, "reassociated" when it sums in another order. It is measured
            all the same, bit for bit in the first case.
        stage: "raise", "fuse" or "place".
        cases: programs it must fire on, as (function, abstract arguments, axis sizes, expected hits).
        near_misses: programs it must not fire on.
        tolerance: limit of the measurement for "reassociated"; the dtype's default when None.
        needs: names of rules that must have run before it.
        benefit: what it buys, with one number.
        priority: larger is tried first within a stage.
    """

    name: str
    find: Callable[..., Any]
    equation: str
    stage: str = "place"
    cases: Sequence[GraphCase] = ()
    near_misses: Sequence[NearMiss] = ()
    tolerance: float | None = None
    needs: tuple[str, ...] = ()
    benefit: str = ""
    priority: int = 0

    def __repr__(self) -> str:
        return f"<GraphRule {self.name}>"


@dataclass(frozen=True)
class GraphCase:
    """A program that a graph rule must fire on.

    Args:
        fn: the program.
        args: abstract arguments.
        axis_sizes: named axes of its collectives.
        hits: matches expected.
    """

    fn: Callable
    args: tuple[Any, ...]
    axis_sizes: Mapping[str, int]
    hits: int = 1


def parameters(fn: Callable) -> tuple[list[str], list[str]]:
    """Names of a function's positional and of its keyword-only parameters."""
    found = inspect.signature(fn).parameters.values()
    positional = [p.name for p in found if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if any(p.kind is p.VAR_POSITIONAL for p in found):
        positional.append("*")
    return positional, sorted(p.name for p in found if p.kind is p.KEYWORD_ONLY)


@contextmanager
def code_of(rule: Rule | GraphRule, part: str) -> Iterator[None]:
    """Run a rule's own code inside this: what it raises, but for a lawful refusal, is a RuleError that names it.

    Args:
        rule: whose code it is.
        part: "before", "after", "where", "find", "sample", "unless" or "proof".
    """
    try:
        yield
    except (JaxspliceError, InconclusiveDimensionOperation):
        raise
    except Exception as error:
        raise RuleError(f"rule {rule.name}: its {part} failed: {raised_by(error)}") from error
