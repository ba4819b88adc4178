"""Loads that go on while a target is verified that commits before the state tables do."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import sqlalchemy as sa

from airflow_kafka_offsets import Limits
from airflow_kafka_offsets.verification.verify import verify
from tests.support.archive import ArchivedRows
from tests.support.clients import Kafka, produce
from tests.support.external_archive import ExternalArchive, ProcessDiedError
from tests.support.loads import BESIDE_OTHERS, Loader, TopicFactory, names

pytestmark = [
    pytest.mark.server,
    # In SQLite a reader would keep the load waiting.
    pytest.mark.parametrize("engine", ["postgresql"], indirect=True),
]


@pytest.fixture
def orders(topic: TopicFactory) -> str:
    return topic()


@pytest.fixture
def archive(tmp_path: Path) -> ExternalArchive:
    return ExternalArchive("orders", path=str(tmp_path / "elsewhere.db"))


def test_batches_that_loads_publish_meanwhile_are_not_violations(
    kafka: Kafka, inline_loader: Loader, orders: str, archive: ExternalArchive
) -> None:
    produce(kafka, orders, names(0, 5))
    inline_loader(orders, sink=archive)

    @dataclass(frozen=True)
    class Busy(ExternalArchive):
        """Has another batch before its rows are looked at."""

        def rows(self, conn: sa.Connection) -> ArchivedRows:
            produce(kafka, orders, names(5, 2))
            assert inline_loader(orders, sink=archive).batches == (2,)
            return super().rows(conn)

    coverage = verify("loader", sink=Busy(**vars(archive)), engine=inline_loader.engine)
    assert (coverage.rows, coverage.published) == (5, [])
    assert verify("loader", sink=archive, engine=inline_loader.engine).rows == 7


def test_nor_is_what_was_planned_ahead_and_another_group_loads(
    kafka: Kafka, inline_loader: Loader, orders: str, archive: ExternalArchive
) -> None:
    produce(kafka, orders, names(0, 6))
    with pytest.raises(ProcessDiedError):
        inline_loader(orders, sink=replace(archive, dies="after"), limits=Limits(max_records=3))

    @dataclass(frozen=True)
    class Busy(ExternalArchive):
        """Has the rest before its rows are looked at, and rows of another group."""

        def rows(self, conn: sa.Connection) -> ArchivedRows:
            assert inline_loader(orders, sink=archive, limits=Limits(max_records=3)).batches == (1, 2)
            with pytest.raises(ProcessDiedError):
                inline_loader(orders, sink=replace(archive, dies="after"), group_id="other", **BESIDE_OTHERS)
            return super().rows(conn)

    coverage = verify("loader", sink=Busy(**vars(archive)), engine=inline_loader.engine)
    assert (coverage.rows, coverage.published) == (0, [])
    assert verify("other", sink=archive, engine=inline_loader.engine).published == [3]
