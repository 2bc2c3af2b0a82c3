"""`jaxsplice explain`: where rules match a function, and how near they came elsewhere."""

from __future__ import annotations

from absl import flags

from jaxsplice.passes.errors import JaxspliceError

from .programs import define_args, load_function, load_rule, parse_arguments

SUMMARY = "say where rules match a function, and why they do not elsewhere"


def define(values: flags.FlagValues) -> None:
    """The command's flags."""
    define_args(values)
    flags.DEFINE_string("rule", None, "Rule to explain: a name, or module:rule; all by default.", flag_values=values)
    flags.DEFINE_integer("limit", 3, "Near misses per rule.", flag_values=values)


def run(values: flags.FlagValues, words: list[str]) -> int:
    """Print the explanation."""
    from jaxsplice.runtime.explain import explain

    if len(words) != 1 or values.args is None:
        raise JaxspliceError("usage: jaxsplice explain package.module:function --args='f32[8,128]' [--rule=swiglu]")
    fn = load_function(words[0])
    rule = load_rule(values.rule) if values.rule and ":" in values.rule else values.rule
    print(explain(fn, *parse_arguments(values.args), rule=rule, limit=values.limit))
    return 0
