"""Why a database refuses a row, without the row's values."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from types import SimpleNamespace

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine
from sqlalchemy.exc import DataError, DBAPIError

from airflow_kafka_offsets.database import errors
from airflow_kafka_offsets.database.errors import database_message, refusal
from devstack.postgres import PostgresServer
from tests.support.transactions import DriverError

SECRET = "cana\"ry'«»-4711"

# Names with quotation marks, and one type for each way of Postgres to quote a value.
NAME, KEY = 'the "orders"', 'the "key"'

COLUMNS = {
    "id": "UUID",
    "net": "INET",
    "mood": "mood",
    "span": "INT4RANGE",
    "tags": "INT[]",
    "age": "INTERVAL",
    "doc": "JSONB",
    "day": "DATE",
    "amount": "NUMERIC(3, 2)",
    "small": "SMALLINT",
    "flag": "BOOL",
    "bits": "BIT(3)",
    "mac": "MACADDR",
    "search": "TSQUERY",
    "other": "REGCLASS",
    "path": "JSONPATH",
    "few": "few",
    "name": "VARCHAR(4)",
    KEY: 'TEXT CONSTRAINT "no ""such""" CHECK (false)',
}


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


class FakeError(Exception):
    """An error of Postgres in any language."""

    def __init__(self, primary: str, state: str = "22P02", **diag: str) -> None:
        super().__init__(primary)
        self.sqlstate = state
        self.diag = type("Diagnostic", (), {"message_primary": primary, **diag})


@pytest.fixture(scope="module")
def engine(postgres: PostgresServer) -> Iterator[Engine]:
    """A database with the table."""
    database = "of_refusals"
    with postgres.connect() as conn:
        conn.execute(f"CREATE DATABASE {database} TEMPLATE template0".encode())
    engine = sa.create_engine(postgres.url(database))
    columns = ", ".join(f"{quoted(name)} {kind}" for name, kind in COLUMNS.items())
    with engine.begin() as conn:
        conn.exec_driver_sql("CREATE TYPE mood AS ENUM ('glad')")
        conn.exec_driver_sql("CREATE DOMAIN few AS TEXT CHECK (length(VALUE) < 3)")
        conn.exec_driver_sql(f"CREATE TABLE {quoted(NAME)} ({columns})")
    yield engine
    engine.dispose()
    postgres.drop_database(database)


@pytest.fixture(scope="module")
def table(engine: Engine) -> sa.Table:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Did not recognize type", sa.exc.SAWarning)
        return sa.Table(NAME, sa.MetaData(), autoload_with=engine)


