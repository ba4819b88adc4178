"""The poll that all triggers of a cluster share: what it costs, and what it outlives."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
from collections import Counter
from typing import Any

import psutil
import pytest
import sqlalchemy as sa
from airflow.triggers.base import BaseTrigger
from asgiref.sync import async_to_sync

from airflow_kafka_offsets import StateTables
from airflow_kafka_offsets.hooks import connections
from airflow_kafka_offsets.hooks.metrics import emit_poll
from airflow_kafka_offsets.kafka.admin import RetryingAdmin
from airflow_kafka_offsets.lag import shared_poll
from airflow_kafka_offsets.lag.shared_poll import PollResult
from airflow_kafka_offsets.triggers import lag as module
from airflow_kafka_offsets.triggers.lag import KafkaLagEventTrigger, KafkaLagTrigger
from devstack.kafka import KafkaBroker
from devstack.postgres import PostgresServer
from devstack.process import wait_until
from devstack.topics import create_topic
from tests.support.clients import produce
from tests.support.command_line import database_connection, kafka_connection
from tests.support.inline import InlineLauncher
from tests.support.loads import Loader, TopicFactory, names
from tests.support.running_triggers import SECONDS, Looked, arguments, more_looks, run, running, until

pytestmark = pytest.mark.server


def test_airflow_is_asked_for_connections_in_the_loop_of_the_triggers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow 3.1 waits for the answer in another loop where its own cannot be found: the triggerer ends."""

    async def asks() -> Any:
        return asyncio.get_running_loop()

    for name in ("kafka_cluster", "database_engine"):
        monkeypatch.setattr(connections, name, lambda *_, **__: async_to_sync(asks)())

    async def test() -> None:
        loop = asyncio.get_running_loop()
        opened = module.prepare(KafkaLagTrigger(**arguments("any", min_lag=1)), loop)(ended=lambda: None)
        asked: list[Any] = [
            await asyncio.to_thread(opened.open_cluster),
            await asyncio.to_thread(opened.open_engine, "warehouse"),
        ]
        assert asked == [loop, loop]

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
            # A thousand looks are those of five polls, and of more where the machine is busy. Each alone would poll.
            assert 4 <= polls <= 200
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
            KafkaLagEventTrigger(
                **arguments(name, min_lag=5, conn_id="silent", state_tables=StateTables(prefix=f"of_{number}_"))
            )
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
