"""A target with an upsert key holds the newest row of each key, whatever is loaded again, on both kinds of database."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from airflow_kafka_offsets.exceptions import (
    ConfigurationError,
    OlderLedgerError,
    RecordError,
    StagingError,
    TargetError,
    VerificationError,
)
from airflow_kafka_offsets.formats.json_format import Json
from airflow_kafka_offsets.ledger.task_run import TaskRun
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from airflow_kafka_offsets.spark.job import StageJob
from airflow_kafka_offsets.verification.verify import verify
from devstack.kafka import KafkaBroker
from tests.support.clients import Kafka, produce, producer
from tests.support.inline import InlineLauncher
from tests.support.loads import COLUMNS, Loader, TopicFactory, names, positions, rows
from tests.support.rewinds import Rewinder

pytestmark = pytest.mark.server

KEYED: dict[str, Any] = {"sink": SqlTable("target", upsert_key=("id",))}

# What a table needs apart from the declared columns and its key.
ORIGIN = "_kafka_topic TEXT, _kafka_partition INT, _kafka_offset BIGINT"

SQLITE = pytest.mark.parametrize("engine", ["sqlite"], indirect=True)
POSTGRES = pytest.mark.parametrize("engine", ["postgresql"], indirect=True)


@pytest.fixture
def kafka(log: Kafka) -> Kafka:
    """A log in memory; the real broker where a test is marked `broker`."""
    return log


def record(key: object, name: str) -> bytes:
    return json.dumps({"id": key, "name": name}).encode()


def do(engine: Engine, *statements: str) -> None:
    with engine.begin() as conn:
        for statement in statements:
            conn.exec_driver_sql(statement)


def held(engine: Engine) -> list[tuple[Any, ...]]:
    return rows(engine, "SELECT id, name, _kafka_offset FROM target ORDER BY id")


def produce_at(kafka: KafkaBroker, topic: str, partition: int, values: Sequence[tuple[bytes, int]]) -> None:
    """Records with timestamps of their own, in milliseconds."""
    writer = producer(kafka)
    for value, timestamp in values:
        writer.produce(topic, value, partition=partition, timestamp=timestamp)
    assert writer.flush(30) == 0


class Interrupted(InlineLauncher):
    """Stages for real, then fails, as a worker that dies between staging and commit; some batches go well before."""

    def __init__(self, after: int = 0) -> None:
        super().__init__()
        self._after = after

    def __call__(self, job: StageJob) -> None:
        super().__call__(job)
        if len(self.jobs) > self._after:
            raise StagingError("the worker dies")


@pytest.fixture
def inline_loader(inline_loader: Loader) -> Iterator[Loader]:
    """Leaves no temporary table behind, in no connection."""
    yield inline_loader
    with inline_loader.engine.connect() as conn:
        assert sa.inspect(conn).get_temp_table_names() == []


# --- which row stays ---


@pytest.mark.broker
def test_the_highest_offset_of_a_key_is_what_a_batch_leaves(
    inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory
) -> None:
    name = topic()
    produce(kafka, name, [record(1, "a"), record(2, "b"), record(1, "c"), record(3, "d"), record(1, "e")])

    result = inline_loader(name, **KEYED)

    assert held(inline_loader.engine) == [(1, "e", 4), (2, "b", 1), (3, "d", 3)]
    assert (result.records, result.rows) == (5, 3)
    assert positions(inline_loader.engine) == {(name, 0): 5}


def test_slices_that_are_staged_side_by_side_are_one_batch(
    inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory
) -> None:
    name = topic()
    produce(kafka, name, [record(i % 3, f"n{i}") for i in range(30)])

    assert inline_loader(name, slice_offsets=4, **KEYED).rows == 3

    assert held(inline_loader.engine) == [(0, "n27", 27), (1, "n28", 28), (2, "n29", 29)]


def test_a_later_batch_replaces_and_inserts(inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory) -> None:
    name = topic()
    produce(kafka, name, [record(1, "a"), record(2, "b")])
    inline_loader(name, **KEYED)
    produce(kafka, name, [record(2, "c"), record(3, "d")])

    assert inline_loader(name, **KEYED).rows == 2

    assert held(inline_loader.engine) == [(1, "a", 0), (2, "c", 2), (3, "d", 3)]
    assert rows(inline_loader.engine, "SELECT id, _batch_id FROM target ORDER BY id") == [(1, 1), (2, 2), (3, 2)]


def test_an_old_range_that_is_loaded_again_overwrites_nothing_newer(
    inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory
) -> None:
    name = topic()
    produce(kafka, name, [record(1, "old"), record(2, "only"), record(1, "new")])
    inline_loader(name, **KEYED)

    replay = inline_loader(name, group_id="again", max_records=1, **KEYED)

    # The second batch of the replay is the row that is there, and the third as well; the first is older.
    assert (len(replay.batches), replay.records, replay.rows) == (3, 3, 2)
    assert held(inline_loader.engine) == [(1, "new", 2), (2, "only", 1)]


def test_an_old_range_that_is_loaded_in_part_leaves_no_old_value(
    inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory
) -> None:
    name = topic()
    produce(kafka, name, [record(1, "old"), record(1, "new")])
    inline_loader(name, **KEYED)
    partly = Loader(kafka, inline_loader.engine, Interrupted(after=1))

    with pytest.raises(StagingError):
        partly(name, group_id="again", max_records=1, **KEYED)

    assert held(inline_loader.engine) == [(1, "new", 1)]
    assert rows(inline_loader.engine, "SELECT row_count FROM offset_batches WHERE state = 'committed'") == [(1,), (0,)]


@pytest.mark.broker
def test_between_partitions_of_a_batch_the_newest_timestamp_wins(
    inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory
) -> None:
    name = topic(partitions=3, retention_ms="-1")
    produce_at(kafka, name, 0, [(record(1, "p0"), 2_000), (record(2, "p0"), 9_000), (record(3, "p0"), 5_000)])
    produce_at(kafka, name, 1, [(record(1, "p1"), 3_000), (record(2, "p1"), 1_000), (record(3, "p1"), 5_000)])
    # Within a partition the offset decides: 8,000 is no candidate.
    produce_at(kafka, name, 2, [(record(1, "p2 early"), 8_000), (record(1, "p2"), 1_000)])

    assert inline_loader(name, **KEYED).rows == 3

    assert held(inline_loader.engine) == [(1, "p1", 0), (2, "p0", 1), (3, "p1", 2)]


def test_without_timestamps_in_the_table_the_greatest_topic_and_partition_win(
    inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory
) -> None:
    first, second = sorted(topic(partitions=2, retention_ms="-1") for _ in range(2))
    do(inline_loader.engine, f"CREATE TABLE target (id BIGINT PRIMARY KEY, name TEXT, {ORIGIN})")
    produce_at(kafka, second, 1, [(record(1, "greatest"), 1_700_000_000_000)])
    produce(kafka, second, [record(1, "second"), record(2, "second")], 0)
    produce(kafka, first, [record(1, "first"), record(2, "first"), record(3, "first")], 1)

    inline_loader(first, second, **KEYED)

    assert held(inline_loader.engine) == [(1, "greatest", 0), (2, "second", 1), (3, "first", 2)]


def test_a_later_batch_of_another_partition_wins(
    inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory
) -> None:
    name = topic(partitions=2)
    produce(kafka, name, [*names(10, 5), record(1, "p0")], 0)
    inline_loader(name, **KEYED)
    produce(kafka, name, [record(1, "p1")], 1)
    inline_loader(name, **KEYED)

    assert (1, "p1", 0) in held(inline_loader.engine)


def test_a_row_of_which_nobody_knows_where_it_is_from_is_replaced(
    inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory
) -> None:
    name = topic()
    do(
        inline_loader.engine,
        f"CREATE TABLE target (id BIGINT PRIMARY KEY, name TEXT, note TEXT, {ORIGIN})",
        "INSERT INTO target (id, name, note) VALUES (0, 'by hand', 'kept'), (9, 'by hand', 'kept')",
        f"INSERT INTO target VALUES (1, 'by hand', 'kept', '{name}', 0, NULL)",
        "INSERT INTO target VALUES (2, 'by hand', 'kept', NULL, 0, 999)",
        f"INSERT INTO target VALUES (3, 'by hand', 'kept', '{name}', NULL, 999)",
    )
    produce(kafka, name, names(0, 4))

    assert inline_loader(name, **KEYED).rows == 4

    assert rows(inline_loader.engine, "SELECT id, name, note FROM target ORDER BY id") == [
        (0, "name-0", "kept"),
        (1, "name-1", "kept"),
        (2, "name-2", "kept"),
        (3, "name-3", "kept"),
        (9, "by hand", "kept"),
    ]


def test_a_key_of_several_columns(inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory) -> None:
    name = topic()
    produce(kafka, name, [record(1, "a"), record(1, "b"), record(2, "a"), record(1, "a")])
    sink = SqlTable("target", upsert_key=("name", "id"))

    assert inline_loader(name, sink=sink).rows == 3

    assert rows(inline_loader.engine, "SELECT name, id, _kafka_offset FROM target ORDER BY 1, 2") == [
        ("a", 1, 3),
        ("a", 2, 2),
        ("b", 1, 1),
    ]


def test_a_key_may_be_the_origin_itself(inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory) -> None:
    name = topic()
    do(
        inline_loader.engine,
        f"CREATE TABLE target ({ORIGIN}, PRIMARY KEY (_kafka_topic, _kafka_partition, _kafka_offset))",
    )
    do(inline_loader.engine, "ALTER TABLE target ADD COLUMN id BIGINT", "ALTER TABLE target ADD COLUMN name TEXT")
    produce(kafka, name, names(0, 5))
    sink = SqlTable("target", upsert_key=("_kafka_topic", "_kafka_partition", "_kafka_offset"))

    assert [inline_loader(name, group_id=group, sink=sink).rows for group in ("one", "two")] == [5, 5]

    assert rows(inline_loader.engine, "SELECT count(*) FROM target") == [(5,)]


# --- faults ---


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
    do(inline_loader.engine, f"CREATE TABLE target (id TEXT UNIQUE, name TEXT, {ORIGIN})")

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
        inline_loader(name, slice_offsets=20, **KEYED)

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
def test_an_index_of_an_expression_is_no_key(inline_loader: Loader) -> None:
    do(
        inline_loader.engine,
        f"CREATE TABLE target (id BIGINT, name TEXT, {ORIGIN})",
        "CREATE UNIQUE INDEX lowered ON target (lower(name))",
    )

    with pytest.raises(TargetError, match="no unique index of exactly the columns of upsert_key"):
        SqlTable("target", upsert_key=("name",)).prepare(inline_loader.engine, None)


@POSTGRES
def test_a_statement_that_is_refused_is_no_fault_of_a_record(
    inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory
) -> None:
    name = topic()
    produce(kafka, name, names(0, 5))
    do(
        inline_loader.engine,
        f"CREATE TABLE target (id BIGINT PRIMARY KEY DEFERRABLE INITIALLY DEFERRED, name TEXT, {ORIGIN})",
    )

    with pytest.raises(TargetError, match=r"into 'target': .*deferrable"):
        inline_loader(name, **KEYED)

    assert positions(inline_loader.engine) == {}


# --- the table ---


def test_a_created_table_gets_the_key_as_its_primary_key(
    inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory
) -> None:
    name = topic()
    produce(kafka, name, names(0, 3))
    columns = Json("name STRING, id BIGINT")

    inline_loader(name, value_format=columns, sink=SqlTable("target", upsert_key=("id", "name")))

    key = sa.inspect(inline_loader.engine).get_pk_constraint("target")
    assert key["constrained_columns"] == ["id", "name"]
    produce(kafka, name, names(2, 2))
    assert inline_loader(name, value_format=columns, sink=SqlTable("target", upsert_key=("id", "name"))).rows == 2


@pytest.mark.parametrize(
    "key",
    ["", "PRIMARY KEY (id, name)", "UNIQUE (name)"],
    ids=["none", "of-more-columns", "of-another"],
)
def test_a_table_without_the_unique_key_is_refused_before_reading_with_the_statement_that_makes_it(
    inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory, key: str
) -> None:
    name = topic()
    produce(kafka, name, names(0, 3))
    do(inline_loader.engine, f"CREATE TABLE target (id BIGINT, name TEXT, {ORIGIN}{', ' if key else ''}{key})")

    with pytest.raises(TargetError) as raised:
        inline_loader(name, **KEYED)

    assert inline_loader.launcher.jobs == []
    statement = "CREATE UNIQUE INDEX target_key ON target (id)"
    assert str(raised.value).endswith(statement)
    do(inline_loader.engine, statement)
    assert inline_loader(name, **KEYED).rows == 3


def test_an_index_of_some_rows_or_without_uniqueness_is_no_key(inline_loader: Loader) -> None:
    do(
        inline_loader.engine,
        f"CREATE TABLE target (id BIGINT, name TEXT, {ORIGIN})",
        "CREATE UNIQUE INDEX partly ON target (id) WHERE id > 5",
        "CREATE UNIQUE INDEX more ON target (name, id)",
        "CREATE INDEX plain ON target (name)",
    )

    for key in ("id", "name"):
        with pytest.raises(TargetError, match="no unique index of exactly the columns of upsert_key"):
            SqlTable("target", upsert_key=(key,)).prepare(inline_loader.engine, None)


@pytest.mark.parametrize(
    "key", ["id BIGINT PRIMARY KEY", "id INTEGER PRIMARY KEY", "id BIGINT UNIQUE", "id BIGINT, UNIQUE (id)"]
)
def test_every_kind_of_key_will_do(inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory, key: str) -> None:
    name = topic()
    produce(kafka, name, [*names(0, 3), record(1, "last")])
    # Declared with the other columns first: constraints come last in SQL.
    do(inline_loader.engine, f"CREATE TABLE target (name TEXT, {ORIGIN}, {key})")

    assert inline_loader(name, **KEYED).rows == 3
    assert (1, "last", 3) in held(inline_loader.engine)


def test_a_table_that_cannot_tell_the_newest_is_refused_with_the_statements(
    inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory
) -> None:
    name = topic()
    produce(kafka, name, names(0, 3))
    do(inline_loader.engine, "CREATE TABLE target (id BIGINT PRIMARY KEY, name TEXT, _kafka_topic TEXT)")

    with pytest.raises(
        TargetError,
        match=r"no column '_kafka_partition', '_kafka_offset': .*ADD COLUMN _kafka_partition INTEGER; .*_kafka_offset BIGINT",
    ):
        inline_loader(name, **KEYED)

    assert inline_loader.launcher.jobs == []


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (("no",), r"upsert_key names 'no', which the rows do not hold; they hold 'id', 'name', '_kafka_topic'"),
        (("_batch_id",), "upsert_key names '_batch_id'"),
        (("id", "id"), r"must be a tuple of different column names; got upsert_key=\('id', 'id'\)"),
        ("id", "must be a tuple of different column names; got upsert_key='id'"),
    ],
    ids=["unknown", "batch-id", "twice", "text"],
)
@SQLITE
def test_a_key_that_is_none_is_refused(
    inline_loader: Loader, topic: TopicFactory, key: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        inline_loader(topic(), sink=SqlTable("target", upsert_key=key))

    assert not sa.inspect(inline_loader.engine).has_table("target")


def test_names_are_quoted(inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory) -> None:
    name = topic()
    odd = 'the "key"; 100%% %s :x \' (1)'
    table = 'ta"r;get %(a)s 50%.ä'
    values = [{odd: 1, "na%me": "a"}, {odd: 2, "na%me": "b"}, {odd: 1, "na%me": "c"}]
    produce(kafka, name, [json.dumps(value).encode() for value in values])
    value_format, sink = Json(f"`{odd}` BIGINT, `na%me` STRING"), SqlTable(table, upsert_key=(odd,))

    assert inline_loader(name, value_format=value_format, sink=sink).rows == 2
    assert inline_loader(name, group_id="again", value_format=value_format, sink=sink).rows == 2

    with inline_loader.engine.connect() as conn:
        made = sa.Table(table, sa.MetaData(), autoload_with=conn)
        found = conn.execute(sa.select(made.c[odd], made.c["na%me"]).order_by(made.c[odd])).all()
    assert [tuple(row) for row in found] == [(1, "c"), (2, "b")]
    assert inline_loader(name, group_id="plain", value_format=value_format, sink=SqlTable(f"{table}!")).rows == 3


@POSTGRES
def test_a_table_of_another_schema(inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory) -> None:
    name, sink = topic(), SqlTable("target", schema="sh op%", upsert_key=("id",))
    do(inline_loader.engine, 'CREATE SCHEMA "sh op%%"')
    produce(kafka, name, [*names(0, 3), *names(1, 1)])

    assert inline_loader(name, sink=sink).rows == 3
    assert inline_loader(name, group_id="again", sink=sink).rows == 3


@POSTGRES
def test_types_that_only_the_database_can_read(inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory) -> None:
    """CSV instead of binary rows; and keys that only the database knows to be the same."""
    name = topic()
    values = ["6f1b9a0e-7c44-4d0b-9b36-0d6a2a1a5a11", "{6F1B9A0E-7C44-4D0B-9B36-0D6A2A1A5A11}"]
    produce(kafka, name, [record(value, json.dumps({"at": at})) for at, value in enumerate(values)])
    do(inline_loader.engine, f"CREATE TABLE target (id UUID PRIMARY KEY, name JSONB, {ORIGIN})")

    assert inline_loader(name, value_format=Json("id STRING, name STRING"), **KEYED).rows == 1

    assert rows(inline_loader.engine, "SELECT id::text, name->>'at' FROM target") == [(values[0], "1")]


@POSTGRES
def test_a_driver_without_copy_upserts_and_traces_refused_rows(
    inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory
) -> None:
    """psycopg2 stands for every driver that this package knows no faster way for."""
    name = topic()
    engine = sa.create_engine(inline_loader.engine.url.set(drivername="postgresql+psycopg2"))
    other = Loader(kafka, engine, inline_loader.launcher)
    sink = SqlTable('50% "off"', upsert_key=("id",))
    produce(kafka, name, [*names(0, 50), record(7, "again")])
    assert other(name, sink=sink).rows == 50
    assert rows(engine, 'SELECT name FROM "50% ""off""" WHERE id = 7') == [("again",)]

    do(engine, 'ALTER TABLE "50%% ""off""" ADD CHECK (name <> \'bad\')')
    produce(kafka, name, [*names(50, 5), record(7, "bad")])
    with pytest.raises(RecordError, match=f"topic '{name}' partition 0 offset 56 .*violates check constraint"):
        other(name, sink=sink)

    assert positions(engine) == {(name, 0): 51}
    engine.dispose()


