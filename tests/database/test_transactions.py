"""Transactions: which are repeated, how often, and what is told in the end.

SQLite knows no deadlock and no serialization failure, so these are made up here; Postgres' own are in
`tests/ledger/test_database_faults.py`.
"""

import itertools
import logging
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.engine.result import SimpleResultMetaData
from sqlalchemy.exc import DBAPIError, IntegrityError, InternalError, OperationalError

from airflow_kafka_offsets.database import transactions
from airflow_kafka_offsets.database.errors import is_outage
from airflow_kafka_offsets.database.transactions import database_now, transact
from airflow_kafka_offsets.exceptions import CommitUnknownError, ConfigurationError, DatabaseBusyError, FencedError


class DriverError(Exception):
    """An error of a driver that hands on the SQLSTATE, as psycopg does."""

    def __init__(self, sqlstate: str, message: str = "deadlock detected") -> None:
        super().__init__(message)
        self.sqlstate = sqlstate


class PgCodeError(Exception):
    """One of psycopg2."""

    pgcode = "40P01"


def failure(orig: Exception, *, connection_invalidated: bool = False) -> DBAPIError:
    return OperationalError("UPDATE output", None, orig, connection_invalidated=connection_invalidated)


def deadlock() -> DBAPIError:
    return failure(DriverError("40P01"))


class Output:
    """A table that transactions write to, and what they found and left there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.engine = sa.create_engine(f"sqlite:///{path}")
        self.attempts = 0
        with self.engine.begin() as conn:
            conn.exec_driver_sql("CREATE TABLE output (attempt INTEGER PRIMARY KEY, text TEXT)")

    def writing(self, *errors: Exception) -> Callable[[Connection], str]:
        """Work that writes a row and then ends in these errors, one an attempt, before it succeeds."""
        left = iter(errors)

        def work(conn: Connection) -> str:
            self.attempts += 1
            assert conn.exec_driver_sql("SELECT count(*) FROM output").scalar_one() == 0, "not a new transaction"
            conn.exec_driver_sql("INSERT INTO output VALUES (?, '')", (self.attempts,))
            if (error := next(left, None)) is not None:
                raise error
            return f"attempt {self.attempts}"

        return work

    def rows(self) -> list[int]:
        """What another program sees."""
        with closing(sqlite3.connect(self.path)) as conn:
            return [attempt for (attempt,) in conn.execute("SELECT attempt FROM output")]


@pytest.fixture
def output(tmp_path: Path) -> Iterator[Output]:
    made = Output(tmp_path / "output.db")
    yield made
    made.engine.dispose()


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that were asked for; nobody waits for them."""
    asked: list[float] = []
    monkeypatch.setattr(transactions, "sleep", asked.append)
    return asked


