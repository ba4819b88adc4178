"""Sessions of MariaDB: how they are set, whatever the server and the engine set, and what becomes of interrupted
statements.
"""

from __future__ import annotations

from collections.abc import Iterator

import pymysql
import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import OperationalError

from airflow_kafka_offsets.database.errors import is_outage, lacks_rights
from airflow_kafka_offsets.database.session import unify_sessions
from airflow_kafka_offsets.database.transactions import database_now, snapshot, transact
from devstack.mariadb import MariaDbServer
from devstack.proxy import MariaDbProxy
from tests.support.mariadb import do, select

pytestmark = pytest.mark.server

SETTINGS = "SELECT @@time_zone, @@character_set_client, @@sql_mode LIKE '%%STRICT_ALL_TABLES%%'"

ODD: dict[str, str | int] = {
    "sql_mode": "ANSI_QUOTES,NO_BACKSLASH_ESCAPES",
    "time_zone": "-11:00",
    "sql_select_limit": 2,
    "sql_auto_is_null": 1,
    "completion_type": "RELEASE",
    "unique_checks": 0,
}


@pytest.fixture
def odd(mariadb: MariaDbServer) -> Iterator[None]:
    """A server whose sessions begin otherwise."""
    kept = mariadb.execute(f"SELECT {', '.join(f'@@GLOBAL.{name}' for name in ODD)}")[0]
    mariadb.execute(f"SET {', '.join(f'GLOBAL {name} = {value!r}' for name, value in ODD.items())}")
    yield
    mariadb.execute(f"SET {', '.join(f'GLOBAL {name} = {value!r}' for name, value in zip(ODD, kept, strict=True))}")


@pytest.mark.parametrize("charset", ["utf8mb4", "latin1"])
@pytest.mark.parametrize("used", [False, True], ids=["new", "used-before"])
def test_mysql_sessions_are_the_same_whatever_the_server_sets(
    odd: None, mariadb: MariaDbServer, mariadb_database: str, charset: str, used: bool
) -> None:
    engine = sa.create_engine(f"{mariadb_database}?charset={charset}")
    if used:
        # Its sessions would end when they go back to the pool.
        mariadb.execute("SET GLOBAL completion_type = 0")
        with engine.connect() as conn:
            assert conn.get_isolation_level() == "REPEATABLE READ"
    unify_sessions(engine)
    unify_sessions(engine)
    for _ in range(2):
        with engine.connect() as conn:
            assert conn.get_isolation_level() == "READ COMMITTED"
            assert tuple(conn.exec_driver_sql(SETTINGS).one()) == ("+00:00", "utf8mb4", 1)
            assert conn.scalar(sa.select(sa.literal("ж😀\\n'"))) == "ж😀\\n'"
            rows = "SELECT 1 AS id UNION ALL SELECT 2 UNION ALL SELECT 3"
            assert conn.exec_driver_sql(rows).scalars().all() == [1, 2, 3]
            assert tuple(conn.exec_driver_sql("SELECT @@sql_auto_is_null, @@unique_checks").one()) == (0, 1)
            session = conn.scalar(sa.func.connection_id())
            conn.commit()
            assert conn.scalar(sa.func.connection_id()) == session
            # Whichever quotes names have.
            conn.execute(sa.select(sa.literal_column("1").label("a b")).subquery("c d").select()).one()
            # Another program sharing the pool may set others.
            conn.exec_driver_sql("SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE")
        with snapshot(engine) as conn:
            assert conn.get_isolation_level() == "REPEATABLE READ"
    engine.dispose()


def test_the_time_is_utc(odd: None, mariadb_engine: Engine) -> None:
    with mariadb_engine.connect() as conn:
        told = conn.exec_driver_sql("SELECT unix_timestamp(now(6))").scalar_one()
        assert abs(database_now(conn).timestamp() - float(told)) < 5


class TestInterrupted:
    @pytest.fixture
    def kept(self, mariadb_engine: Engine) -> Engine:
        do(mariadb_engine, "CREATE TABLE kept (id INT)")
        return mariadb_engine

    def test_a_killed_session_is_looked_up_and_found_to_have_written_nothing(
        self, kept: Engine, mariadb: MariaDbServer
    ) -> None:
        looked_up: list[str] = []

        def work(conn: Connection) -> None:
            conn.exec_driver_sql("INSERT INTO kept VALUES (1)")
            mariadb.execute(f"KILL {conn.exec_driver_sql('SELECT connection_id()').scalar()}")

        with pytest.raises(OperationalError) as broken:
            transact(kept, work, outcome=lambda _: looked_up.append("looked up"))

        assert looked_up == ["looked up"]
        assert is_outage(broken.value)
        assert select(kept, "SELECT * FROM kept") == []

    @pytest.mark.parametrize("number", [1053, 1317, 1927])
    def test_a_commit_that_is_interrupted_is_looked_up(self, kept: Engine, number: int) -> None:
        def interrupted() -> None:
            raise pymysql.OperationalError(number, "interrupted")

        def work(conn: Connection) -> str:
            conn.connection.dbapi_connection.commit = interrupted  # type: ignore[union-attr, method-assign]
            return "written"

        assert transact(kept, work, outcome=lambda _: "looked up") == "looked up"

    @pytest.mark.parametrize("committed", [True, False], ids=["answer-lost", "cut-before"])
    def test_the_outcome_of_commit_is_looked_up(self, kept: Engine, mariadb: MariaDbServer, committed: bool) -> None:
        found: list[int] = []

        def look(conn: Connection) -> str | None:
            found.append(len(conn.exec_driver_sql("SELECT id FROM kept").all()))
            return "committed" if found[-1] else None

        def work(conn: Connection) -> str:
            conn.exec_driver_sql("INSERT INTO kept VALUES (1)")
            (proxy.swallow_commit_answer if committed else proxy.cut_before_commit)()
            return "written"

        with MariaDbProxy(mariadb.port) as proxy:
            engine = sa.create_engine(kept.url.set(host="127.0.0.1", port=proxy.port))
            unify_sessions(engine)
            if committed:
                assert transact(engine, work, outcome=look) == "committed"
            else:
                with pytest.raises(OperationalError):
                    transact(engine, work, outcome=look)
            assert proxy.triggered.is_set()
            engine.dispose()

        assert found == [int(committed)]
        assert select(kept, "SELECT count(*) FROM kept") == [(int(committed),)]


def test_missing_rights_are_no_outage(mariadb_engine: Engine, mariadb: MariaDbServer) -> None:
    do(mariadb_engine, "CREATE TABLE kept (id INT)")
    mariadb.execute("DROP USER IF EXISTS reader")
    mariadb.execute("CREATE USER reader IDENTIFIED BY 'reader'")
    mariadb.execute(f"GRANT SELECT ON `{mariadb_engine.url.database}`.* TO reader")
    engine = sa.create_engine(mariadb_engine.url.set(username="reader", password="reader"))

    with engine.connect() as conn, pytest.raises(OperationalError) as denied:
        conn.exec_driver_sql("INSERT INTO kept VALUES (1)")

    assert lacks_rights(denied.value)
    assert not is_outage(denied.value)
    engine.dispose()
