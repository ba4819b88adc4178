"""A target with an upsert key holds the newest row of each key, whatever is loaded again, on both kinds of database."""

from __future__ import annotations

import pytest

from airflow_kafka_offsets import Limits, Staging
from airflow_kafka_offsets.exceptions import StagingError
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from devstack.kafka import KafkaBroker
from tests.support.clients import produce
from tests.support.loads import Loader, TopicFactory, names, positions, rows
from tests.support.upserts import KEYED, ORIGIN, Interrupted, do, held, produce_at, record

pytestmark = pytest.mark.server


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

    assert inline_loader(name, staging=Staging(slice_offsets=4), **KEYED).rows == 3

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

    replay = inline_loader(name, group_id="again", limits=Limits(max_records=1), **KEYED)

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
        partly(name, group_id="again", limits=Limits(max_records=1), **KEYED)

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
        f"INSERT INTO target VALUES (1, 'by hand', 'kept', '{name}', 0, NULL, NULL)",
        "INSERT INTO target VALUES (2, 'by hand', 'kept', NULL, 0, 999, NULL)",
        f"INSERT INTO target VALUES (3, 'by hand', 'kept', '{name}', NULL, 999, NULL)",
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
