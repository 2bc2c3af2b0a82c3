"""Ops: one folder each, found by presence. `ops()` lists them by name."""

import functools
import importlib
import pkgutil

from .op import Implementation, Op, Tolerance


@functools.cache
def ops() -> dict[str, Op]:
    """Every Op that a folder of this package defines, by name.

    Example:
        >>> "swiglu" in ops()
        True
    """
    found: dict[str, Op] = {}
    for module in pkgutil.iter_modules(__path__):
        if module.ispkg:
            loaded = importlib.import_module(f"{__name__}.{module.name}")
            found.update({value.name: value for value in vars(loaded).values() if isinstance(value, Op)})
    return dict(sorted(found.items()))


__all__ = ["Implementation", "Op", "Tolerance", "ops"]
