"""Values that the target refuses become dead letters where bad records do, and nothing else that a database refuses
does.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_kafka_offsets import DeadLetters, Staging
from airflow_kafka_offsets.dead_letters.replay import replay_dead_letters
from airflow_kafka_offsets.dead_letters.selection import DeadLetterFilter
from airflow_kafka_offsets.exceptions import (
    DeadLetterError,
    KafkaOffsetsError,
    RecordError,
    TargetError,
    TopicRecreatedError,
)
from airflow_kafka_offsets.formats.simple_formats import Json
from airflow_kafka_offsets.ledger.dead_letter_batches import Replayed
from airflow_kafka_offsets.staging.rows import Record
from airflow_kafka_offsets.transforms.sql import Sql
from tests.support.archive import ARCHIVE
from tests.support.clients import Kafka, produce, producer
from tests.support.database_faults import ADDED, Meddled, raise_for_each_row
from tests.support.inline import InlineLauncher
from tests.support.loads import Loader, TopicFactory, names, positions, rows
from tests.support.mariadb import needs_checks
from tests.support.memory_log import MemoryLog
from tests.support.verifying import LEFT_OUT, reread

pytestmark = pytest.mark.server

POSTGRES = pytest.mark.parametrize("engine", ["postgresql"], indirect=True)

SQLITE = pytest.mark.parametrize("engine", ["sqlite"], indirect=True)


@pytest.fixture
def kafka(log: Kafka) -> Kafka:
    return log


CLASSES = "SELECT offset_value, error_class FROM dead_letters ORDER BY offset_value"

INCOMPRESSIBLE = "".join(chr(0x4E00 + (number * 7919) % 20_000) for number in range(6_000))
"""Too long for an index."""


def texts(*values: str) -> list[bytes]:
    return [json.dumps({"id": number, "name": value}).encode() for number, value in enumerate(values)]


def do(engine: sa.Engine, *statements: str) -> None:
    with engine.begin() as conn:
        for statement in statements:
            conn.execute(sa.text(statement))


def dead_letters(loader: Loader) -> dict[int, str]:
    return dict(rows(loader.engine, "SELECT offset_value, error FROM dead_letters ORDER BY offset_value"))


def loaded(loader: Loader, column: str = "_kafka_offset") -> list[Any]:
    return [value for (value,) in rows(loader.engine, f"SELECT {column} FROM target ORDER BY {column}")]


@POSTGRES
@pytest.mark.parametrize(
    ("column", "good", "bad", "reason"),
    [
        ("name TEXT", "a", "nul\0", "invalid byte sequence"),
        ("name VARCHAR(3)", "abc", "abcd", "too long"),
        ("name UUID", "6f1b9a0e-7c44-4d0b-9b36-0d6a2a1a5a11", "6f1b", "uuid"),
        ("name INET", "10.0.0.1", "10.0.0", "inet"),
        ("name JSONB", "{}", "{", "json"),
        ("name mood", "glad", "mad", "enum"),
        ("name INTERVAL", "1 day", "1 dai", "interval"),
        ("name INT4RANGE", "[1,2)", "[2,1)", "range"),
        ("name INT[]", "{1}", "{a}", "integer"),
        ("name TEXT CHECK (name <> 'bad')", "good", "bad", "check constraint"),
        ("name word", "good", "bad", "check constraint"),
        ("name place", "POINT(1 2)", "nowhere", "parse error - invalid geometry"),
        ("name TEXT UNIQUE", "short", INCOMPRESSIBLE, "index row"),
    ],
)
def test_refused_values_of_each_type_are_dead_letters(
    inline_loader: Loader, topic: TopicFactory, column: str, good: str, bad: str, reason: str
) -> None:
    loader, name = inline_loader, topic()
    goods = (f"{good}{number}" for number in range(4)) if "UNIQUE" in column else iter([good] * 4)
    values = texts(next(goods), bad, next(goods), next(goods), bad, next(goods))
    writer = producer(loader.kafka)
    for value in values:
        writer.produce(name, value, key=b"key", partition=0, headers=[("h", b"1")])
    assert writer.flush(30) == 0
    do(
        loader.engine,
        "CREATE TYPE mood AS ENUM ('glad', 'sad')",
        "CREATE DOMAIN word AS TEXT CHECK (VALUE <> 'bad')",
        # With the code of an internal error, as PostGIS does.
        "CREATE FUNCTION parsed(word TEXT) RETURNS BOOL LANGUAGE plpgsql AS $$ BEGIN IF word = 'nowhere' THEN "
        "RAISE 'parse error - invalid geometry' USING ERRCODE = 'XX000'; END IF; RETURN TRUE; END $$",
        "CREATE DOMAIN place AS TEXT CHECK (parsed(VALUE))",
        f"CREATE TABLE target (id BIGINT, {column}, {ADDED})",
    )

    result = loader(name, **LEFT_OUT)

    assert (result.records, result.rows, result.dead_letters) == (6, 4, 2)
    assert loaded(loader) == [0, 2, 3, 5]
    found = dead_letters(loader)
    assert list(found) == [1, 4]
    assert all(reason in error for error in found.values())
    stored = rows(loader.engine, "SELECT key, value, headers FROM dead_letters ORDER BY offset_value")
    assert [(bytes(key), bytes(value), headers) for key, value, headers in stored] == [
        (b"key", values[offset], '[["h", "MQ=="]]') for offset in (1, 4)
    ]
    assert rows(loader.engine, "SELECT records, row_count, dead_letters FROM offset_batches") == [(6, 4, 2)]
    assert rows(loader.engine, "SELECT dead_letters FROM offset_ranges") == [(2,)]
    reread(loader)


@pytest.mark.parametrize("bad", [[0], [4], [0, 1, 2], [2, 3], [0, 2, 4], [0, 1, 2, 3, 4]])
def test_wherever_they_are(inline_loader: Loader, topic: TopicFactory, bad: list[int]) -> None:
    needs_checks(inline_loader.engine)
    loader, name = inline_loader, topic()
    produce(loader.kafka, name, texts(*("bad" if number in bad else "good" for number in range(5))))
    do(loader.engine, f"CREATE TABLE target (id BIGINT, name TEXT CHECK (name <> 'bad'), {ADDED})")

    loader(name, **LEFT_OUT, staging=Staging(slice_offsets=2))

    assert list(dead_letters(loader)) == bad
    assert loaded(loader) == [number for number in range(5) if number not in bad]
    reread(loader)


def test_beside_records_that_do_not_decode(inline_loader: Loader, topic: TopicFactory) -> None:
    needs_checks(inline_loader.engine)
    loader, name = inline_loader, topic()
    produce(loader.kafka, name, [b"{", *texts("good", "bad"), b"[]"])
    do(loader.engine, f"CREATE TABLE target (id BIGINT, name TEXT CHECK (name <> 'bad'), {ADDED})")

    result = loader(name, **LEFT_OUT)

    assert (result.rows, result.dead_letters, list(dead_letters(loader))) == (1, 3, [0, 2, 3])
    reread(loader)


@POSTGRES
def test_numbers_beyond_a_column_and_decimals_beyond_it(inline_loader: Loader, topic: TopicFactory) -> None:
    loader, name = inline_loader, topic()
    produce(loader.kafka, name, [b'{"id": 1, "d": 1.5}', b'{"id": 3000000000, "d": 1}', b'{"id": 2, "d": 1.25}'])
    do(loader.engine, f"CREATE TABLE target (id INT, d NUMERIC(10, 1), {ADDED})")

    loader(name, **LEFT_OUT, value_format=Json("id BIGINT, d DECIMAL(10, 2)"))

    assert dead_letters(loader) == {
        1: "column 'id': a value of type BIGINT does not fit into INTEGER",
        2: "column 'd': a value of type DECIMAL(10,2) does not fit into NUMERIC(10, 1)",
    }
    assert loaded(loader) == [0]


@SQLITE
def test_a_decimal_that_sqlite_would_round(inline_loader: Loader, topic: TopicFactory) -> None:
    loader, name = inline_loader, topic()
    produce(loader.kafka, name, [b'{"d": 1.5}', b'{"d": 1.234567890123456789}'])
    do(loader.engine, f"CREATE TABLE target (d NUMERIC(30, 18), {ADDED})")

    loader(name, **LEFT_OUT, value_format=Json("d DECIMAL(30, 18)"))

    assert loaded(loader) == [0]
    assert "would be rounded by SQLite" in dead_letters(loader)[1]


@pytest.mark.parametrize("value", ["bad", "nul\0", "trigger", INCOMPRESSIBLE], ids=["CHECK", "NUL", "trigger", "index"])
def test_with_a_driver_that_has_no_copy(
    postgres_engine: sa.Engine, kafka: Kafka, topic: TopicFactory, value: str
) -> None:
    engine = sa.create_engine(postgres_engine.url.set(drivername="postgresql+psycopg2"))
    loader, name = Loader(kafka, engine, InlineLauncher()), topic()
    produce(kafka, name, texts("good", value, "good", "good"))
    do(engine, f"CREATE TABLE target (id BIGINT, name TEXT CHECK (name <> 'bad'), {ADDED})")
    do(engine, "CREATE INDEX ON target (name)")
    raise_for_each_row(engine, "NEW.name = 'trigger'", "P0001")

    loader(name, **LEFT_OUT)

    assert (loaded(loader), list(dead_letters(loader))) == ([0, 2, 3], [1])
    engine.dispose()


def test_more_than_allowed_write_nothing(inline_loader: Loader, topic: TopicFactory) -> None:
    needs_checks(inline_loader.engine)
    loader, name = inline_loader, topic()
    produce(loader.kafka, name, [b"{", *texts("good", "bad", "bad", "good")])
    do(loader.engine, f"CREATE TABLE target (id BIGINT, name TEXT CHECK (name <> 'bad'), {ADDED})")

    refused = (
        "1 records cannot be decoded, and at least 2 are refused by the target, and DeadLetters.limit allows 2 "
        ".* offset 2: "
    )
    with pytest.raises(DeadLetterError, match=refused):
        loader(name, on_bad_record=DeadLetters(limit=2))
    assert (loaded(loader), dead_letters(loader), positions(loader.engine)) == ([], {}, {})

    loader(name, on_bad_record=DeadLetters(limit=3))
    assert (loaded(loader), list(dead_letters(loader))) == ([1, 4], [0, 2, 3])


@POSTGRES
@pytest.mark.parametrize(
    ("target", "error", "message"),
    [
        pytest.param("id BIGINT, name TEXT UNIQUE", RecordError, "offset 3 .*duplicate key", id="another row"),
        pytest.param("id BIGINT REFERENCES known, name TEXT", TargetError, "foreign key", id="another table"),
        pytest.param("id BIGINT, name TEXT", RecordError, "offset 2 .*not this one", id="a missing right"),
    ],
)
def test_refusal_without_a_value_is_no_dead_letter(
    inline_loader: Loader, topic: TopicFactory, target: str, error: type[KafkaOffsetsError], message: str
) -> None:
    loader, name = inline_loader, topic()
    produce(loader.kafka, name, texts("a", "b", "c", "a"))
    do(loader.engine, "CREATE TABLE known (id BIGINT PRIMARY KEY)", f"CREATE TABLE target ({target}, {ADDED})")
    if "REFERENCES" not in target and "UNIQUE" not in target:
        raise_for_each_row(loader.engine, "NEW.id = 2", "insufficient_privilege")

    with pytest.raises(error, match=message):
        loader(name, **LEFT_OUT)

    assert (loaded(loader), dead_letters(loader), positions(loader.engine)) == ([], {}, {})


@POSTGRES
def test_a_partition_that_the_table_lacks_is_no_fault_of_the_value(inline_loader: Loader, topic: TopicFactory) -> None:
    loader, name = inline_loader, topic()
    produce(loader.kafka, name, names(0, 3))
    do(
        loader.engine,
        f"CREATE TABLE target (id BIGINT, name TEXT, {ADDED}) PARTITION BY RANGE (id)",
        "CREATE TABLE first PARTITION OF target FOR VALUES FROM (0) TO (2)",
    )

    with pytest.raises(RecordError, match=r"offset 2 .*no partition of relation"):
        loader(name, **LEFT_OUT)

    assert (dead_letters(loader), positions(loader.engine)) == ({}, {})


@POSTGRES
@pytest.mark.parametrize("when", ["BEFORE", "AFTER"])
def test_a_trigger_that_refuses_a_row_is_the_targets_own_check(
    inline_loader: Loader, topic: TopicFactory, when: str
) -> None:
    """Of an AFTER trigger Postgres does not say which row: halves are tried."""
    loader, name = inline_loader, topic()
    produce(loader.kafka, name, names(0, 9))
    do(loader.engine, f"CREATE TABLE target (id BIGINT, name TEXT, {ADDED})")
    raise_for_each_row(loader.engine, "NEW.id IN (0, 5)", "raise_exception")
    if when == "AFTER":
        do(
            loader.engine,
            "DROP TRIGGER refuse ON target",
            "CREATE TRIGGER refuse AFTER INSERT ON target FOR EACH ROW WHEN (NEW.id IN (0, 5)) EXECUTE FUNCTION "
            "refuse()",
        )

    loader(name, **LEFT_OUT)

    assert (loaded(loader), list(dead_letters(loader))) == ([1, 2, 3, 4, 6, 7, 8], [0, 5])


@SQLITE
def test_a_record_that_kafka_no_longer_has_is_kept_as_its_row(inline_loader: Loader, topic: TopicFactory) -> None:
    loader, name = inline_loader, topic()
    kafka = loader.kafka
    assert isinstance(kafka, MemoryLog)
    produce(kafka, name, texts("good", "bad", "bad"))
    do(loader.engine, f"CREATE TABLE target (id BIGINT, name TEXT CHECK (name <> 'bad'), {ADDED})")

    loader(name, **LEFT_OUT, sink=Meddled("target", before_write=lambda _: kafka.delete_records(name, 0, 2)))

    stored = rows(loader.engine, "SELECT offset_value, value, error FROM dead_letters ORDER BY offset_value")
    assert [(offset, json.loads(value)) for offset, value, _ in stored] == [
        (1, {"id": 1, "name": "bad"}),
        (2, {"id": 2, "name": "bad"}),
    ]
    assert ["Kafka no longer has the record" in error for *_, error in stored] == [True, False]
    assert rows(loader.engine, CLASSES) == [(1, "decoded"), (2, "target")]

    # What a record was decoded to is no record.
    dead_letters, pipeline = DeadLetterFilter("loader"), loader.pipeline([name])
    assert replay_dead_letters(dead_letters, pipeline, engine=loader.engine) == [Replayed(1, 0, 0, 1, 2)]
    for value, left in (("bad", [(1, "decoded"), (2, "target")]), ("good", [(2, "target")])):
        corrected = {1: {Record(name, 0, 1): json.dumps({"id": 1, "name": value}).encode()}}
        replay_dead_letters(dead_letters, pipeline, engine=loader.engine, corrected=corrected)
        assert rows(loader.engine, CLASSES) == left


@SQLITE
@pytest.mark.parametrize("is_expired", [False, True])
def test_an_instant_that_python_does_not_have_is_a_dead_letter(
    inline_loader: Loader, topic: TopicFactory, is_expired: bool
) -> None:
    loader, name = inline_loader, topic()
    kafka = loader.kafka
    assert isinstance(kafka, MemoryLog)
    values = [b'{"id": %d, "at": "%d-12-31T00:00:00Z"}' % (number, 9998 + number) for number in range(3)]
    produce(kafka, name, values)
    do(loader.engine, f"CREATE TABLE target (id BIGINT, at TIMESTAMP, x TIMESTAMP, {ADDED})")

    def expire(_: object) -> None:
        if is_expired:
            kafka.delete_records(name, 0, 3)

    sql = Sql("SELECT *, at + INTERVAL '1 day' AS x FROM records")
    sink = Meddled("target", before_write=expire)
    loader(name, **LEFT_OUT, sink=sink, transform=sql, value_format=Json("id BIGINT, at TIMESTAMP"))

    assert loaded(loader) == [0]
    assert rows(loader.engine, CLASSES) == [(1, "decoded" if is_expired else "target"), (2, "value")]
    kept = json.loads(rows(loader.engine, "SELECT value FROM dead_letters WHERE offset_value = 1")[0][0])
    assert kept.get("x") == ("10000-01-01 00:00:00.000000Z" if is_expired else None)


@SQLITE
def test_a_record_of_another_topic_of_the_name_is_not_taken_for_it(inline_loader: Loader, topic: TopicFactory) -> None:
    loader, name = inline_loader, topic()
    kafka = loader.kafka
    assert isinstance(kafka, MemoryLog)
    produce(kafka, name, texts("good", "bad"))
    do(loader.engine, f"CREATE TABLE target (id BIGINT, name TEXT CHECK (name <> 'bad'), {ADDED})")

    def recreate() -> None:
        kafka.delete(name)
        kafka.create(name, 1, {})
        produce(kafka, name, texts("other", "other"))

    with pytest.raises(TopicRecreatedError, match="position 2"):  # of the next batch
        loader(name, **LEFT_OUT, sink=Meddled("target", before_write=lambda _: recreate()))

    assert [json.loads(value) for (value,) in rows(loader.engine, "SELECT value FROM dead_letters")] == [
        {"id": 1, "name": "bad"}
    ]


@SQLITE
def test_a_sink_that_is_no_table_refuses_rows_the_same_way(inline_loader: Loader, topic: TopicFactory) -> None:
    loader, name = inline_loader, topic()
    produce(loader.kafka, name, texts("good", "refused", "good"))

    result = loader(name, **LEFT_OUT, sink=ARCHIVE)

    assert (result.rows, result.dead_letters) == (2, 1)
    assert dead_letters(loader) == {1: "the archive takes no such name"}
