"""Staging as the worker sees it: making a job of a batch, launching it, and judging what it left behind."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex
from typing import Any, Protocol

import pyarrow as pa

from airflow_kafka_offsets.exceptions import ConfigurationError, KafkaOffsetsError, RecordError, StagingError
from airflow_kafka_offsets.ledger import Batch, RangeRead
from airflow_kafka_offsets.offsets import TopicPartition, split
from airflow_kafka_offsets.pipeline import Pipeline
from airflow_kafka_offsets.schema import spark_ddl
from airflow_kafka_offsets.spark.application import failure, load_transform, transform_code
from airflow_kafka_offsets.spark.job import MANIFEST, Manifest, SliceRead, StageJob, TargetColumns
from airflow_kafka_offsets.spark.staging import StagingDirectory

log = logging.getLogger(__name__)

_UNREADABLE = (
    OSError,  # the store does not answer, or not to this user
    pa.ArrowException,  # a scheme that pyarrow does not know, or was built without
    ValueError,  # half a manifest, or one that names files elsewhere
    KeyError,  # a manifest of another version of this package
    TypeError,  # the same
    StagingError,  # a manifest of another batch, or of other offsets
)
"""What reading an earlier attempt's files raises where they cannot be used."""

# The names that `make_directory` gives. Directories of any other name are somebody else's.
_ATTEMPT = re.compile(r"batch-([0-9]+)-[0-9a-f]{32}")
# Slices below this part of the largest are small.
_SMALL = 8


class Launcher(Protocol):
    """Runs the Spark application for a job, and returns when it has ended."""

    def check(self, staging_dir: str | None) -> None:
        """Find out, before anything is planned, whether Spark can be launched and reach the staging directory.

        :raises ConfigurationError: what is missing
        """

    def __call__(self, job: StageJob) -> None:
        """Stage a job; raise where that fails."""


@dataclass(frozen=True, slots=True)
class Staged:
    """A batch whose rows are complete in a directory."""

    directory: StagingDirectory
    manifest: Manifest
    reads: Mapping[TopicPartition, RangeRead]

    @property
    def records(self) -> int:
        return sum(read.records or 0 for read in self.reads.values())

    @property
    def dead_letters(self) -> int:
        return sum(read.dead_letters for read in self.reads.values())


def find(batch: Batch, wanted: str) -> Staged | None:
    """Return what an earlier try staged, where it can be committed as it is.

    :param wanted: the fingerprint of the pipeline as it is now
    """
    if batch.state != "staged" or batch.staging_uri is None:
        return None
    try:
        return _found(batch, StagingDirectory(batch.staging_uri), wanted)
    except _UNREADABLE as error:
        log.warning(
            "What an earlier try staged of batch %d in %s cannot be read: staging it anew: %s: %s",
            batch.batch_id,
            batch.staging_uri,
            type(error).__name__,
            error,
        )
        return None


def _found(batch: Batch, directory: StagingDirectory, wanted: str) -> Staged | None:
    if not directory.exists(MANIFEST):  # staged on another machine, or tidied away
        return None
    found = _staged(directory, batch)
    if found.manifest.fingerprint != wanted:
        log.warning("Batch %d was staged with other columns, or another transform: staging it anew", batch.batch_id)
        return None
    if not _holds_files(directory, found.manifest):
        log.warning("Files of batch %d are missing in %s: staging it anew", batch.batch_id, directory.uri)
        return None
    return found


def _holds_files(directory: StagingDirectory, manifest: Manifest) -> bool:
    dead_letters = (read.dead_letters_file for read in manifest.reads)
    return all(directory.holds(file.name, file.bytes) for file in manifest.files) and all(
        directory.exists(name) for name in dead_letters if name is not None
    )


def fingerprint(pipeline: Pipeline, columns: pa.Schema) -> str:
    """Of everything in a pipeline that decides what the rows of a range are, the transform's code included."""
    decides = [
        pipeline.value_format.kind,
        spark_ddl(columns),
        pipeline.isolation_level,
        pipeline.transform,
        pipeline.on_bad_record,
    ]
    digest = hashlib.sha256(repr(decides).encode())
    if pipeline.transform is not None:
        for source in _source_files(pipeline.transform):
            digest.update(source.read_bytes())
    return digest.hexdigest()


