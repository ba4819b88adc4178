"""Step 2: stage a batch. Spark writes files with its rows, or the files that an earlier attempt completed are found
again.

`staging_area` creates and removes the directories of the files. What Spark runs is in the package `spark`.
"""

from __future__ import annotations

import logging
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import pyarrow as pa

from airflow_kafka_offsets.core.instants import from_milliseconds
from airflow_kafka_offsets.core.offsets import OffsetRange, TopicPartition
from airflow_kafka_offsets.core.parameters import from_attributes
from airflow_kafka_offsets.core.slices import assign
from airflow_kafka_offsets.core.text import first_few, shortened
from airflow_kafka_offsets.escaping import printable
from airflow_kafka_offsets.exceptions import (
    ForeignBatchError,
    KafkaOffsetsError,
    StagedFileError,
    StagingError,
    TransformError,
    WorkerCrashError,
)
from airflow_kafka_offsets.ledger.batch_rows import Batch
from airflow_kafka_offsets.ledger.batches import begin_staging, mark_staged
from airflow_kafka_offsets.ledger.claims import Claim
from airflow_kafka_offsets.ledger.positions import RangeRead
from airflow_kafka_offsets.loading.context import BatchContext
from airflow_kafka_offsets.loading.staging_area import create_directory, directory_of_attempt, remove_attempt
from airflow_kafka_offsets.spark.driver import failure
from airflow_kafka_offsets.spark.failures import reported_failures
from airflow_kafka_offsets.spark.job import Launcher, StageJob
from airflow_kafka_offsets.spark.progress import SliceNotes
from airflow_kafka_offsets.staging.directory import StagingDirectory
from airflow_kafka_offsets.staging.manifest import MANIFEST, Manifest, SliceRead
from airflow_kafka_offsets.transforms.transform import as_transform
from airflow_kafka_offsets.writers.row_writer import STORAGE

log = logging.getLogger(__name__)

_UNREADABLE = (
    OSError,  # the store does not answer, or denies access
    pa.ArrowException,  # pyarrow does not know the URI's scheme, or was built without it
    ValueError,  # the manifest is incomplete or altered, or names files outside the directory
    KeyError,  # another version of this package wrote the manifest
    AttributeError,  # the same
    TypeError,  # the same
    RecursionError,  # the manifest is nested too deep
    StagingError,  # the manifest is of another batch, or of other offsets
)
"""What reading the files of an earlier attempt raises where they cannot be used."""


@dataclass(frozen=True, slots=True)
class StagedBatch:
    """A batch whose files are complete.

    :param is_lost: whether there are no files, and the target has the rows already
    """

    directory: StagingDirectory
    manifest: Manifest
    reads: Mapping[TopicPartition, RangeRead]
    is_lost: bool = False

    @property
    def records(self) -> int:
        return sum(read.records or 0 for read in self.reads.values())

    @property
    def dead_letters(self) -> int:
        return sum(read.dead_letters for read in self.reads.values())

    def bytes_per_offset(self, ranges: Sequence[OffsetRange]) -> dict[str, float]:
        """Return the average size of key and value for each offset, by topic.

        :param ranges: of the batch
        """
        sizes: Counter[str] = Counter()
        offsets: Counter[str] = Counter()
        for range_ in ranges:
            read = self.reads.get(range_.topic_partition)
            if read is not None and read.records is not None:
                sizes[range_.topic] += read.bytes
                offsets[range_.topic] += len(range_)
        return {topic: sizes[topic] / number for topic, number in offsets.items()}

    def incomplete_file(self) -> str | None:
        """Return a file that the manifest names and the directory does not hold in full. The commit checks the digests.

        The sink checks final files when it commits them.
        """
        files = self.manifest.staged_files()
        return next((file.name for file in files if not self.directory.holds(file.name, file.bytes)), None)


class Attempt(NamedTuple):
    """An attempt to stage a batch, as recorded in the state tables: the arguments of `launch_application`."""

    job: StageJob
    batch: Batch
    directory: StagingDirectory


