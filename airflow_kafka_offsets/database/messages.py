"""What messages say of rows that a database refuses: in its own words, without values of the rows."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from sqlalchemy.types import NullType

from airflow_kafka_offsets.core.text import shortened
from airflow_kafka_offsets.database import mysql
from airflow_kafka_offsets.database.errors import driver_message

# character_not_in_repertoire and untranslatable_character: these messages quote the names of encodings.
_ABOUT_ENCODINGS = ("22021", "22P05")

# Servers write in the language of `lc_messages`. In French, an apostrophe within a word is no quotation mark.
_MARK = r"""(?:["`«»„“”‘‚‹›「」『』]|(?<!\w)'|['’](?!\w))"""

# All from the first mark to the last: a value may hold marks, too.
_QUOTED = re.compile(rf"{_MARK}(?:.*{_MARK}|.*)", re.DOTALL)


def refusal(error: BaseException, table: sa.Table | None = None) -> str:
    """Return why a database refuses rows, without their values, which must not get into logs.

    Databases quote a value that they cannot read. Of what they quote, only the names of columns, constraints and tables
    are kept. What a trigger raises without quotation marks is kept: its author decides what it shows.

    :param error: of the driver, or SQLAlchemy's about it
    :param table: the table that the rows go to; the type of the column is named, too
    """
    driver: Any = error.orig if isinstance(error, DBAPIError) else error
    diag = getattr(driver, "diag", None)
    state = getattr(driver, "sqlstate", None) or getattr(driver, "pgcode", None)
    words = getattr(diag, "message_primary", None) or driver_message(driver)
    # SQLite's messages hold no values.
    is_safe = isinstance(driver, sqlite3.Error) or mysql.quotes_names_only(mysql.error_number(driver))
    if state not in _ABOUT_ENCODINGS and not is_safe:
        words = _without_values(words, _names(diag, table))
    column = getattr(diag, "column_name", None)
    if column is None and table is not None:
        column = _copied_column(diag, table)
        if mysql.error_number(driver) is not None:
            column = mysql.column_of_message(driver_message(driver), table.columns.keys())
    facts = [f"SQLSTATE {state}"] if state else []
    if column is not None:
        kind = None if table is None or column not in table.columns else table.columns[column].type
        facts.append(f"column {column!r}" + ("" if kind is None or isinstance(kind, NullType) else f" of type {kind}"))
    return shortened(words) + (f" ({', '.join(facts)})" if facts else "")


def _without_values(words: str, names: Sequence[str]) -> str:
    # A name may hold marks: until the values are gone, its number stands for it.
    for number, name in enumerate(names):
        words = re.sub(rf"{_MARK}\s?{re.escape(name)}\s?{_MARK}", f"\0{number}\0", words)
    words = _QUOTED.sub('"…"', words)
    return re.sub("\0([0-9]+)\0", lambda found: f'"{names[int(found[1])]}"', words)


def _names(diag: Any, table: sa.Table | None) -> list[str]:
    """Return the names that a message may quote."""
    kinds = ("schema", "table", "column", "constraint", "datatype")
    names = {getattr(diag, f"{kind}_name", None) for kind in kinds}
    if table is not None:
        names |= {table.name, table.fullname, table.schema, *(column.name for column in table.columns)}
    return [name for name in names if name]


def _copied_column(diag: Any, table: sa.Table) -> str | None:
    """Return the column that COPY failed at, as in `COPY orders, line 3, column id: "x"`; None where the context names
    none.
    """
    context = getattr(diag, "context", None) or ""
    found = re.search(rf"^(?:COPY )?{re.escape(table.name)}[^\d\n]*\d+([^:\n]*)", context, re.MULTILINE)
    words = "" if found is None else found.group(1)
    # In most languages, a word for "column" is before the name.
    places = {
        column.name: words.rfind(column.name)
        for column in table.columns
        if re.search(rf"(?<!\w){re.escape(column.name)}(?!\w)", words)
    }
    return max(places, key=lambda name: (places[name], len(name)), default=None)
