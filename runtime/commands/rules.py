"""`jaxsplice rules`: the rules and Ops there are; also writes docs/rules.md and docs/ops.md."""

from __future__ import annotations

from absl import flags

from .programs import refuse_words

SUMMARY = "list rules (or Ops), as a table or as the pages of the documentation"


def define(values: flags.FlagValues) -> None:
    """The command's flags."""
    flags.DEFINE_bool("ops", False, "List Ops instead of rules.", flag_values=values)
    flags.DEFINE_bool("markdown", False, "Print the documentation page.", flag_values=values)


def run(values: flags.FlagValues, words: list[str]) -> int:
    """Print the table or page."""
    refuse_words(words)
    from jaxsplice.runtime import catalogue

    pages = {
        (False, False): catalogue.rules_table, (False, True): catalogue.rules_page,
        (True, False): catalogue.ops_table, (True, True): catalogue.ops_page,
    }  # fmt: skip
    print(pages[values.ops, values.markdown](), end="")
    return 0