def stage(context: BatchContext, claim: Claim, batch: Batch) -> StagedBatch:
    """Run Spark to write files with the rows of a batch, in a new directory.

    :raises StagedFileError: Spark's files cannot be used; staging again may help
    """
    attempt = begin_attempt(context, claim, batch)
    return finish_attempt(context, claim, batch, launch_application(context.launcher, *attempt))


def begin_attempt(context: BatchContext, claim: Claim, batch: Batch) -> Attempt:
    """Record that a batch is staged in a new directory, and remove that of an earlier attempt.

    :raises ForeignBatchError: its row in the state tables names a topic that the task does not load
    """
    pipeline, output = context.pipeline, context.publication(batch, claim.kind).output
    others = sorted({range_.topic for range_ in batch.ranges} - set(pipeline.topics))
    if others and not context.records_are_staged:
        raise ForeignBatchError(
            f"Batch {batch.batch_id} of group {batch.group_id!r} is of {first_few(map(repr, others))}, of which this "
            "task loads nothing. Nothing was read. Another program changed the state tables, or the task had other "
            "topics when the batch was planned: run it with these, or abandon the batch"
        )
    with context.ledger.connect() as conn:
        # It saves a Spark application whose result could not be committed.
        context.checks.refuse_unknown_rows(conn, output)
    directory = create_directory(output.attempt, pipeline.staging.dir)
    try:
        job = make_job(context, claim.kind, batch, directory)
        earlier_uri = begin_staging(
            claim, batch, directory.uri, context.recipe, writes_target=pipeline.sink.writes_files
        )
    except BaseException:
        # No batch names it: a later attempt may have taken over.
        try:
            remove_attempt(batch.batch_id, directory.uri, pipeline.staging.dir)
        except Exception:
            # The error that is being raised says more.
            log.warning("The staging directory %s could not be removed", directory.uri, exc_info=True)
        raise
    if earlier_uri is not None:
        # An earlier attempt was killed while it staged, or its files cannot be used.
        remove_attempt(batch.batch_id, earlier_uri, pipeline.staging.dir)
    return Attempt(job, batch, directory)


def finish_attempt(context: BatchContext, claim: Claim, batch: Batch, staged: StagedBatch) -> StagedBatch:
    """Record that an open batch is staged, and return it.

    :raises TopicRecreatedError: a topic was recreated while it was read
    """
    # If a topic was recreated while Spark read, records of the new topic would be loaded as those of the old one.
    context.check_logs(batch)
    mark_staged(claim, batch, staged.records)
    return staged


def make_job(context: BatchContext, kind: str, batch: Batch, directory: StagingDirectory) -> StageJob:
    """Return all that the Spark application needs to know, as plain data."""
    pipeline, columns = context.pipeline, context.columns
    slices, output = context.slices(batch, directory), context.publication(batch, kind, directory.name).output
    return from_attributes(
        StageJob,
        pipeline,
        batch_id=batch.batch_id,
        tasks=assign(slices, pipeline.staging.slice_offsets, writes_files=pipeline.sink.writes_files),
        kafka_config=context.kafka_config,
        columns=columns,
        transform=as_transform(pipeline.transform),
        target=context.target,
        fingerprint=context.recipe.fingerprint,
        staging_uri=directory.uri,
        writer=context.table.writer(pipeline.result_columns(columns), output),
        # A transform may be in the folder of the DAG file, which is only on this process's path.
        python_path=tuple(filter(None, sys.path)) if pipeline.needs_path else (),
        span_ms=batch.span.milliseconds if batch.span is not None else None,
        idle_timeout=pipeline.reading.idle_timeout.total_seconds(),
        decode_timeout=pipeline.reading.decode_timeout.total_seconds(),
        run=StageJob.run,
        isolated=StageJob.isolated,
        # There are no more records than offsets; the commit knows how many there are.
        max_dead_letters=pipeline.most_dead_letters(batch.offsets),
        has_dead_letters=pipeline.dead_letters is not None,
        isolation_level=pipeline.reading.isolation_level,
        max_record_bytes=pipeline.reading.max_record_bytes,
        every_offset=pipeline.reading.every_offset,
        records_are_staged=context.records_are_staged,
        progress_interval=StageJob.progress_interval,
        connections={**context.connections, STORAGE: context.table.storage_options()},
    )


