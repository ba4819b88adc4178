"""`FunctionSink`: a function of the user writes with the positions, what it raises is named, and its transaction is not
its own to end.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_kafka_offsets import FunctionSink, Limits
from airflow_kafka_offsets.exceptions import (
    ConfigurationError,
    DatabaseUnavailableError,
    FunctionError,
    KafkaOffsetsError,
)
from airflow_kafka_offsets.ledger.batch_rows import TaskRun
from airflow_kafka_offsets.sinks.function_target import WrittenBatch
from tests.support import functions
from tests.support.functions import LINES, sink, written
from tests.support.loads import Loader, positions, rows

pytestmark = pytest.mark.server

NOTHING = "Nothing was written"


AsSink = Callable[[Callable[..., Any]], FunctionSink]


def test_rows_and_positions_are_committed_together(callable_loader: Loader, four: str) -> None:
    assert callable_loader(four, sink=sink("insert"), limits=Limits(max_records=3)).rows == 4

    assert rows(callable_loader.engine, "SELECT _batch_id, _kafka_offset, line FROM lines ORDER BY 2") == [
        (1, 0, "0: name-0"),
        (1, 1, "1: name-1"),
        (1, 2, "2: name-2"),
        (2, 3, "3: name-3"),
    ]
    assert rows(callable_loader.engine, "SELECT * FROM totals") == [("loader", 4)]
    assert positions(callable_loader.engine) == {(four, 0): 4}
    history = "SELECT target_table, row_count FROM offset_batches ORDER BY batch_id"
    assert rows(callable_loader.engine, history) == [
        ("function://tests.support.functions.insert", count) for count in (3, 1)
    ]


def test_the_function_gets_rows_and_the_batch(callable_loader: Loader, four: str, function: AsSink) -> None:
    got: list[Any] = []

    def write(conn: Connection, batches: Any, batch: WrittenBatch) -> int:
        got.extend([batch, *batches])
        return 17

    assert callable_loader(four, sink=function(write)).rows == 17

    batch, given = got
    assert batch[:2] == (1, "loader")
    assert [(each.topic, each.partition, each.start, each.end) for each in batch.ranges] == [(four, 0, 0, 4)]
    origin = ["_kafka_topic", "_kafka_partition", "_kafka_offset", "_kafka_timestamp"]
    assert given.schema.names == ["id", "name", *origin, "_batch_id"]
    assert given["_batch_id"].to_pylist() == [1] * 4


def commit(conn: Connection) -> None:
    conn.commit()


def commit_and_hide_it(conn: Connection) -> None:
    with suppress(FunctionError):
        conn.commit()


def statement(text: str) -> Callable[[Connection], None]:
    def execute(conn: Connection) -> None:
        conn.execute(sa.text(text))

    return execute


@pytest.mark.parametrize(
    ("end", "message"),
    [
        (commit, "called COMMIT on the connection"),
        (commit_and_hide_it, "called COMMIT on the connection"),
        (lambda conn: conn.rollback(), "called ROLLBACK, or close()"),
        (lambda conn: conn.close(), "called ROLLBACK, or close()"),
        (statement("/* done */ commit"), "called COMMIT on the connection"),
        (statement("ROLLBACK"), "called ROLLBACK on the connection"),
        (lambda conn: conn.begin_nested(), "left a savepoint open"),
    ],
    ids=["commit", "hidden", "rollback", "close", "statement", "rollback statement", "savepoint"],
)
def test_a_function_cannot_end_the_transaction(
    callable_loader: Loader, four: str, function: AsSink, end: Callable[[Connection], None], message: str
) -> None:
    def write(conn: Connection, batches: Any, batch: WrittenBatch) -> None:
        functions.insert(conn, batches, batch)
        end(conn)

    run = TaskRun("run")
    with pytest.raises(FunctionError) as raised:
        callable_loader(four, sink=function(write), run=run)

    assert message in str(raised.value)
    assert NOTHING in str(raised.value)
    assert written(callable_loader) == []
    assert positions(callable_loader.engine) == {}
    # The connection is as good as new, and the next attempt carries on.
    assert callable_loader(four, sink=function(functions.insert), run=run).rows == 4
    assert written(callable_loader) == [0, 1, 2, 3]


def test_a_commit_behind_the_connection_is_noticed(callable_loader: Loader, four: str, function: AsSink) -> None:
    def write(conn: Connection, batches: Any, batch: WrittenBatch) -> None:
        functions.insert(conn, batches, batch)
        conn.connection.commit()

    with pytest.raises(FunctionError, match="ended the transaction without the connection that it was given"):
        callable_loader(four, sink=function(write))

    assert positions(callable_loader.engine) == {}


def test_savepoints_of_the_function_are_its_own(callable_loader: Loader, four: str, function: AsSink) -> None:
    def write(conn: Connection, batches: Any, batch: WrittenBatch) -> None:
        with suppress(sa.exc.DBAPIError), conn.begin_nested():
            conn.execute(LINES.insert(), {"line": "taken back"})
            conn.execute(sa.text("SELECT 1 FROM nowhere"))
        functions.insert(conn, batches, batch)

    assert callable_loader(four, sink=function(write)).rows == 4
    assert written(callable_loader) == [0, 1, 2, 3]


def test_an_exception_comes_out_with_the_frames_of_the_function(
    callable_loader: Loader, four: str, function: AsSink
) -> None:
    def write(conn: Connection, batches: Any, batch: WrittenBatch) -> None:
        functions.insert(conn, batches, batch)
        raise ZeroDivisionError("by nothing")

    with pytest.raises(FunctionError) as raised:
        callable_loader(four, sink=function(write))

    first, frame, line = str(raised.value).splitlines()
    assert first == "Function 'tests.support.functions.of_test', of batch 1, raised ZeroDivisionError: by nothing"
    assert "test_function_sink.py" in frame
    assert "in write" in frame
    assert line.strip() == 'raise ZeroDivisionError("by nothing")'
    assert written(callable_loader) == []
    assert positions(callable_loader.engine) == {}


def test_error_of_the_database_has_no_values(callable_loader: Loader, four: str, function: AsSink) -> None:
    def write(conn: Connection, batches: Any, batch: WrittenBatch) -> None:
        for number in (4711, 4711):
            conn.execute(functions.TOTALS.insert(), {"group_id": f"secret-{number}", "rows": 1})

    with pytest.raises(FunctionError, match=r"raised IntegrityError: .*(?i:unique)") as raised:
        callable_loader(four, sink=function(write))

    assert "test_function_sink.py" in str(raised.value)
    assert "4711" not in str(raised.value)


def test_a_statement_that_failed_cannot_be_ignored(callable_loader: Loader, four: str, function: AsSink) -> None:
    def write(conn: Connection, batches: Any, batch: WrittenBatch) -> None:
        list(batches)
        with pytest.raises(sa.exc.DBAPIError):
            conn.execute(sa.text("SELECT 1 FROM nowhere"))

    if callable_loader.engine.dialect.name == "sqlite":  # whose transactions go on
        assert callable_loader(four, sink=function(write)).rows == 4
        return
    with pytest.raises(FunctionError, match="continued after the database had refused a statement"):
        callable_loader(four, sink=function(write))
    assert positions(callable_loader.engine) == {}


CONFLICT = "DO $$ BEGIN RAISE EXCEPTION 'another writer' USING ERRCODE = '40001'; END $$"


def by_the_driver(conn: Connection) -> None:
    conn.connection.cursor().execute(CONFLICT)


def wrapped(conn: Connection) -> None:
    try:
        conn.execute(sa.text(CONFLICT))
    except sa.exc.DBAPIError:
        raise RuntimeError("cannot write") from None


@pytest.mark.parametrize("engine", ["postgresql"], indirect=True)
@pytest.mark.parametrize("conflict", [statement(CONFLICT), by_the_driver, wrapped])
def test_a_conflict_with_another_writer_repeats_the_transaction(
    callable_loader: Loader, four: str, function: AsSink, conflict: Callable[[Connection], None]
) -> None:
    calls: list[int] = []

    def write(conn: Connection, batches: Any, batch: WrittenBatch) -> None:
        calls.append(batch.batch_id)
        functions.insert(conn, batches, batch)
        if len(calls) == 1:
            conflict(conn)

    assert callable_loader(four, sink=function(write)).rows == 4
    assert calls == [1, 1]
    assert written(callable_loader) == [0, 1, 2, 3]


@pytest.mark.parametrize("engine", ["postgresql"], indirect=True)
def test_an_outage_stays_one(callable_loader: Loader, four: str, function: AsSink) -> None:
    def write(conn: Connection, batches: Any, batch: WrittenBatch) -> None:
        cursor = conn.connection.cursor()
        cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")

    with pytest.raises(DatabaseUnavailableError) as raised:
        callable_loader(four, sink=function(write))
    assert raised.value.retriable


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (-1, "returned -1"),
        (True, "returned True"),
        ("4", "returned a str"),
    ],
)
def test_a_number_of_rows_is_a_number(
    callable_loader: Loader, four: str, function: AsSink, returned: Any, message: str
) -> None:
    def write(conn: Connection, batches: Any, batch: WrittenBatch) -> Any:
        functions.insert(conn, batches, batch)
        return returned

    with pytest.raises(FunctionError, match=message):
        callable_loader(four, sink=function(write))
    assert written(callable_loader) == []


def test_rows_that_were_not_read_are_no_rows_that_were_written(
    callable_loader: Loader, four: str, function: AsSink
) -> None:
    def write(conn: Connection, batches: Any, batch: WrittenBatch) -> None:
        pass

    with pytest.raises(FunctionError, match="returned None after 0 of 4 rows"):
        callable_loader(four, sink=function(write))


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: FunctionSink("insert"), r"FunctionSink\('insert'\) is not an import path"),
        (lambda: FunctionSink("tests.nowhere.insert"), "module 'tests.nowhere' cannot be imported"),
        (lambda: sink("nothing"), "has no function 'nothing'"),
        (lambda: sink("create"), r"is called with \(conn, batches, batch\), and takes \(engine"),
        (lambda: sink("insert", remove="tests.support.functions.nothing"), "FunctionSink: remove.* has no function"),
        (lambda: sink("insert", remove="tests.support.functions.create"), r"is called with \(conn, ranges, span\)"),
        (lambda: FunctionSink(print), "FunctionSink needs the import path of a function"),  # type: ignore[arg-type]
    ],
)
def test_invalid_function_is_named_before_reading(
    callable_loader: Loader, four: str, made: Callable[[], FunctionSink], message: str
) -> None:
    with pytest.raises(KafkaOffsetsError, match=message) as raised:
        callable_loader(four, sink=made())

    assert isinstance(raised.value, FunctionError | ConfigurationError)
    assert callable_loader.launcher.jobs == []
