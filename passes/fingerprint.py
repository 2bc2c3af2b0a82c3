"""Fingerprint: a stable hash of rules, passes and their options, equal in every process that has the same code.

Functions count by what they do: their byte code, constants, defaults, closures, and the functions and constants of
their module that they use. Line numbers and comments do not count. JAX, numpy and the standard library count by name.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.metadata
import re
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

DIGITS = 16  # of the printed hash
_FOREIGN = {"jax", "jaxlib", "numpy", *sys.stdlib_module_names}
_PLAIN = (str, bytes, int, float, complex, type(None), type(...))
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


@functools.lru_cache(maxsize=4096)
def fingerprint(thing: Any) -> str:
    """The hash of a rule or pass.

    Args:
        thing: a hashable object; it is taken not to change afterwards.

    Example:
        >>> one, other = ("eps", 1e-6), ("eps", 1e-5)
        >>> fingerprint(one) == fingerprint(("eps", 1e-6)), fingerprint(one) == fingerprint(other)
        (True, False)
    """
    return combined([thing])


def combined(parts: Any) -> str:
    """The hash of several things in order, and of the versions of jaxsplice and JAX."""
    reading = _Reading()
    reading.add((_version(), jax.__version__))
    for part in parts:
        reading.add(part)
    return reading.digest.hexdigest()[:DIGITS]


@functools.cache
def _version() -> str:
    try:
        return importlib.metadata.version("jaxsplice")
    except importlib.metadata.PackageNotFoundError:
        return "source"


class _Reading:
    """One walk over an object and all that it is made of; what was met before counts by when it was met."""

    def __init__(self):
        self.digest, self.met = hashlib.sha256(), {}

    def add(self, value: Any) -> None:
        """Read a value."""
        if isinstance(value, _PLAIN):
            self._write(type(value).__name__, repr(value))
        elif id(value) in self.met:
            self._write("again", str(self.met[id(value)][0]))
        else:
            self.met[id(value)] = len(self.met), value  # kept alive, or its id might be another's
            self._add_new(value)

    def _write(self, *words: str) -> None:
        self.digest.update("\0".join((*words, "\1")).encode())

    def _add_new(self, value: Any) -> None:
        if isinstance(value, tuple | list):
            self._write(type(value).__name__, str(len(value)))
            for item in value:
                self.add(item)
        elif isinstance(value, Mapping):
            self.add([(k, value[k]) for k in sorted(value, key=repr)])
        elif isinstance(value, set | frozenset):
            self.add(sorted(map(repr, value)))
        elif isinstance(value, np.ndarray | jax.Array):
            array = np.asarray(value)
            self._write("array", str(array.dtype), str(array.shape), hashlib.sha256(array.tobytes()).hexdigest())
        elif isinstance(value, functools.partial):
            self.add([value.func, value.args, value.keywords])
        elif isinstance(value, types.MethodType):
            self.add([value.__func__, value.__self__])
        elif isinstance(value, types.FunctionType):
            self._add_function(value)
        elif isinstance(value, type):
            self._add_class(value)
        elif dataclasses.is_dataclass(value):
            self.add(type(value))
            self.add([getattr(value, f.name, None) for f in dataclasses.fields(value)])
        elif _wrapped(value) is not None:  # a jitted function, or one with a derivative of its own
            self._write(_name(type(value)))
            self.add(_wrapped(value))
        else:
            self._write(_name(type(value)), getattr(value, "__qualname__", None) or _ADDRESS.sub("", repr(value)))

    def _add_class(self, kind: type) -> None:
        self._write("class", _name(kind))
        if not _is_foreign(kind) and not kind.__module__.startswith("jaxsplice.passes"):
            self.add([f for f in vars(kind).values() if isinstance(f, types.FunctionType)])

    def _add_function(self, fn: types.FunctionType) -> None:
        self._write("function", _name(fn))
        if _is_foreign(fn) or fn.__module__.startswith("jaxsplice.passes"):  # the engine counts by its version
            return
        self._add_code(fn.__code__)
        self.add([fn.__defaults__, fn.__kwdefaults__])
        self.add([_content(cell) for cell in fn.__closure__ or ()])
        for name in sorted(set(_names(fn.__code__))):
            if name in fn.__globals__ and _counts(fn.__globals__[name]):
                self._write("global", name)
                self.add(fn.__globals__[name])

    def _add_code(self, code: types.CodeType) -> None:
        self._write("code", code.co_code.hex(), *code.co_names, *code.co_varnames)
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                self._add_code(constant)
            else:
                self.add(sorted(map(repr, constant)) if isinstance(constant, frozenset) else constant)


def _name(thing: Any) -> str:
    return f"{thing.__module__}.{thing.__qualname__}"


def _is_foreign(thing: Any) -> bool:
    return (thing.__module__ or "builtins").split(".")[0] in _FOREIGN


def _wrapped(value: Any) -> types.FunctionType | None:
    """The Python function inside a callable object of JAX's."""
    if not callable(value) or isinstance(value, type | types.ModuleType):
        return None
    inside = [getattr(value, name, None) for name in ("__wrapped__", "fun", "fwd", "jvp")]
    return next((fn for fn in inside if isinstance(fn, types.FunctionType)), None)


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a recursive function that is not bound yet
        return None


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _counts(value: Any) -> bool:
    """Whether a global belongs to what a function does: functions, constants, Ops; no modules, no caches."""
    if isinstance(value, (*_PLAIN, types.FunctionType, functools.partial)) or _wrapped(value) is not None:
        return True
    if isinstance(value, tuple | list | set | frozenset):
        return all(isinstance(v, (*_PLAIN, tuple)) for v in value)
    if isinstance(value, Mapping):
        return all(isinstance(v, (*_PLAIN, tuple)) for pair in value.items() for v in pair)
    return dataclasses.is_dataclass(value) and not isinstance(value, type)