def _source_files(transform: str) -> list[Path]:
    """Return the files with the code of a transform: where it is defined, and where its name is if that is another module.

    :param transform: its import path
    """
    code = transform_code(load_transform(transform))
    modules = dict.fromkeys([getattr(code, "__module__", None), transform.rpartition(".")[0]])
    found = [getattr(sys.modules.get(name), "__file__", None) for name in modules if name is not None]
    # A module of an extension is no text, but its bytes decide as much. One that is built in has no file.
    return [Path(file) for file in found if file is not None]


def make_directory(batch: Batch, staging_dir: str | None) -> StagingDirectory:
    """A new directory for one attempt, with a name that nobody can guess."""
    directory = staging_root(staging_dir).child(f"batch-{batch.batch_id}-{token_hex(16)}")
    directory.create()
    return directory


def staging_root(staging_dir: str | None) -> StagingDirectory:
    """Where the directories of attempts are made.

    :param staging_dir: None is a directory of the user's on this machine
    """
    return StagingDirectory(staging_dir or str(_own_directory()))


def make_job(
    pipeline: Pipeline,
    kafka_config: Mapping[str, Any],
    batch: Batch,
    columns: pa.Schema,
    target: TargetColumns,
    directory: StagingDirectory,
    wanted: str,
) -> StageJob:
    """All that the Spark application needs to know, as plain data.

    :param wanted: the fingerprint of the pipeline
    """
    return StageJob(
        batch_id=batch.batch_id,
        group_id=batch.group_id,
        slices=tuple(split(batch.ranges, pipeline.slice_offsets)),
        kafka_config=kafka_config,
        isolation_level=pipeline.isolation_level,
        value_format=pipeline.value_format.kind,
        columns=columns,
        columns_ddl=spark_ddl(columns),
        transform=pipeline.transform,
        target=target,
        fingerprint=wanted,
        staging_uri=directory.uri,
        # A transform may live beside the DAG file, in a folder that only this process was told of.
        python_path=tuple(path for path in sys.path if path) if pipeline.transform else (),
        idle_timeout=pipeline.idle_timeout.total_seconds(),
        on_bad_record=pipeline.on_bad_record,
        max_dead_letters=pipeline.max_dead_letters,
        task_offsets=pipeline.slice_offsets // _SMALL,
    )


def launch(launcher: Launcher, job: StageJob, batch: Batch, directory: StagingDirectory) -> Staged:
    """Run the application, and check that it staged what was planned.

    :raises KafkaOffsetsError: what the application reports; RecordError, for example, for a record that does not decode
    :raises ConfigurationError: Spark's Python lacks what it needs
    :raises StagingError: it failed without a report, or staged something else
    """
    if not job.slices:
        # Nothing but a gap to record: no Spark for that.
        directory.write_text(MANIFEST, Manifest(batch.batch_id, job.fingerprint, (), ()).to_json())
        return _staged(directory, batch)
    try:
        launcher(job)
    except KafkaOffsetsError:
        raise
    except Exception as error:
        reported = _reported(directory)
        if reported is not None:
            raise reported from error
        raise failure(batch.batch_id, error) from error
    return _staged(directory, batch)


def batch_of_directory(root: StagingDirectory, uri: str) -> int | None:
    """Return the batch of which a directory below a root holds an attempt.

    :return: its id, or None for any directory that no attempt made there: such must never be deleted
    """
    name = uri.partition("?")[0].rpartition("/")[2]
    attempt = _ATTEMPT.fullmatch(name)
    return int(attempt.group(1)) if attempt is not None and root.child_uri(name) == uri else None


def remove_attempt(batch_id: int, uri: str, staging_dir: str | None) -> None:
    """Remove the directory of an attempt to stage a batch.

    Its URI may come from the state tables, which other users may be allowed to change: only a directory of this batch below the
    root of this load is deleted.

    :param staging_dir: where the load stages batches now
    """
    root = staging_root(staging_dir)
    if batch_of_directory(root, uri) != batch_id:
        log.warning(
            "The staging directory %s of batch %d is left as it is: it is not a directory of this batch in %s, where this load "
            "stages. A load with its staging_dir removes it after staging_retention",
            uri,
            batch_id,
            root.uri,
        )
        return
    remove(StagingDirectory(uri))


