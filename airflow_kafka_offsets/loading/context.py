"""What the steps share that load batches, and what they report: each batch to `on_commit`, the sum of them to the
caller.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, ClassVar, NamedTuple, Self

import pyarrow as pa
from sqlalchemy.engine import Engine

from airflow_kafka_offsets.core import log_identity
from airflow_kafka_offsets.core.offsets import Slice
from airflow_kafka_offsets.core.slices import split
from airflow_kafka_offsets.database.rights import check_rights
from airflow_kafka_offsets.formats.record_format import Connections
from airflow_kafka_offsets.kafka.cluster import Cluster
from airflow_kafka_offsets.ledger.batch_rows import Batch, Recipe
from airflow_kafka_offsets.ledger.install import create_missing
from airflow_kafka_offsets.ledger.publications import Publication
from airflow_kafka_offsets.ledger.tables import Ledger
from airflow_kafka_offsets.loading.pipeline import Pipeline
from airflow_kafka_offsets.loading.refused import refused_dead_letters
from airflow_kafka_offsets.loading.target_checks import TargetChecks
from airflow_kafka_offsets.sinks.table import Table
from airflow_kafka_offsets.spark.job import Launcher
from airflow_kafka_offsets.staging.directory import StagingDirectory
from airflow_kafka_offsets.staging.rows import StagedRows, TargetColumns


class Commit(NamedTuple):
    """A committed batch.

    :param kind: `load` or `replay`
    :param records: number of loaded records by topic, dead letters included
    :param dead_letters: number of dead-lettered records by topic
    :param rows: number of written rows
    :param duration: from planning the batch, or from where this attempt resumed it, to the end of the commit
    """

    group_id: str
    kind: str
    records: Mapping[str, int]
    dead_letters: Mapping[str, int]
    rows: int
    duration: timedelta


OnCommit = Callable[[Commit], None]


@dataclass(frozen=True, slots=True)
class LoadResult:
    """What a load or a replay did.

    :param batches: the ids of the committed batches, in order; the first may be an open batch that another run planned
    :param records: how many records were read, dead letters included
    :param rows: how many rows were written
    :param dead_letters: how many records were dead-lettered
    :param complete: False where the time budget was used up before everything was loaded
    """

    batches: tuple[int, ...] = ()
    records: int = 0
    rows: int = 0
    dead_letters: int = 0
    complete: bool = True

    def __add__(self, other: LoadResult) -> LoadResult:
        """Return the sum of two results, the earlier one first."""
        return LoadResult(
            self.batches + other.batches,
            self.records + other.records,
            self.rows + other.rows,
            self.dead_letters + other.dead_letters,
            self.complete and other.complete,
        )


@dataclass(frozen=True, kw_only=True)
class BatchContext(ABC):
    """What stages and commits batches, wherever their records are.

    :param columns: of a decoded row, with those that say which record it came from
    :param table: the target
    :param target: its columns
    :param recipe: how rows are made; its fingerprint is a hash of everything that decides which rows a range becomes
    :param checks: of the target, which a load makes once
    :param on_commit: called after each commit
    :param replace: whether a commit first removes what earlier batches wrote of the same offsets
    :param connections: of the formats; they hold secrets
    """

    records_are_staged: ClassVar[bool] = False
    """Whether `slices` writes the records into the staging directory."""

    pipeline: Pipeline
    ledger: Ledger
    launcher: Launcher
    table: Table
    columns: pa.Schema
    target: TargetColumns
    recipe: Recipe
    checks: TargetChecks
    on_commit: OnCommit | None = None
    replace: bool = False
    connections: Connections = field(default_factory=dict, repr=False)
    kafka_config: Mapping[str, Any] = field(default_factory=dict, repr=False)  # holds secrets, too

    def publication(self, batch: Batch, kind: str, attempt: str = "") -> Publication:
        """Return a batch on its way into the target; see `Publication.of`."""
        return Publication.of(self.ledger, self.table, batch, kind, attempt)

    @abstractmethod
    def slices(self, batch: Batch, directory: StagingDirectory) -> Sequence[Slice]:
        """Return the slices that Spark reads of a batch, after writing their records if they are not in Kafka."""

    @abstractmethod
    def check_logs(self, batch: Batch) -> None:
        """Check that the records of a batch are still those that it was planned for.

        :raises TopicRecreatedError: a topic was created again
        :raises LogTruncatedError: a log was truncated
        """

    @abstractmethod
    def refused_dead_letters(self, batch: Batch, rows: StagedRows) -> Iterator[pa.RecordBatch]:
        """Yield dead letters of the records that the target refuses.

        :return: record batches with the columns of `staging.dead_letters.SCHEMA`
        """

    @classmethod
    def connect(
        cls, pipeline: Pipeline, columns: pa.Schema, engine: Engine, connections: Connections | None, **others: Any
    ) -> Self:
        """Connect to the target, and create it where it is missing.

        :param columns: what `Pipeline.check` returned
        :param others: the other fields
        """
        ledger, table = Ledger(engine, pipeline.tables), pipeline.sink.connect(engine, connections)
        return cls(
            pipeline=pipeline,
            ledger=ledger,
            table=table,
            columns=columns,
            target=table.prepare(pipeline.result_columns(columns), may_grow=pipeline.adds_columns),
            recipe=Recipe(pipeline.sink.name, pipeline.transform_name, pipeline.fingerprint(columns)),
            checks=TargetChecks(ledger, table, pipeline.adds_columns),
            connections=connections or {},
            **others,
        )


@dataclass(frozen=True, kw_only=True)
class LoadContext(BatchContext):
    """A load or a replay that is ready to run: its records are in Kafka."""

    cluster: Cluster
    cluster_id: str

    def slices(self, batch: Batch, directory: StagingDirectory) -> Sequence[Slice]:
        """Return the slices that Spark reads of a batch."""
        return split(batch.ranges, self.pipeline.staging.slice_offsets, writes_files=self.pipeline.sink.writes_files)

    def check_logs(self, batch: Batch) -> None:
        """Check that no topic of a batch is another one by now, and that no log was truncated before its ranges."""
        log_identity.check_ranges(batch.ranges, self.cluster.logs(sorted({range_.topic for range_ in batch.ranges})))

    def refused_dead_letters(self, batch: Batch, rows: StagedRows) -> Iterator[pa.RecordBatch]:
        """Yield dead letters of the records that the target refuses, as Kafka holds them."""
        return refused_dead_letters(self.pipeline, self.cluster, self.kafka_config, batch, rows)

    @classmethod
    def prepare(
        cls,
        pipeline: Pipeline,
        columns: pa.Schema,
        *,
        kafka_config: Mapping[str, Any],
        engine: Engine,
        launcher: Launcher,
        on_commit: OnCommit | None,
        replace: bool = False,
        connections: Connections | None = None,
    ) -> LoadContext:
        """Ask Kafka for its cluster, and create the state tables and the target where they are missing.

        :param columns: what `Pipeline.check` returned
        """
        cluster = Cluster(kafka_config, isolation_level=pipeline.reading.isolation_level)
        cluster_id = cluster.cluster_id()
        ledger = Ledger(engine, pipeline.tables)
        create_missing(ledger)
        if pipeline.dead_letters is not None and pipeline.dead_letters.retention is not None:
            with ledger.connect() as conn:
                check_rights(conn, ledger.tables.dead_letters, ("UPDATE",), "drop old dead letters of table {table!r}")
        others = {"launcher": launcher, "on_commit": on_commit, "replace": replace, "kafka_config": kafka_config}
        return cls.connect(pipeline, columns, engine, connections, cluster=cluster, cluster_id=cluster_id, **others)
