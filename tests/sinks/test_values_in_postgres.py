"""What Postgres holds, as psycopg reads it, is what was sent, or the row was refused, or docs/formats.md says so."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy.engine import Engine

from airflow_kafka_offsets.sinks.sql import connected_table, insert
from tests.support.values import KEYS, as_single, changed, refused, stored

pytestmark = pytest.mark.server


def in_milliseconds(at: datetime) -> datetime:
    return at.replace(microsecond=0) + timedelta(milliseconds=round(at.microsecond / 1000))


CHANGES: dict[tuple[str, str], Callable[[Any], Any]] = {
    ("real", "FLOAT"): as_single,
    ("real", "DOUBLE"): as_single,
    ("char(3)", "STRING"): lambda text: text[:3].ljust(3),
    **{(f"timestamp{zone}(3)", ddl): in_milliseconds for zone in ("", "tz") for ddl in ("TIMESTAMP", "TIMESTAMP_NTZ")},
}
COLUMNS = [
    *("smallint", "integer", "bigint", "real", "double precision", "numeric", "numeric(10,2)", "numeric(38,20)"),
    *("numeric(60,30)", "numeric(38,38)", "boolean", "text", "varchar(3)", "char(3)", "bytea", "date", "timestamp"),
    *("timestamptz", "timestamp(3)", "timestamptz(3)", "numeric(3,-2)"),
]


@pytest.fixture(params=["copy", "insert"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "insert":
        monkeypatch.setattr(connected_table, "_writer", lambda _: insert.insert_rows)


def values_in(
    engine: Engine, column: str | None, tmp_path: Path, key: tuple[str, ...] = ()
) -> dict[str, list[tuple[Any, Any]]]:
    url = engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(url, autocommit=True, prepare_threshold=None) as conn:
        return stored(engine, column, lambda query: conn.execute(query).fetchall(), tmp_path, key)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("key", KEYS)
def test_no_value_is_changed_silently(
    postgres_engine: Engine, column: str, key: tuple[str, ...], tmp_path: Path
) -> None:
    found = values_in(postgres_engine, column, tmp_path, key)

    assert found
    assert {ddl: bad for ddl, pairs in found.items() if (bad := changed(pairs, CHANGES.get((column, ddl))))} == {}


def test_a_created_table_keeps_every_value(postgres_engine: Engine, tmp_path: Path) -> None:
    found = values_in(postgres_engine, None, tmp_path)

    singles = {"FLOAT": as_single}
    assert {ddl: bad for ddl, pairs in found.items() if (bad := changed(pairs, singles.get(ddl)))} == {}
    assert {ddl: some for ddl, pairs in found.items() if (some := refused(pairs))} == {"STRING": ["a\0b", "\0"]}


@pytest.mark.parametrize(
    ("column", "ddl"),
    [
        ("numeric(60,30)", "BIGINT"),
        ("numeric(60,30)", "DECIMAL(20,0)"),
        ("numeric", "DECIMAL(38,38)"),
        ("double precision", "DECIMAL(10,2)"),
        ("real", "DECIMAL(3,0)"),
    ],
)
def test_a_value_that_a_column_has_room_for_is_not_refused(
    postgres_engine: Engine, column: str, ddl: str, tmp_path: Path
) -> None:
    assert refused(values_in(postgres_engine, column, tmp_path)[ddl]) == []


def test_no_instant_is_rounded_to_a_year_that_clients_cannot_read(postgres_engine: Engine, tmp_path: Path) -> None:
    found = values_in(postgres_engine, "timestamp(0)", tmp_path)

    assert [at.year for at in refused(found["TIMESTAMP_NTZ"])] == [9999]