def launch_application(launcher: Launcher, job: StageJob, batch: Batch, directory: StagingDirectory) -> StagedBatch:
    """Run the Spark application, and check that it staged the planned ranges. Needs no state tables: another thread may
    do it.

    :raises KafkaOffsetsError: the error that the application reports, such as RecordError
    :raises ConfigurationError: Spark's Python lacks a module
    :raises StagingError: the application failed without a report, or staged other offsets
    :raises StagedFileError: the manifest is missing or damaged
    """
    if job.tasks:
        launch(launcher, job, directory)
    else:
        # The batch only records gaps: Spark has nothing to read.
        directory.write_text(MANIFEST, Manifest(batch.batch_id, job.fingerprint, (), ()).to_json())
    return _read_staged(directory, batch)


def launch(launcher: Launcher, job: StageJob, directory: StagingDirectory) -> None:
    """Run the Spark application. If a Python process of Spark ends, run it once more, and decode the slices that were
    being read in child processes.

    :raises KafkaOffsetsError: the error that it reports; a StagingError if it failed without a report
    :raises ConfigurationError: Spark's Python lacks a module
    :raises WorkerCrashError: a process ended again, and no record was the cause
    """
    while True:
        try:
            return _launch(launcher, job)
        except WorkerCrashError as crash:
            found = SliceNotes(directory).find()
            suspects = [slice_ for slice_ in job.slices if slice_.index in found.started - found.finished.keys()]
            places = first_few(suspects or job.slices)
            if {slice_.index for slice_ in suspects} <= set(job.isolated):
                raise WorkerCrashError(
                    f"{crash}, while it had {places}, and no record that it decoded was the cause: a DataFrame "
                    "transform, the writer of the sink, or a lack of memory ended the process"
                ) from crash
            log.warning("%s. The batch is staged again, and %s decoded in child processes", crash, places)
            # Where another slice ended the second run, all are decoded so.
            job = replace(job.isolating(job.slices if job.isolated else suspects), run=job.run + 1)


def _launch(launcher: Launcher, job: StageJob) -> None:
    """Run the Spark application once."""
    try:
        launcher(job)
    except Exception as error:
        # Several tasks may have failed. An error that no retry can fix comes first.
        reported = sorted(reported_failures(job), key=lambda error: (error.retriable, str(error)))
        if isinstance(error, KafkaOffsetsError) and not reported:
            raise
        cause = reported[0] if reported else failure(job.batch_id, error, job.dataframe_transform)
        # A reported error says all that the user can use.
        raise cause from None if reported or isinstance(cause, TransformError) else error


def resume_staged(
    context: BatchContext, claim: Claim, batch: Batch, *, is_published: bool = False
) -> StagedBatch | None:
    """Return the files that an earlier attempt staged, or None where the batch has to be staged.

    If that attempt ended before it recorded that they are complete, this one does.

    :param is_published: see `find_staged`
    :raises TopicRecreatedError: a topic was recreated since the batch was planned
    """
    is_marked = batch.state == "staged"
    if is_published and not is_marked:
        return None
    fingerprint, staging_dir = context.recipe.fingerprint, context.pipeline.staging.dir
    staged = find_staged(batch, fingerprint, staging_dir, is_published=is_published)
    return staged if staged is None or is_marked else finish_attempt(context, claim, batch, staged)


