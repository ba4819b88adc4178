"""What runs in Spark's Python workers: slices to rows, and rows to staged files."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from airflow_kafka_offsets.core.offsets import Slice
from airflow_kafka_offsets.exceptions import KafkaOffsetsError, RecordError
from airflow_kafka_offsets.formats.decoder import decode_raw
from airflow_kafka_offsets.formats.json_decoder import decode_json, sift_json
from airflow_kafka_offsets.spark.job import StageJob
from airflow_kafka_offsets.spark.slice_notes import write_progress, write_slice
from airflow_kafka_offsets.staging.dead_letters import DeadLetterFile
from airflow_kafka_offsets.staging.directory import StagingDirectory
from airflow_kafka_offsets.staging.manifest import SliceRead, StagedFile

DECODERS = {"json": decode_json, "raw": decode_raw}

RESULT_DDL = "name STRING, row_count BIGINT, byte_count BIGINT"

_RESULT = pa.schema([("name", pa.string()), ("row_count", pa.int64()), ("byte_count", pa.int64())])


class SliceReader:
    """Reads and decodes the slices of Spark tasks; reports how far each is, and that it was read to its end."""

    def __init__(self, job: StageJob) -> None:
        self._job = job

    def __call__(self, numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """As a function for `mapInArrow`.

        :param numbers: record batches with one int64 column, the number of a task
        :return: record batches with the job's columns
        """
        return self.rows(number for batch in numbers for number in batch.column(0).to_pylist())

    def rows(self, numbers: Iterable[int]) -> Iterator[pa.RecordBatch]:
        """
        :param numbers: of the tasks, from 0
        :return: record batches with the job's columns
        """
        staging, tasks = StagingDirectory(self._job.staging_uri), self._job.tasks
        try:
            for number in numbers:
                for one in tasks[number]:
                    yield from self._slice(one, staging)
        except KafkaOffsetsError as error:
            leave_failure(staging, error)
            raise

    def _slice(self, one: Slice, staging: StagingDirectory) -> Iterator[pa.RecordBatch]:
        # Imported where a slice is read: the driver needs no Kafka client.
        from airflow_kafka_offsets.kafka.reader import consumer_config, read

        job = self._job
        config = consumer_config(job.kafka_config, job.group_id, job.isolation_level)
        with_headers = self._sets_aside or (job.value_format == "raw" and "headers" in job.columns.names)
        seen = _Seen(one, staging, job.progress_interval)
        with DeadLetterFile(staging, one, job.max_dead_letters) as dead:
            for batch in read(one, config, with_headers=with_headers, idle_timeout=job.idle_timeout):
                yield self._rows(batch, one, dead)
                seen.add(batch, dead)
        seen.finish(dead)

    @property
    def _sets_aside(self) -> bool:
        # Bytes decode always; headers that are asked for and cannot be read fail in either case.
        return self._job.on_bad_record == "dead_letter" and self._job.value_format == "json"

    def _rows(self, batch: pa.RecordBatch, one: Slice, dead: DeadLetterFile) -> pa.RecordBatch:
        if not self._sets_aside:
            return DECODERS[self._job.value_format](batch, one, self._job.columns)
        rows, bad = sift_json(batch, one, self._job.columns)
        dead.add(batch, bad)
        return rows


class Stager:
    """Writes the rows of a Spark partition into one Arrow file of this attempt."""

    def __init__(self, staging_uri: str) -> None:
        self._staging_uri = staging_uri

    def __call__(self, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """As a function for `mapInArrow`.

        :param rows: record batches of any schema
        :return: one row with the file's name, rows and bytes; none where there were no rows
        """
        file = self.write(rows)
        if file is not None:
            told = {"name": [file.name], "row_count": [file.rows], "byte_count": [file.bytes]}
            yield pa.RecordBatch.from_pydict(told, schema=_RESULT)

    def write(self, rows: Iterable[pa.RecordBatch]) -> StagedFile | None:
        """
        :param rows: record batches of any schema
        :return: None where there were no rows
        """
        staging = StagingDirectory(self._staging_uri)
        # A name of its own for every attempt: what a failed or speculative one leaves is named by nobody.
        name = f"part-{uuid.uuid4().hex}.arrow"
        count = 0
        writer: pa.RecordBatchFileWriter | None = None
        stream = None
        try:
            for batch in rows:
                if not batch.num_rows:
                    continue
                if writer is None:
                    stream = staging.filesystem.open_output_stream(staging.file(name))
                    writer = pa.ipc.new_file(stream, batch.schema, options=pa.ipc.IpcWriteOptions(compression="lz4"))
                writer.write_batch(batch)
                count += batch.num_rows
            if writer is None or stream is None:
                return None
            writer.close()
            return StagedFile(name, count, stream.tell())
        finally:
            if stream is not None:
                stream.close()


class OnePass:
    """Reads, decodes and stages slices without a transform between: rows never leave the Python worker."""

    def __init__(self, job: StageJob) -> None:
        self._reader = SliceReader(job)
        self._stager = Stager(job.staging_uri)

    def __call__(self, numbers: Iterable[int]) -> Iterator[StagedFile]:
        """As a function for `RDD.mapPartitions`.

        :param numbers: of the tasks, from 0
        :return: the file, where there were rows
        """
        file = self._stager.write(self._reader.rows(numbers))
        if file is not None:
            yield file

    def in_arrow(self, numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """As a function for `mapInArrow`, like reader and stager one after the other."""
        return self._stager(self._reader(numbers))


class _Seen:
    """What reading a slice shows, as notes in the staging directory.

    The notes are the reader's own, and not part of the rows: with a transform between reader and stager Spark may
    evaluate the reader more than once, or drop every row.
    """

    def __init__(self, one: Slice, staging: StagingDirectory, interval: float) -> None:
        self._slice = one
        self._staging = staging
        self._interval = interval
        self._next_note = time.monotonic() + interval
        self._records = 0
        self._bytes = 0
        self._oldest: int | None = None
        self._newest: int | None = None
        # From here on the slice is begun: a begun slice that nobody ends is one that a transform stopped reading.
        write_progress(staging, self._read())

    def add(self, batch: pa.RecordBatch, dead: DeadLetterFile) -> None:
        self._records += batch.num_rows
        self._bytes += sum(pc.sum(pc.binary_length(batch.column(name))).as_py() or 0 for name in ("key", "value"))
        times = pc.min_max(batch.column("timestamp").cast(pa.int64()))
        oldest, newest = times["min"].as_py(), times["max"].as_py()
        if oldest is not None:
            self._oldest = oldest if self._oldest is None else min(self._oldest, oldest)
            self._newest = newest if self._newest is None else max(self._newest, newest)
        if time.monotonic() >= self._next_note:
            self._next_note = time.monotonic() + self._interval
            write_progress(self._staging, replace(self._read(), dead_letters=dead.count))

    def finish(self, dead: DeadLetterFile) -> None:
        """
        :param dead: complete
        """
        write_slice(self._staging, replace(self._read(), dead_letters=dead.count, dead_letters_file=dead.name))

    def _read(self) -> SliceRead:
        one = self._slice
        return SliceRead(
            one.index,
            one.topic,
            one.partition,
            one.start,
            one.end,
            self._records,
            None if self._oldest is None else self._oldest // 1000,
            None if self._newest is None else self._newest // 1000,
            self._bytes,
        )


def leave_failure(staging: StagingDirectory, error: KafkaOffsetsError) -> None:
    """Tell the worker what happened in words of its own: Spark would hand on a traceback as text."""
    note: dict[str, object] = {"error": type(error).__name__, "message": str(error)}
    if isinstance(error, RecordError):
        note |= {
            "reason": error.reason,
            "topic": error.topic,
            "partition": error.partition,
            "offset": error.offset,
        }
    staging.write_text(f"failure-{uuid.uuid4().hex}.json", json.dumps(note))
