"""How commands print: data to standard output in the format of `--output`, notes to standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.cli.simple_table import AirflowConsole


def show(rows: Sequence[Mapping[str, Any]], output: str, columns: Sequence[str] = ()) -> None:
    """Print rows, all with the same keys.

    JSON and YAML have the values as they are: numbers, null, instants in ISO 8601, and durations in seconds. Tables are for
    people: their headings are written as in Kafka's tools. Without rows they are empty, and a note says so.

    :param rows: a duration has a key that ends with `_seconds`
    :param output: table, json, yaml or plain
    :param columns: the columns of a table; all by default
    """
    console: Any = AirflowConsole(markup=False, emoji=False, highlight=False)
    if output in ("json", "yaml"):
        values = [{key: _value(value) for key, value in row.items()} for row in rows]
        getattr(console, f"print_as_{output}")(values)
    elif rows:
        texts = [{_heading(key): _text(row[key]) for key in columns or row} for row in rows]
        getattr(console, "print_as_table" if output == "table" else "print_as_plain_table")(texts)
    else:
        # Airflow would print "No data found" to standard output.
        note("There is nothing to show")


def show_value(value: Mapping[str, Any], output: str) -> None:
    """Print a value that is not rows of a table.

    :param value: what JSON can hold
    :param output: json or yaml
    """
    if output == "json":
        sys.stdout.write(json.dumps(value, indent=2) + "\n")
    else:
        console: Any = AirflowConsole(markup=False, emoji=False, highlight=False)
        console.print_as_yaml(value)


def note(text: str) -> None:
    """Print a line that is not data."""
    sys.stderr.write(f"{text}\n")


def _value(value: Any) -> Any:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    return list(value) if isinstance(value, tuple) else value


def _heading(key: str) -> str:
    return key.removesuffix("_seconds").replace("_", "-").upper()


def _duration(value: timedelta) -> str:
    """Format a duration for people: 45s, 3m 20s, 5h 0m, 12d 3h."""
    whole = int(value.total_seconds())
    units = ((whole // 86_400, "d"), (whole // 3600 % 24, "h"), (whole // 60 % 60, "m"), (whole % 60, "s"))
    first = next((index for index, (count, _) in enumerate(units) if count), 3)
    return " ".join(f"{count}{unit}" for count, unit in units[first : first + 2])


def _text(value: Any) -> str:
    if value is None or value == ():
        return "-"
    if isinstance(value, timedelta):
        return _duration(value)
    if isinstance(value, datetime):
        return f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S}"
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
