"""Rules: one family per file, found by presence. A file defines `rule = Rule(...)` or `rules = (Rule(...), ...)`."""

import functools
import importlib
import pkgutil

from jaxsplice.passes.rewrite.rule import Rule


@functools.cache
def rules() -> tuple[Rule, ...]:
    """Every rule that a file of this package defines.

    Example:
        >>> any(rule.name == "swiglu" for rule in rules())
        True
    """
    found: list[Rule] = []
    for module in sorted(pkgutil.iter_modules(__path__), key=lambda m: m.name):
        loaded = importlib.import_module(f"{__name__}.{module.name}")
        found += getattr(loaded, "rules", None) or [loaded.rule]
    return tuple(found)
