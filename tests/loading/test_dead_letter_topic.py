"""`DeadLetters.topic`: dead letters are written to a topic after the commit, at least once, with headers that say what
they are.
"""

from __future__ import annotations

import logging
import re
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_kafka_offsets import DeadLetters
from airflow_kafka_offsets.core.offsets import Slice
from airflow_kafka_offsets.dead_letters.replay import replay_dead_letters
from airflow_kafka_offsets.dead_letters.selection import DeadLetterFilter, drop_dead_letters
from airflow_kafka_offsets.exceptions import KAFKA, ConfigurationError, LedgerError, UnknownTopicError
from airflow_kafka_offsets.kafka import producer as kafka_producer
from airflow_kafka_offsets.kafka.producer import producer_config
from airflow_kafka_offsets.loading import after_commit
from airflow_kafka_offsets.replaying.replay import replay
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from devstack.topics import end_offsets
from tests.support.clients import Kafka, produce, producer
from tests.support.loads import Loader, TopicFactory, names, rows
from tests.support.reading import read_all
from tests.support.verifying import LEFT_OUT

pytestmark = pytest.mark.server

SENT = (
    "SELECT batch_id, dead_letter_topic, dead_letters_sent_at IS NOT NULL FROM offset_batches "
    "WHERE dead_letters > 0 ORDER BY 1"
)
BAD = b'{"id": "x"}'


@pytest.fixture
def kafka(log: Kafka) -> Kafka:
    return log


@pytest.fixture
def orders(topic: TopicFactory) -> str:
    return topic()


@pytest.fixture
def dead(topic: TopicFactory) -> str:
    return topic()


def records(kafka: Kafka, topic: str) -> list[dict[str, Any]]:
    """Key, value and headers of all records of a topic, and what its notes say."""
    end = end_offsets(kafka.bootstrap_servers, topic)[0]
    found = read_all(kafka, Slice(0, topic, 0, 0, end), with_headers=True)
    prefix = after_commit.PREFIX
    for record in found:
        headers = [(header["key"], header["value"]) for header in record["headers"]]
        notes = {name.removeprefix(prefix): value.decode() for name, value in headers if name.startswith(prefix)}
        record |= {"headers": [header for header in headers if not header[0].startswith(prefix)], "notes": notes}
    return found


def test_dead_letter_messages_have_the_record_and_its_error(inline_loader: Loader, orders: str, dead: str) -> None:
    loader, writer = inline_loader, producer(inline_loader.kafka)
    writer.produce(orders, BAD, key=b"k", partition=0, headers=[("h", b"\xff"), ("h", None)])
    writer.produce(orders, None, partition=0)
    assert writer.flush(30) == 0
    produce(loader.kafka, orders, names(0, 2))

    loader(orders, on_bad_record=DeadLetters(topic=dead))

    first, second = records(loader.kafka, dead)
    assert (first["key"], first["value"], first["headers"]) == (b"k", BAD, [("h", b"\xff"), ("h", None)])
    assert (second["key"], second["value"], second["headers"]) == (None, None, [])
    message = first["notes"].pop("message")
    assert "field 'id' is declared as BIGINT" in message
    where = {"group": "loader", "batch": "1", "topic": orders, "partition": "0", "class": "value"}
    assert first["notes"] == where | {"offset": "0"}
    assert second["notes"] == where | {"offset": "1", "message": second["notes"]["message"]}
    assert rows(loader.engine, SENT) == [(1, dead, True)]


def test_a_record_does_not_say_of_itself_what_is_wrong_with_it(inline_loader: Loader, orders: str, dead: str) -> None:
    writer = producer(inline_loader.kafka)
    forged = [(f"{after_commit.PREFIX}{name}", b"forged") for name in ("group", "offset", "more")]
    writer.produce(orders, BAD, partition=0, headers=[*forged, ("h", b"x")])
    assert writer.flush(30) == 0

    inline_loader(orders, on_bad_record=DeadLetters(topic=dead))

    (record,) = read_all(inline_loader.kafka, Slice(0, dead, 0, 0, 1), with_headers=True)
    assert b"forged" not in [header["value"] for header in record["headers"]]
    assert record["headers"][0] == {"key": "h", "value": b"x"}


