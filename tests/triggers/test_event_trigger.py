"""The trigger of an asset watcher: when it fires, and when it fires again."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from airflow_kafka_offsets import Limits
from airflow_kafka_offsets.kafka.cluster import Cluster
from airflow_kafka_offsets.lag.shared_poll import PollResult
from airflow_kafka_offsets.ledger.batch_rows import TaskRun
from airflow_kafka_offsets.ledger.claims import claim_group
from airflow_kafka_offsets.ledger.tables import Ledger
from airflow_kafka_offsets.triggers.lag import KafkaLagEventTrigger
from tests.support.clients import produce
from tests.support.loads import Loader, TopicFactory, names
from tests.support.running_triggers import Looked, arguments, more_looks, run, running, until

pytestmark = pytest.mark.server


def test_an_event_trigger_fires_once_and_again_after_positions_moved(
    on_both: Loader, topic: TopicFactory, looked: Looked
) -> None:
    name = topic()
    produce(on_both.kafka, name, names(0, 5))

    async def test() -> None:
        async with running(KafkaLagEventTrigger(**arguments(name, min_lag=5))) as (one,):
            assert (await one.event())["report"]["lag"] == 5
            await more_looks(looked)
            assert one.events.empty()
            # A load that leaves enough behind.
            await asyncio.to_thread(produce, on_both.kafka, name, names(5, 6))
            await asyncio.to_thread(on_both, name, limits=Limits(max_records=6, time_budget=timedelta(microseconds=1)))
            assert (await one.event())["report"]["lag"] == 5
            # One that does not, and then new records.
            await asyncio.to_thread(on_both, name)
            assert all(not look.judgement.met for look in await more_looks(looked) if isinstance(look, PollResult))
            await asyncio.to_thread(produce, on_both.kafka, name, names(11, 5))
            assert (await one.event())["report"]["lag"] == 5

    run(test)


def test_an_event_trigger_fires_again_after_the_interval_though_nothing_moved(
    connected: Loader, topic: TopicFactory
) -> None:
    name = topic()
    produce(connected.kafka, name, names(0, 5))

    async def test() -> None:
        trigger = KafkaLagEventTrigger(**arguments(name, min_lag=5, rearm_after=timedelta(seconds=1)))
        async with running(trigger) as (one,):
            assert [(await one.event())["report"]["lag"] for _ in range(2)] == [5, 5]

    run(test)


def test_while_a_run_holds_the_group_nothing_fires(connected: Loader, topic: TopicFactory, looked: Looked) -> None:
    name = topic()
    connected(name)
    cluster_id = Cluster(connected.config).cluster_id()
    held = claim_group(
        Ledger(connected.engine), "loader", TaskRun("other"), cluster_id=cluster_id, lease=timedelta(minutes=5)
    )

    async def test() -> None:
        async with running(KafkaLagEventTrigger(**arguments(name, min_lag=5))) as (one,):
            await asyncio.to_thread(produce, connected.kafka, name, names(0, 5))
            await until(lambda: any(isinstance(look, PollResult) and look.judgement.met for look in looked), "the lag")
            await more_looks(looked)
            assert one.events.empty()
            await asyncio.to_thread(held.release)
            assert (await one.event())["report"]["lag"] == 5

    run(test)
