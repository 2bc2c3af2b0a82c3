"""The page of coverage says what the tests of spellings assert."""

from pathlib import Path

from .coverage import table

PAGE = Path(__file__).parents[2] / "docs" / "coverage.md"


def test_the_page_holds_the_table_of_the_tests():
    assert table() in PAGE.read_text(encoding="utf-8"), f"docs/coverage.md is out of date; its table is\n{table()}"
