"""The code of Spark's Python workers: read slices, decode their records, and write rows to staged files."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from functools import cache

import pyarrow as pa
import pyarrow.compute as pc

from airflow_kafka_offsets.core.offsets import Slice
from airflow_kafka_offsets.exceptions import KafkaOffsetsError
from airflow_kafka_offsets.formats.read_schemas import has_schema_ids
from airflow_kafka_offsets.formats.record_format import BadRecord
from airflow_kafka_offsets.spark.decoding import decode_portions, record_error
from airflow_kafka_offsets.spark.failures import report_failure
from airflow_kafka_offsets.spark.isolation import decoding_of
from airflow_kafka_offsets.spark.job import SentJob, StageJob
from airflow_kafka_offsets.spark.progress import SliceReport
from airflow_kafka_offsets.staging.arrow_files import read_records
from airflow_kafka_offsets.staging.dead_letters import DeadLetterFile
from airflow_kafka_offsets.staging.directory import StagingDirectory
from airflow_kafka_offsets.staging.manifest import StagedFile
from airflow_kafka_offsets.transforms.transform import BatchFunction
from airflow_kafka_offsets.writers.row_writer import STORAGE
from airflow_kafka_offsets.writers.table_rows import RefusedRows

RESULT_DDL = "file STRING"
"""The column of what `write_arrow` yields."""

_NO_DEAD_LETTER = (
    ". The record cannot become a dead letter, because a DataFrame transform may have made other rows of it: leave "
    "out such rows in the transform, or change the column"
)


def job_of_attempt(sent: SentJob) -> StageJob:
    """Return the job of a task attempt. If an earlier attempt failed, perhaps because its process ended, its slices are
    decoded in child processes.
    """
    from pyspark import TaskContext

    job, context = sent.whole(), TaskContext.get()
    return job if context is None or context.attemptNumber() == 0 else job.isolating(job.slices)


def stage_slices(job: StageJob, numbers: Iterable[int]) -> Iterator[StagedFile]:
    """Read, decode and stage the slices of tasks: rows never leave the Python worker.

    :param numbers: of the tasks, from 0
    :return: the files, if there are rows
    """
    return write_rows(job, read_rows(job, numbers))


def read_arrow(job: StageJob, numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Do the same as `read_rows`, as a function for `mapInArrow`.

    :param numbers: record batches with one int64 column, the numbers of tasks
    """
    return read_rows(job, (number for batch in numbers for number in batch.column(0).to_pylist()))


