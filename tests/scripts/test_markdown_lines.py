"""`make lint`: which lines of Markdown are too long."""

from __future__ import annotations

import pytest

from scripts.markdown_lines import is_too_long

URL = "https://github.com/airflow-kafka-offsets/airflow-kafka-offsets/blob/main/docs/exactly-once.md#when-not-to-use-it"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("x" * 120, False),
        ("é" * 120, False),
        ("x" * 121, True),
        ("| " + "x" * 200 + " |", False),
        (f"[when-not-to-use-it]: {URL}", False),
        (f"{'x' * 121} {URL}", True),
        (f"![{URL}]({URL})", False),
    ],
)
def test_lines_of_markdown_end_at_120_columns_but_for_tables_and_urls(line: str, expected: bool) -> None:
    assert is_too_long(line) is expected