@pytest.fixture
def guest(inline_loader: Loader) -> Iterator[Engine]:
    """A user who may do everything with the state tables, and insert into the target."""
    engine = inline_loader.engine
    role = f"guest_{engine.url.database}"
    do(engine, f"CREATE TABLE target (id BIGINT PRIMARY KEY, name TEXT, {ORIGIN})")
    do(engine, f"CREATE ROLE {role} LOGIN PASSWORD 'guest'", f"GRANT INSERT ON target TO {role}")
    made = sa.create_engine(engine.url.set(username=role, password="guest"))
    yield made
    made.dispose()
    do(engine, f"DROP OWNED BY {role}", f"DROP ROLE {role}")


@POSTGRES
def test_a_user_who_may_not_update_is_told_what_to_grant(inline_loader: Loader, guest: Engine) -> None:
    sink, database = SqlTable("target", upsert_key=("id",)), inline_loader.engine.url.database
    with pytest.raises(TargetError, match=r"may not SELECT and UPDATE .*GRANT SELECT, UPDATE ON target TO"):
        sink.prepare(guest, None)
    do(inline_loader.engine, f"GRANT SELECT, UPDATE ON target TO {guest.url.username}")
    do(inline_loader.engine, f"REVOKE TEMPORARY ON DATABASE {database} FROM PUBLIC")
    with pytest.raises(TargetError, match=f"GRANT TEMPORARY ON DATABASE {database} TO"):
        sink.prepare(guest, None)
    do(inline_loader.engine, f"GRANT TEMPORARY ON DATABASE {database} TO {guest.url.username}")

    assert sink.prepare(guest, None).required == ("id", "_kafka_topic", "_kafka_partition", "_kafka_offset")


