"""The job of the Spark application, and how it reaches the driver and the executors. The files that the application
writes are in `staging.directory`.

A submitted application gets its jobs and secrets as `spark.jobs` describes: no file, argument or variable holds them.

Executors get Kafka's configuration and the connections in two halves, each of which alone is random bytes. One half is
a file in the staging directory. The other is in the code that Spark sends to the executors, which Spark neither
authenticates nor encrypts by default: an eavesdropper learns no secret.
"""

from __future__ import annotations

import base64
import hashlib
import json
import pickle
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain
from typing import Any, Protocol

import pyarrow as pa

from airflow_kafka_offsets.core.offsets import Slice
from airflow_kafka_offsets.core.parameters import MAX_RECORD_BYTES
from airflow_kafka_offsets.exceptions import StagingError
from airflow_kafka_offsets.formats.record_format import Connections, RecordFormat
from airflow_kafka_offsets.staging.directory import StagingDirectory
from airflow_kafka_offsets.staging.rows import TargetColumns
from airflow_kafka_offsets.transforms.transform import BatchFunction, BatchTransform, DataFrameTransform, Transform
from airflow_kafka_offsets.writers.row_writer import ArrowWriter, RowWriter


@dataclass(frozen=True)
class StageJob:
    """One attempt to stage a batch.

    :param tasks: the slices of each Spark task, by the number of the task
    :param kafka_config: librdkafka configuration; holds secrets
    :param connections: those that the format names, and the storage of the sink; they hold secrets, too
    :param columns: of a decoded row
    :param transform: what `Transform.prepared` returned, or None
    :param target: the columns of the target, against which the result of the transform is checked
    :param fingerprint: a hash of everything that decides the rows; it is copied to the manifest
    :param staging_uri: an empty directory that belongs to this attempt alone
    :param writer: what writes the rows of a task, as the sink wants them
    :param python_path: directories in which the driver finds the transform
    :param has_dead_letters: whether a record that cannot be decoded becomes a dead letter, or fails the job
    :param max_dead_letters: the maximum in the batch, and so in each slice; None for any number
    :param span_ms: milliseconds since 1970 in UTC: only records at or after the first, and before the second unless it
        is None, are taken; None takes all
    :param max_record_bytes: of a record's key, value and headers; a larger record is a bad one
    :param every_offset: whether an offset without a record fails the job
    :param records_are_staged: whether the records are in the staging directory, and not in Kafka
    :param idle_timeout: seconds without a record or the end of the log after which a read fails
    :param decode_timeout: seconds that decoding and transforming a batch of records of a slice may take
    :param run: how many times Spark is asked to stage it, from 1
    :param isolated: the indexes of slices that are decoded in child processes
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
    every_offset: bool = False
    records_are_staged: bool = False
    decode_timeout: float = 300.0
    run: int = 1
    isolated: tuple[int, ...] = ()
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

    def batch_function(self) -> BatchFunction | None:
        """Return the function of the transform, if it runs where records are decoded. Called in Spark's tasks."""
        return None if self.batch_transform is None else self.batch_transform.function(self.columns)

    @property
    def dataframe_transform(self) -> DataFrameTransform | None:
        """The transform, if Spark SQL runs it."""
        return self.transform if isinstance(self.transform, DataFrameTransform) else None

    def isolating(self, slices: Iterable[Slice]) -> StageJob:
        """Return the job with slices that are decoded in child processes."""
        return replace(self, isolated=tuple(slice_.index for slice_ in slices))

    def to_text(self) -> str:
        """Return the job as a line, for the application, which has the same version of this package."""
        return base64.b64encode(pickle.dumps(self)).decode()

    @classmethod
    def from_text(cls, text: str) -> StageJob:
        """Return the job that `to_text` converted."""
        # The launcher wrote it, into a socket that only its owner can reach.
        job: StageJob = pickle.loads(base64.b64decode(text))  # noqa: S301
        return job


class Launcher(Protocol):
    """Stages one job after another on Spark.

    `spark.launchers`, `hooks.spark` and `hooks.spark_connect` implement it. A launcher knows nothing of positions and
    targets.
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


SECRETS_FILE = "kafka-config"

# The digest of the file is sent with the other half. Without random bytes before it, a guess at the configuration could
# be proved.
_SALT_BYTES = 32


@dataclass(frozen=True)
class SentJob:
    """A job as it is sent to executors, which combine Kafka's configuration and the connections from two halves.

    :param job: the job without them
    :param half: the half to combine with that of the file
    :param digest: the digest of the file, so that a writer in the staging directory cannot send the credentials to
        another broker
    """

    job: StageJob
    half: bytes = field(repr=False)
    digest: str

    def whole(self) -> StageJob:
        """Return the job with its secrets.

        :raises StagingError: the file is missing, or not as it was written
        """
        return replace(self.job, **_secrets(self.job.staging_uri, self.half, self.digest))


def split_job(job: StageJob) -> SentJob:
    """Return a job as it is sent to executors, and write the file that they need."""
    values = {"kafka_config": dict(job.kafka_config), "connections": dict(job.connections)}
    plain = secrets.token_bytes(_SALT_BYTES) + json.dumps(values).encode()
    half = secrets.token_bytes(len(plain))
    text = _combined(plain, half).hex()
    # The job may be sent again, into another session.
    StagingDirectory(job.staging_uri).write_again(SECRETS_FILE, text)
    return SentJob(replace(job, kafka_config={}, connections={}), half, _digest(text))


@lru_cache(maxsize=4)
def _secrets(staging_uri: str, half: bytes, digest: str) -> dict[str, Any]:
    try:
        text = StagingDirectory(staging_uri).read_text(SECRETS_FILE)
    except FileNotFoundError as error:
        raise StagingError(
            f"{SECRETS_FILE} is missing: {staging_uri} has to be a location that all machines share"
        ) from error
    if _digest(text) != digest:
        raise StagingError(f"{SECRETS_FILE} in {staging_uri} is not as it was written")
    values: dict[str, Any] = json.loads(_combined(bytes.fromhex(text), half)[_SALT_BYTES:])
    return values


def _combined(one: bytes, other: bytes) -> bytes:
    number = int.from_bytes(one, "big") ^ int.from_bytes(other, "big")
    return number.to_bytes(len(one), "big")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
