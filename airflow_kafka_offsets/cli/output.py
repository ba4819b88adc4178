"""How commands print: data to standard output in the format of `--output`, notes to standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow_kafka_offsets.core.text import short_duration
from airflow_kafka_offsets.escaping import printable

if TYPE_CHECKING:
    from rich.console import Console

# Of a table that is no terminal: rows must not break.
_WIDTH = 200


def show(rows: Sequence[Mapping[str, Any]], output: str, columns: Sequence[str] = ()) -> None:
    """Print rows, all with the same keys.

    JSON and YAML have the values as they are: numbers, null, instants in ISO 8601, and durations in seconds. Tables are
    for people: their headings are written as in Kafka's tools, and a row is a line of visible characters. Without rows
    they are empty, and a note says so.

    :param rows: a duration has a key that ends with `_seconds`
    :param output: table, json, yaml or plain
    :param columns: the columns of a table; all by default
    """
    if output in ("json", "yaml"):
        _print(json.dumps([dict(row) for row in rows], default=_plain), output)
    elif rows:
        headings = [_heading(key) for key in columns or rows[0]]
        texts = [[_text(row[key]) for key in columns or row] for row in rows]
        (_print_table if output == "table" else _print_plain)(headings, texts)
    else:
        note("There is nothing to show")


def show_value(value: Mapping[str, Any], output: str) -> None:
    """Print a value that is not rows of a table.

    :param value: what JSON can hold
    :param output: json or yaml
    """
    _print(json.dumps(value, indent=2), output)


def note(text: str) -> None:
    """Print a line that is not data."""
    sys.stderr.write(f"{printable(text)}\n")


def _print(text: str, output: str) -> None:
    """Print a value, in colours on a terminal.

    :param text: the value as JSON
    """
    if output == "yaml":
        import yaml

        text = yaml.dump(json.loads(text)).removesuffix("\n")
    # Of ASCII, the only control character that JSON allows.
    text = text.replace("\x7f", r"\u007f")
    if not sys.stdout.isatty():
        sys.stdout.write(f"{text}\n")
        return
    from rich.syntax import Syntax

    _console().print(Syntax(text, output, theme="ansi_dark"), soft_wrap=True)


def _print_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.box import ASCII_DOUBLE_HEAD
    from rich.table import Table

    table = Table(box=ASCII_DOUBLE_HEAD, show_edge=False, pad_edge=False)
    for heading in headings:
        # Nothing is truncated.
        table.add_column(heading, overflow=None)  # type: ignore[arg-type]
    for row in rows:
        table.add_row(*row)
    _console().print(table)


def _print_plain(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from tabulate import tabulate

    sides = ["right" if _are_numbers(column) else "left" for column in zip(*rows, strict=True)]
    # tabulate would read numbers, and write 1e5 as 100000.
    table = tabulate(rows, headings, tablefmt="plain", disable_numparse=True, colalign=sides or None)
    sys.stdout.write(f"{table}\n")


def _are_numbers(column: Sequence[str]) -> bool:
    return all(text == "-" or text.isdecimal() for text in column) and any(map(str.isdecimal, column))


def _console() -> Console:
    from rich.console import Console

    width = None if sys.stdout.isatty() else _WIDTH
    return Console(width=width, markup=False, emoji=False, highlight=False)


def _plain(value: timedelta | datetime) -> float | str:
    return value.total_seconds() if isinstance(value, timedelta) else value.astimezone(UTC).isoformat()


def _heading(key: str) -> str:
    return key.removesuffix("_seconds").replace("_", "-").upper()


def _text(value: Any) -> str:
    if value is None or value == ():
        return "-"
    if isinstance(value, timedelta):
        return short_duration(value)
    if isinstance(value, datetime):
        return f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S}"
    return printable(", ".join(map(str, value)) if isinstance(value, tuple) else str(value))