def remove(directory: StagingDirectory) -> None:
    """Remove a directory that no batch needs; log a warning where it cannot be removed now."""
    try:
        directory.remove()
    except OSError as error:
        log.warning("The staging directory %s could not be removed: %s", directory.uri, error)


def _own_directory() -> Path:
    """Return a directory below the system's temporary one that belongs to this user alone.

    :raises ConfigurationError: another user made it first
    """
    # By number: containers run with any uid, which need not have a name.
    directory = Path(tempfile.gettempdir()) / f"airflow-kafka-offsets-{os.getuid()}"
    directory.mkdir(mode=0o700, exist_ok=True)
    found = directory.lstat()
    if found.st_uid != os.getuid() or found.st_mode & 0o022 or directory.is_symlink():
        raise ConfigurationError(
            f"The staging directory {directory} belongs to another user, or others may write to it; set staging_dir"
        )
    return directory


def _staged(directory: StagingDirectory, batch: Batch) -> Staged:
    manifest = Manifest.from_json(directory.read_text(MANIFEST))
    if manifest.batch_id != batch.batch_id:
        raise StagingError(f"{directory.uri} holds batch {manifest.batch_id}, not batch {batch.batch_id}")
    return Staged(directory, manifest, _range_reads(manifest, batch))


def _range_reads(manifest: Manifest, batch: Batch) -> dict[TopicPartition, RangeRead]:
    """What the slices of each range showed together.

    :raises StagingError: the slices that were read are not exactly the planned ranges
    """
    slices: dict[TopicPartition, list[SliceRead]] = {}
    for read in sorted(manifest.reads, key=lambda read: (read.topic, read.partition, read.start)):
        slices.setdefault(TopicPartition(read.topic, read.partition), []).append(read)
    reads: dict[TopicPartition, RangeRead] = {}
    for one in batch.ranges:
        if not len(one):
            continue
        of_range = slices.pop(one.topic_partition, [])
        bounds = [one.start, *(read.end for read in of_range)]
        if [read.start for read in of_range] != bounds[:-1] or bounds[-1] != one.end:
            raise StagingError(f"Batch {batch.batch_id}: {one} was planned, other offsets were staged: {of_range}")
        counts = [read.records for read in of_range]
        firsts = [read.first_timestamp_ms for read in of_range if read.first_timestamp_ms is not None]
        lasts = [read.last_timestamp_ms for read in of_range if read.last_timestamp_ms is not None]
        reads[one.topic_partition] = RangeRead(
            None if None in counts else sum(count or 0 for count in counts),
            _instant(min(firsts)) if firsts else None,
            _instant(max(lasts)) if lasts else None,
            bytes=sum(read.bytes for read in of_range),
            dead_letters=sum(read.dead_letters for read in of_range),
        )
    if slices:
        raise StagingError(f"Batch {batch.batch_id}: partitions were staged that were not planned: {sorted(slices)}")
    return reads


def _instant(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def _reported(directory: StagingDirectory) -> KafkaOffsetsError | None:
    """The error that the application left, in its own words; of several, one that no retry can help."""
    errors = [_error_of(note) for note in directory.notes("failure-")]
    errors.sort(key=lambda error: (error.retriable, str(error)))
    return errors[0] if errors else None


def _error_of(note: Mapping[str, Any]) -> KafkaOffsetsError:
    """Return the error that a note describes; a StagingError where it names none that a message alone makes."""
    kinds = {kind.__name__: kind for kind in _errors_below(KafkaOffsetsError)}
    kind = kinds.get(note["error"])
    if kind is RecordError:
        return RecordError(note["reason"], topic=note["topic"], partition=note["partition"], offset=note["offset"])
    if kind is None or kind.__init__ is not Exception.__init__:
        return StagingError(f"{note['error']}: {note['message']}")
    return kind(note["message"])


def _errors_below(kind: type[KafkaOffsetsError]) -> Iterator[type[KafkaOffsetsError]]:
    for below in kind.__subclasses__():
        yield below
        yield from _errors_below(below)
