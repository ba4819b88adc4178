"""Bounds of a replay become offsets: of instants, of batches, of records that expired."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_kafka_offsets import BatchBounds, Limits, Staging, TimeBounds
from airflow_kafka_offsets.exceptions import (
    ConfigurationError,
    DataLossError,
    StagingError,
    TopicRecreatedError,
)
from airflow_kafka_offsets.loading.context import LoadResult
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from devstack.topics import create_topic, delete_records, delete_topic
from tests.support.clients import produce, producer
from tests.support.loads import TopicFactory, names, rows
from tests.support.openings import KEPT, at, one_record_transactions, produce_at
from tests.support.replays import RUN, Interrupted, Replayer, die, offsets, proved, states

pytestmark = pytest.mark.server


class TestBounds:
    @pytest.mark.broker
    def test_between_two_instants(self, replayer: Replayer, topic: TopicFactory) -> None:
        name = topic(retention_ms="-1")
        noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
        minutes = [0, 1, 2, 9, 3, 4, 5]
        writer = producer(replayer.loader.kafka)
        for minute, value in zip(minutes, names(0, len(minutes)), strict=True):
            at = int((noon + timedelta(minutes=minute)).timestamp() * 1000)
            writer.produce(name, value, partition=0, timestamp=at)
        assert writer.flush(30) == 0

        replayer(name, TimeBounds("2026-01-01T12:02:00Z", noon + timedelta(minutes=4)))

        # Up to the first record at or after the bound: by offsets, whatever lies behind it.
        assert offsets(replayer.loader, "elsewhere") == {0: [2]}
        replayer(name, TimeBounds("2026-01-01T12:05:00"), sink=SqlTable("other"))
        assert offsets(replayer.loader, "other") == {0: [3, 4, 5, 6]}
        assert replayer(name, TimeBounds("2026-01-01T13:00:00"), sink=SqlTable("other")) == LoadResult()

    @pytest.mark.broker
    def test_markers_are_no_bounds(self, replayer: Replayer, topic: TopicFactory) -> None:  # T01
        name = topic(**KEPT)
        one_record_transactions(replayer.loader.kafka, name, range(10))

        assert replayer(name, TimeBounds(at(2), at(7))).rows == 5
        assert offsets(replayer.loader, "elsewhere") == {0: [4, 6, 8, 10, 12]}

    def test_records_after_the_range_are_counted(  # T05
        self, replayer: Replayer, topic: TopicFactory, caplog: pytest.LogCaptureFixture
    ) -> None:
        name = topic(partitions=3, **KEPT)
        for partition, minutes in enumerate(([0, 5, 1, 2, 6, 3], [9, 3], [1, 2, 7])):
            produce_at(replayer.loader.kafka, name, minutes, partition=partition)

        assert replayer(name, TimeBounds(at(1), at(4))).rows == 2

        assert offsets(replayer.loader, "elsewhere") == {2: [0, 1]}
        (warning,) = [record.getMessage() for record in caplog.records if "out of order" in record.getMessage()]
        assert f"4 records of the span from {at(1).isoformat()} to {at(4).isoformat()}" in warning
        assert f"3 in {name}[0] 1..6, 1 in {name}[1] 0..2" in warning
        caplog.clear()
        assert replayer(name, TimeBounds(at(6), at(8)), sink=SqlTable("other")).rows == 3
        assert "out of order" not in caplog.text

    def test_the_tries_of_a_task_instance_share_the_end_of_the_log(self, replayer: Replayer, orders: str) -> None:
        bounds = TimeBounds("2026-01-01")
        with pytest.raises(StagingError):
            replayer(orders, bounds, run=RUN, launcher=Interrupted(die))
        produce(replayer.loader.kafka, orders, names(500, 5), 0)

        replayer(orders, bounds, run=replace(RUN, try_number=2))

        assert offsets(replayer.loader, "elsewhere") == {0: list(range(20)), 1: list(range(20))}

    def test_the_ranges_of_a_batch(self, replayer: Replayer, orders: str) -> None:
        produce(replayer.loader.kafka, orders, names(500, 5), 0)
        replayer.loader(orders)

        replayer(orders, BatchBounds(2), sink=SqlTable("target"), replace=True)

        assert rows(replayer.loader.engine, "SELECT _batch_id, count(*) FROM target GROUP BY 1 ORDER BY 1") == [
            (1, 40),
            (3, 5),
        ]
        proved(replayer.loader)

    def test_a_batch_of_another_group_is_not_known(self, replayer: Replayer, orders: str) -> None:
        with pytest.raises(ConfigurationError, match="Group 'other' has no batch 1"):
            replayer(orders, BatchBounds(1), group_id="other")

    def test_a_batch_of_an_earlier_topic_is_refused(self, replayer: Replayer, orders: str) -> None:
        servers = replayer.loader.kafka.bootstrap_servers
        delete_topic(servers, orders)
        create_topic(servers, orders, 2, {})
        produce(replayer.loader.kafka, orders, names(900, 30), 0)
        produce(replayer.loader.kafka, orders, names(950, 30), 1)

        with pytest.raises(TopicRecreatedError):
            replayer(orders, BatchBounds(1))

    def test_bounds_outside_of_the_log_are_an_error(self, replayer: Replayer, orders: str) -> None:
        with pytest.raises(
            ConfigurationError, match=r"\[0\] 5..21: the log ends at offset 20; .*\[7\] 0..1: the topic has no"
        ):
            replayer(orders, {orders: {0: (5, 21), 7: (0, 1)}}, on_data_loss="skip")

        assert states(replayer.loader) == [("load", "committed")]

    @pytest.mark.broker
    def test_expired_bounds_are_an_error_or_a_gap(self, replayer: Replayer, orders: str) -> None:
        delete_records(replayer.loader.kafka.bootstrap_servers, orders, 5)
        bounds = {orders: {0: (2, 9), 1: (0, 2)}}
        with pytest.raises(DataLossError, match=r"\[0\]: offsets 2..5 are gone"):
            replayer(orders, bounds, sink=SqlTable("target"), replace=True)

        replayer(orders, bounds, sink=SqlTable("target"), replace=True, on_data_loss="skip")

        assert rows(replayer.loader.engine, "SELECT batch_id, start_offset, end_offset FROM offset_gaps") == [(2, 2, 5)]
        # What cannot be read again is not removed.
        assert offsets(replayer.loader) == {0: list(range(20)), 1: list(range(20))}
        assert rows(replayer.loader.engine, "SELECT count(*) FROM target WHERE _batch_id = 2") == [(6,)]

    def test_range_that_expires_before_reading_is_planned_again(
        self, replayer: Replayer, orders: str, tmp_path: Path
    ) -> None:
        servers = replayer.loader.kafka.bootstrap_servers
        expire = Interrupted(lambda: delete_records(servers, orders, 5))
        options: dict[str, Any] = {
            "limits": Limits(max_records=5),
            "staging": Staging(dir=str(tmp_path / "staging")),
            "on_data_loss": "skip",
        }

        result = replayer(orders, {orders: {0: (2, 12)}}, launcher=expire, run=RUN, **options)

        assert offsets(replayer.loader, "elsewhere") == {0: list(range(5, 12))}
        assert states(replayer.loader)[1:] == [
            ("replay", "abandoned"),
            ("replay", "committed"),
            ("replay", "committed"),
        ]
        assert rows(replayer.loader.engine, "SELECT batch_id, start_offset, end_offset FROM offset_gaps") == [(4, 2, 5)]
        # Whoever comes later finds all parts, and removes what the first attempt left.
        again = replayer(orders, {orders: {0: (2, 12)}}, run=RUN, **options)
        assert (sorted(again.batches), again.rows) == (sorted(result.batches), 7)
        assert list((tmp_path / "staging").iterdir()) == []
