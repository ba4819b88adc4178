"""Writes docs/commands.md: what `--help` says of every command of `airflow kafka-offsets`. Run by `make reference`."""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "commands.md"

_WIDTH = "100"
_INTRODUCTION = """\
# Commands

Written by `make reference` from what the commands say of themselves.

Data goes to standard output, notes to standard error. A failure is one line there, which says what happened and what to do,
and a status that is not zero: 1, or 2 where the command was not understood. `--output json` and `yaml` have numbers, instants
in ISO 8601 and durations in seconds; `table` and `plain` are for people. Passwords are never printed.

`--conn-id` is the connection of the database that a load writes into: its state tables are there. `--schema` and `--prefix` are
what the operator calls `offsets_schema` and `offsets_prefix`.
"""


def reference() -> str:
    """The document. Imports Airflow, which wants an AIRFLOW_HOME that it may write into."""
    # Help is wrapped and coloured for the terminal that it is printed to.
    settings = {"COLUMNS": _WIDTH, "NO_COLOR": "1", "TERM": "dumb"}
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        parsers = commands()
        sections = [
            f"\n## {name}\n\n```text\n{parser.format_help().strip()}\n```\n" for name, parser in sorted(parsers.items())
        ]
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
    lines = "".join([_INTRODUCTION, *sections]).splitlines()
    return "".join(f"{line.rstrip()}\n" for line in lines)


def commands() -> dict[str, argparse.ArgumentParser]:
    """The parser of every command, by name, as Airflow makes them."""
    from airflow.cli.cli_parser import get_parser

    return _subparsers(_subparsers(get_parser())["kafka-offsets"])


def _subparsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    (action,) = (one for one in parser._actions if isinstance(one, argparse._SubParsersAction))
    found: dict[str, argparse.ArgumentParser] = action.choices
    return found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="airflow-home-") as home:
        os.environ["AIRFLOW_HOME"] = home
        DOCUMENT.write_text(reference(), encoding="utf-8")