class TestRepeating:
    @pytest.mark.parametrize(
        "lost",
        [
            failure(DriverError("40001", "could not serialize access")),
            failure(DriverError("40P01")),
            failure(PgCodeError("deadlock detected")),
            failure(Exception(1213, "Deadlock found when trying to get lock")),
        ],
        ids=["serialization", "deadlock", "psycopg2", "mysql"],
    )
    def test_the_whole_transaction_is_repeated_in_a_new_one(self, output: Output, lost: DBAPIError) -> None:
        assert transact(output.engine, output.writing(lost, lost)) == "attempt 3"
        assert output.rows() == [3]

    def test_a_failure_at_commit_is_repeated_too(self, output: Output) -> None:
        commits = itertools.count(1)

        @sa.event.listens_for(output.engine, "before_cursor_execute")
        def before(conn: object, cursor: object, statement: str, *_: object) -> None:
            if statement == "COMMIT" and next(commits) == 1:
                raise failure(DriverError("40001", "could not serialize access"))

        assert transact(output.engine, output.writing()) == "attempt 2"
        assert output.rows() == [2]

    def test_a_deadlock_that_hides_behind_its_lost_savepoint_is_one(self, output: Output) -> None:
        hidden = failure(Exception(1305, "SAVEPOINT sa_savepoint_1 does not exist"))
        hidden.__context__ = failure(Exception(1213, "Deadlock found"))
        assert transact(output.engine, output.writing(hidden)) == "attempt 2"

    @pytest.mark.parametrize(
        "error",
        [
            failure(DriverError("40003", "statement completion unknown")),
            failure(DriverError("55P03", "lock not available")),
            failure(DriverError("40001"), connection_invalidated=True),
            IntegrityError("INSERT", None, DriverError("23505", "duplicate key")),
            FencedError("taken over"),
            RuntimeError("40P01"),
        ],
        ids=repr,
    )
    def test_nothing_else_is_repeated(self, output: Output, error: Exception) -> None:
        with pytest.raises(type(error)) as raised:
            transact(output.engine, output.writing(error))
        assert raised.value is error
        assert output.attempts == 1
        assert output.rows() == []

    def test_an_error_after_a_deadlock_is_not_taken_for_another(self, output: Output) -> None:
        refused = IntegrityError("INSERT", None, DriverError("23505", "duplicate key"))
        with pytest.raises(IntegrityError):
            transact(output.engine, output.writing(deadlock(), refused))
        assert output.attempts == 2

    def test_it_ends_with_what_the_database_said(self, output: Output) -> None:
        last = deadlock()
        with pytest.raises(
            DatabaseBusyError, match=r"output\.db' were in the way 5 times.*deadlock detected"
        ) as raised:
            transact(output.engine, output.writing(*(deadlock() for _ in range(4)), last))
        assert raised.value.retriable
        assert raised.value.__cause__ is last
        assert output.attempts == 5
        assert output.rows() == []

    def test_the_last_attempt_may_still_succeed(self, output: Output) -> None:
        assert transact(output.engine, output.writing(*(deadlock() for _ in range(4)))) == "attempt 5"

    def test_every_repetition_is_logged(self, output: Output, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.INFO):
            transact(output.engine, output.writing(deadlock(), deadlock()))
        assert [record.getMessage().rpartition(": ")[2] for record in caplog.records] == [
            "deadlock detected. Attempt 2 of 5 follows",
            "deadlock detected. Attempt 3 of 5 follows",
        ]

    def test_pauses_grow_and_are_never_the_same(self, output: Output, pauses: list[float]) -> None:
        with pytest.raises(DatabaseBusyError):
            transact(output.engine, output.writing(*(deadlock() for _ in range(5))))
        assert len(pauses) == 4
        assert pauses == sorted(pauses)
        assert 0.02 <= pauses[0] <= 0.04
        assert 0.5 <= pauses[-1] <= 1.1
        first = list(pauses)
        with pytest.raises(DatabaseBusyError):
            transact(output.engine, output.writing(*(deadlock() for _ in range(5))))
        assert set(first).isdisjoint(pauses[4:])

    def test_what_succeeds_is_not_paused_for(self, output: Output, pauses: list[float]) -> None:
        transact(output.engine, output.writing())
        assert pauses == []


class TestBrokenConnection:
    """The connection breaks; `outcome` looks up what became of the transaction."""

    BROKEN = failure(Exception("server closed the connection"), connection_invalidated=True)

    @staticmethod
    def count(conn: Connection) -> str | None:
        """Look for the row that `Output.writing` writes."""
        found = conn.exec_driver_sql("SELECT count(*) FROM output").scalar_one()
        return "found" if found else None

    def break_after_commit(self, output: Output) -> None:
        """Let the answer to the first COMMIT be lost."""
        commits = itertools.count(1)

        @sa.event.listens_for(output.engine, "after_cursor_execute")
        def after(conn: object, cursor: object, statement: str, *_: object) -> None:
            if statement == "COMMIT" and next(commits) == 1:
                raise self.BROKEN

    def test_a_commit_whose_answer_was_lost_is_found(self, output: Output) -> None:
        self.break_after_commit(output)
        assert transact(output.engine, output.writing(), outcome=self.count) == "found"
        assert output.rows() == [1]
        assert output.attempts == 1

    def test_a_transaction_that_was_not_committed_ends_with_the_error_of_the_connection(self, output: Output) -> None:
        with pytest.raises(OperationalError) as raised:
            transact(output.engine, output.writing(self.BROKEN), outcome=self.count)
        assert raised.value is self.BROKEN
        assert output.rows() == []

    def test_it_is_looked_up_after_a_repetition_too(self, output: Output) -> None:
        self.break_after_commit(output)
        assert transact(output.engine, output.writing(deadlock()), outcome=self.count) == "found"
        assert output.rows() == [2]

    @pytest.mark.parametrize(
        ("met", "reason"),
        [
            (DatabaseBusyError("the database is locked by another program"), "is locked by another program"),
            (failure(DriverError("55P03", "canceling statement due to lock timeout")), "due to lock timeout"),
            (failure(Exception("connection refused"), connection_invalidated=True), "connection refused"),
        ],
        ids=["busy", "lock-timeout", "gone"],
    )
    def test_a_database_that_cannot_be_asked_leaves_it_unknown(
        self, output: Output, met: Exception, reason: str
    ) -> None:
        def unanswered(conn: Connection) -> str | None:
            raise met

        self.break_after_commit(output)
        with pytest.raises(CommitUnknownError, match=rf"server closed the connection.*{reason}") as raised:
            transact(output.engine, output.writing(), outcome=unanswered)
        assert raised.value.retriable

    def test_an_error_of_a_connection_that_lives_is_not_looked_up(self, output: Output) -> None:
        refused = IntegrityError("INSERT", None, DriverError("23505", "duplicate key"))
        with pytest.raises(IntegrityError) as raised:
            transact(output.engine, output.writing(refused), outcome=lambda conn: pytest.fail("nothing is unknown"))
        assert raised.value is refused


