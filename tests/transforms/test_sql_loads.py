"""Loads with `Sql`: what is known before anything is read, and records that it raises for."""

from __future__ import annotations

import pytest

from airflow_kafka_offsets import DeadLetters, Staging
from airflow_kafka_offsets.dead_letters.replay import replay_dead_letters
from airflow_kafka_offsets.dead_letters.selection import DeadLetterFilter
from airflow_kafka_offsets.exceptions import DeadLetterError, TargetError, TransformError
from airflow_kafka_offsets.formats.protobuf_format import Protobuf
from airflow_kafka_offsets.formats.simple_formats import Json
from airflow_kafka_offsets.transforms.sql import Sql
from tests.support.clients import produce
from tests.support.loads import Loader, TopicFactory, names, positions, rows

SQL = Sql("SELECT id, upper(name) AS Name, 100 / (id - 3) AS part FROM records WHERE id <> 5")
RECORDS = [b'{"id": 1, "name": "a"}', b"no json", b'{"id": 3, "name": "secret"}', b'{"id": 4}', b'{"id": 5}']


def test_the_target_is_created_from_what_the_text_selects(loader: Loader, topic: TopicFactory) -> None:
    name = topic(partitions=2)
    produce(loader.kafka, name, names(0, 3), 0)
    produce(loader.kafka, name, names(4, 4), 1)

    result = loader(name, transform=SQL, on_bad_record=DeadLetters(), staging=Staging(slice_offsets=2))

    assert (result.records, result.rows, result.dead_letters) == (7, 6, 0)
    assert rows(
        loader.engine, "SELECT id, Name, part, _kafka_partition, _kafka_offset, _batch_id FROM target ORDER BY id"
    ) == [
        (0, "NAME-0", -33, 0, 0, 1),
        (1, "NAME-1", -50, 0, 1, 1),
        (2, "NAME-2", -100, 0, 2, 1),
        (4, "NAME-4", 100, 1, 0, 1),
        (6, "NAME-6", 33, 1, 2, 1),
        (7, "NAME-7", 25, 1, 3, 1),
    ]
    assert positions(loader.engine) == {(name, 0): 3, (name, 1): 4}
    assert rows(loader.engine, "SELECT transform FROM offset_batches") == [(SQL.query,)]


def test_fields_of_an_unset_message_are_null(loader: Loader, topic: TopicFactory) -> None:
    """Zero is what Google's library answers for them; a delete would have the key 0."""
    schema = """
        syntax = "proto3";
        message Event { Row before = 1; Row after = 2; }
        message Row { int64 id = 1; string name = 2; bool ok = 3; }
    """
    name, row = topic(), b"\x08\x07\x12\x01n\x18\x01"
    produce(loader.kafka, name, [b"\x0a\x07" + row, b"\x12\x07" + row, b"\x12\x00"])
    columns = ", ".join(f"{part}['{field}']" for part in ("before", "after") for field in ("id", "name", "ok"))
    names = iter("abcdef")
    select = ", ".join(f"{column} AS {next(names)}" for column in columns.split(", "))

    loader(name, value_format=Protobuf(proto=schema, message="Event"), transform=Sql(f"SELECT {select} FROM records"))

    unset = (None, None, None)
    assert rows(loader.engine, "SELECT a, b, c, d, e, f FROM target ORDER BY _kafka_offset") == [
        (7, "n", 1, *unset),
        (*unset, 7, "n", 1),
        (*unset, 0, "", 0),
    ]


def test_records_that_it_raises_for_are_dead_letters_like_those_that_are_not_decoded(
    loader: Loader, topic: TopicFactory
) -> None:
    name = topic()
    produce(loader.kafka, name, RECORDS)

    result = loader(name, transform=SQL, on_bad_record=DeadLetters())

    assert (result.records, result.rows, result.dead_letters) == (5, 2, 2)
    assert rows(loader.engine, "SELECT id, part, _kafka_offset FROM target ORDER BY id") == [(1, -50, 0), (4, 100, 3)]
    dead_letters = rows(loader.engine, "SELECT offset_value, value, error_class, error FROM dead_letters ORDER BY 1")
    assert [(offset, value, kind) for offset, value, kind, _ in dead_letters] == [
        (1, RECORDS[1], "value"),
        (2, RECORDS[2], "transform"),
    ]
    assert dead_letters[1][3] == f"Divide by zero, in Sql({SQL.query!r})"


def test_more_of_them_than_allowed_fail_the_load(loader: Loader, topic: TopicFactory) -> None:
    name = topic()
    produce(loader.kafka, name, RECORDS)
    with pytest.raises(DeadLetterError, match=r"DeadLetters\.limit allows 1"):
        loader(name, transform=SQL, on_bad_record=DeadLetters(limit=1))


def test_else_they_fail_the_load_with_their_place_and_the_text(loader: Loader, topic: TopicFactory) -> None:
    name = topic()
    produce(loader.kafka, name, [RECORDS[0], *RECORDS[2:]])
    with pytest.raises(TransformError) as raised:
        loader(name, transform=SQL)
    assert str(raised.value).startswith(
        f"Record at topic {name!r} partition 0 offset 1, of the batch of offsets 0 to 3, cannot be transformed: Divide "
        "by zero, in Sql("
    )
    assert SQL.query in str(raised.value)
    assert "secret" not in str(raised.value)
    assert positions(loader.engine) == {}


def test_columns_that_the_target_lacks_are_named_before_anything_is_read(loader: Loader, topic: TopicFactory) -> None:
    name = topic()
    produce(loader.kafka, name, [b"not json"])
    with loader.engine.begin() as conn:
        conn.exec_driver_sql("CREATE TABLE target (id BIGINT, label TEXT NOT NULL)")
    # The record would fail the batch with an error of its own, had it been read.
    with pytest.raises(TargetError, match=r"'Name'|label"):
        loader(name, transform=SQL)
    assert loader.launcher.jobs == []


def test_dead_letters_are_replayed_through_it_without_spark(loader: Loader, topic: TopicFactory) -> None:
    name = topic()
    produce(loader.kafka, name, RECORDS)
    loader(name, transform=SQL, on_bad_record=DeadLetters())
    mended = Sql("SELECT id, upper(name) AS Name, 100 / nullif(id - 3, 0) AS part FROM records")

    replayed = replay_dead_letters(
        DeadLetterFilter("loader"), loader.pipeline([name], transform=mended), engine=loader.engine
    )

    assert [(batch.records, batch.rows, batch.still_bad) for batch in replayed] == [(1, 1, 1)]
    assert rows(loader.engine, "SELECT Name, part, _kafka_offset FROM target WHERE id = 3") == [("SECRET", None, 2)]
    assert rows(loader.engine, "SELECT offset_value FROM dead_letters") == [(1,)]


def test_another_text_stages_again(loader: Loader) -> None:
    one, other = (
        loader.pipeline(["t"], transform=Sql(text), value_format=Json("id INT"))
        for text in ("SELECT id FROM records", "SELECT id FROM records WHERE id > 0")
    )
    columns = one.check()
    assert (
        one.fingerprint(columns) == one.prepared({}, loader.engine).fingerprint(columns) != other.fingerprint(columns)
    )
