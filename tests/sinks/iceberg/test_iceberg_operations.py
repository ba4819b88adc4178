"""Load, retry, rewind, replay and verification with an Iceberg table, in either kind of catalog."""

from __future__ import annotations

import pytest

from airflow_kafka_offsets import Limits
from airflow_kafka_offsets.exceptions import DoubleLoadError, VerificationError
from airflow_kafka_offsets.sinks.iceberg.table import IcebergTable
from airflow_kafka_offsets.sinks.sink import Sink
from tests.support.clients import Kafka, produce
from tests.support.iceberg import IcebergGroup
from tests.support.loads import names, positions
from tests.support.rewinds import Rewinder

LOADED = [*((1, each) for each in (0, 1, 2)), *((2, each) for each in (4, 5, 6, 7)), *((3, each) for each in (8, 9))]


def test_catalog_decides_whether_an_iceberg_table_commits_externally() -> None:
    own, elsewhere = IcebergTable("shop.orders"), IcebergTable("shop.orders", {"type": "rest"})

    assert isinstance(own, Sink)
    assert (own.commits_externally, elsewhere.commits_externally) == (False, True)


def test_a_load_is_proved_and_carries_on(group: IcebergGroup, kafka: Kafka) -> None:
    group.load(limits=Limits(max_records=4))
    assert (group.rows(), group.proved()) == (LOADED, (9, 1, 10))
    produce(kafka, group.orders, names(10, 2))

    assert group.load().rows == 2

    assert group.rows() == [*LOADED, (4, 10), (4, 11)]
    assert group.proved() == (11, 1, 12)


def test_a_rewind_takes_back_rows_and_dead_letters(group: IcebergGroup) -> None:
    group.load(limits=Limits(max_records=4))

    done = Rewinder(group.loader)("to-offset", 2, replace=group.sink)

    assert (done.rows_removed, done.dead_letters_removed) == (7, 1)
    assert group.rows() == [(1, 0), (1, 1)]
    assert group.proved() == (2, 0, 2)
    group.load()
    assert group.offsets() == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    assert group.proved() == (9, 1, 10)


def test_a_replay_replaces_rows(group: IcebergGroup) -> None:
    group.load(limits=Limits(max_records=4))
    with pytest.raises(DoubleLoadError, match="would duplicate records"):
        group.replay({group.orders: {0: (2, 6)}})

    assert group.replay({group.orders: {0: (2, 6)}}, replace=True).rows == 3

    assert [offset for batch, offset in group.rows() if batch > 3] == [2, 4, 5]
    assert group.offsets() == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    assert group.proved() == (9, 1, 10)


def test_a_replay_and_a_rewind_drop_whole_files_and_rewrite_only_mixed_ones(group: IcebergGroup) -> None:
    group.load(limits=Limits(max_records=4))
    before = {task.file.file_path for task in group.table.scan().plan_files()}

    group.replay({group.orders: {0: (4, 10)}}, replace=True)

    after = {task.file.file_path for task in group.table.scan().plan_files()}
    assert (len(before), len(before & after), len(after)) == (3, 1, 2)
    Rewinder(group.loader)("to-offset", 6, replace=group.sink)
    assert group.offsets() == [0, 1, 2, 4, 5]
    assert len({task.file.file_path for task in group.table.scan().plan_files()} & before) == 1
    assert group.proved() == (5, 1, 6)


def test_rows_that_are_missing_or_unknown_are_found(group: IcebergGroup) -> None:
    group.load(limits=Limits(max_records=4))
    table = group.table
    foreign = table.scan("_batch_id = 3").to_arrow()
    table.delete("_batch_id = 3 and _kafka_offset = 8")

    with pytest.raises(VerificationError, match="rows are missing"):
        group.proved()

    changed = foreign.set_column(foreign.schema.get_field_index("_batch_id"), foreign.field("_batch_id"), [[7, 7]])
    table.append(changed)
    with pytest.raises(VerificationError, match="1 other violation"):
        group.proved()


def test_a_batch_without_rows_moves_the_positions(group: IcebergGroup, kafka: Kafka) -> None:
    group.load()
    produce(kafka, group.orders, [b"{not json"])

    assert group.load().rows == 0

    assert positions(group.loader.engine) == {(group.orders, 0): 11}
    assert group.proved() == (9, 2, 11)
