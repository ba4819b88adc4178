"""Triggers that wait for lag, in an event loop like the triggerer's, on a real broker and both databases."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import psutil
import pytest
import sqlalchemy as sa
from airflow.triggers.base import BaseTrigger

from airflow_kafka_offsets.hooks.metrics import emit_poll
from airflow_kafka_offsets.kafka.admin import RetryingAdmin
from airflow_kafka_offsets.kafka.cluster import Cluster
from airflow_kafka_offsets.lag import shared_poll
from airflow_kafka_offsets.lag.shared_poll import PollResult
from airflow_kafka_offsets.lag.watch_options import Judgement, LagWatch
from airflow_kafka_offsets.ledger.claims import claim_group
from airflow_kafka_offsets.ledger.tables import Tables
from airflow_kafka_offsets.ledger.task_run import TaskRun
from airflow_kafka_offsets.triggers import lag as module
from airflow_kafka_offsets.triggers.lag import KafkaLagEventTrigger, KafkaLagTrigger
from devstack.kafka import KafkaBroker
from devstack.postgres import PostgresServer
from devstack.process import wait_until
from devstack.topics import create_topic, delete_records, delete_topic
from tests.support.clients import produce
from tests.support.command_line import database_connection, kafka_connection
from tests.support.inline import InlineLauncher
from tests.support.loads import Loader, TopicFactory, names

pytestmark = pytest.mark.server

POLL = timedelta(seconds=0.1)
SECONDS = 60.0

Looked = list[PollResult[Judgement] | Exception]


@pytest.fixture
def on_both(inline_loader: Loader, kafka: KafkaBroker, monkeypatch: pytest.MonkeyPatch) -> Loader:
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", database_connection(inline_loader.engine))
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", kafka_connection(kafka))
    return inline_loader


@pytest.fixture
def connected(kafka: KafkaBroker, postgres_engine: sa.Engine, monkeypatch: pytest.MonkeyPatch) -> Loader:
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", database_connection(postgres_engine))
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", kafka_connection(kafka))
    return Loader(kafka, postgres_engine, InlineLauncher())


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> Looked:
    """Every look of every trigger: a test that nothing fires waits for looks, not for time."""
    found: Looked = []
    looking = module.watch

    async def noting(watched: LagWatch) -> AsyncIterator[PollResult[Judgement] | Exception]:
        async with aclosing(looking(watched)) as looks:
            async for look in looks:
                found.append(look)
                yield look

    monkeypatch.setattr(module, "watch", noting)
    return found


def arguments(topic: str, **more: Any) -> dict[str, Any]:
    defaults = {"group_id": "loader", "topics": [topic], "offsets_conn_id": "warehouse", "poll_interval": POLL}
    return defaults | more


def stored_again(trigger: Any) -> Any:
    """As the triggerer makes it from what is in Airflow's database."""
    from airflow.models.trigger import Trigger  # noqa: TID251

    _, kwargs = trigger.serialize()
    return type(trigger)(**Trigger._decrypt_kwargs(Trigger.encrypt_kwargs(kwargs)))


class Running:
    """A trigger as a task, and its events."""

    def __init__(self, trigger: BaseTrigger) -> None:
        self.events: asyncio.Queue[Any] = asyncio.Queue()
        self._trigger = trigger
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        async for event in self._trigger.run():
            self.events.put_nowait(event.payload)

    async def event(self) -> Any:
        return await asyncio.wait_for(self.events.get(), SECONDS)


@asynccontextmanager
async def running(*triggers: BaseTrigger) -> AsyncIterator[list[Running]]:
    tasks = [Running(stored_again(trigger)) for trigger in triggers]
    try:
        yield tasks
    finally:
        for one in tasks:
            one.task.cancel()
        await asyncio.gather(*(one.task for one in tasks), return_exceptions=True)


async def until(condition: Callable[[], object], what: str) -> None:
    async with asyncio.timeout(SECONDS):
        while not condition():
            await asyncio.sleep(0.02)


