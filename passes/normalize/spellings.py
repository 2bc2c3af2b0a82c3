"""View `spellings`: other ways to write the logistic function. Equal numbers up to rounding; the proof measures it."""

from __future__ import annotations

from .functions import same_number
from .terms import Add, Const, Fn, Prod, Term, expand

VIEW = "spellings"


def respell(coefficient: float, term: Term, exponent: float, views: frozenset[str]) -> tuple[float, Term, float]:
    """A factor `coefficient * term ** exponent`, with hidden logistic functions uncovered.

    Equations: `1 / (1 + exp(-x)) = logistic(x)` and `1 + tanh(z) = 2 * logistic(2 z)`.

    Returns:
        An equal factor as (coefficient, term, exponent).
    """
    if VIEW not in views or exponent not in (1.0, -1.0):
        return coefficient, term, exponent
    head = expand(term, views)
    if type(head) is not Add or len(head.addends) > 2:
        return coefficient, term, exponent
    constant, rest = _constant_and_rest(head, views)
    if constant is None or len(rest) != 1:
        return coefficient, term, exponent
    scale, inner = rest[0]
    function = expand(inner, views)
    if type(function) is not Fn or not same_number(scale, constant):
        return coefficient, term, exponent
    if function.name == "exp" and exponent == -1.0:
        minus = Prod(-1.0, ((function.args[0], 1.0),))
        return coefficient / constant, Fn("logistic", (), (minus,), function.node), 1.0
    if function.name == "tanh" and exponent == 1.0:
        twice = Prod(2.0, ((function.args[0], 1.0),))
        return coefficient * 2.0 * constant, Fn("logistic", (), (twice,), function.node), 1.0
    return coefficient, term, exponent


def _constant_and_rest(head: Add, views) -> tuple[float | None, list]:
    constant, rest = head.constant, []
    for scale, term in head.addends:
        opened = expand(term, views)
        if type(opened) is Const:
            constant += scale * opened.value
            continue
        if type(opened) is Prod and len(opened.factors) == 2:  # 0.5 * tanh(z)
            numbers = [f for f, e in opened.factors if type(f) is Const and e == 1.0]
            others = [f for f, e in opened.factors if type(f) is not Const and e == 1.0]
            if len(numbers) == len(others) == 1:
                scale, term = scale * opened.coefficient * numbers[0].value, others[0]
        rest.append((scale, term))
    return (constant or None), rest
