"""What is found out of a replay of dead letters into a target elsewhere that may have been interrupted, in cases of
their own.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from airflow_kafka_offsets import DeltaTable, Json
from airflow_kafka_offsets.dead_letters.replay import Replayed, replay_dead_letters
from airflow_kafka_offsets.dead_letters.selection import DeadLetterFilter
from airflow_kafka_offsets.exceptions import LedgerError
from airflow_kafka_offsets.ledger.published_dead_letters import (
    begin_publishing_dead_letters,
    finish_publishing_dead_letters,
)
from airflow_kafka_offsets.ledger.tables import Ledger
from airflow_kafka_offsets.sinks.lake.target import LakeTarget
from airflow_kafka_offsets.staging.refused import Record
from tests.support import fixtures
from tests.support.clients import Kafka, produce
from tests.support.lake import RUN, LakeGroup, dying
from tests.support.loads import Loader, TopicFactory, names

NARROW, WIDE = Json("id INT, name STRING"), Json("id BIGINT, name STRING")


@pytest.fixture
def kafka(log: Kafka) -> Kafka:
    return log


engine = fixtures.sqlite_engine


@pytest.fixture
def group(inline_loader: Loader, kafka: Kafka, topic: TopicFactory, tmp_path: Path) -> LakeGroup:
    """A topic of three records in a dataset of narrow columns; all but the first are dead letters."""
    uri = f"{tmp_path}/lake/orders"

    def read() -> pa.Table:
        return pa.table(deltalake.DeltaTable(uri).to_pyarrow_table())

    group = LakeGroup(inline_loader, topic(), DeltaTable(uri), read)
    produce(kafka, group.topic, [*names(0, 1), b"{not json", b"{not json either"])
    group.load(RUN, value_format=NARROW)
    return group


def replayed(group: LakeGroup, *values: bytes) -> list[Replayed]:
    """Replay the dead letters with corrected values."""
    corrected = {Record(group.topic, 0, offset): value for offset, value in enumerate(values, start=1)}
    pipeline = group.loader.pipeline([group.topic], sink=group.sink, value_format=WIDE)
    return replay_dead_letters(DeadLetterFilter("loader"), pipeline, engine=group.loader.engine, corrected=corrected)


def test_of_a_target_that_was_dropped_they_are_as_they_were(group: LakeGroup) -> None:
    with dying(LakeTarget, "after"):
        replayed(group, b'{"id": 1}', b'{"id": 2}')
    shutil.rmtree(group.sink.uri)  # type: ignore[attr-defined]

    assert replayed(group, b'{"id": 1}', b'{"id": 2}') == [Replayed(1, 2, 2, 0)]

    assert group.places() == [(1, 1), (1, 2)]


def test_an_attempt_whose_end_others_found_out_does_not_begin_again(
    group: LakeGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The target refuses one of its rows, so that it begins once more without the letter."""

    attempts = list[Any]()

    def begin(ledger: Ledger, *arguments: Any, **options: Any) -> None:
        begin_publishing_dead_letters(ledger, *arguments, **options)
        if not attempts:
            finish_publishing_dead_letters(ledger, group.sink.connect(group.loader.engine), "loader")
        attempts.append(arguments)

    with monkeypatch.context() as patch:
        patch.setattr("airflow_kafka_offsets.dead_letters.replay.begin_publishing_dead_letters", begin)
        with pytest.raises(LedgerError, match="replayed or removed by somebody else"):
            replayed(group, b'{"id": 1}', b'{"id": 5000000000}')

    assert group.proved() == (1, 2)
    assert replayed(group, b'{"id": 1}', b'{"id": 5000000000}') == [Replayed(1, 1, 1, 1)]
    assert group.places() == [(1, 0), (1, 1)]
    assert group.proved() == (2, 1)
