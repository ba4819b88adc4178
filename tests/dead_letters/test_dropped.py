"""Dead letters whose contents were dropped are no tombstones: no replay writes them, and none says that they have
another error.
"""

from __future__ import annotations

from typing import Any

import pytest

from airflow_kafka_offsets.dead_letters import replay as replay_module
from airflow_kafka_offsets.dead_letters.replay import replay_dead_letters
from airflow_kafka_offsets.dead_letters.selection import DeadLetterFilter, drop_dead_letters
from airflow_kafka_offsets.exceptions import LedgerError
from airflow_kafka_offsets.formats.simple_formats import Json
from airflow_kafka_offsets.ledger.dead_letter_batches import Replayed
from airflow_kafka_offsets.loading.stage import stage
from airflow_kafka_offsets.staging.rows import Record
from tests.support.clients import Kafka, produce
from tests.support.loads import Loader, TopicFactory, rows
from tests.support.verifying import LEFT_OUT, reread

pytestmark = pytest.mark.server

# Also for tombstones.
WIDE = Json("id STRING, name STRING")
DEAD_LETTERS = "SELECT offset_value, error_class, value IS NULL FROM dead_letters ORDER BY 1"


@pytest.fixture
def kafka(log: Kafka) -> Kafka:
    return log


@pytest.fixture
def orders(inline_loader: Loader, topic: TopicFactory) -> str:
    """A topic with two records, of which a batch without any row made dead letters."""
    name = topic()
    produce(inline_loader.kafka, name, [b'{"id": "x"}', b"{"])
    inline_loader(name, value_format=Json("id BIGINT, name STRING"), **LEFT_OUT)
    with inline_loader.engine.begin() as conn:
        conn.exec_driver_sql("DROP TABLE target")
    return name


def drop(loader: Loader) -> None:
    drop_dead_letters(DeadLetterFilter("loader"), engine=loader.engine)


def replayed(loader: Loader, topic: str, corrected: Any = None, **of: Any) -> list[Replayed]:
    pipeline = loader.pipeline([topic], value_format=WIDE)
    return replay_dead_letters(DeadLetterFilter("loader", **of), pipeline, engine=loader.engine, corrected=corrected)


def test_their_class_may_be_named_and_they_stay(inline_loader: Loader, orders: str) -> None:
    loader = inline_loader
    drop(loader)
    corrected = {1: {Record(orders, 0, 0): b'{"id": "y"}'}}

    assert replayed(loader, orders, error_class="dropped") == []
    assert replayed(loader, orders, corrected, error_class="dropped") == []

    assert rows(loader.engine, DEAD_LETTERS) == [(0, "dropped", True), (1, "dropped", True)]
    reread(loader)


@pytest.mark.parametrize("offset", [0, 1])
def test_drop_during_a_replay_stays(
    inline_loader: Loader, orders: str, monkeypatch: pytest.MonkeyPatch, offset: int
) -> None:
    """The first would be good by now, the second is bad still."""
    loader = inline_loader

    def overtaken(*args: Any) -> Any:
        staged = stage(*args)
        drop(loader)
        return staged

    monkeypatch.setattr(replay_module, "stage", overtaken)
    value = (b'{"id": "y"}', b"[")[offset]
    if offset == 0:
        with pytest.raises(LedgerError, match=r"by another process meanwhile, or dropped\. Nothing of the batch was"):
            replayed(loader, orders, {1: {Record(orders, 0, offset): value}})
    else:
        assert replayed(loader, orders, {1: {Record(orders, 0, offset): value}}) == [Replayed(1, 0, 0, 1, 2)]

    assert rows(loader.engine, DEAD_LETTERS) == [(0, "dropped", True), (1, "dropped", True)]
    assert rows(loader.engine, "SELECT count(*) FROM target") == [(0,)]
