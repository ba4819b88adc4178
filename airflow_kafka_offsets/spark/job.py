"""The job of the Spark application, and its form as JSON. What the application leaves behind is in
`staging.directory`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import chain
from typing import Any, Protocol

import pyarrow as pa

from airflow_kafka_offsets.core.offsets import Slice
from airflow_kafka_offsets.core.parameters import MAX_RECORD_BYTES
from airflow_kafka_offsets.formats.record_format import Connections, RecordFormat, from_plain, to_plain
from airflow_kafka_offsets.staging.rows import TargetColumns, schema_of, schema_text
from airflow_kafka_offsets.transforms import transform as transforms
from airflow_kafka_offsets.transforms.transform import BatchTransform, DataFrameTransform, Transform
from airflow_kafka_offsets.writers import row_writer as writers
from airflow_kafka_offsets.writers.row_writer import ArrowWriter, RowWriter


@dataclass(frozen=True)
class StageJob:
    """One attempt to stage a batch.

    :param tasks: the slices of each Spark task, by the number of the task
    :param kafka_config: librdkafka configuration; holds secrets, and reaches the driver over the `job_socket`, and
        executors as `split_config` says
    :param connections: those that the format names, and the storage of the sink; they hold secrets, too
    :param columns: of a decoded row
    :param transform: what `Transform.prepared` returned, or None
    :param target: which columns the sink takes; the result of the transform is checked before anything is read
    :param fingerprint: of everything that decides what the rows are; it is copied to the manifest
    :param staging_uri: an empty directory that belongs to this attempt alone
    :param writer: what writes the rows of a task, as the sink wants them
    :param python_path: directories in which the driver finds the transform
    :param has_dead_letters: whether a record that cannot be decoded becomes a dead letter, or fails the job
    :param max_dead_letters: of the whole batch, so no slice needs more; None for any number
    :param span_ms: milliseconds since 1970 in UTC: only records at or after the first, and before the second unless it
        is None, are taken; None takes all
    :param max_record_bytes: of a record's key, value and headers; a larger record is a bad one
    :param records_are_staged: whether the records are in the staging directory, and not in Kafka
    :param idle_timeout: seconds after which a read fails that yields no record and does not reach the end of the log
    :param progress_interval: seconds between two lines of progress, and between two notes of a slice
    """

    batch_id: int
    group_id: str
    tasks: tuple[tuple[Slice, ...], ...]
    kafka_config: Mapping[str, Any] = field(repr=False)
    isolation_level: str
    record_format: RecordFormat
    columns: pa.Schema
    transform: Transform | None
    target: TargetColumns
    fingerprint: str
    staging_uri: str
    writer: RowWriter = field(default_factory=ArrowWriter)
    python_path: tuple[str, ...] = ()
    span_ms: tuple[int, int | None] | None = None
    idle_timeout: float = 120.0
    has_dead_letters: bool = False
    max_dead_letters: int | None = None
    max_record_bytes: int = MAX_RECORD_BYTES
    records_are_staged: bool = False
    progress_interval: float = 5.0
    connections: Connections = field(default_factory=dict, repr=False)

    @property
    def slices(self) -> tuple[Slice, ...]:
        """The slices of all tasks."""
        return tuple(chain.from_iterable(self.tasks))

    @property
    def offsets(self) -> int:
        """The number of offsets in all slices."""
        return sum(map(len, self.slices))

    @property
    def batch_transform(self) -> BatchTransform | None:
        """The transform, if it runs where records are decoded."""
        return self.transform if isinstance(self.transform, BatchTransform) else None

    @property
    def dataframe_transform(self) -> DataFrameTransform | None:
        """The transform, if Spark SQL runs it."""
        return self.transform if isinstance(self.transform, DataFrameTransform) else None

    def to_json(self) -> str:
        plain = {
            "tasks": [[asdict(slice_) for slice_ in task] for task in self.tasks],
            "record_format": to_plain(self.record_format),
            "transform": transforms.to_plain(self.transform),
            "writer": writers.to_plain(self.writer),
            "kafka_config": dict(self.kafka_config),
            "columns": schema_text(self.columns),
        }
        return json.dumps(vars(self) | plain)

    @classmethod
    def from_json(cls, text: str) -> StageJob:
        plain = json.loads(text)
        table, known, required, may_grow = plain["target"]
        plain["tasks"] = tuple(tuple(Slice(**fields) for fields in task) for task in plain["tasks"])
        plain["target"] = TargetColumns(table, None if known is None else tuple(known), tuple(required), may_grow)
        plain["transform"] = transforms.from_plain(plain["transform"])
        plain["writer"] = writers.from_plain(plain["writer"])
        plain["record_format"] = from_plain(plain["record_format"])
        plain["columns"] = schema_of(plain["columns"])
        plain["python_path"] = tuple(plain["python_path"])
        plain["span_ms"] = tuple(plain["span_ms"]) if plain["span_ms"] is not None else None
        return cls(**plain)


class Launcher(Protocol):
    """Stages one job after another on Spark.

    `session_launcher` and `hooks.spark` implement it. A launcher knows nothing of positions and targets.
    """

    def check(self, staging_dir: str | None) -> None:
        """Check, before anything is planned, that Spark can be launched and reach the staging directory.

        :raises ConfigurationError: something is missing; the message says what
        """

    def __call__(self, job: StageJob) -> None:
        """Stage a job, and raise an exception if that fails.

        The first call may start an application, which later calls use. It may come from another thread than the one
        that calls `cancel` or `close`. An error that the application left in the staging directory takes precedence
        over the exception.
        """

    def cancel(self) -> None:
        """Stop the job that is running, if there is one, and wait for nothing; the call that stages it raises.

        Airflow stops the task, or the batch before this one cannot be committed.
        """

    def close(self) -> None:
        """End the application, if one is running; no job is running. A later call starts another."""
