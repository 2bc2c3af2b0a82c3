"""The table of docs/coverage.md, from the families of spellings in this folder.

python -m pytest tests/spellings/test_coverage.py   # fails, and shows the table, when the page is out of date
"""

from . import swiglu
from .test_loops_and_collectives import FAMILIES, MISSED

# "experts of a batch" is a stated miss of test_spellings.py
SWIGLU = ("swiglu", len(swiglu.BASELINE) + len(swiglu.LIBRARIES), 1, len(swiglu.NEAR_MISSES))


def table() -> str:
    """Markdown: rule, spellings, recognised, near misses, false matches."""
    rows = [SWIGLU]
    for rule, (_, family) in FAMILIES.items():
        missed = len(MISSED & set(family.POSITIVES))
        rows.append((rule, len(family.POSITIVES) - missed, missed, len(family.NEAR_MISSES)))
    lines = ["| rule | spellings | recognised | near misses | false matches |", "| --- | ---: | ---: | ---: | ---: |"]
    for rule, found, missed, near in sorted(rows):
        lines.append(f"| {rule} | {found + missed} | {found} | {near} | 0 |")
    return "\n".join(lines)
