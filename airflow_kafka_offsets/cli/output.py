"""How commands print: data alone to standard output, in the format of `--output`, and notes to standard error."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TextIO

from airflow_kafka_offsets.core.text import short_duration
from airflow_kafka_offsets.escaping import printable
from airflow_kafka_offsets.exceptions import KafkaOffsetsError

if TYPE_CHECKING:
    from rich.console import Console

# The width at which the texts of a column may break, and what is between columns.
_READABLE, _BETWEEN = 40, " | "

_STANDARD_OUTPUT = 1

_data: list[TextIO] = []
"""Where data goes within `data_alone`."""


@contextmanager
def data_alone() -> Iterator[None]:
    """Keep standard output for data during the block. What else is written to it goes to standard error: Airflow's log,
    and what DAG files and child processes print.
    """
    output = sys.stdout
    try:
        descriptor = output.fileno()
    except OSError:  # a stream in memory
        descriptor = -1
    with redirect_stdout(sys.stderr):
        if descriptor != _STANDARD_OUTPUT:
            _data.append(output)
            try:
                yield
            finally:
                _data.pop()
            return
        # Loggers keep the stream that they began with, and processes have its descriptor.
        output.flush()
        with os.fdopen(os.dup(_STANDARD_OUTPUT), "w", encoding=output.encoding, errors=output.errors) as data:
            os.dup2(sys.stderr.fileno(), _STANDARD_OUTPUT)
            _data.append(data)
            try:
                yield
            finally:
                _data.pop()
                output.flush()
                os.dup2(data.fileno(), _STANDARD_OUTPUT)
                # What `flush` could not write cannot be written now.
                with suppress(OSError):
                    data.close()


def write(text: str) -> None:
    """Print data as they are."""
    with _written():
        _output().write(text)


def flush() -> None:
    """Write what was printed.

    :raises KafkaOffsetsError: it cannot be written
    """
    with _written():
        _output().flush()


@contextmanager
def _written() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise KafkaOffsetsError(
            f"Standard output cannot be written: {error.strerror}. What the command has changed stays changed"
        ) from error


def _output() -> TextIO:
    return _data[-1] if _data else sys.stdout


def show(
    rows: Sequence[Mapping[str, Any]],
    output: str,
    columns: Sequence[str] = (),
    *,
    nothing: str = "There is nothing to show",
) -> None:
    """Print rows, all with the same keys.

    JSON and YAML have the values as they are: numbers, null, instants in ISO 8601, and durations in seconds. Tables are
    for people: their headings are written as in Kafka's tools, and a row is a line of visible characters. Without rows
    they are empty, and a note says so.

    :param rows: a duration has a key that ends with `_seconds`
    :param output: table, json, yaml or plain
    :param columns: the columns of a table; all by default
    :param nothing: the note for a table without rows; empty is none
    """
    if output in ("json", "yaml"):
        _print(json.dumps([dict(row) for row in rows], default=_plain), output)
    elif rows:
        headings = [_heading(key) for key in columns or rows[0]]
        texts = [[_text(row[key]) for key in columns or row] for row in rows]
        (_print_table if output == "table" else _print_plain)(headings, texts)
    elif nothing:
        note(nothing)


def show_each(rows: Iterable[Mapping[str, Any]], output: str, *, nothing: str) -> None:
    """Print rows as `show` does, JSON and YAML one by one: each may be large."""
    if output in ("table", "plain"):
        show(list(rows), output, nothing=nothing)
        return
    number = 0
    for number, row in enumerate(rows, 1):
        text = json.dumps(dict(row), default=_plain)
        _print(f"[{text}]" if output == "yaml" else f"{',' if number > 1 else '['}{text}", output)
    if output == "json" or not number:
        _print("]" if number else "[]", output)


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
    if not _output().isatty():
        write(f"{text}\n")
        return
    from rich.syntax import Syntax

    _console().print(Syntax(text, output, theme="ansi_dark"), soft_wrap=True)


def _print_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.box import ASCII_DOUBLE_HEAD
    from rich.cells import cell_len
    from rich.table import Table

    columns = [[heading, *texts] for heading, texts in zip(headings, zip(*rows, strict=True), strict=True)]
    widths = [max(map(cell_len, column)) for column in columns]
    if _output().isatty():
        console = _console()
        widths = [
            min(width, max(_READABLE, cell_len(column[0]))) for width, column in zip(widths, columns, strict=True)
        ]
        parts = _folded(columns, widths, console.width)
    else:
        # Programs that read lines take a row for a line.
        parts = [range(len(columns))]
        console = _console(sum(widths) + len(_BETWEEN) * len(columns))
    for number, part in enumerate(parts):
        table = Table(box=ASCII_DOUBLE_HEAD, show_edge=False, pad_edge=False)
        for index in part:
            # Nothing is truncated.
            table.add_column(headings[index], overflow="fold", min_width=min(widths[index], console.width))
        for row in rows:
            table.add_row(*(row[index] for index in part))
        with _written():
            if number:
                console.print()
            console.print(table)


def _folded(columns: Sequence[Sequence[str]], widths: Sequence[int], terminal: int) -> list[Sequence[int]]:
    """Return the columns of one or more tables, one below the other, none of which is wider than the terminal.

    The columns that tell rows apart come again in each table.
    """
    if sum(widths) + len(_BETWEEN) * (len(widths) - 1) <= terminal:
        return [range(len(columns))]
    keys = _keys(columns)
    if sum(widths[key] + len(_BETWEEN) for key in keys) > terminal // 2:
        keys = []
    parts: list[list[int]] = [[]]
    for index, width in enumerate(widths):
        taken = sum(widths[each] + len(_BETWEEN) for each in parts[-1])
        if len(parts[-1]) > len(keys) and taken + width > terminal:
            parts.append([*keys])
        if index not in parts[-1]:
            parts[-1].append(index)
    return [*parts]


def _keys(columns: Sequence[Sequence[str]]) -> list[int]:
    """Return the first columns that tell rows apart, without those that have the same text in all rows."""
    keys: list[int] = []
    for index, (_, *texts) in enumerate(columns):
        if len(set(texts)) > 1 or len(texts) == 1:
            keys.append(index)
        found = set(zip(*(columns[key][1:] for key in keys), strict=True))
        if len(found) == len(texts):
            return keys
    return []


def _print_plain(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from tabulate import tabulate

    sides = ["right" if _are_numbers(column) else "left" for column in zip(*rows, strict=True)]
    # tabulate would read numbers, and write 1e5 as 100000.
    table = tabulate(rows, headings, tablefmt="plain", disable_numparse=True, colalign=sides or None)
    write(f"{table}\n")


def _are_numbers(column: Sequence[str]) -> bool:
    return all(text == "-" or text.isdecimal() for text in column) and any(map(str.isdecimal, column))


def _console(width: int | None = None) -> Console:
    from rich.console import Console

    return Console(file=_output(), width=width, markup=False, emoji=False, highlight=False)


def _plain(value: timedelta | datetime) -> float | str:
    return value.total_seconds() if isinstance(value, timedelta) else value.astimezone(UTC).isoformat()


def _heading(key: str) -> str:
    return key.removesuffix("_seconds").replace("_", "-").upper()


def _text(value: Any) -> str:
    if value is None or value in ((), []):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, timedelta):
        return short_duration(value)
    if isinstance(value, datetime):
        return f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S}"
    return printable(", ".join(map(str, value)) if isinstance(value, tuple) else str(value))
