"""`DeadLetters.retention`: what old dead letters hold is deleted by later commits, a bounded number at a time; that
they were stays.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from airflow_kafka_offsets import DeadLetters, Reading
from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.ledger import dead_letters as dead_letters_module
from airflow_kafka_offsets.ledger.dead_letters import drop_expired, mark_sent
from airflow_kafka_offsets.ledger.tables import Ledger, Tables
from tests.support.clients import Kafka, produce
from tests.support.loads import Loader, TopicFactory, names, rows
from tests.support.verifying import LEFT_OUT, reread

pytestmark = pytest.mark.server

DEAD_LETTERS = "SELECT offset_value, error_class, value IS NULL FROM dead_letters ORDER BY 1"
RETENTION = timedelta(days=30)
TABLES = Tables()


@pytest.fixture
def kafka(log: Kafka) -> Kafka:
    return log


def age(engine: Engine, batch_id: int, days: float) -> None:
    """Let a batch be committed earlier."""
    batches = TABLES.offset_batches
    of_batch = batches.c.batch_id == batch_id
    with engine.begin() as conn:
        committed = conn.scalar(sa.select(batches.c.committed_at).where(of_batch))
        assert committed is not None
        conn.execute(batches.update().where(of_batch).values(committed_at=committed - timedelta(days=days)))


@pytest.fixture
def orders(inline_loader: Loader, topic: TopicFactory) -> str:
    """Three batches with a dead letter each, of which the first two are old."""
    name = topic()
    for _ in range(3):
        produce(inline_loader.kafka, name, [b"{"])
        inline_loader(name, **LEFT_OUT)
    age(inline_loader.engine, 1, 31)
    age(inline_loader.engine, 2, 30.5)
    return name


def load_one_more(loader: Loader, orders: str, **options: Any) -> None:
    produce(loader.kafka, orders, names(0, 1))
    loader(orders, **LEFT_OUT | options)


def test_a_later_commit_drops_what_is_older(inline_loader: Loader, orders: str) -> None:
    loader = inline_loader

    load_one_more(loader, orders)
    assert rows(loader.engine, DEAD_LETTERS) == [(offset, "value", False) for offset in range(3)]
    load_one_more(loader, orders, on_bad_record=DeadLetters(retention=RETENTION))

    assert rows(loader.engine, DEAD_LETTERS) == [(0, "dropped", True), (1, "dropped", True), (2, "value", False)]
    ((why,),) = rows(loader.engine, "SELECT error FROM dead_letters WHERE offset_value = 0")
    assert why.startswith("dropped at ")
    assert why.endswith(": older than DeadLetters.retention, 30 days, 0:00:00")
    assert reread(loader).dead_letters == 3


def test_retention_keeps_dead_letters_not_yet_sent_to_the_topic(inline_loader: Loader, orders: str) -> None:
    engine, batches = inline_loader.engine, TABLES.offset_batches
    with engine.begin() as conn:
        conn.execute(batches.update().where(batches.c.batch_id == 1).values(dead_letter_topic="dead"))

    with engine.begin() as conn:
        assert drop_expired(conn, TABLES, "loader", RETENTION) == 1
    assert rows(engine, DEAD_LETTERS) == [(0, "value", False), (1, "dropped", True), (2, "value", False)]

    mark_sent(Ledger(engine), 1, "dead")
    with engine.begin() as conn:
        assert drop_expired(conn, TABLES, "loader", RETENTION) == 1


def test_a_commit_drops_no_more_than_it_has_time_for(
    inline_loader: Loader, orders: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters_module, "_EXPIRED_AT_ONCE", 1)

    load_one_more(inline_loader, orders, on_bad_record=DeadLetters(retention=RETENTION))
    assert [error_class for _, error_class, _ in rows(inline_loader.engine, DEAD_LETTERS)].count("dropped") == 1
    load_one_more(inline_loader, orders, on_bad_record=DeadLetters(retention=RETENTION))
    load_one_more(inline_loader, orders, on_bad_record=DeadLetters(retention=RETENTION))

    assert [error_class for _, error_class, _ in rows(inline_loader.engine, DEAD_LETTERS)].count("dropped") == 2


def test_records_that_were_too_large_to_be_kept_are_not_in_the_way(inline_loader: Loader, topic: TopicFactory) -> None:
    loader, name = inline_loader, topic()
    produce(loader.kafka, name, [b"x" * 200])
    loader(name, reading=Reading(max_record_bytes=100), **LEFT_OUT)
    age(loader.engine, 1, 31)

    load_one_more(loader, name, on_bad_record=DeadLetters(retention=RETENTION))

    assert rows(loader.engine, DEAD_LETTERS) == [(0, "size", True)]


def test_other_groups_are_left_alone(inline_loader: Loader, orders: str, topic: TopicFactory) -> None:
    other = topic()
    produce(inline_loader.kafka, other, names(0, 1))

    inline_loader(other, group_id="other", on_bad_record=DeadLetters(retention=RETENTION))

    assert {error_class for _, error_class, _ in rows(inline_loader.engine, DEAD_LETTERS)} == {"value"}


def test_expired_dead_letters_are_found_by_an_index(inline_loader: Loader, orders: str) -> None:
    engine, statements = inline_loader.engine, list[tuple[str, Any]]()
    with engine.connect() as conn:
        sa.event.listen(conn, "before_cursor_execute", lambda *args: statements.append((args[2], args[3])))
        drop_expired(conn, TABLES, "loader", timedelta(days=1000))
        (query, parameters) = next(found for found in statements if "FROM dead_letters" in found[0])
        if engine.dialect.name == "postgresql":
            # Of a table this small a scan of all rows would be as good.
            conn.exec_driver_sql("SET enable_seqscan = off")
        explain = {"postgresql": "EXPLAIN", "sqlite": "EXPLAIN QUERY PLAN"}[engine.dialect.name]
        plan = str(conn.exec_driver_sql(f"{explain} {query}", parameters).all())
    assert "dead_letters_with_contents" in plan


@pytest.mark.parametrize("wrong", [timedelta(0), 30, "P30D"])
def test_retention_must_be_a_duration(inline_loader: Loader, orders: str, wrong: Any) -> None:
    with pytest.raises(
        ConfigurationError, match=r"DeadLetters\.retention must be a positive timedelta, or None to keep"
    ):
        inline_loader(orders, on_bad_record=DeadLetters(retention=wrong))
