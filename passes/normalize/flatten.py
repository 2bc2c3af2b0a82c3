"""Whole products and sums of a term: nested heads flattened, numbers folded into one coefficient or constant."""

from __future__ import annotations

from .spellings import respell
from .terms import Add, Const, Prod, Sum, Term, expand, key

Factor = tuple[Term, float]
Addend = tuple[float, Term]


def open_head(term: Term, views: frozenset[str]) -> Term:
    """`expand`, with a sum's constant factors pulled out, nested sums merged and trivial products removed."""
    head = expand(term, views)
    if type(head) is Sum:
        return _pull_constants(head, views)
    if type(head) is Prod and len(head.factors) == 1 and head.coefficient == 1.0 and head.factors[0][1] == 1.0:
        return open_head(head.factors[0][0], views)
    return head


def _pull_constants(head: Sum, views) -> Term:
    body = open_head(head.body, views)
    if type(body) is Sum:
        return Sum((*head.labels, *body.labels), body.body, head.node, head.index)
    if type(body) is not Prod:
        return head
    coefficient, factors = fold_numbers(body, views)
    if len(factors) == 1 and factors[0][1] == 1.0:
        inner = _pull_constants(head._replace(body=factors[0][0]), views)
    else:
        inner = head._replace(body=Prod(1.0, tuple(factors), body.node))
    if type(inner) is Prod:
        return inner._replace(coefficient=coefficient * inner.coefficient)
    return inner if coefficient == 1.0 else Prod(coefficient, ((inner, 1.0),), head.node)


def fold_numbers(product: Prod, views) -> tuple[float, list[Factor]]:
    """One level of a product: its number and its other factors, hidden logistic functions uncovered."""
    coefficient, rest = product.coefficient, []
    for term, exponent in product.factors:
        head = expand(term, views)
        if type(head) is Const:
            coefficient *= number_power(head.value, exponent)
            continue
        factor, term, exponent = respell(1.0, term, exponent, views)
        coefficient *= factor
        rest.append((term, exponent))
    return coefficient, rest


def number_power(base: float, exponent: float) -> float:
    """A number to a power; not a number where there is no finite real one."""
    if type(base) is not complex and base < 0 and not float(exponent).is_integer():
        return float("nan")
    try:
        return base**exponent
    except (ZeroDivisionError, OverflowError):
        return float("nan")


def raised(product: Prod, exponent: float, views: frozenset[str]) -> tuple[float, list[Factor]] | None:
    """A product to a power as (coefficient, factors); None where that is no equation for factors of either sign.

    A whole power goes to the factors. A root does not always: `sqrt(x**2)` is |x|, and `sqrt(x * y)` is a number where
    neither `sqrt(x)` nor `sqrt(y)` is one.
    """
    number, factors = fold_numbers(product, views)
    if not float(exponent).is_integer():
        signed = sum(e % 2 == 1 for _, e in factors)
        hides_sign = any(e % 2 == 0 and e * exponent % 2 != 0 for _, e in factors)
        if type(number) is complex or number < 0 or signed > 1 or hides_sign:
            return None
    return number_power(number, exponent), [(term, e * exponent) for term, e in factors]


def whole_product(term: Term, views: frozenset[str]) -> tuple[float, list[Factor]]:
    """All factors of a term: (coefficient, [(term, exponent)]), equal factors merged; products only under roots."""
    coefficient, queue, out = 1.0, [(term, 1.0)], {}
    while queue:
        item, exponent = queue.pop(0)
        head = open_head(item, views)
        opened = raised(head, exponent, views) if type(head) is Prod else None
        if type(head) is Const:
            coefficient *= number_power(head.value, exponent)
        elif opened is not None:
            coefficient *= opened[0]
            queue = opened[1] + queue
        else:
            old = out.get(key(item), (item, 0.0))
            out[key(item)] = (item, old[1] + exponent)
    return coefficient, [f for f in out.values() if f[1] != 0.0]


def whole_sum(term: Term, views: frozenset[str]) -> tuple[float, list[Addend]]:
    """All addends of a term, none of them a sum: (constant, [(coefficient, term)])."""
    constant, queue, out = 0.0, [(1.0, term)], []
    while queue:
        coefficient, item = queue.pop(0)
        head = open_head(item, views)
        if type(head) is Const:
            constant += coefficient * head.value
        elif type(head) is Add:
            constant += coefficient * head.constant
            queue = [(coefficient * c, t) for c, t in head.addends] + queue
        elif type(head) is Prod:
            number, factors = fold_numbers(head, views)
            if len(factors) == 1 and factors[0][1] == 1.0:
                queue.insert(0, (coefficient * number, factors[0][0]))
            elif not factors:
                constant += coefficient * number
            else:
                out.append((coefficient * number, Prod(1.0, tuple(factors), head.node)))
        else:
            out.append((coefficient, item))
    return constant, out
