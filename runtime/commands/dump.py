"""`jaxsplice dump`: graphs of any function before and after rewriting, and the report."""

from __future__ import annotations

from pathlib import Path

from absl import flags

from jaxsplice.passes.errors import JaxspliceError

from .programs import define_args, define_rewriting, define_statistics, load_function, parse_arguments

SUMMARY = "write any function's graph before and after, and the report"


def define(values: flags.FlagValues) -> None:
    """The command's flags."""
    define_args(values)
    flags.DEFINE_string("out", "out", "Folder to write into.", flag_values=values)
    flags.DEFINE_list(
        "formats", ["txt", "json", "dot"], "Formats of the graphs: txt json dot graphml svg.", flag_values=values
    )
    define_rewriting(values)
    define_statistics(values)


def run(values: flags.FlagValues, words: list[str]) -> int:
    """Trace, rewrite, write."""
    from jaxsplice.runtime.dump import dump_result
    from jaxsplice.runtime.rewrite import rewrite
    from jaxsplice.runtime.tracing import trace

    if len(words) != 1 or values.args is None:
        raise JaxspliceError(
            "usage: jaxsplice dump package.module:function --args='f32[8,128],bf16[128,256]' --out=DIR"
        )
    fn, args = load_function(words[0]), parse_arguments(values.args)
    result = rewrite(trace(fn, *args), values.passes, values.target, values.verify)
    written = dump_result(result, Path(values.out), tuple(f".{f.lstrip('.')}" for f in values.formats))
    print(result.report)
    if values.statistics:
        print(f"\n{result.report.rule_table()}\n")
    print("wrote " + " ".join(str(path) for path in written))
    return 0
