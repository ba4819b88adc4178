"""What a trigger does to the process that it shares with all other triggers."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterable, Mapping
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_kafka_offsets.core.offsets import PartitionLog, TopicPartition
from airflow_kafka_offsets.hooks import connections
from airflow_kafka_offsets.kafka.cluster import PartialLogs, TimedOffset
from airflow_kafka_offsets.lag.measure import GroupState, LagPolls
from airflow_kafka_offsets.lag.report import LagQuestion
from airflow_kafka_offsets.lag.thresholds import LagWatch
from airflow_kafka_offsets.triggers.lag import KafkaLagTrigger, prepare
from tests.support.running_triggers import arguments, run, running

NOW = datetime(2026, 1, 1, tzinfo=UTC)
GROUPS, PARTITIONS = 50, 20


class FakeCluster:
    """A cluster in which a record waits in every partition."""

    def __init__(self, end: int = 100) -> None:
        self.end = end

    def cluster_id(self) -> str:
        return "cluster"

    def partial_logs(self, topics: Iterable[str]) -> PartialLogs:
        return PartialLogs(
            {TopicPartition("orders", number): PartitionLog(0, self.end) for number in range(PARTITIONS)}, {}, {}
        )

    def retention(self, topics: Iterable[str], unknown: dict[str, str]) -> dict[str, timedelta]:
        return {}

    def held_back(self, logs: Mapping[TopicPartition, PartitionLog]) -> dict[TopicPartition, int]:
        return {}

    def offsets_for_times(
        self, timestamps_ms: Mapping[TopicPartition, int], *, partial: bool
    ) -> dict[TopicPartition, TimedOffset]:
        return {tp: TimedOffset(99, 1_700_000_000_000) for tp in timestamps_ms}


def test_triggers_of_two_isolation_levels_share_no_poll(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ends = {"read_committed": 90, "read_uncommitted": 100}
    database = f"sqlite:///{tmp_path}/warehouse.db"
    monkeypatch.setattr(connections, "kafka_cluster", lambda conn_id, level, **_: FakeCluster(ends[level]))
    monkeypatch.setattr(connections, "database_engine", lambda conn_id: sa.create_engine(database))

    async def test() -> None:
        triggers = [KafkaLagTrigger(**arguments("orders", min_lag=1, isolation_level=level)) for level in ends]
        async with running(*triggers) as found:
            lags = [(await trigger.event())["report"]["lag"] for trigger in found]
        assert lags == [PARTITIONS * end for end in ends.values()]

    run(test)


def test_the_garbage_collector_of_the_process_is_left_as_it_is() -> None:
    frozen, before = gc.get_freeze_count(), (gc.isenabled(), gc.get_threshold())
    with closing(asyncio.new_event_loop()) as loop:
        prepare(LagWatch(group_id="group", conn_id="warehouse", min_lag=1), loop)
    assert (gc.isenabled(), gc.get_threshold()) == before
    # What the tests themselves have frozen (`conftest.py`) may end meanwhile.
    assert gc.get_freeze_count() <= frozen


def test_poll_leaves_few_objects_for_the_garbage_collector() -> None:
    cluster: Any = FakeCluster()
    polls = LagPolls(cluster)
    question = LagQuestion("group", times=True)
    states = [
        GroupState(
            NOW,
            True,
            "cluster",
            stored=[("orders", p, g, None, None, None, None) for p in range(PARTITIONS)],
        )
        for g in range(GROUPS)
    ]

    def tracked() -> int:
        gc.collect()
        return len(gc.get_objects())

    tracked()  # tuples of plain values leave the collector with the first collection
    before = tracked()
    for report in polls.reports((question, state) for state in states):
        assert not isinstance(report, Exception)
        assert report.delay is not None
    del report
    # One for each partition of each group would be 1,000.
    assert tracked() - before < GROUPS
