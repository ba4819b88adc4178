"""An upsert that is interrupted is repeated as a whole; a row that the database refuses is traced to its record."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from airflow_kafka_offsets import Staging
from airflow_kafka_offsets.exceptions import RecordError, StagingError, TargetError
from airflow_kafka_offsets.formats.simple_formats import Json
from airflow_kafka_offsets.ledger.batch_rows import TaskRun
from devstack.kafka import KafkaBroker
from tests.support.clients import produce
from tests.support.loads import Loader, TopicFactory, names, positions, rows
from tests.support.upserts import KEYED, ORIGIN, POSTGRES, Interrupted, do, held, record

pytestmark = pytest.mark.server


@pytest.mark.broker
def test_a_retry_writes_each_batch_once(inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory) -> None:
    name, run = topic(), TaskRun("run-1", "dag", "task", -1, 1)
    produce(kafka, name, [record(i % 4, f"n{i}") for i in range(10)])
    with pytest.raises(StagingError, match="the worker dies"):
        Loader(kafka, inline_loader.engine, Interrupted())(name, run=run, **KEYED)
    produce(kafka, name, [record(0, "next run")])

    first = inline_loader(name, run=run, **KEYED)
    cleared = inline_loader(name, run=run, **KEYED)
    following = inline_loader(name, run=TaskRun("run-2", "dag", "task", -1, 1), **KEYED)

    assert [(one.records, one.rows) for one in (first, cleared, following)] == [(10, 4), (0, 0), (1, 1)]
    assert held(inline_loader.engine) == [(0, "next run", 10), (1, "n9", 9), (2, "n6", 6), (3, "n7", 7)]
    assert positions(inline_loader.engine) == {(name, 0): 11}


def test_a_transaction_that_is_rolled_back_is_written_again_as_a_whole(
    inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory
) -> None:
    """The temporary table of the first attempt is gone with it."""
    name = topic()
    produce(kafka, name, [record(1, "a"), record(1, "b")])
    begun: list[str] = []

    def rolled_back_once(conn: Any, cursor: Any, statement: str, *_: Any) -> None:
        # After the rows were merged; as a serialization failure would be.
        if statement.startswith("UPDATE offset_batches") and "committed_at" in statement:
            begun.append(statement)
            if len(begun) == 1:
                error = sa.exc.OperationalError("", {}, _SerializationError(), False)
                raise error

    sa.event.listen(inline_loader.engine, "before_cursor_execute", rolled_back_once)

    assert inline_loader(name, **KEYED).rows == 1

    assert len(begun) == 2
    assert held(inline_loader.engine) == [(1, "b", 1)]


class _SerializationError(Exception):
    sqlstate = "40001"


def test_a_null_key_is_named(inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory) -> None:
    name = topic(partitions=2)
    produce(kafka, name, [record("1", "a"), b'{"name": "keyless"}', record("2", "b")], 1)
    do(inline_loader.engine, f"CREATE TABLE target (id VARCHAR(20) UNIQUE, name TEXT, {ORIGIN})")

    with pytest.raises(RecordError, match=rf"topic '{name}' partition 1 offset 1 .*'id' is null") as raised:
        inline_loader(name, value_format=Json("id STRING, name STRING"), **KEYED)

    assert raised.value.retriable is False
    assert rows(inline_loader.engine, "SELECT count(*) FROM target") == [(0,)]
    assert (name, 1) not in positions(inline_loader.engine)


@pytest.mark.parametrize(
    ("column", "bad", "reason"),
    [
        ("name TEXT CHECK (name <> 'bad')", [record(77, "bad")], "(check|CHECK) constraint"),
        ("name TEXT UNIQUE", [record(77, "name-3")], "(unique|UNIQUE) constraint"),
        ("name TEXT NOT NULL", [record(77, "then"), b'{"id": 78}'], "(not-null|NOT NULL) constraint"),
    ],
    ids=["check", "unique", "not-null"],
)
def test_a_row_that_the_database_refuses_is_traced_to_its_record(
    inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory, column: str, bad: list[bytes], reason: str
) -> None:
    name = topic(partitions=2)
    produce(kafka, name, names(100, 9), 0)
    produce(kafka, name, [*names(0, 50), *bad, *names(50, 20)], 1)
    do(inline_loader.engine, f"CREATE TABLE target (id BIGINT PRIMARY KEY, {column}, {ORIGIN})")

    with pytest.raises(RecordError, match=rf"partition 1 offset {49 + len(bad)} .*refuses its row: .*{reason}"):
        inline_loader(name, staging=Staging(slice_offsets=20), **KEYED)

    assert rows(inline_loader.engine, "SELECT count(*) FROM target") == [(0,)]
    assert positions(inline_loader.engine) == {}


@POSTGRES
@pytest.mark.parametrize(
    ("column", "bad", "reason"),
    [
        ("name VARCHAR(8)", "much-too-long", "value too long"),
        ("name JSONB", "{", "invalid input syntax for type json"),
        ("name TEXT", "nul\\u0000byte", "invalid byte sequence|null character"),
    ],
    ids=["varchar", "json", "nul"],
)
def test_a_value_that_postgres_cannot_read_is_traced_to_its_record(
    inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory, column: str, bad: str, reason: str
) -> None:
    name = topic()
    good = [record(i, "{}") for i in range(7)]
    produce(kafka, name, [*good, f'{{"id": 8, "name": "{bad}"}}'.encode(), *good])
    do(inline_loader.engine, f"CREATE TABLE target (id BIGINT PRIMARY KEY, {column}, {ORIGIN})")

    with pytest.raises(RecordError, match=f"partition 0 offset 7 .*({reason})"):
        inline_loader(name, **KEYED)


@POSTGRES
def test_a_statement_that_is_refused_is_no_fault_of_a_record(
    inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory
) -> None:
    name = topic()
    produce(kafka, name, names(0, 5))
    do(
        inline_loader.engine,
        f"CREATE TABLE target (id BIGINT PRIMARY KEY, name TEXT, {ORIGIN})",
        "CREATE RULE nothing_more AS ON UPDATE TO target DO ALSO NOTHING",
    )

    with pytest.raises(TargetError, match=r"into 'target': .*INSERT or UPDATE rules"):
        inline_loader(name, **KEYED)

    assert positions(inline_loader.engine) == {}
