"""Dead letters may have tens of megabytes each: few of them are in memory at once, from the database to the files, and
to their topic.
"""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa

from airflow_kafka_offsets import DeadLetters
from airflow_kafka_offsets.core import chunks
from airflow_kafka_offsets.dead_letters import replay as replay_module
from airflow_kafka_offsets.dead_letters.replay import replay_dead_letters
from airflow_kafka_offsets.dead_letters.selection import DeadLetterFilter
from airflow_kafka_offsets.exceptions import LedgerError
from airflow_kafka_offsets.formats.simple_formats import Json
from airflow_kafka_offsets.kafka import producer
from airflow_kafka_offsets.ledger import dead_letters as ledger_dead_letters
from airflow_kafka_offsets.ledger.dead_letter_batches import Replayed
from airflow_kafka_offsets.ledger.tables import Tables
from airflow_kafka_offsets.staging.arrow_files import write_records
from tests.support.clients import Kafka, produce
from tests.support.loads import Loader, TopicFactory

pytestmark = pytest.mark.server

on_sqlite = pytest.mark.parametrize("engine", ["sqlite"], indirect=True)

LARGE = b'{"id": "%s"}' % (b"x" * 1_000)


@pytest.fixture
def kafka(log: Kafka) -> Kafka:
    return log


@on_sqlite
def test_few_are_held_at_once(inline_loader: Loader, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    loader, name, dead = inline_loader, topic(), topic()
    monkeypatch.setattr(chunks, "_BYTES", 2_500)
    fetched: list[int] = []
    sent: list[int] = []
    staged: list[int] = []

    def executed(conn: Any, cursor: Any, statement: str, parameters: Any, context: Any, *_: Any) -> None:
        if statement.startswith("SELECT") and "(?, ?, ?, ?)" in statement:
            fetched.append(statement.count("(?, ?, ?, ?)"))

    def written(*args: Any) -> Any:
        sent.append(len(args[2]))
        return write_to_topic(*args)

    def filed(directory: Any, index: int, records: Any) -> None:
        def noted(batch: pa.RecordBatch) -> pa.RecordBatch:
            staged.append(batch.num_rows)
            return batch

        write_to_file(directory, index, map(noted, records))

    write_to_topic, write_to_file = producer._written, write_records
    monkeypatch.setattr(producer, "_written", written)
    monkeypatch.setattr(replay_module, "write_records", filed)
    sa.event.listen(loader.engine, "before_cursor_execute", executed)
    produce(loader.kafka, name, [LARGE] * 7)
    loader(name, value_format=Json("id BIGINT"), on_bad_record=DeadLetters(topic=dead))
    with loader.engine.begin() as conn:
        conn.exec_driver_sql("DROP TABLE target")

    done = replay_dead_letters(
        DeadLetterFilter("loader"), loader.pipeline([name], value_format=Json("id STRING")), engine=loader.engine
    )

    assert done == [Replayed(1, 7, 7, 0, 2)]
    assert sent == staged == [3, 3, 1]
    # With the one that the load names in its log.
    assert fetched == [3, 3, 1, 1, 3, 3, 1]


@on_sqlite
def test_of_those_with_many_headers_few_are_held_at_once(
    inline_loader: Loader, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names, and that there is a header, take memory, too."""
    loader, name = inline_loader, topic()
    monkeypatch.setattr(chunks, "_BYTES", 60_000)
    held: list[int] = []

    def noted(records: Any, size: Any) -> Any:
        for some in chunks.chunks(records, size):
            held.append(len(some))
            yield some

    monkeypatch.setattr(replay_module, "chunks", noted)
    produce(loader.kafka, name, [b'{"id": "x"}'] * 6)
    loader(name, value_format=Json("id BIGINT"), on_bad_record=DeadLetters())
    with loader.engine.begin() as conn:
        conn.exec_driver_sql("UPDATE dead_letters SET headers = ?", (json.dumps([["", None]] * 100),))
        conn.exec_driver_sql("DROP TABLE target")

    replay_dead_letters(
        DeadLetterFilter("loader"), loader.pipeline([name], value_format=Json("id STRING")), engine=loader.engine
    )

    assert held == [3, 3]
    assert producer._bytes(producer.Outgoing(None, None, [("é", None)] * 100, [])) > 25_000


@on_sqlite
def test_one_that_is_larger_than_a_load_writes_is_named_and_not_read(
    inline_loader: Loader, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader, name = inline_loader, topic()
    produce(loader.kafka, name, [LARGE] * 2)
    loader(name, value_format=Json("id BIGINT"), on_bad_record=DeadLetters())
    monkeypatch.setattr(ledger_dead_letters, "_MOST_BYTES", 5_000)
    with loader.engine.begin() as conn:
        conn.exec_driver_sql("UPDATE dead_letters SET value = zeroblob(6000) WHERE offset_value = 1")
        conn.exec_driver_sql("DROP TABLE target")

    with pytest.raises(
        LedgerError, match=f"Dead letter at topic '{name}' partition 0 offset 1 of batch 1 has 6,0.. bytes"
    ):
        replay_dead_letters(DeadLetterFilter("loader"), loader.pipeline([name]), engine=loader.engine)


@pytest.mark.parametrize("engine", ["sqlite", "postgresql"], indirect=True)
@pytest.mark.parametrize("column", ["headers", "error"])
def test_texts_are_measured_in_bytes(
    inline_loader: Loader, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch, column: str
) -> None:
    """Also those that SQLite takes for empty."""
    loader, name = inline_loader, topic()
    produce(loader.kafka, name, [LARGE] * 2)
    loader(name, value_format=Json("id BIGINT"), on_bad_record=DeadLetters())
    monkeypatch.setattr(ledger_dead_letters, "_MOST_BYTES", 5_000)
    text = ("\0" if loader.engine.dialect.name == "sqlite" else "") + "😀" * 1_500
    dead_letters = Tables.of().dead_letters
    with loader.engine.begin() as conn:
        conn.execute(dead_letters.update().where(dead_letters.c.offset_value == 1).values({column: text}))

    with pytest.raises(LedgerError, match=r" offset 1 of batch 1 has [67],... bytes"):
        replay_dead_letters(
            DeadLetterFilter("loader"), loader.pipeline([name], value_format=Json("id BIGINT")), engine=loader.engine
        )