# --- size, and the rest of the package ---


def test_a_big_batch(inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory) -> None:
    name = topic(partitions=2)
    for partition in range(2):
        produce(kafka, name, [record(i % 3_000 * 2 + partition, f"n{i}") for i in range(10_000)], partition)

    assert inline_loader(name, slice_offsets=3_000, **KEYED).rows == 6_000

    assert rows(inline_loader.engine, "SELECT count(*), min(_kafka_offset), max(_kafka_offset) FROM target") == [
        (6_000, 7_000, 9_999)
    ]


def test_two_groups_that_load_the_same_keys_leave_the_newest(
    inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory
) -> None:
    name = topic()
    produce(kafka, name, [record(i % 10, f"n{i}") for i in range(100)])
    inline_loader(name, group_id="ahead", **KEYED)
    for _ in range(3):
        produce(kafka, name, [record(3, "more")])
        inline_loader(name, group_id="ahead", **KEYED)
        inline_loader(name, group_id="behind", max_records=30, **KEYED)

    assert held(inline_loader.engine) == [
        (key, *(("more", 102) if key == 3 else (f"n{90 + key}", 90 + key))) for key in range(10)
    ]


def test_positions_and_history_are_proved_and_rows_are_not(
    inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory
) -> None:
    name = topic()
    produce(kafka, name, [record(i % 4, f"n{i}") for i in range(10)])
    inline_loader(name, **KEYED)
    produce(kafka, name, [record(1, "later")])
    inline_loader(name, **KEYED)
    engine, sink = inline_loader.engine, KEYED["sink"]

    coverage = verify("loader", sink=sink, engine=engine)

    assert (coverage.records, coverage.batches, coverage.output_checked) == (11, 2, False)
    with pytest.raises(
        ConfigurationError, match=r"'target' are replaced .*\(upsert_key\).*without the Kafka connection"
    ):
        verify("loader", sink=sink, engine=engine, kafka_config=inline_loader.config)
    do(engine, "UPDATE consumed_offsets SET offset_value = 5")
    with pytest.raises(VerificationError, match="position"):
        verify("loader", sink=sink, engine=engine)


