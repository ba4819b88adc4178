"""Rows of keys that were loaded from an earlier topic of the same name: whatever their offsets are, they are older."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import NewTopic

from airflow_kafka_offsets import DeadLetters, IcebergTable, Limits, SqlTable
from airflow_kafka_offsets.dead_letters.replay import replay_dead_letters
from airflow_kafka_offsets.dead_letters.selection import DeadLetterFilter
from airflow_kafka_offsets.ledger import compaction
from airflow_kafka_offsets.staging.rows import Record
from tests.support.clients import admin, produce
from tests.support.iceberg import iceberg_sink, open_table, scanned
from tests.support.loads import BESIDE_OTHERS, Loader, TopicFactory, rows
from tests.support.replays import Replayer
from tests.support.rewinds import Rewinder
from tests.support.upserts import record

pytestmark = pytest.mark.server

KEYED = SqlTable("target", upsert_key=("id",))
Held = Callable[[], list[tuple[Any, ...]]]


@pytest.fixture(params=["sql", "iceberg"])
def sink(request: pytest.FixtureRequest, tmp_path: Path) -> SqlTable | IcebergTable:
    if request.param == "sql":
        return KEYED
    return iceberg_sink("sql", tmp_path, upsert_key=("id",))


@pytest.fixture
def held(inline_loader: Loader, sink: SqlTable | IcebergTable) -> Held:
    """The rows: their key, name, offset and batch."""
    if isinstance(sink, SqlTable):
        query = "SELECT id, name, _kafka_offset, _batch_id FROM target ORDER BY id"
        return lambda: [tuple(row) for row in rows(inline_loader.engine, query)]
    names = ("id", "name", "_kafka_offset", "_batch_id")
    return lambda: sorted(scanned(open_table(sink, inline_loader.engine), *names))


def made_anew(loader: Loader, topic: str) -> None:
    client = admin(loader.kafka)
    client.delete_topics([topic])[topic].result()
    client.create_topics([NewTopic(topic, 1, 1)])[topic].result()


def test_a_row_of_the_earlier_topic_is_replaced_by_one_of_a_lower_offset(
    inline_loader: Loader, topic: TopicFactory, sink: Any, held: Held
) -> None:
    loader, name = inline_loader, topic()
    produce(loader.kafka, name, [*(record(1, f"old {number}") for number in range(5)), record(2, "old")])
    loader(name, sink=sink, limits=Limits(max_records=2))
    assert held() == [(1, "old 4", 4, 3), (2, "old", 5, 3)]
    made_anew(loader, name)
    produce(loader.kafka, name, [record(1, "new 0"), record(3, "new")])
    Rewinder(loader)("to-earliest")

    assert loader(name, sink=sink).rows == 2
    assert held() == [(1, "new 0", 0, 5), (2, "old", 5, 3), (3, "new", 1, 5)]

    # Within the topic, the offset says what is newer.
    produce(loader.kafka, name, [record(1, "new 2")])
    loader(name, sink=sink)
    Replayer(loader)(name, {name: {0: (0, 2)}}, sink=sink)
    assert held()[0] == (1, "new 2", 2, 6)


def test_rows_of_other_groups_and_of_compacted_batches_are_known(
    inline_loader: Loader, topic: TopicFactory, sink: Any, held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "_AT_LEAST", 2)
    loader, name = inline_loader, topic()
    produce(loader.kafka, name, [record(number % 3, "old") for number in range(9)])
    limits = Limits(max_records=2, history_retention=timedelta(microseconds=1))
    for _ in range(2):
        loader(name, sink=sink, group_id="other", limits=limits, **BESIDE_OTHERS)
        produce(loader.kafka, name, [record(2, "old")])
    assert rows(loader.engine, "SELECT count(*) FROM offset_batches WHERE compacted_from IS NOT NULL") == [(1,)]
    made_anew(loader, name)
    produce(loader.kafka, name, [record(number, "new") for number in range(3)])

    loader(name, sink=sink, **BESIDE_OTHERS)

    assert [row[:3] for row in held()] == [(0, "new", 0), (1, "new", 1), (2, "new", 2)]


def test_a_dead_letter_of_the_earlier_topic_replaces_nothing_of_the_later_one(
    inline_loader: Loader, topic: TopicFactory, sink: Any, held: Held
) -> None:
    loader, name, settings = inline_loader, topic(), {"sink": sink, "on_bad_record": DeadLetters()}
    old = [record(1, "old"), record(4, "old"), record("x", "bad"), record("y", "bad"), record("z", "bad")]
    produce(loader.kafka, name, old)
    loader(name, **settings)
    made_anew(loader, name)
    produce(loader.kafka, name, [record(number, "new") for number in (1, 2)] + [record("x", "bad")])
    Rewinder(loader)("to-earliest")
    loader(name, **settings)

    def replay(batch: int, offset: int, key: int) -> int:
        pipeline = loader.pipeline([name], **settings)
        corrected = {batch: {Record(name, 0, offset): record(key, "corrected")}}
        letters = DeadLetterFilter("loader", batch)
        done = replay_dead_letters(letters, pipeline, engine=loader.engine, corrected=corrected)
        return sum(each.rows for each in done)

    # Its offset is higher than that of the row.
    assert replay(1, 2, 2) == 0
    # Of the same topic, which a higher number of a batch does not change.
    assert replay(1, 4, 4) == 1
    assert replay(1, 3, 4) == 0
    assert replay(3, 2, 4) == 1

    found = [(1, "new", 0), (2, "new", 1), (4, "corrected", 2)]
    assert [row[:3] for row in held()] == found