class TestPostgres:
    """Each error is of a real server: COPY with psycopg, INSERT with psycopg2."""

    pytestmark = pytest.mark.server

    @pytest.mark.parametrize(
        ("column", "words", "facts"),
        [
            ("id", 'invalid input syntax for type uuid: "…"', "22P02, column 'id' of type UUID"),
            ("net", 'invalid input syntax for type inet: "…"', "22P02, column 'net' of type INET"),
            ("mood", 'invalid input value for enum mood: "…"', "22P02, column 'mood' of type VARCHAR(4)"),
            ("span", 'malformed range literal: "…"', "22P02, column 'span' of type INT4RANGE"),
            ("tags", 'malformed array literal: "…"', "22P02, column 'tags' of type ARRAY"),
            ("age", 'invalid input syntax for type interval: "…"', "22007, column 'age' of type INTERVAL"),
            ("doc", "invalid input syntax for type json", "22P02, column 'doc' of type JSONB"),
            ("day", 'invalid input syntax for type date: "…"', "22007, column 'day' of type DATE"),
            ("amount", 'invalid input syntax for type numeric: "…"', "22P02, column 'amount' of type NUMERIC(3, 2)"),
            ("name", "value too long for type character varying(4)", "22001, column 'name' of type VARCHAR(4)"),
            *((name, "", "") for name in ("small", "flag", "bits", "mac", "search", "other", "path", "few")),
            (KEY, f'new row for relation "{NAME}" violates check constraint "no "such""', "23514"),
        ],
    )
    @pytest.mark.parametrize("value", [SECRET, f"{SECRET}\n{SECRET}", SECRET * 20_000], ids=["short", "lines", "long"])
    def test_messages_of_copy_name_the_column_without_the_value(
        self, engine: Engine, table: sa.Table, column: str, words: str, facts: str, value: str
    ) -> None:
        statement = f"COPY {quoted(NAME)} ({quoted(column)}) FROM STDIN (FORMAT csv)"
        with engine.connect() as conn:
            cursor = conn.connection.cursor()
            with pytest.raises(psycopg.Error) as raised, cursor.copy(statement) as copy:
                copy.write(f"{quoted(value)}\n".encode())
        message = refusal(raised.value, table)
        assert message.startswith(words)
        assert f" (SQLSTATE {facts}" in message
        assert "4711" not in message
        assert len(message) < 700

    @pytest.mark.parametrize("column", ["id", "other"])
    def test_messages_of_other_drivers_name_the_column_without_the_value(
        self, engine: Engine, table: sa.Table, column: str
    ) -> None:
        other = sa.create_engine(engine.url.set(drivername="postgresql+psycopg2"))
        with other.connect() as conn, pytest.raises(DBAPIError) as raised:
            conn.exec_driver_sql(f"INSERT INTO {quoted(NAME)} ({column}) VALUES (%s)", ("canary-4711",))
        other.dispose()
        assert '"…"' in refusal(raised.value, table)
        assert "4711" not in refusal(raised.value, table)


@pytest.mark.parametrize(
    ("primary", "message"),
    [
        ("ungültige Eingabesyntax für Typ uuid: »4711«", 'ungültige Eingabesyntax für Typ uuid: "…"'),
        ("syntaxe en entrée invalide pour l'énumération : « 4711 »",
         "syntaxe en entrée invalide pour l'énumération : \"…\""),
        ("tipo uuid: «4711», «4712»", 'tipo uuid: "…"'),
        ("类型uuid的无效输入语法: “4711”", '类型uuid的无效输入语法: "…"'),
        ('cut off: "4711', 'cut off: "…"'),
        ('null value in column "name" of relation "orders"', 'null value in column "name" of relation "orders"'),
        ('value "4711 "name" 4712" of «orders»', 'value "…" of "orders"'),
    ],
)  # fmt: skip
def test_servers_speak_many_languages(primary: str, message: str) -> None:
    error = FakeError(primary, column_name="name", table_name="orders")
    assert refusal(error) == f"{message} (SQLSTATE 22P02, column 'name')"


def test_a_database_of_another_kind_quotes_with_apostrophes() -> None:
    error = DataError("INSERT", None, Exception(1366, "Incorrect integer value: '4711' for column 'id' at row 1"))
    assert refusal(error) == 'Incorrect integer value: "…" at row 1'


def test_a_long_message_is_cut() -> None:
    error = DBAPIError("INSERT", None, DriverError("P0001", "word " * 10_000))
    assert len(refusal(error)) < 550
    assert len(database_message(error)) == 500


@pytest.mark.parametrize("value", ['"' * 40_000, "4711 " * 40_000, f'4711{"x" * 9_900}" 4712 "{"x" * 40_000}'])
def test_of_a_value_of_any_length_only_the_beginning_is_searched(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[int] = []

    def noted(pattern: str, replacement: str, text: str) -> str:
        searched.append(len(text))
        return re.compile(pattern).sub(replacement, text)

    monkeypatch.setattr(errors, "re", SimpleNamespace(**vars(re) | {"sub": noted}))
    table = sa.Table("orders", sa.MetaData(), sa.Column("id", sa.Text))

    message = refusal(FakeError(f'invalid input value for enum "mood": "{value}"', datatype_name="mood"), table)

    assert message == 'invalid input value for enum "mood": "…" (SQLSTATE 22P02)'
    assert max(searched) <= 10_000