@pytest.mark.parametrize("with_replace", [False, True], ids=["add", "replace"])
def test_a_rewind_and_the_load_after_it_leave_the_same_rows(
    inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory, with_replace: bool
) -> None:
    name, sink = topic(), KEYED["sink"]
    produce(kafka, name, [record(1, "a"), record(2, "b"), record(1, "c"), record(3, "d"), record(2, "e")])
    inline_loader(name, max_records=2, **KEYED)
    before = held(inline_loader.engine)
    assert before == [(1, "c", 2), (2, "e", 4), (3, "d", 3)]

    done = Rewinder(inline_loader)("to-offset", 2, replace=sink if with_replace else None)

    # Of keys 1 and 2 an earlier record had a row once, which is not brought back.
    assert held(inline_loader.engine) == ([] if with_replace else before)
    assert done.rows_removed == (3 if with_replace else 0)
    verify("loader", sink=sink, engine=inline_loader.engine)
    # In batches as small as one record, no older row takes the place of a newer one.
    inline_loader(name, max_records=1, **KEYED)
    assert held(inline_loader.engine) == before
    verify("loader", sink=sink, engine=inline_loader.engine)


# Names that its statements could use themselves.
@pytest.mark.parametrize(
    "table",
    ["loaded", "again", "by_offset", "by_timestamp", "offset_ranges_1", "offset_batches_1", "anon_1"],
)
def test_a_target_may_have_any_name(inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory, table: str) -> None:
    name, sink = topic(), SqlTable(table, upsert_key=("id",))
    produce(kafka, name, [record(1, "a"), record(2, "b"), record(1, "c")])
    query = f"SELECT id, name, _kafka_offset FROM {table} ORDER BY id"
    inline_loader(name, sink=sink)

    assert Rewinder(inline_loader)("to-offset", 2, replace=sink).rows_removed == 1
    assert rows(inline_loader.engine, query) == [(2, "b", 1)]

    inline_loader(name, sink=sink)
    assert rows(inline_loader.engine, query) == [(1, "c", 2), (2, "b", 1)]