def find_staged(
    batch: Batch, fingerprint: str, staging_dir: str | None, *, is_published: bool = False
) -> StagedBatch | None:
    """Return the files that an earlier attempt staged, or None where the batch has to be staged.

    :param fingerprint: of the pipeline as it is now
    :param staging_dir: where it stages batches now
    :param is_published: whether the target has the rows, which are committed even if the pipeline has changed
    """
    number, uri = batch.batch_id, batch.staging_uri
    if uri is None:
        return None
    # Of a planned batch, the attempt probably ended before its files were complete.
    level = logging.WARNING if batch.state == "staged" else logging.INFO
    try:
        if (directory := directory_of_attempt(number, uri, staging_dir)) is None:
            return None
        if batch.state != "staged" and not directory.holds(MANIFEST):
            log.info("The earlier attempt at batch %d ended before its files were complete: it is staged again", number)
            return None
        staged = _read_staged(directory, batch)
        if staged.manifest.fingerprint != fingerprint and not is_published:
            log.log(level, "Batch %d was staged with other columns or another transform, and is staged again", number)
        elif (name := staged.incomplete_file()) is not None:
            log.log(
                level,
                "File %s of batch %d is missing or incomplete in %s, and it is staged again",
                printable(name),
                number,
                uri,
            )
        else:
            return staged
    except _UNREADABLE as error:
        reason = str(error) if isinstance(error, StagingError) else f"{type(error).__name__}: {shortened(str(error))}"
        log.log(
            level,
            "The files of batch %d in %s cannot be read, and it is staged again: %s",
            number,
            uri,
            printable(reason),
        )
    return None


def _read_staged(directory: StagingDirectory, batch: Batch) -> StagedBatch:
    """Read the manifest of a batch, and check that the planned ranges were staged.

    :raises StagedFileError: the manifest is missing, incomplete, altered, or of another version of this package
    :raises StagingError: the directory holds another batch, or other offsets
    """
    try:
        manifest = Manifest.from_json(directory.read_text(MANIFEST))
        manifest.check()
        for file in manifest.staged_files():
            directory.file(file.name)
    except FileNotFoundError as error:
        raise StagedFileError(
            f"{MANIFEST} is missing: {directory.uri} has to be a location that all machines share"
        ) from error
    except _UNREADABLE as error:
        raise StagedFileError(f"{MANIFEST}: {type(error).__name__}: {shortened(str(error))}") from error
    if manifest.batch_id != batch.batch_id:
        raise StagingError(f"{directory.uri} holds batch {manifest.batch_id}, not batch {batch.batch_id}")
    return StagedBatch(directory, manifest, _range_reads(manifest, batch))


def _range_reads(manifest: Manifest, batch: Batch) -> dict[TopicPartition, RangeRead]:
    """Sum up the reads of the slices of each range.

    :raises StagingError: the slices that were read are not exactly the planned ranges
    """
    slices: dict[TopicPartition, list[SliceRead]] = defaultdict(list)
    for read in sorted(manifest.reads, key=lambda read: (read.topic, read.partition, read.start)):
        slices[TopicPartition(read.topic, read.partition)].append(read)
    range_reads: dict[TopicPartition, RangeRead] = {}
    for range_ in filter(len, batch.ranges):
        reads = slices.pop(range_.topic_partition, [])
        bounds = [range_.start, *(read.end for read in reads)]
        if [read.start for read in reads] != bounds[:-1] or bounds[-1] != range_.end:
            raise StagingError(f"Batch {batch.batch_id}: {range_} was planned, other offsets were staged: {reads}")
        range_reads[range_.topic_partition] = _sum(reads)
    if slices:
        raise StagingError(f"Batch {batch.batch_id}: partitions were staged that were not planned: {sorted(slices)}")
    return range_reads


def _sum(reads: Sequence[SliceRead]) -> RangeRead:
    firsts = (read.first_timestamp_ms for read in reads if read.first_timestamp_ms is not None)
    lasts = (read.last_timestamp_ms for read in reads if read.last_timestamp_ms is not None)
    return RangeRead(
        None if any(read.records is None for read in reads) else sum(read.records or 0 for read in reads),
        min(map(from_milliseconds, firsts), default=None),
        max(map(from_milliseconds, lasts), default=None),
        bytes=sum(read.bytes for read in reads),
        dead_letters=sum(read.dead_letters for read in reads),
    )
