"""Records that do not decode, set aside: one Arrow file for each slice that has any, beside the staged rows."""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any

import pyarrow as pa

from airflow_kafka_offsets.core.offsets import Slice
from airflow_kafka_offsets.exceptions import DeadLetterError, StagingError
from airflow_kafka_offsets.formats.decoder import BadRecord
from airflow_kafka_offsets.staging.directory import StagingDirectory
from airflow_kafka_offsets.staging.manifest import Manifest

SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", pa.string()),
        pa.field("timestamp", pa.timestamp("us", "UTC")),
        pa.field("error", pa.string(), nullable=False),
    ]
)
"""The columns of dead letters.

`headers` is JSON, as a list of [key, value], with values in base64 or null; it is null where the record has
none, and where the key of one is not UTF-8.
"""


class DeadLetterFile:
    """Writes the dead letters of one evaluation of a slice, into a file that is made with the first of them.

    It is complete when the context is left. Its name is its own: where Spark reads a slice twice, the file counts that
    the note of the slice names.

    :param most: how many the batch may have, all of its slices together; None for any number
    """

    def __init__(self, staging: StagingDirectory, one: Slice, most: int | None = None) -> None:
        self.count = 0
        self.name: str | None = None
        self._staging = staging
        self._slice = one
        self._most = most
        self._stream: Any = None
        self._writer: pa.RecordBatchFileWriter | None = None

    def __enter__(self) -> DeadLetterFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if self._writer is not None:
                self._writer.close()
        finally:
            if self._stream is not None:
                self._stream.close()

    def add(self, batch: pa.RecordBatch, bad: Sequence[BadRecord]) -> None:
        """
        :param batch: what `read` yields, with headers
        :param bad: which of its records do not decode, and why
        :raises DeadLetterError: they are too many, whatever other slices have; the rest need not be read to know it
        """
        if not bad:
            return
        if self._most is not None and self.count + len(bad) > self._most:
            one, offset = self._slice, batch.column("offset")[bad[0].row].as_py()
            told = f"More than {self._most:,} records of {one.topic}[{one.partition}] {one.start}..{one.end} cannot be decoded"
            raise too_many(told, self._most, one.topic, one.partition, offset, bad[0].reason)
        if self._writer is None:
            self.name = f"dead-{self._slice.index}-{uuid.uuid4().hex}.arrow"
            self._stream = self._staging.filesystem.open_output_stream(self._staging.file(self.name))
            options = pa.ipc.IpcWriteOptions(compression="lz4")
            self._writer = pa.ipc.new_file(self._stream, SCHEMA, options=options)
        self._writer.write_batch(_letters(batch, self._slice, bad))
        self.count += len(bad)


def too_many(told: str, most: int, topic: str, partition: int, offset: int, reason: str) -> DeadLetterError:
    """
    :param told: how many there are, of what
    :param offset: that of one of them
    """
    return DeadLetterError(
        f"{told}, and max_dead_letters={most:,} allows no more; one is at topic {topic!r} partition {partition} offset "
        f"{offset}: {reason}. Nothing of this batch was written and no position moved; correct the declared columns, or "
        "allow more dead letters, and run the task again."
    )


def dead_letters(staging: StagingDirectory, manifest: Manifest) -> Iterator[pa.RecordBatch]:
    """The dead letters of the slices that a manifest accepts, slice by slice, in the order of their offsets.

    :return: record batches with the columns of `SCHEMA`
    :raises StagingError: a file holds another number of them than its slice reported
    """
    for read in manifest.reads:
        if read.dead_letters_file is None:
            continue
        count = 0
        for batch in staging.record_batches(read.dead_letters_file):
            count += batch.num_rows
            yield batch
        if count != read.dead_letters:
            path = staging.file(read.dead_letters_file)
            raise StagingError(f"Staged file {path} holds {count} dead letters, its slice reported {read.dead_letters}")


def _letters(batch: pa.RecordBatch, one: Slice, bad: Sequence[BadRecord]) -> pa.RecordBatch:
    found = batch.take(pa.array([one.row for one in bad], pa.int64()))
    columns = {name: found.column(name) for name in ("offset", "key", "value", "timestamp")}
    columns["topic"] = pa.repeat(pa.scalar(one.topic), len(bad))
    columns["partition"] = pa.repeat(pa.scalar(one.partition, pa.int32()), len(bad))
    columns["headers"] = pa.array(map(_header_text, found.column("headers").to_pylist()), pa.string())
    # A reason may show what the record holds, and no database keeps NUL in a text.
    columns["error"] = pa.array([one.reason.replace("\0", "\\0") for one in bad], pa.string())
    return pa.RecordBatch.from_arrays([columns[name] for name in SCHEMA.names], schema=SCHEMA)


def _header_text(headers: Sequence[dict[str, Any]] | None) -> str | None:
    if not headers:
        return None
    return json.dumps(
        [
            [header["key"], None if header["value"] is None else base64.b64encode(header["value"]).decode()]
            for header in headers
        ]
    )
