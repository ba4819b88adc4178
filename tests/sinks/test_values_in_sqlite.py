"""What SQLite holds, as Python's sqlite3 reads it, is what was sent, or the row was refused, or docs/formats.md says
so.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.engine import Engine

from tests.support.values import KEYS, changed, refused, stored

COLUMNS = [
    *("INTEGER", "BIGINT", "SMALLINT", "REAL", "DOUBLE", "FLOAT", "NUMERIC", "DECIMAL(10,2)", "TEXT", "VARCHAR(3)"),
    *(
        "BLOB",
        "DATE",
        "DATETIME",
        "TIMESTAMP",
        "BOOLEAN",
        "INTEGER PRIMARY KEY",
        "BIGINT NOT NULL ON CONFLICT REPLACE DEFAULT 7",
    ),
]


def change(column: str | None, ddl: str) -> Callable[[Any], Any] | None:
    """What docs/formats.md says of a type."""

    def of(value: Any) -> Any:
        if isinstance(value, float):
            return value + 0.0
        if isinstance(value, datetime):
            return value.strftime("%Y-%m-%d %H:%M:%S.%f").rjust(26, "0")
        if isinstance(value, date):
            return value.isoformat()
        is_text = column in ("TEXT", "VARCHAR(3)") or (column is None and int(ddl[8:].split(",")[0]) > 15)
        return f"{value:f}" if is_text else value

    return of if ddl.startswith(("DECIMAL", "FLOAT", "DOUBLE", "DATE", "TIMESTAMP")) else None


def values_in(
    engine: Engine, column: str | None, tmp_path: Path, key: tuple[str, ...] = ()
) -> dict[str, list[tuple[Any, Any]]]:
    assert engine.url.database is not None
    with closing(sqlite3.connect(engine.url.database)) as conn:
        return stored(engine, column, lambda query: conn.execute(query).fetchall(), tmp_path, key)


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("key", KEYS)
def test_no_value_is_changed_silently(sqlite_engine: Engine, column: str, key: tuple[str, ...], tmp_path: Path) -> None:
    found = values_in(sqlite_engine, column, tmp_path, key)

    assert found
    assert {ddl: bad for ddl, pairs in found.items() if (bad := changed(pairs, change(column, ddl)))} == {}
    if column.startswith(("INTEGER PRIMARY KEY", "BIGINT NOT NULL")):
        assert all(None in refused(pairs) for pairs in found.values())


def test_a_created_table_keeps_every_value_but_nan(sqlite_engine: Engine, tmp_path: Path) -> None:
    found = values_in(sqlite_engine, None, tmp_path)

    assert {ddl: bad for ddl, pairs in found.items() if (bad := changed(pairs, change(None, ddl)))} == {}
    lost = {ddl: some for ddl, pairs in found.items() if (some := refused(pairs))}
    assert lost.keys() == {"FLOAT", "DOUBLE"}
    assert all(math.isnan(number) for some in lost.values() for number in some)


def test_a_decimal_that_a_number_holds_is_not_refused(sqlite_engine: Engine, tmp_path: Path) -> None:
    found = values_in(sqlite_engine, "NUMERIC", tmp_path)

    assert refused(found["DECIMAL(10,2)"]) == []
    assert Decimal("9223372036854775808") in refused(found["DECIMAL(20,0)"])
