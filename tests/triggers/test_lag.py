"""The trigger of a deferred sensor: which lag ends the wait, on a real broker and both databases."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_kafka_offsets.kafka.cluster import Cluster
from airflow_kafka_offsets.triggers.lag import KafkaLagTrigger
from devstack.topics import delete_records, delete_topic
from tests.support.clients import produce
from tests.support.loads import Loader, TopicFactory, names
from tests.support.running_triggers import SECONDS, Looked, arguments, more_looks, run, running

pytestmark = pytest.mark.server


def test_a_deferred_sensor_gets_one_event_once_there_is_enough(
    on_both: Loader, topic: TopicFactory, looked: Looked
) -> None:
    name = topic(partitions=2)
    produce(on_both.kafka, name, names(0, 5))
    on_both(name)
    produce(on_both.kafka, name, names(5, 3))

    async def test() -> None:
        async with running(KafkaLagTrigger(**arguments(name, min_lag=5))) as (one,):
            await more_looks(looked)
            assert one.events.empty()
            await asyncio.to_thread(produce, on_both.kafka, name, names(8, 2), 1)
            event = await one.event()
            await asyncio.wait_for(one.task, SECONDS)

        assert (event["group_id"], event["met"], event["report"]["lag"]) == ("loader", ["min_lag"], 5)
        assert event["report"]["topics"] == {name: event["report"]["topics"][name]}
        assert [(row["partition"], row["lag"]) for row in event["report"]["partitions"]] == [(0, 3), (1, 2)]
        json.dumps(event)

    run(test)


def test_a_deferred_sensor_is_not_looked_for_before_its_interval(connected: Loader, topic: TopicFactory) -> None:
    name = topic()
    produce(connected.kafka, name, names(0, 5))

    async def test() -> None:
        first_poll = datetime.now(UTC) + timedelta(seconds=2)
        async with running(KafkaLagTrigger(**arguments(name, min_lag=5), first_poll=first_poll)) as (one,):
            await one.event()
            # Of two clocks.
            assert datetime.now(UTC) > first_poll - timedelta(seconds=0.1)

    run(test)


def test_before_the_first_load_the_lag_is_what_it_would_find(connected: Loader, topic: TopicFactory) -> None:
    name = topic()
    produce(connected.kafka, name, names(0, 5))

    async def test() -> None:
        async with running(KafkaLagTrigger(**arguments(name, min_lag=5))) as (one,):
            assert (await one.event())["report"]["lag"] == 5

    run(test)


@pytest.mark.usefixtures("unknown_at_once")
def test_permanent_error_ends_the_wait(connected: Loader, topic: TopicFactory) -> None:
    async def test() -> None:
        triggers = [
            KafkaLagTrigger(**arguments("nowhere", min_lag=5)),
            KafkaLagTrigger(**arguments(topic(), min_lag=5, kafka_conn_id="no_such_connection")),
            KafkaLagTrigger(**arguments("t", topics=[], min_lag=5)),
            KafkaLagTrigger(**arguments("t:x", min_lag=5)),
        ]
        async with running(*triggers) as found:
            told = [(await one.event())["error"] for one in found]

        assert told[0].startswith("UnknownTopicError: ")
        assert "no_such_connection" in told[1]
        assert "There are no stored positions of group 'loader' yet: name its topics" in told[2]
        assert "got 't:x'" in told[3]

    run(test)


# tests/lag/test_measure.py has its short sibling.
@pytest.mark.long
def test_l08_an_incomplete_lag_fires_only_where_that_is_allowed(
    connected: Loader, topic: TopicFactory, looked: Looked
) -> None:
    name, gone = topic(), topic()
    connected(name, gone)
    produce(connected.kafka, name, names(0, 9))
    delete_topic(connected.kafka.bootstrap_servers, gone)

    async def test() -> None:
        wanted = arguments(name, topics=[name, gone], min_lag=5)
        async with running(KafkaLagTrigger(**wanted), KafkaLagTrigger(**wanted, allow_incomplete=True)) as (no, yes):
            event = await yes.event()
            await more_looks(looked)
            assert no.events.empty()

        assert event["report"]["complete"] is False
        assert gone in event["report"]["errors"][0]

    run(test)


def test_only_the_partitions_that_are_named_count(connected: Loader, topic: TopicFactory, looked: Looked) -> None:
    name = topic(partitions=3)
    connected(name)
    for partition in (0, 1):
        produce(connected.kafka, name, names(0, 4), partition)

    async def test() -> None:
        async with running(
            KafkaLagTrigger(**arguments(name, topics=[f"{name}:0,1"], min_lag=8)),
            KafkaLagTrigger(**arguments(name, topics=[f"{name}:1,2"], min_lag=5)),
        ) as (both, one):
            assert (await both.event())["report"]["lag"] == 8
            await more_looks(looked)
            assert one.events.empty()

    run(test)


def test_reached_delay_fires(connected: Loader, topic: TopicFactory, looked: Looked) -> None:
    name = topic(partitions=2, retention_ms="-1")
    now = int(datetime.now(UTC).timestamp() * 1000)
    minutes = 60_000
    produce(connected.kafka, name, names(0, 5), timestamp=now - 120 * minutes)
    connected(name)

    async def test() -> None:
        async with running(KafkaLagTrigger(**arguments(name, max_delay=timedelta(hours=1)))) as (one,):
            # However old what was committed is: nothing waits.
            await more_looks(looked)
            assert one.events.empty()
            await asyncio.to_thread(produce, connected.kafka, name, names(5, 1), timestamp=now - 30 * minutes)
            await more_looks(looked)
            assert one.events.empty()
            await asyncio.to_thread(produce, connected.kafka, name, names(6, 1), 1, timestamp=now - 120 * minutes)
            event = await one.event()

        assert event["met"] == ["max_delay"]
        assert 7_200 <= event["report"]["delay_seconds"] < 9_000

    run(test)


def test_records_that_retention_is_about_to_take_fire(on_both: Loader, topic: TopicFactory) -> None:
    name = topic(retention_ms=3_600_000)
    produce(on_both.kafka, name, names(0, 5))
    on_both(name)
    produce(on_both.kafka, name, names(5, 5))

    async def test() -> None:
        async with running(
            KafkaLagTrigger(**arguments(name, min_headroom=timedelta(minutes=59))),
            KafkaLagTrigger(**arguments(name, min_headroom=timedelta(minutes=61))),
            KafkaLagTrigger(**arguments(name, min_headroom=4)),
        ) as (late, early, offsets):
            event = await early.event()
            assert late.events.empty()
            assert offsets.events.empty()
            await asyncio.to_thread(delete_records, on_both.kafka.bootstrap_servers, name, 1)
            assert (await offsets.event())["report"]["headroom"] == 4

        assert 3_500 < event["report"]["headroom_time_seconds"] <= 3_600

    run(test)


def test_the_records_that_wait_are_looked_for_once_for_each_position(
    connected: Loader, topic: TopicFactory, looked: Looked, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic(partitions=2)
    produce(connected.kafka, name, names(0, 5))
    connected(name)
    produce(connected.kafka, name, names(5, 5))
    asked: list[Any] = []
    offsets_for_times = Cluster.offsets_for_times

    def noting(self: Cluster, timestamps: Any, **options: Any) -> Any:
        asked.append(timestamps)
        return offsets_for_times(self, timestamps, **options)

    monkeypatch.setattr(Cluster, "offsets_for_times", noting)

    async def test() -> None:
        async with running(KafkaLagTrigger(**arguments(name, max_delay=timedelta(hours=1)))):
            await more_looks(looked, 5)
            assert len(asked) == 1

    run(test)
