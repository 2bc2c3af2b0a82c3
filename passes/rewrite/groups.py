"""Products and sums in patterns: any grouping and order of factors and addends.

The pattern's factors are flat. The program's product is opened only as far as needed, so that a variable can stand for
a whole product. Concrete factors are placed first; variables take what is left.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..ir.region import Value
from ..normalize.flatten import Addend, Factor, fold_numbers, number_power, open_head, raised
from ..normalize.terms import Add, Const, Leaf, Prod, Term, key
from .mismatch import describe

if TYPE_CHECKING:
    from .unify import Unifier


def _is_variable(u: Unifier, term: Term) -> bool:
    head = open_head(term, u.views)
    return type(head) is Leaf and type(head.cursor.atom) is Value and head.cursor.frame is None


def _captured_name(u: Unifier, term: Term) -> str | None:
    head = open_head(term, u.views)
    return u.capture_names.get(head.cursor.atom) if type(head) is Leaf else None


# ---------------------------------------------------------------- products
def match_product(u: Unifier, pattern: tuple[float, list[Factor]], q: Term) -> Iterator[None]:
    """Match coefficient * product of powers against a program term."""
    coefficient, factors = pattern
    captures = [(name, e) for t, e in factors if (name := _captured_name(u, t)) is not None]
    wanted = sorted((f for f in factors if _captured_name(u, f[0]) is None), key=lambda f: _is_variable(u, f[0]))
    number, items = _open_product(u, q, 1.0)
    for found in _place_factors(u, wanted, number, items):
        mark = len(u.trail)
        if not captures:
            if u.number(coefficient, found):
                yield
        elif len(captures) == 1 and coefficient:
            name, exponent = captures[0]
            base = found / coefficient
            if (base > 0 or exponent == 1.0) and u.capture(name, base ** (1.0 / exponent)):
                yield
        u.undo(mark)


def _open_product(u: Unifier, term: Term, exponent: float) -> tuple[float, list[Factor]]:
    head = open_head(term, u.views)
    if type(head) is Const:
        return number_power(head.value, exponent), []
    opened = raised(head, exponent, u.views) if type(head) is Prod else None
    return opened or (1.0, [(term, exponent)])


def _merged(items: list[Factor]) -> list[Factor]:
    out: dict = {}
    for term, exponent in items:
        k = key(term)
        out[k] = (term, out[k][1] + exponent) if k in out else (term, exponent)
    return [f for f in out.values() if f[1]]


def _place_factors(u: Unifier, wanted: list[Factor], number: float, items: list[Factor]) -> Iterator[float]:
    """Yield the program's number once per way to place all wanted factors on all items."""
    items = _merged(items)
    if len(items) > len(wanted):
        u.fail(wanted[0][0] if wanted else Const(1.0), items[-1][0], "a product with more factors")
        return
    if not wanted:
        yield number
        return
    term, exponent = wanted[0]
    if u.explain and items and all(e != exponent for _, e in items):
        other, power = items[0]
        head = describe(open_head(other, u.views))
        u.fail(term, other, f"{head} to the power of {power:g}, not {exponent:g}")
    for i, (item, e) in enumerate(items):
        if e == exponent:
            rest = items[:i] + items[i + 1 :]
            for _ in u.unify(term, item):
                yield from _place_factors(u, wanted[1:], number, rest)
    if len(items) == len(wanted) and _is_variable(u, term):
        return
    for i, scale, inner in _worth_opening(u, term, items):
        yield from _place_factors(u, wanted, number * scale, items[:i] + inner + items[i + 1 :])


def _worth_opening(u: Unifier, wanted: Term, items: list[Factor]) -> list[Any]:
    """Items that are products themselves, opened; those that hold a factor of the wanted kind first."""
    kind, found = _kind(open_head(wanted, u.views)), []
    for i, (item, exponent) in enumerate(items):
        head = open_head(item, u.views)
        opened = raised(head, exponent, u.views) if type(head) is Prod else None
        if opened is not None:
            lacks_it = all(_kind(open_head(t, u.views)) != kind for t, _ in opened[1])
            found.append((lacks_it, i, *opened))
    return [rest for _, *rest in sorted(found, key=lambda f: f[:2])]


