"""Columns that a commit adds to a table: who may, what it says to those who may not, and names that are no
identifiers.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from airflow_kafka_offsets.exceptions import ConfigurationError, TargetError
from airflow_kafka_offsets.sinks.sql.connected_table import SqlTarget, check_growth
from airflow_kafka_offsets.sinks.sql.table import SqlTable

pytestmark = pytest.mark.server

TARGET = SqlTable("target")
COLUMNS = pa.schema([("id", pa.int64()), ('a "100%":b', pa.decimal128(20, 2)), ("_kafka_offset", pa.int64())])


@pytest.fixture
def target(engine: Engine) -> Engine:
    with engine.begin() as conn:
        conn.execute(sa.text("CREATE TABLE target (id BIGINT)"))
    return engine


@pytest.fixture
def guest(postgres_engine: Engine) -> Iterator[Engine]:
    """A user who may insert into the table, and does not own it."""
    role = f"guest_{postgres_engine.url.database}"
    with postgres_engine.begin() as conn:
        conn.execute(sa.text("CREATE TABLE target (id BIGINT)"))
        conn.execute(sa.text(f"CREATE ROLE {role} LOGIN PASSWORD 'guest'"))
        conn.execute(sa.text(f"GRANT INSERT ON target TO {role}"))
    made = sa.create_engine(postgres_engine.url.set(username=role, password="guest"))
    yield made
    made.dispose()
    with postgres_engine.begin() as conn:
        conn.execute(sa.text(f"DROP OWNED BY {role}"))
        conn.execute(sa.text(f"DROP ROLE {role}"))


def test_only_missing_columns_are_added(target: Engine) -> None:
    with target.begin() as conn:
        assert SqlTarget(conn, TARGET.connect(conn.engine)).add_columns(COLUMNS) == ['a "100%":b']
        assert SqlTarget(conn, TARGET.connect(conn.engine)).add_columns(COLUMNS) == []
    added = sa.inspect(target).get_columns("target")[1]
    assert (added["name"], added["nullable"]) == ('a "100%":b', True)


def test_a_table_that_may_grow_fits(target: Engine) -> None:
    assert TARGET.connect(target).prepare(COLUMNS, may_grow=True).may_grow
    with pytest.raises(TargetError, match="has no column"):
        TARGET.connect(target).prepare(COLUMNS)
    assert len(sa.inspect(target).get_columns("target")) == 1


def test_the_owner_is_named_to_a_user_who_is_another(guest: Engine) -> None:
    statement = 'ALTER TABLE target ADD COLUMN "a ""100%"":b" NUMERIC(20, 2)'
    with pytest.raises(TargetError, match=f"which 'postgres' owns: let the owner execute {re.escape(statement)}$"):
        TARGET.connect(guest).prepare(COLUMNS, may_grow=True)
    assert TARGET.connect(guest).prepare(COLUMNS.remove(1), may_grow=True).known == ("id",)


def test_a_database_whose_transactions_cannot_add_columns_is_refused() -> None:
    engine = sa.create_mock_engine("mysql+pymysql://", lambda *_: None)
    table = sa.Table("target", sa.MetaData(), sa.Column("id", sa.BigInteger))
    with pytest.raises(
        ConfigurationError, match="which mysql does not support: add 'a \"100%\":b' to table 'target' yourself"
    ):
        check_growth(engine, table, COLUMNS)  # type: ignore[arg-type]


def test_two_transactions_that_add_the_same_column_wait_for_each_other(postgres_engine: Engine) -> None:
    with postgres_engine.begin() as conn:
        conn.execute(sa.text("CREATE TABLE target (id BIGINT)"))
    results: list[list[str]] = []

    def add() -> None:
        with postgres_engine.begin() as conn:
            results.append(SqlTarget(conn, TARGET.connect(conn.engine)).add_columns(COLUMNS))

    first = postgres_engine.connect()
    begun = first.begin()
    assert SqlTarget(first, TARGET.connect(first.engine)).add_columns(COLUMNS) == ['a "100%":b']
    other = threading.Thread(target=add)
    other.start()
    waiting = sa.text("SELECT count(*) FROM pg_locks WHERE NOT granted")
    with postgres_engine.connect().execution_options(isolation_level="AUTOCOMMIT") as watcher:
        while not watcher.scalar(waiting):
            assert other.is_alive()
    begun.commit()
    first.close()
    other.join()
    assert results == [[]]