async def more_looks(looked: Looked, count: int = 3) -> Looked:
    """The next looks, which begin after this moment."""
    seen = len(looked)
    await until(lambda: len(looked) >= seen + count + 1, "looks")
    return looked[seen + 1 :]


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 5 * SECONDS))


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


def test_what_waiting_cannot_help_ends_the_wait(connected: Loader, topic: TopicFactory) -> None:
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
        assert "Nothing is stored of group 'loader' yet: name its topics" in told[2]
        assert "got 't:x'" in told[3]

    run(test)


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
            await asyncio.to_thread(on_both, name, max_records=6, time_budget=timedelta(microseconds=1))
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
        connected.engine, Tables(), "loader", TaskRun("other"), cluster_id=cluster_id, lease=timedelta(minutes=5)
    )

    async def test() -> None:
        async with running(KafkaLagEventTrigger(**arguments(name, min_lag=5))) as (one,):
            await asyncio.to_thread(produce, connected.kafka, name, names(0, 5))
            await until(lambda: any(isinstance(look, PollResult) and look.judgement.met for look in looked), "the lag")
            await more_looks(looked)
            assert one.events.empty()
            await asyncio.to_thread(held.release, connected.engine, Tables())
            assert (await one.event())["report"]["lag"] == 5

    run(test)


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


def test_what_has_waited_long_enough_fires(connected: Loader, topic: TopicFactory, looked: Looked) -> None:
    name = topic(message_timestamp_type="LogAppendTime")
    produce(connected.kafka, name, names(0, 5))
    connected(name)

    async def test() -> None:
        trigger = KafkaLagTrigger(**arguments(name, max_delay=timedelta(seconds=2)))
        async with running(trigger) as (one,):
            # However old what was committed is: nothing waits.
            await until(lambda: len(looked) > 25, "two and a half seconds of looks")
            assert one.events.empty()
            await asyncio.to_thread(produce, connected.kafka, name, names(5, 1))
            await more_looks(looked)
            assert one.events.empty()
            event = await one.event()

        assert event["met"] == ["max_delay"]
        assert 2 <= event["report"]["delay_seconds"] < 30

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


def test_all_triggers_of_a_cluster_share_one_poll_and_leave_nothing_open(
    kafka: KafkaBroker, postgres_engine: sa.Engine, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch, looked: Looked
) -> None:
    loader = Loader(kafka, postgres_engine, InlineLauncher())
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", database_connection(postgres_engine))
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", kafka_connection(kafka))
    topics = [topic() for _ in range(4)]
    loader(*topics)
    asked: Counter[str] = Counter()
    ask = RetryingAdmin.ask

    def counting(self: RetryingAdmin, what: str, *given: Any, **options: Any) -> Any:
        asked[what] += 1
        return ask(self, what, *given, **options)

    monkeypatch.setattr(RetryingAdmin, "ask", counting)
    before = connections_to(kafka)

    async def test() -> None:
        triggers: list[BaseTrigger] = [
            (KafkaLagTrigger if number % 2 else KafkaLagEventTrigger)(
                **arguments(topics[number % 4], group_id=f"group-{number % 50}", min_lag=100)
            )
            for number in range(200)
        ]
        async with running(*triggers):
            await until(lambda: len(looked) >= 200, "the first looks")
            asked.clear()
            await more_looks(looked, 200 * 5)
            polls = asked["its cluster id"]
            # As many looks as five polls give, and the beginnings of those at both ends.
            assert 4 <= polls <= 7
            assert asked["the offsets of its logs"] <= 2 * (polls + 1)
            assert set(asked) == {"its cluster id", "its topics", "the offsets of its logs"}
        assert not module._polls[asyncio.get_running_loop()]

    run(test)
    gc.collect()
    wait_until(lambda: connections_to(kafka) <= before, SECONDS, "connections to the broker to be closed")


