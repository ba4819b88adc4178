"""Numbers of batches that a restored backup does not know, and that something else than a load uses again: a rewind, a
replay, a replay of dead letters.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from airflow_kafka_offsets import DeadLetters, OffsetBounds, replay
from airflow_kafka_offsets.dead_letters.replay import replay_dead_letters
from airflow_kafka_offsets.dead_letters.selection import DeadLetterFilter
from airflow_kafka_offsets.exceptions import OlderLedgerError
from airflow_kafka_offsets.rewinding.execution import abandon_batch
from airflow_kafka_offsets.sinks.sink import Sink
from airflow_kafka_offsets.staging.rows import Record
from airflow_kafka_offsets.verification.verify import verify
from tests.support import fixtures
from tests.support.clients import Kafka, produce
from tests.support.loads import Loader, TopicFactory, names
from tests.support.older_ledger import backup_of, restore, sinks
from tests.support.openings import ids
from tests.support.rewinds import TARGET, Rewinder

engine = fixtures.sqlite_engine

EVERY_SINK = pytest.mark.parametrize("kind", ["table", "fan-out", "delta", "iceberg", "iceberg-external", "parquet"])


@pytest.fixture
def kafka(log: Kafka) -> Kafka:
    """A log in memory."""
    return log


@dataclass
class Restored:
    """Group `loader`, whose first batch has offset 3 as a dead letter, with state tables from before its second one."""

    loader: Loader
    topic: str
    sink: Sink

    def load(self) -> None:
        self.loader(self.topic, sink=self.sink, on_bad_record=DeadLetters())

    def rewind(self) -> None:
        Rewinder(self.loader)("shift-by", -1)

    def rewind_and_replace(self) -> None:
        Rewinder(self.loader)("to-earliest", replace=self.sink)

    def replay(self) -> None:
        pipeline = self.loader.pipeline([self.topic], sink=self.sink, on_bad_record=DeadLetters())
        loader, bounds = self.loader, OffsetBounds({self.topic: {0: (0, 4)}})
        replay(
            pipeline, bounds, kafka_config=loader.config, engine=loader.engine, launcher=loader.launcher, replace=True
        )

    def replay_dead_letters(self) -> None:
        pipeline = self.loader.pipeline([self.topic], sink=self.sink)
        corrected = {1: {Record(self.topic, 0, 3): b'{"id": 3, "name": "corrected"}'}}
        replay_dead_letters(DeadLetterFilter("loader"), pipeline, engine=self.loader.engine, corrected=corrected)

    def lose(self, second: str) -> None:
        produce(self.loader.kafka, self.topic, [*names(0, 3), b"bad"])
        self.load()
        backup = backup_of(self.loader)
        produce(self.loader.kafka, self.topic, names(4, 3))
        getattr(self, second)()
        restore(self.loader, backup)

    def find_after(self, again: str) -> None:
        """Use the number again, and see that the next load finds the lost batch."""
        # It may be refused itself.
        with suppress(OlderLedgerError):
            getattr(self, again)()
        with pytest.raises(OlderLedgerError, match=r"holds rows of batch 2, which .* older backup than the table"):
            self.load()


@EVERY_SINK
@pytest.mark.parametrize("again", ["rewind", "rewind_and_replace", "replay", "replay_dead_letters"])
def test_a_lost_number_that_anything_but_a_load_uses_again_is_found(
    inline_loader: Loader, topic: TopicFactory, tmp_path: Path, kind: str, again: str
) -> None:
    group = Restored(inline_loader, topic(), sinks(tmp_path)[kind])
    group.lose("load")

    group.find_after(again)


@pytest.mark.parametrize("kind", ["delta", "iceberg-external"])
@pytest.mark.parametrize("again", ["rewind", "rewind_and_replace", "replay", "load"])
def test_a_lost_replay_of_dead_letters_is_found_in_an_external_target(
    inline_loader: Loader, topic: TopicFactory, tmp_path: Path, kind: str, again: str
) -> None:
    """Each is a series of publications of its own, whose name has the number that is used again."""
    group = Restored(inline_loader, topic(), sinks(tmp_path)[kind])
    group.lose("replay_dead_letters")

    group.find_after(again)


def test_the_advice_loads_each_record_once_although_a_lost_replay_replaced_rows(
    inline_loader: Loader, topic: TopicFactory
) -> None:
    group = Restored(inline_loader, topic(), TARGET)
    group.lose("replay")
    advice = r"delete the rows with _batch_id >= 2: .* then rewind to the lowest of these, with replace"
    with pytest.raises(OlderLedgerError, match=advice):
        group.load()

    with inline_loader.engine.begin() as conn:
        conn.exec_driver_sql("DELETE FROM target WHERE _batch_id >= 2")
    abandon_batch("loader", 2, engine=inline_loader.engine)
    group.rewind_and_replace()
    group.load()

    assert ids(inline_loader) == [0, 1, 2, 4, 5, 6]
    verify("loader", sink=group.sink, engine=inline_loader.engine, kafka_config=inline_loader.config)


@EVERY_SINK
def test_a_group_goes_on_after_everything_that_has_a_number(
    inline_loader: Loader, topic: TopicFactory, tmp_path: Path, kind: str
) -> None:
    group = Restored(inline_loader, topic(), sinks(tmp_path)[kind])
    produce(group.loader.kafka, group.topic, [*names(0, 3), b"bad"])
    group.load()
    for step in ("replay_dead_letters", "load", "replay", "load", "rewind_and_replace", "load", "load"):
        getattr(group, step)()
        produce(group.loader.kafka, group.topic, names(9, 1))
    verify("loader", sink=group.sink, engine=group.loader.engine, kafka_config=group.loader.config)