def write_arrow(job: StageJob, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Do the same as `write_rows`, as a function for `mapInArrow`.

    :return: for each file a row with the fields of `StagedFile`, as JSON
    """
    for file in write_rows(job, rows):
        yield pa.RecordBatch.from_pydict({"file": [json.dumps(asdict(file))]})
    _freeze_modules()


def read_rows(job: StageJob, numbers: Iterable[int]) -> Iterator[pa.RecordBatch]:
    """Read and decode the slices of tasks.

    :param numbers: of the tasks, from 0
    :return: record batches with the job's columns, or those of its transform if that runs here
    """
    staging, tasks = StagingDirectory(job.staging_uri), job.tasks
    try:
        # All batches of a task go into one file, whose columns are those of the first.
        transform = job.batch_function()
        for number in numbers:
            for slice_ in tasks[number]:
                yield from read_slice(job, slice_, staging, transform)
    except KafkaOffsetsError as error:
        report_failure(job, error)
        raise


def read_slice(
    job: StageJob, slice_: Slice, staging: StagingDirectory, transform: BatchFunction | None = None
) -> Iterator[pa.RecordBatch]:
    """Read, decode and transform a slice; leave its dead letters and notes of its progress in the staging directory.

    :param transform: the function of the job's transform, if that runs here
    """
    # Dead letters hold the headers.
    with_headers = job.record_format.reads_headers or job.has_dead_letters
    report = SliceReport(slice_, staging, job.progress_interval)
    with (
        decoding_of(job, slice_, transform, is_isolated=slice_.index in job.isolated) as decode,
        DeadLetterFile(staging, slice_, job.max_dead_letters, has_schema_ids(job.record_format)) as dead_letters,
    ):
        for records in _records(job, slice_, staging, with_headers):
            usual, large = separate_large(records, job.max_record_bytes)
            if large and not job.has_dead_letters:
                raise record_error(records, large[0], slice_)
            if large:
                # What is too large to be decoded is too large to be kept: it stays in Kafka.
                dead_letters.add(without_contents(records), large)
            for part, (rows, bad) in decode_portions(usual, job.columns, decode):
                if bad and not job.has_dead_letters:
                    raise record_error(part, bad[0], slice_)
                dead_letters.add(part, bad)
                if rows.num_rows:
                    report.note_nulls(rows)
                    yield rows
            report.add(records, dead_letters.count)
    report.finish(dead_letters.file, decode.schemas_read())
    if not job.records_are_staged:
        _freeze_modules()


def _records(job: StageJob, slice_: Slice, staging: StagingDirectory, with_headers: bool) -> Iterator[pa.RecordBatch]:
    if job.records_are_staged:
        yield from read_records(staging, slice_)
        return
    # Imported where a slice is read: the driver needs no Kafka client.
    from airflow_kafka_offsets.kafka.consumer import consumer_config
    from airflow_kafka_offsets.kafka.reader import read, within

    config = consumer_config(job.kafka_config, job.group_id, job.isolation_level)
    for records in read(
        slice_, config, with_headers=with_headers, every_offset=job.every_offset, idle_timeout=job.idle_timeout
    ):
        yield records if job.span_ms is None else within(records, *job.span_ms)


@cache
def _freeze_modules() -> None:
    """Leave what is imported out of garbage collections: PySpark's worker makes a full one after each task, which took
    as long as the task for 20,000 records. Called after the first slice: pyarrow imports pandas with the first array.
    """
    gc.freeze()


def separate_large(records: pa.RecordBatch, most: int) -> tuple[pa.RecordBatch, list[BadRecord]]:
    """Separate the records whose key, value and headers, as far as they were read, have more bytes than a limit.

    :param records: what `kafka.reader.read` yields
    :return: the other records, and the large ones as bad records with their index in the batch
    """
    # Batches of usual size are not looked at record by record.
    if records.nbytes <= most:
        return records, []
    lengths = [pc.fill_null(pc.binary_length(records.column(name)), 0).to_pylist() for name in ("key", "value")]
    if "headers" in records.schema.names:
        lengths.append([_header_bytes(headers) for headers in records.column("headers")])
    sizes = list(map(sum, zip(*lengths, strict=True)))
    large = [
        BadRecord(row, f"it has {size:,} bytes, but Reading.max_record_bytes allows {most:,}", "size")
        for row, size in enumerate(sizes)
        if size > most
    ]
    return records.filter(pa.array([size <= most for size in sizes])), large


def _header_bytes(headers: pa.ListScalar) -> int:
    return sum(len(header["key"].encode()) + len(header["value"] or b"") for header in headers.as_py() or ())


def without_contents(records: pa.RecordBatch) -> pa.RecordBatch:
    """Return records without keys, values and headers."""
    for name in ("key", "value", "headers"):
        index = records.schema.get_field_index(name)
        nulls = pa.nulls(records.num_rows, records.schema.field(name).type)
        records = records.set_column(index, name, nulls)
    return records


def write_rows(job: StageJob, rows: Iterable[pa.RecordBatch]) -> Iterator[StagedFile]:
    """Write the rows of a Spark partition with the writer that the sink chose.

    :param rows: record batches of one schema, whichever it is
    :return: the files, if there are rows
    """
    staging = StagingDirectory(job.staging_uri)
    asked = job.has_dead_letters
    # Of a record that is a dead letter no row may be written, and Spark may have its rows in several tasks.
    is_whole = job.dataframe_transform is None
    try:
        with RefusedRows(staging, asked and is_whole, "" if is_whole or not asked else _NO_DEAD_LETTER) as refused:
            yield from job.writer.write(rows, staging, job.connections.get(STORAGE, {}), refused)
        if refused.file is not None:
            yield refused.file
    except KafkaOffsetsError as error:
        report_failure(job, error)
        raise
