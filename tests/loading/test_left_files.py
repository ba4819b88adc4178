"""A load looks after the files that attempts of earlier batches left in the storage of the target."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from airflow_kafka_offsets import Staging
from airflow_kafka_offsets.sinks.sink import Connections
from airflow_kafka_offsets.sinks.table import Table
from tests.support import fixtures
from tests.support.archive import Archive, ArchiveTable
from tests.support.clients import Kafka, produce
from tests.support.loads import Loader, TopicFactory, names, rows

ASKED: list[int] = []


@dataclass(frozen=True)
class FileArchive(Archive):
    """An archive of which attempts leave files.

    :param answers: whether the storage does
    """

    answers: bool = True

    @property
    def writes_files(self) -> bool:
        return True

    def connect(self, engine: Engine, connections: Connections | None = None) -> Table:
        return FileArchiveTable(self, engine)


class FileArchiveTable(ArchiveTable):
    """Its table."""

    def remove_leftovers(self, batch_id: int, before: datetime, installation: str) -> int:
        ASKED.append(batch_id)
        assert isinstance(self.sink, FileArchive)
        if not self.sink.answers:
            raise OSError("no route to host")
        return 1


@pytest.fixture
def loader(inline_loader: Loader) -> Loader:
    ASKED.clear()
    return inline_loader


engine = fixtures.sqlite_engine


def load(loader: Loader, name: str, retention: timedelta = timedelta(microseconds=1), **options: Any) -> None:
    # A directory of its own: with this retention a load removes what others stage beside it.
    staging = f"{loader.engine.url.database}-staging"
    produce(loader.kafka, name, names(0, 1))
    parameters: dict[str, Any] = {
        "sink": FileArchive("orders"),
        "staging": Staging(dir=staging, retention=retention),
    } | options
    loader(name, **parameters)


def unchecked(loader: Loader) -> list[tuple[Any, ...]]:
    return rows(loader.engine, "SELECT batch_id FROM offset_batches WHERE has_files_since IS NOT NULL ORDER BY 1")


def test_each_closed_batch_is_looked_after_once(loader: Loader, topic: TopicFactory) -> None:
    name = topic()
    load(loader, name)
    assert (ASKED, unchecked(loader)) == ([], [(1,)])
    load(loader, name)
    assert (ASKED, unchecked(loader)) == ([1], [(2,)])
    load(loader, name)
    assert ASKED == [1, 2]


def test_a_batch_that_was_closed_a_moment_ago_waits(loader: Loader, topic: TopicFactory) -> None:
    name = topic()
    for _ in range(2):
        load(loader, name, timedelta(days=7))
    assert (ASKED, unchecked(loader)) == ([], [(1,), (2,)])


def test_a_batch_that_is_planned_ahead_keeps_its_files(loader: Loader, topic: TopicFactory) -> None:
    name = topic()
    load(loader, name)
    with loader.engine.begin() as conn:
        conn.execute(sa.text("UPDATE offset_batches SET state = 'prefetched', committed_at = NULL"))
    load(loader, name)
    assert (ASKED, unchecked(loader)) == ([], [(1,), (2,)])


def test_a_storage_that_does_not_answer_fails_no_load(
    loader: Loader, topic: TopicFactory, caplog: pytest.LogCaptureFixture
) -> None:
    name = topic()
    for _ in range(2):
        load(loader, name, sink=FileArchive("orders", answers=False))
    assert unchecked(loader) == [(1,), (2,)]
    assert "of batch 1 left in archive://orders could not be removed: no route to host" in caplog.text


def test_a_target_without_files_is_not_asked(loader: Loader, kafka: Kafka, topic: TopicFactory) -> None:
    name = topic()
    load(loader, name, sink=Archive("orders"))
    assert unchecked(loader) == []
