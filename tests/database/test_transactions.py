"""Transactions: which are repeated, how often, and what is told in the end.

SQLite knows no deadlock and no serialization failure, so these are made up here; Postgres' own are in
`tests/ledger/test_rolled_back_commits.py`.
"""

import itertools
import logging
import sqlite3
from contextlib import closing

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError

from airflow_kafka_offsets.database import transactions
from airflow_kafka_offsets.database.errors import is_outage
from airflow_kafka_offsets.database.transactions import transact
from airflow_kafka_offsets.exceptions import CommitUnknownError, DatabaseBusyError, FencedError
from tests.support.transactions import DriverError, Output, PgCodeError, deadlock, failure


class TestRepeating:
    @pytest.mark.parametrize(
        "lost",
        [
            failure(DriverError("40001", "could not serialize access")),
            failure(DriverError("40P01")),
            failure(PgCodeError("deadlock detected")),
            failure(Exception(1213, "Deadlock found when trying to get lock")),
            failure(Exception(1684, "Table 'a'.'b' was skipped since its definition is being modified by another")),
        ],
        ids=["serialization", "deadlock", "psycopg2", "mysql", "mysql-ddl"],
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
    def test_other_errors_are_not_retried(self, output: Output, error: Exception) -> None:
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

    def test_repeated_transactions_end_with_the_error_of_the_database(self, output: Output) -> None:
        last = deadlock()
        with pytest.raises(
            DatabaseBusyError, match=r"output\.db' conflicted with this transaction 5 times.*deadlock detected"
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

    def test_a_transaction_that_succeeds_does_not_pause(self, output: Output, pauses: list[float]) -> None:
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

    def test_the_outcome_is_looked_up_after_a_repetition_too(self, output: Output) -> None:
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


def test_an_exception_that_is_no_error_is_raised_as_it_is(output: Output) -> None:
    """As a timeout of Airflow, which a signal handler raises while a statement runs. SQLAlchemy then gives the
    connection up.
    """

    class StoppedError(BaseException):
        pass

    @sa.event.listens_for(output.engine, "before_cursor_execute")
    def stop(conn: object, cursor: object, statement: str, *_: object) -> None:
        if statement.startswith("INSERT"):
            raise StoppedError

    with pytest.raises(StoppedError):
        transact(output.engine, output.writing())
    sa.event.remove(output.engine, "before_cursor_execute", stop)

    assert output.rows() == []
    assert transact(output.engine, output.writing()) == "attempt 2"