def _kind(head: Term) -> tuple:
    return type(head), getattr(head, "name", None)


# ---------------------------------------------------------------- sums
def match_sum(u: Unifier, pattern: tuple[float, list[Addend]], q: Term) -> Iterator[None]:
    """Match constant + sum of coefficient * term against a program term."""
    constant, addends = pattern
    captures = [(name, c) for c, t in addends if (name := _captured_name(u, t)) is not None]
    wanted = sorted((a for a in addends if _captured_name(u, a[1]) is None), key=lambda a: _is_variable(u, a[1]))
    number, items = _open_sum(u, q, 1.0)
    for found in _place_addends(u, wanted, number, items):
        mark = len(u.trail)
        if not captures:
            if u.number(constant, found):
                yield
        elif len(captures) == 1:
            name, c = captures[0]
            if u.capture(name, (found - constant) / c):
                yield
        u.undo(mark)


def _open_sum(u: Unifier, term: Term, scale: float) -> tuple[float, list[Addend]]:
    """One level of a sum: its number, and its other addends as they stand."""
    head = open_head(term, u.views)
    if type(head) is Const:
        return scale * head.value, []
    if type(head) is not Add:
        pulled = _pull_number(u, scale, term)
        if pulled is None or type(open_head(pulled[1], u.views)) is not Add:
            return 0.0, [(scale, term)]
        return _open_sum(u, pulled[1], pulled[0])
    number, items = scale * head.constant, []
    for c, t in head.addends:
        if type(open_head(t, u.views)) is Const:
            number += scale * c * open_head(t, u.views).value
        else:
            items.append((scale * c, t))
    return number, items


def _pull_number(u: Unifier, scale: float, term: Term) -> Addend | None:
    """An addend with its number in front: `-x`, `2 * x`, `x / 2`; None when it has none."""
    head = open_head(term, u.views)
    if type(head) is not Prod:
        return None
    coefficient, factors = fold_numbers(head, u.views)
    if coefficient == 1.0 and not (len(factors) == 1 and factors[0][1] == 1.0):
        return None
    inner = factors[0][0] if len(factors) == 1 and factors[0][1] == 1.0 else Prod(1.0, tuple(factors), head.node)
    return scale * coefficient, inner


def _place_addends(u: Unifier, wanted: list[Addend], number: float, items: list[Addend]) -> Iterator[float]:
    if len(items) > len(wanted):
        u.fail(wanted[0][1] if wanted else Const(0.0), items[-1][1], "a sum with more addends")
        return
    if not wanted:
        yield number
        return
    coefficient, term = wanted[0]
    for i in sorted(range(len(items)), key=lambda i: items[i][0] != coefficient):
        for c, item in _forms(u, *items[i]):
            mark = len(u.trail)
            if u.number(coefficient, c):
                for _ in u.unify(term, item):
                    yield from _place_addends(u, wanted[1:], number, items[:i] + items[i + 1 :])
            u.undo(mark)
    if len(items) == len(wanted) and _is_variable(u, term):
        return
    for i, (c, item) in enumerate(items):
        for scale, form in _forms(u, c, item):
            if type(open_head(form, u.views)) is Add:
                more, inner = _open_sum(u, form, scale)
                yield from _place_addends(u, wanted, number + more, items[:i] + inner + items[i + 1 :])
                break


def _forms(u: Unifier, scale: float, term: Term) -> Iterator[Addend]:
    """An addend as it stands, and with its number pulled in front."""
    yield scale, term
    pulled = _pull_number(u, scale, term)
    if pulled is not None:
        yield pulled
