"""A group that is loaded, rewound and proved, for the tests of rewinds."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest

from airflow_kafka_offsets.core.offsets import parse_scope
from airflow_kafka_offsets.exceptions import ConfigurationError, StagingError
from airflow_kafka_offsets.rewinding.execution import RewindResult, execute_rewind
from airflow_kafka_offsets.rewinding.preview import PartitionRewind, RewindPreview
from airflow_kafka_offsets.rewinding.previewing import preview_rewind
from airflow_kafka_offsets.rewinding.scenarios import Scenario
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from airflow_kafka_offsets.spark.job import StageJob
from airflow_kafka_offsets.verification.verify import verify
from tests.support.inline import InlineLauncher
from tests.support.loads import Loader, rows

TARGET = SqlTable("target")


@dataclass
class Rewinder:
    """Rewinds group `loader`, whose target is the table `target`."""

    loader: Loader
    group: str = "loader"

    def preview(self, name: str, value: object = None, *scopes: str, **options: Any) -> RewindPreview:
        """
        :param options: of `preview_rewind`
        """
        return preview_rewind(
            self.group,
            Scenario.of(name, value, group_id=self.group),
            engine=self.loader.engine,
            kafka_config=self.loader.config,
            scope=parse_scope(scopes),
            **options,
        )

    def execute(self, preview: RewindPreview, **options: Any) -> RewindResult:
        """
        :param options: of `execute_rewind`
        """
        return execute_rewind(preview, engine=self.loader.engine, **options)

    def __call__(self, name: str, value: object = None, *scopes: str, **options: Any) -> RewindResult:
        """Preview and execute.

        :param options: of both
        """
        of_preview = {
            one: options.pop(one) for one in ("isolation_level", "new_group", "new_cluster") if one in options
        }
        return self.execute(self.preview(name, value, *scopes, **of_preview), **options)

    def positions(self, topic: str) -> dict[int, int]:
        """Stored positions by partition."""
        found = rows(
            self.loader.engine,
            "SELECT partition, offset_value FROM consumed_offsets WHERE consumer_group = :group AND topic = :topic",
            group=self.group,
            topic=topic,
        )
        return {int(partition): int(offset) for partition, offset in found}

    def times(self, topic: str, partition: int = 0, table: str = "target") -> dict[int, int]:
        """How many rows there are of each offset, whichever group loaded it."""
        found = rows(
            self.loader.engine,
            f"SELECT _kafka_offset FROM {table} WHERE _kafka_topic = :topic AND _kafka_partition = :partition",
            topic=topic,
            partition=partition,
        )
        return dict(sorted(Counter(offset for (offset,) in found).items()))

    def gaps(self) -> list[tuple[int, int, int, str]]:
        """Partition, start, end and cause."""
        return [
            (partition, start, end, cause)
            for partition, start, end, cause in rows(
                self.loader.engine,
                "SELECT partition, start_offset, end_offset, cause FROM offset_gaps"
                " ORDER BY batch_id, partition, start_offset",
            )
        ]

    def history(self) -> list[tuple[Any, ...]]:
        """Number, kind and state of every batch of the group."""
        return rows(
            self.loader.engine,
            "SELECT batch_id, kind, state FROM offset_batches WHERE consumer_group = :group ORDER BY batch_id",
            group=self.group,
        )

    def prove(self) -> None:
        """Everything that the history says is loaded is there as often as it says; then every record of Kafka's is."""
        for config in (None, self.loader.config):
            verify(self.group, sink=TARGET, engine=self.loader.engine, kafka_config=config)


def once(*spans: tuple[int, int]) -> dict[int, int]:
    """Every offset of some spans, one time; two times where two spans have it."""
    return dict(sorted(Counter(offset for start, end in spans for offset in range(start, end)).items()))


def only(preview: RewindPreview) -> PartitionRewind:
    """The preview's one partition."""
    (one,) = preview.partitions
    return one


def left_open(rewinder: Rewinder, topic: str) -> int:
    """Have a load fail while it stages.

    :return: the number of its batch
    """

    class Fails(InlineLauncher):
        def __call__(self, job: StageJob) -> None:
            raise RuntimeError("no executor left")

    with pytest.raises(StagingError):
        Loader(rewinder.loader.kafka, rewinder.loader.engine, Fails())(topic)
    ((batch,),) = rows(rewinder.loader.engine, "SELECT max(batch_id) FROM offset_batches WHERE state = 'planned'")
    return int(batch)


def refused(name: str, value: object = None) -> str:
    """Return the message with which a scenario is refused."""
    with pytest.raises(ConfigurationError) as raised:
        Scenario.of(name, value)
    return str(raised.value)