class TestSqlite:
    def test_a_reader_that_keeps_the_commit_out_is_told(self, output: Output, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(transactions, "_SQLITE_PATIENCE_MS", 20)
        with closing(sqlite3.connect(output.path, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT * FROM output").fetchall()
            with pytest.raises(DatabaseBusyError, match=r"is locked by another program.*while another program reads"):
                transact(output.engine, output.writing())
        assert output.rows() == []
        assert transact(output.engine, output.writing()) == "attempt 2", "the connection still held the old transaction"

    def test_a_full_disk_is_told_although_sqlite_rolls_back_by_itself(self, output: Output) -> None:
        def work(conn: Connection) -> None:
            conn.exec_driver_sql("PRAGMA max_page_count = 10")
            conn.exec_driver_sql("INSERT INTO output VALUES (1, '')")
            conn.exec_driver_sql("INSERT INTO output VALUES (2, ?)", ("x" * 100_000,))

        with pytest.raises(OperationalError, match="database or disk is full") as raised:
            transact(output.engine, work)
        assert is_outage(raised.value)
        assert output.rows() == []


class TestOutage:
    """A reason of the database's own, or one in the statement."""

    def outage(self, engine: Engine, statement: str) -> bool:
        with engine.connect() as conn, pytest.raises(DBAPIError) as raised:
            conn.exec_driver_sql(statement)
        return is_outage(raised.value)

    def test_a_wrong_statement_is_none(self, output: Output) -> None:
        assert not self.outage(output.engine, "SELECT * FROM nowhere")

    def test_missing_rights_are_none(self, output: Output) -> None:
        engine = sa.create_engine(f"sqlite:///file:{output.path}?mode=ro&uri=true")
        assert not self.outage(engine, "INSERT INTO output VALUES (1, '')")
        engine.dispose()

    def test_a_broken_connection_is_one(self) -> None:
        assert is_outage(DBAPIError("INSERT", None, DriverError("23505"), connection_invalidated=True))

    @pytest.mark.parametrize(
        ("sqlstate", "expected"),
        [
            ("53100", True),  # disk full
            ("25006", True),  # read-only, as after a failover
            ("57014", True),  # statement timeout
            ("55P03", True),  # lock timeout
            ("23505", False),  # a duplicate
            ("54000", False),  # too long for an index
            ("P0001", False),  # a trigger's own exception
            ("42501", False),  # rights
        ],
    )
    def test_the_sqlstate_says_which(self, sqlstate: str, expected: bool) -> None:
        assert is_outage(OperationalError("INSERT", None, DriverError(sqlstate))) is expected

    @pytest.mark.parametrize(
        ("kind", "expected"), [(OperationalError, True), (InternalError, True), (IntegrityError, False)]
    )
    def test_the_class_says_it_where_a_driver_has_no_sqlstate(self, kind: type[DBAPIError], expected: bool) -> None:
        assert is_outage(kind("INSERT", None, Exception(1021, "Disk full"))) is expected


class FarServer:
    """A connection to a server at UTC+2, of a dialect for which there is no server here."""

    LOCAL, UTC_TIME = datetime(2024, 5, 6, 12, 0), datetime(2024, 5, 6, 10, 0)

    def __init__(self, dialect: str, zone: tzinfo | None = None) -> None:
        self.dialect = SimpleNamespace(name=dialect)
        self._zone = zone

    def now(self) -> datetime:
        return database_now(cast("Connection", self))

    def exec_driver_sql(self, statement: str) -> sa.IteratorResult[tuple[datetime]]:
        assert "utc" in statement
        return sa.IteratorResult(SimpleResultMetaData(["now"]), iter([(self.UTC_TIME,)]))

    def scalar(self, statement: sa.Executable) -> datetime:
        assert "CURRENT_TIMESTAMP" in str(statement)
        return self.LOCAL.replace(tzinfo=self._zone)


class TestClock:
    @pytest.mark.parametrize("dialect", ["mysql", "mariadb", "mssql"])
    def test_it_is_asked_for_utc(self, dialect: str) -> None:
        assert FarServer(dialect).now() == FarServer.UTC_TIME.replace(tzinfo=UTC)

    def test_a_zone_is_converted(self) -> None:
        assert FarServer("oracle", timezone(timedelta(hours=2))).now() == FarServer.UTC_TIME.replace(tzinfo=UTC)

    def test_a_time_without_a_zone_is_not_taken_for_utc(self) -> None:
        with pytest.raises(ConfigurationError, match="'another' report their time without a zone"):
            FarServer("another").now()