@pytest.mark.parametrize("headers", ["{", "[1]", '[["a", 1]]', "[[1, null]]", '[["\\ud800", null]]', "[" * 100_000])
def test_headers_that_another_program_wrote_are_named(
    inline_loader: Loader, orders: str, dead: str, headers: str, caplog: pytest.LogCaptureFixture
) -> None:
    loader = inline_loader
    produce(loader.kafka, orders, [BAD])
    loader(orders, **LEFT_OUT)
    with loader.engine.begin() as conn:
        conn.execute(sa.text("UPDATE dead_letters SET headers = :headers"), {"headers": headers})

    with pytest.raises(LedgerError, match=f"topic '{orders}' partition 0 offset 0: its headers in the table dead_let"):
        replay_dead_letters(DeadLetterFilter("loader"), loader.pipeline([orders]), engine=loader.engine)
    loader(orders, on_bad_record=DeadLetters(topic=dead))

    assert rows(loader.engine, "SELECT consumer_group FROM dead_letters") == [("loader",)]


def test_a_misspelt_topic_of_dead_letters_is_found_before_there_are_any(
    inline_loader: Loader, orders: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A first load is refused, as for a misspelt topic of records, and leaves no group; a later one is warned."""
    produce(inline_loader.kafka, orders, names(0, 2))
    advice = r"Create the topic of DeadLetters\(topic='missing'\), or correct its name: Kafka at .* has no"
    with pytest.raises(UnknownTopicError, match=f"{advice} topic 'missing'") as refused:
        inline_loader(orders, on_bad_record=DeadLetters(topic="missing"))
    assert refused.value.about == (KAFKA,)
    with pytest.raises(UnknownTopicError, match=f"{advice} topic 'missing', topic 'wrong'"):
        inline_loader("wrong", on_bad_record=DeadLetters(topic="missing"))
    assert rows(inline_loader.engine, "SELECT group_id FROM consumer_groups") == []
    inline_loader(orders)

    produce(inline_loader.kafka, orders, names(2, 1))
    assert inline_loader(orders, on_bad_record=DeadLetters(topic="missing")).rows == 1

    (warning,) = [record.message for record in caplog.records if "dead letters" in record.message]
    assert re.match(f"New dead letters of group 'loader' stay in the state tables. {advice}", warning)
    assert rows(inline_loader.engine, "SELECT dead_letter_topic FROM offset_batches") == [(None,), (None,)]


def test_next_run_sends_dead_letters_of_a_killed_process(
    inline_loader: Loader, orders: str, dead: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between COMMIT and the first record, and after the last record before it is noted."""
    loader, topics = inline_loader, DeadLetters(topic=dead)

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    produce(loader.kafka, orders, [BAD])
    for name in ("send", "mark_sent"):
        with monkeypatch.context() as patched:
            patched.setattr(after_commit, name, killed)
            with pytest.raises(KeyboardInterrupt):
                loader(orders, on_bad_record=topics)
        assert rows(loader.engine, SENT) == [(1, dead, False)]

    loader(orders, on_bad_record=topics)
    loader(orders, on_bad_record=topics)

    # Once before the mark, and once more.
    assert [record["notes"]["offset"] for record in records(loader.kafka, dead)] == ["0", "0"]
    assert rows(loader.engine, SENT) == [(1, dead, True)]


def test_dropped_dead_letters_are_not_sent(inline_loader: Loader, orders: str, dead: str) -> None:
    loader = inline_loader
    loader(orders)
    produce(loader.kafka, orders, [BAD])
    loader(orders, on_bad_record=DeadLetters(topic="missing"))
    with loader.engine.begin() as conn:
        conn.execute(sa.text("UPDATE offset_batches SET dead_letter_topic = :dead"), {"dead": dead})
    drop_dead_letters(DeadLetterFilter("loader"), engine=loader.engine)

    loader(orders, on_bad_record=DeadLetters(topic=dead))

    assert records(loader.kafka, dead) == []
    assert rows(loader.engine, SENT) == [(2, dead, True)]


@pytest.mark.parametrize("real", [False, pytest.param(True, marks=pytest.mark.broker)])
def test_a_topic_that_does_not_exist_is_named_and_nothing_is_undone(
    inline_loader: Loader, orders: str, caplog: pytest.LogCaptureFixture, real: bool
) -> None:
    loader = inline_loader
    loader(orders)
    produce(loader.kafka, orders, [*names(0, 1), BAD])

    result = loader(orders, on_bad_record=DeadLetters(topic="missing"))

    assert (result.rows, result.dead_letters) == (1, 1)
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "of group 'loader' are not written to topic 'missing', and stay in the table" in record.message
    assert "topic 'missing' of Kafka at " in record.message
    assert "it does not exist, or this user may not describe it. Create it, or correct the name" in record.message
    assert rows(loader.engine, SENT) == [(2, "missing", False)]


def test_a_replay_sends_those_of_its_batch(inline_loader: Loader, orders: str, dead: str) -> None:
    loader = inline_loader
    produce(loader.kafka, orders, [BAD])
    loader(orders, **LEFT_OUT)

    replay(
        loader.pipeline([orders], sink=SqlTable("elsewhere"), on_bad_record=DeadLetters(topic=dead)),
        {orders: {0: (0, 1)}},
        kafka_config=loader.config,
        engine=loader.engine,
        launcher=loader.launcher,
    )

    assert [record["notes"]["batch"] for record in records(loader.kafka, dead)] == ["2"]


def test_a_topic_that_is_loaded_is_refused(inline_loader: Loader, orders: str) -> None:
    with pytest.raises(ConfigurationError, match=r"DeadLetters\.topic must not be one of the loaded topics"):
        inline_loader(orders, on_bad_record=DeadLetters(topic=orders))


def test_the_connection_does_not_weaken_the_producer() -> None:
    given = {
        "bootstrap.servers": "b:9092",
        "acks": 0,
        "transactional.id": "t",
        "compression.type": "zstd",
        "retries": 0,
    }

    assert producer_config(given) == {
        "bootstrap.servers": "b:9092",
        "compression.type": "zstd",
        "message.max.bytes": 1_000_000_000,
        "acks": "all",
        "enable.idempotence": True,
        "allow.auto.create.topics": False,
        "delivery.timeout.ms": 30_000,
    }


@pytest.mark.broker
@pytest.mark.parametrize("engine", ["sqlite"], indirect=True)
def test_a_record_that_the_topic_does_not_take_leaves_its_contents_out(
    inline_loader: Loader, orders: str, topic: TopicFactory, caplog: pytest.LogCaptureFixture
) -> None:
    loader, small = inline_loader, topic(max_message_bytes=3_000)
    large = b'{"id": "%s"}' % (b"x" * 4_000)
    produce(loader.kafka, orders, [BAD, large, BAD])
    loader(orders, on_bad_record=DeadLetters(topic=small))

    found = {record["notes"]["offset"]: record for record in records(loader.kafka, small)}

    assert {offset: record["value"] for offset, record in found.items()} == {"0": BAD, "1": None, "2": BAD}
    assert [record["notes"].get("contents") for record in found.values()].count("left out") == 1
    assert "1 dead letter was written of batch 1 without key, value and headers" in caplog.text
    assert rows(loader.engine, SENT) == [(1, small, True)]


def test_a_record_with_more_headers_than_readers_see_leaves_its_contents_out(
    inline_loader: Loader, orders: str, dead: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_producer, "_MOST_HEADERS", 8)
    writer = producer(inline_loader.kafka)
    for count in (1, 2):
        writer.produce(orders, BAD, partition=0, headers=[("a", b"")] * count)
    assert writer.flush(30) == 0
    inline_loader(orders, on_bad_record=DeadLetters(topic=dead))

    found = {record["notes"]["offset"]: record for record in records(inline_loader.kafka, dead)}

    assert {offset: record["value"] for offset, record in found.items()} == {"0": BAD, "1": None}
    assert found["1"]["notes"]["contents"] == "left out"


def test_dead_letters_go_to_the_topic_that_the_task_names(
    inline_loader: Loader, orders: str, dead: str, topic: TopicFactory
) -> None:
    """Whatever the state tables name: a topic that was misspelt, or one that somebody else reads."""
    loader, foreign = inline_loader, topic()
    loader(orders)
    produce(loader.kafka, orders, [BAD])
    loader(orders, on_bad_record=DeadLetters(topic="missing"))
    produce(loader.kafka, orders, [BAD])
    loader(orders, on_bad_record=DeadLetters(topic="missing"))
    with loader.engine.begin() as conn:
        conn.execute(
            sa.text("UPDATE offset_batches SET dead_letter_topic = :topic WHERE batch_id = 3"), {"topic": foreign}
        )

    loader(orders, on_bad_record=DeadLetters(topic=dead))

    assert [record["notes"]["batch"] for record in records(loader.kafka, dead)] == ["2", "3"]
    assert records(loader.kafka, foreign) == []
    assert rows(loader.engine, SENT) == [(2, dead, True), (3, dead, True)]
