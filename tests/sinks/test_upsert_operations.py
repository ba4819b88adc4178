"""Verification, rewinds, other groups and restored backups, where rows are replaced by key."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from airflow_kafka_offsets import Limits, Staging
from airflow_kafka_offsets.exceptions import ConfigurationError, OlderLedgerError, VerificationError
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from airflow_kafka_offsets.verification.verify import verify
from devstack.kafka import KafkaBroker
from tests.support.clients import produce
from tests.support.loads import COLUMNS, Loader, TopicFactory, names, rows
from tests.support.rewinds import Rewinder
from tests.support.upserts import KEYED, do, held, record

pytestmark = pytest.mark.server


def test_a_big_batch(inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory) -> None:
    name = topic(partitions=2)
    for partition in range(2):
        produce(kafka, name, [record(i % 3_000 * 2 + partition, f"n{i}") for i in range(10_000)], partition)

    assert inline_loader(name, staging=Staging(slice_offsets=3_000), **KEYED).rows == 6_000

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
        inline_loader(name, group_id="behind", limits=Limits(max_records=30), **KEYED)

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
    inline_loader(name, limits=Limits(max_records=2), **KEYED)
    before = held(inline_loader.engine)
    assert before == [(1, "c", 2), (2, "e", 4), (3, "d", 3)]

    done = Rewinder(inline_loader)("to-offset", 2, replace=sink if with_replace else None)

    # Of keys 1 and 2 an earlier record had a row once, which is not brought back.
    assert held(inline_loader.engine) == ([] if with_replace else before)
    assert done.rows_removed == (3 if with_replace else 0)
    verify("loader", sink=sink, engine=inline_loader.engine)
    # In batches as small as one record, no older row takes the place of a newer one.
    inline_loader(name, limits=Limits(max_records=1), **KEYED)
    assert held(inline_loader.engine) == before
    verify("loader", sink=sink, engine=inline_loader.engine)


# Names that its statements could use themselves.
@pytest.mark.parametrize(
    "table",
    ["loaded", "again", "by_offset", "ranked", "offset_ranges_1", "offset_batches_1", "anon_1"],
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
