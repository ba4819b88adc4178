"""The settings of Postgres sessions, whatever sets others before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from airflow_kafka_offsets.database.session import unify_sessions
from airflow_kafka_offsets.hooks.connections import open_database
from airflow_kafka_offsets.ledger.tables import Ledger
from devstack.postgres import PostgresServer
from tests.support.sessions import ODD_SETTINGS, SETTINGS, altered

pytestmark = pytest.mark.server


@pytest.fixture(params=["psycopg", "psycopg2"])
def url(request: pytest.FixtureRequest, database: str, postgres: PostgresServer) -> str:
    """A database with unusual settings."""
    altered(postgres, sa.make_url(database).database or "", ODD_SETTINGS)
    return database.replace("+psycopg", f"+{request.param}")


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    made = sa.create_engine(url)
    yield made
    made.dispose()


class DriverWithoutReports:
    """A driver's connection that says nothing of its session, as pg8000's."""

    def __init__(self) -> None:
        self.autocommit = False
        self.sent: list[str] = []

    @contextmanager
    def cursor(self) -> Iterator[DriverWithoutReports]:
        yield self

    def execute(self, statement: str) -> None:
        assert self.autocommit
        self.sent.append(statement)

    def rollback(self) -> None: ...


def settings(engine: Engine) -> dict[str, str]:
    """The settings of a session, and that its driver reads as it says."""
    with engine.connect() as conn:
        assert conn.exec_driver_sql("SELECT 'é'::text").scalar() == "é"
        assert not conn.connection.dbapi_connection.autocommit  # type: ignore[union-attr]
        return {name: str(conn.exec_driver_sql(f"SHOW {name}").scalar()) for name in SETTINGS}


def pid(engine: Engine) -> int:
    with engine.connect() as conn:
        return int(conn.exec_driver_sql("SELECT pg_backend_pid()").scalar_one())


def test_a_new_connection_has_them(engine: Engine) -> None:
    assert settings(engine) != SETTINGS
    engine.dispose()
    unify_sessions(engine)
    assert settings(engine) == SETTINGS


def test_a_connection_that_the_pool_had_open_has_them(engine: Engine) -> None:
    open_before = pid(engine)
    Ledger(engine)
    assert settings(engine) == SETTINGS
    assert pid(engine) == open_before


def test_settings_that_a_rollback_or_the_pool_resets_are_set_again(engine: Engine) -> None:
    unify_sessions(engine)
    with engine.connect() as conn, conn.begin() as transaction:
        conn.exec_driver_sql("SET client_encoding = 'LATIN1'")
        transaction.rollback()
    assert settings(engine) == SETTINGS
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
        conn.exec_driver_sql("DISCARD ALL")
    assert settings(engine) == SETTINGS


@pytest.mark.parametrize("pool", [sa.NullPool, sa.StaticPool, sa.QueuePool])
def test_every_pool_hands_out_connections_that_have_them(url: str, pool: type[sa.Pool]) -> None:
    engine = sa.create_engine(url, poolclass=pool)
    unify_sessions(engine)
    for _ in range(2):
        assert settings(engine) == SETTINGS
    engine.dispose()
    assert settings(engine) == SETTINGS
    engine.dispose()


def test_the_engine_of_an_airflow_connection_has_them(
    database: str, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = sa.make_url(database).database or ""
    altered(postgres, name, ODD_SETTINGS)
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", postgres.airflow_uri(name))
    with open_database("warehouse") as engine:
        assert settings(engine) == SETTINGS


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_the_environment_does_not_choose_the_encoding(database: str, encoding: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PGCLIENTENCODING", encoding)
        engine = sa.create_engine(database)
        Ledger(engine)
        assert settings(engine) == SETTINGS
        engine.dispose()


def test_where_they_are_right_nothing_is_sent(engine: Engine) -> None:
    unify_sessions(engine)
    with engine.connect() as conn:
        connection = conn.connection.dbapi_connection
        backend = conn.exec_driver_sql("SELECT pg_backend_pid()").scalar()
        conn.exec_driver_sql("SELECT 'the last statement'")
    with engine.connect() as conn:
        assert conn.connection.dbapi_connection is connection
        other = sa.create_engine(engine.url)
        with other.connect() as watching:
            query = sa.text("SELECT query FROM pg_stat_activity WHERE pid = :pid")
            sent = list(watching.scalars(query, {"pid": backend}))
        other.dispose()
    # The pool's own ROLLBACK ended the transaction before.
    assert sent == ["ROLLBACK"]


def test_a_driver_that_does_not_pass_on_the_settings_sets_them_each_time() -> None:
    driver = DriverWithoutReports()
    engine = sa.create_engine("postgresql+psycopg://", creator=lambda: driver, _initialize=False)
    unify_sessions(engine)
    for _ in range(2):
        driver.sent.clear()
        engine.raw_connection().close()
        assert all("set_config('client_encoding', 'UTF8', false)" in statement for statement in driver.sent)
        assert driver.sent
    assert not driver.autocommit


def test_other_databases_are_left_alone() -> None:
    engine = sa.create_engine("sqlite://")
    unify_sessions(engine)
    with engine.connect() as conn:
        assert conn.exec_driver_sql("SELECT 1").scalar() == 1
    engine.dispose()