def test_a_table_that_is_gone_is_a_violation(inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory) -> None:
    name = topic()
    produce(kafka, name, names(0, 3))
    inline_loader(name, **KEYED)
    do(inline_loader.engine, "DROP TABLE target")

    with pytest.raises(VerificationError, match="has no table 'target'"):
        verify("loader", sink=KEYED["sink"], engine=inline_loader.engine)


def test_state_tables_older_than_the_target_are_refused(
    inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory
) -> None:
    name = topic()
    produce(kafka, name, names(0, 3))
    inline_loader(name, **KEYED)
    do(inline_loader.engine, "UPDATE target SET _batch_id = 7")
    produce(kafka, name, names(3, 3))

    with pytest.raises(OlderLedgerError, match="holds rows of batch 7"):
        inline_loader(name, **KEYED)


def test_without_a_key_rows_are_appended(inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory) -> None:
    name = topic()
    produce(kafka, name, [record(1, "a"), record(1, "b")])
    statements: list[str] = []
    sa.event.listen(inline_loader.engine, "before_cursor_execute", lambda *given: statements.append(given[2]))

    assert inline_loader(name, value_format=COLUMNS, sink=SqlTable("target")).rows == 2

    assert held(inline_loader.engine) == [(1, "a", 0), (1, "b", 1)]
    assert [one for one in statements if "TEMPORARY" in one or "ON CONFLICT" in one] == []
