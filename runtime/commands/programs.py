"""What several commands share: reading `package.module:function` and abstract arguments from text."""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from absl import flags

from jaxsplice.passes.errors import JaxspliceError
from jaxsplice.passes.rewrite.rule import GraphRule, Rule

_DTYPES = {
    "f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16", "i64": "int64", "i32": "int32",
    "i16": "int16", "i8": "int8", "u32": "uint32", "u16": "uint16", "u8": "uint8", "bool": "bool",
    "f8_e4m3fn": "float8_e4m3fn", "f8_e5m2": "float8_e5m2", "c64": "complex64",
}  # fmt: skip
_ARGUMENT = re.compile(r"\s*([a-z0-9_]+)\[([0-9,\s]*)\]\s*(?:,|$)")


def define_rewriting(values: flags.FlagValues) -> None:
    """Flags of every command that rewrites."""
    flags.DEFINE_string(
        "passes", "default", "Pipeline: a name, or text such as raise{swiglu},lower.", flag_values=values
    )
    flags.DEFINE_string(
        "target", None, "Hardware: cpu, gpu, tpu7x, v6e, ... This machine's by default.", flag_values=values
    )
    flags.DEFINE_enum("verify", "auto", ["off", "auto", "strict"], "How rewrites are proved.", flag_values=values)


def define_statistics(values: flags.FlagValues) -> None:
    """The flag that asks for each rule's statistics."""
    text = "Print what each rule tried, matched and refused, with all reasons and its seconds."
    flags.DEFINE_bool("statistics", False, text, flag_values=values)


def define_args(values: flags.FlagValues) -> None:
    """The flag that gives abstract arguments."""
    text = "Types, as in 'f32[8,128],bf16[128,256]', or module:function that returns the arguments."
    flags.DEFINE_string("args", None, text, flag_values=values)


def refuse_words(words: list[str]) -> None:
    """Commands that take flags only say so, instead of ignoring what else was typed."""
    if words:
        raise JaxspliceError(f"{words[0]!r} is not understood: this command takes --flags only, see --help")


def _in_a_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def load_function(name: str) -> Callable:
    """The function that `package.module:function` names; modules are looked for in the current folder as well.

    Raises:
        JaxspliceError: malformed, no such module, no such function, or not callable.
    """
    found = load_object(name, "function", "jax.nn:silu")
    if not callable(found):
        raise JaxspliceError(f"{name} is a {type(found).__name__}, not a function")
    return found


def load_rule(name: str) -> Rule | GraphRule:
    """The rule that `package.module:rule` names.

    Raises:
        JaxspliceError: malformed, no such module, no such object, or no rule.
    """
    found = load_object(name, "rule", "my_rules:rule")
    if not isinstance(found, Rule | GraphRule):
        raise JaxspliceError(f"{name} is a {type(found).__name__}, not a jaxsplice.Rule or GraphRule")
    return found


def load_object(name: str, kind: str, example: str) -> Any:
    """What `package.module:path` names."""
    module_name, colon, path = name.partition(":")
    if not colon or not module_name or not path:
        raise JaxspliceError(f"{name!r} names no {kind}: write package.module:{kind}, as in {example}")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:  # whatever the module does when it is imported
        raise JaxspliceError(f"cannot import {module_name!r}: {_in_a_line(error)}") from error
    for part in path.split("."):
        if not hasattr(found, part):
            raise JaxspliceError(f"module {module_name!r} has no {path!r}")
        found = getattr(found, part)
    return found


def parse_arguments(text: str) -> tuple:
    """Arguments from `f32[8,128],bf16[128,256]`, or those that a function `package.module:arguments` returns.

    Raises:
        JaxspliceError: the text is neither.
    """
    if ":" in text:
        function = load_function(text)
        try:
            made = function()
        except Exception as error:  # whatever the user's function does
            raise JaxspliceError(f"--args={text}: called without arguments, it failed: {_in_a_line(error)}") from error
        return made if isinstance(made, tuple) else (made,)
    out, at = [], 0
    while at < len(text):
        found = _ARGUMENT.match(text, at)
        if found is None or found.group(1) not in _DTYPES:
            raise JaxspliceError(
                f"--args={text!r} does not parse at {text[at:]!r}: write types such as f32[8,128],bf16[128,256],i32[], "
                f"or package.module:function that returns the arguments. Types: {' '.join(_DTYPES)}"
            )
        shape = tuple(int(n) for n in found.group(2).split(",") if n.strip())
        out.append(jax.ShapeDtypeStruct(shape, jnp.dtype(_DTYPES[found.group(1)])))
        at = found.end()
    return tuple(out)