def connections_to(kafka: KafkaBroker) -> int:
    port = int(kafka.bootstrap_servers.rpartition(":")[2])
    return sum(bool(one.raddr) and one.raddr.port == port for one in psutil.Process(os.getpid()).net_connections())


def test_where_the_polls_end_event_triggers_begin_anew_and_deferred_sensors_are_told(
    connected: Loader, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic()
    connected(name)
    metrics = iter([ValueError("no metrics today")])

    def failing_once(*told: Any) -> None:
        for error in metrics:
            raise error
        emit_poll(*told)

    monkeypatch.setattr(module, "emit_poll", failing_once)

    async def test() -> None:
        wanted = arguments(name, min_lag=5)
        async with running(KafkaLagEventTrigger(**wanted), KafkaLagTrigger(**wanted)) as (event, once):
            told = (await once.event())["error"]
            assert told == "RuntimeError: The polls of the lag ended: ValueError('no metrics today')"
            await asyncio.to_thread(produce, connected.kafka, name, names(0, 5))
            assert (await event.event())["report"]["lag"] == 5

    run(test)


def test_databases_that_do_not_answer_keep_no_other_waiting(
    connected: Loader, topic: TopicFactory, looked: Looked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_poll, "_DATABASE_SECONDS", 0.5)
    name = topic()
    connected(name)

    async def test() -> None:
        silent = [
            KafkaLagEventTrigger(**arguments(name, min_lag=5, offsets_conn_id="silent", offsets_prefix=f"of_{number}_"))
            for number in range(12)
        ]
        async with running(*silent, KafkaLagTrigger(**arguments(name, min_lag=5))) as found:
            told = "The database of connection 'silent' still does not answer"
            await until(lambda: sum(told in str(look) for look in looked) >= len(silent), "all of them to be silent")
            await asyncio.to_thread(produce, connected.kafka, name, names(0, 5))
            assert (await found[-1].event())["report"]["lag"] == 5

    with socket.create_server(("127.0.0.1", 0), backlog=20) as listening:
        port = listening.getsockname()[1]
        monkeypatch.setenv("AIRFLOW_CONN_SILENT", f"postgres://user:secret@127.0.0.1:{port}/warehouse")
        run(test)


def test_a_broker_and_a_database_that_are_gone_for_a_while_neither_fire_nor_end_a_trigger(
    monkeypatch: pytest.MonkeyPatch, looked: Looked
) -> None:
    with KafkaBroker() as kafka, PostgresServer() as postgres:
        url = postgres.create_database("warehouse")
        engine = sa.create_engine(url)
        loader = Loader(kafka, engine, InlineLauncher())
        monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", database_connection(engine))
        monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", kafka_connection(kafka))
        monkeypatch.setattr(module, "_KAFKA_SECONDS", 1.0)
        create_topic(kafka.bootstrap_servers, "orders", 1)
        loader("orders")
        engine.dispose()

        async def failing(name: str) -> None:
            seen = len(looked)
            await until(lambda: any(type(look).__name__ == name for look in looked[seen:]), name)

        async def looking() -> None:
            seen = len(looked)
            await until(lambda: any(isinstance(look, PollResult) for look in looked[seen:]), "a look")

        async def test() -> None:
            event = KafkaLagEventTrigger(**arguments("orders", min_lag=5))
            once = KafkaLagTrigger(**arguments("orders", min_lag=5))
            async with running(event, once) as found:
                await looking()
                kafka.process.stop()
                await failing("KafkaUnavailableError")
                await asyncio.to_thread(kafka.start)
                await looking()
                postgres.process.stop()
                await failing("DatabaseUnavailableError")
                await asyncio.to_thread(postgres.start)
                await looking()
                assert all(one.events.empty() and not one.task.done() for one in found)
                await asyncio.to_thread(produce, kafka, "orders", names(0, 5))
                for one in found:
                    assert (await one.event())["report"]["lag"] == 5

        run(test)
