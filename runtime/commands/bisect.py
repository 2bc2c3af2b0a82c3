"""`jaxsplice bisect`: the first rewrite that breaks a check."""

from __future__ import annotations

from absl import flags

from jaxsplice.passes.errors import JaxspliceError

from .programs import define_args, define_rewriting, load_function, parse_arguments

SUMMARY = "find the first rewrite that breaks a function, or a check of yours"


def define(values: flags.FlagValues) -> None:
    """The command's flags."""
    define_args(values)
    flags.DEFINE_string(
        "check",
        None,
        "module:function of a function of the original and the rewritten program, both callable, that gives False or "
        "raises when the second is broken. By default their results are compared, on random arguments.",
        flag_values=values,
    )
    flags.DEFINE_integer("seed", 0, "Seed of the random arguments.", flag_values=values)
    flags.DEFINE_string("out", "out/bisect", "Folder for the program before and after it.", flag_values=values)
    define_rewriting(values)


def run(values: flags.FlagValues, words: list[str]) -> int:
    """Search, print what was found, write it."""
    from jaxsplice.runtime.bisect import bisect

    if len(words) != 1 or values.args is None:
        raise JaxspliceError(
            "usage: jaxsplice bisect package.module:function --args='f32[8,128]' [--check=package.module:check]"
        )
    culprit = bisect(
        load_function(words[0]),
        *parse_arguments(values.args),
        check=load_function(values.check) if values.check else None,
        passes=values.passes,
        target=values.target,
        verify=values.verify,
        seed=values.seed,
    )
    if culprit is None:
        print("no rewrite breaks the check")
        return 0
    print(culprit)
    print("wrote " + " ".join(map(str, culprit.save(values.out))))
    return 0
