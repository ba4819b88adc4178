"""Staged dead letters: an Arrow file for each slice with records that cannot be decoded.

The commit adds records that the target refuses (`loading.context`).
"""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_kafka_offsets.core.offsets import Slice
from airflow_kafka_offsets.core.text import shortened
from airflow_kafka_offsets.exceptions import DeadLetterError, LedgerError, StagedFileError
from airflow_kafka_offsets.formats.record_format import BadRecord
from airflow_kafka_offsets.formats.wire_format import schema_id_of
from airflow_kafka_offsets.staging.arrow_files import ArrowFileWriter, record_batches
from airflow_kafka_offsets.staging.directory import StagingDirectory
from airflow_kafka_offsets.staging.manifest import Manifest, SliceRead, StagedFile

SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", pa.string()),
        pa.field("timestamp", pa.timestamp("us", "UTC")),
        pa.field("error_class", pa.string(), nullable=False),
        pa.field("error", pa.string(), nullable=False),
        pa.field("schema_id", pa.int64()),
    ]
)
"""The columns of dead letters.

`headers` is JSON: a list of [key, value], with values in base64 or null. It is null where a record has no headers, and
where the key of a header is not UTF-8. `error_class` is the part of the record that is bad
(`formats.record_format.BadRecord`), or target. `schema_id` is that at the beginning of the value, where the format has
a registry.
"""

# Of a record, together: JSON writes a byte of a name as six at most.
_MOST_NAME_BYTES = 10_000_000


class DeadLetterFile(ExitStack):
    """Writes the dead letters of one evaluation of a slice, into a file that is created with the first of them.

    The file is complete when the context is left. Each evaluation has a file of its own: if Spark reads a slice twice,
    the note of the slice names the file that counts.

    :param max_dead_letters: of the whole batch; None for any number
    :param with_schema_ids: whether values begin with the id of a schema
    """

    def __init__(
        self,
        staging: StagingDirectory,
        slice_: Slice,
        max_dead_letters: int | None = None,
        with_schema_ids: bool = False,
    ) -> None:
        super().__init__()
        self.count = 0
        self._staging = staging
        self._slice = slice_
        self._max = max_dead_letters
        self._with_schema_ids = with_schema_ids
        self._writer: ArrowFileWriter | None = None

    @property
    def file(self) -> StagedFile | None:
        """The complete file, once the context is left; None if there are no dead letters."""
        return None if self._writer is None else self._writer.file

    def add(self, batch: pa.RecordBatch, bad: Sequence[BadRecord]) -> None:
        """Write the bad records of a batch.

        :param batch: what `kafka.reader.read` yields, with headers
        :param bad: the records that cannot be decoded
        :raises DeadLetterError: this slice alone has more dead letters than the batch may have
        """
        if not bad:
            return
        slice_ = self._slice
        if self._max is not None and self.count + len(bad) > self._max:
            offset = batch.column("offset")[bad[0].row].as_py()
            problem = f"More than {self._max:,} records of {slice_} cannot be decoded"
            raise too_many(problem, self._max, slice_.topic, slice_.partition, offset, bad[0].reason)
        if self._writer is None:
            name = f"dead-{slice_.index}-{uuid.uuid4().hex}.arrow"
            self._writer = self.enter_context(ArrowFileWriter(self._staging, name, SCHEMA))
        self._writer.write(dead_letters_of(batch, slice_, bad, self._with_schema_ids))
        self.count += len(bad)


def too_many(problem: str, most: int, topic: str, partition: int, offset: int, reason: str) -> DeadLetterError:
    """Return the error for a batch with more dead letters than it may have.

    :param problem: the number of bad records, as text
    :param offset: the offset of one of these records
    """
    return DeadLetterError(
        f"{problem}, and DeadLetters.limit allows {most:,} in this batch; one is at topic {topic!r} partition "
        f"{partition} offset {offset}: {reason}. Nothing of this batch was written and no position moved; correct the "
        "declared columns, or allow more dead letters, and run the task again."
    )


def dead_letters(staging: StagingDirectory, manifest: Manifest) -> Iterator[pa.RecordBatch]:
    """Yield the dead letters of the slices that a manifest accepts, slice by slice, in the order of their offsets.

    :return: record batches with the columns of `SCHEMA`
    :raises StagedFileError: a file is missing, not as it was written, or holds other records than those of its slice
    """
    for read in manifest.reads:
        if read.dead_letters_file is not None:
            before = read.start - 1
            for batch in record_batches(staging, read.dead_letters_file, SCHEMA):
                if not _are_of(batch, read, before):
                    raise StagedFileError(
                        f"Staged file {staging.file(read.dead_letters_file.name)} holds other dead letters than those "
                        f"of {read.topic}[{read.partition}] offsets {read.start:,} to {read.end:,}, in their order"
                    )
                before = batch.column("offset")[-1].as_py()
                yield batch


def _are_of(batch: pa.RecordBatch, read: SliceRead, before: int) -> bool:
    """Return whether dead letters are of a slice, and in the order of their offsets.

    :param before: the offset before the first one, at least
    """
    offsets = batch.column("offset")
    order = pa.concat_arrays([pa.array([before], offsets.type), offsets, pa.array([read.end], offsets.type)])
    conditions = (
        pc.equal(batch.column("topic"), read.topic),
        pc.equal(batch.column("partition"), read.partition),
        pc.less(order[:-1], order[1:]),
    )
    return batch.num_rows > 0 and all(pc.all(condition, skip_nulls=False).as_py() for condition in conditions)


def dead_letters_of(
    batch: pa.RecordBatch, slice_: Slice, bad: Sequence[BadRecord], with_schema_ids: bool
) -> pa.RecordBatch:
    """Return dead letters of the bad records of a batch, with the columns of `SCHEMA`; without contents, which stay in
    Kafka, of those whose headers would take too much memory.

    :param batch: what `kafka.reader.read` yields, with headers
    :param with_schema_ids: whether values begin with the id of a schema
    """
    records = batch.take(pa.array([record.row for record in bad], pa.int64()))
    columns = {name: records.column(name) for name in ("offset", "key", "value", "timestamp")}
    headers = records.column("headers").to_pylist()
    if any(are_large := [_has_large_names(own) for own in headers]):
        columns |= {name: pc.if_else(pa.array(are_large), None, columns[name]) for name in ("key", "value")}
        headers = [None if is_large else own for own, is_large in zip(headers, are_large, strict=True)]
        why = f"its contents are not kept, because the names of its headers have more than {_MOST_NAME_BYTES:,} bytes"
        bad = [
            record._replace(reason=f"{why}; {record.reason}", part="size") if is_large else record
            for record, is_large in zip(bad, are_large, strict=True)
        ]
    columns["topic"] = pa.repeat(pa.scalar(slice_.topic), len(bad))
    columns["partition"] = pa.repeat(pa.scalar(slice_.partition, pa.int32()), len(bad))
    columns["headers"] = pa.array(map(header_text, headers), pa.string())
    # The reason of another format may be of any length, and databases do not store NUL in text.
    columns["error_class"] = pa.array([record.part for record in bad], pa.string())
    columns["error"] = pa.array([shortened(record.reason).replace("\0", "\\0") for record in bad], pa.string())
    ids = map(schema_id_of, records.column("value").to_pylist() if with_schema_ids else [None] * len(bad))
    columns["schema_id"] = pa.array(ids, pa.int64())
    return pa.RecordBatch.from_arrays([columns[name] for name in SCHEMA.names], schema=SCHEMA)


def _has_large_names(headers: Sequence[Mapping[str, Any]] | None) -> bool:
    return sum(len(header["key"].encode()) for header in headers or ()) > _MOST_NAME_BYTES


# A record has at most 100,000 headers, which are pairs.
_MOST_MARKS = 1_000_000


def header_text(headers: Sequence[Mapping[str, Any]] | None) -> str | None:
    """Return headers as JSON; see `SCHEMA`."""
    if not headers:
        return None
    values = ((header["key"], header["value"]) for header in headers)
    return json.dumps([[key, None if value is None else base64.b64encode(value).decode()] for key, value in values])


def headers_of(text: str | None, topic: str, partition: int, offset: int) -> list[tuple[str, bytes | None]]:
    """Return the headers of a text that `header_text` wrote.

    :param topic: with partition and offset, the record whose headers they are, for messages
    :raises LedgerError: another program wrote the text
    """
    try:
        # Each becomes an object of Python's. Names may have some, too.
        if text is not None and max(map(text.count, "[,{")) > _MOST_MARKS:
            raise ValueError
        pairs = [(key, None if value is None else base64.b64decode(value)) for key, value in json.loads(text or "[]")]
        for key, _ in pairs:
            key.encode()
    except (AttributeError, RecursionError, TypeError, ValueError) as error:
        raise LedgerError(
            f"Dead letter at topic {topic!r} partition {partition} offset {offset}: its headers in the table "
            f"dead_letters are not as a load writes them ({type(error).__name__}): correct them, or drop it"
        ) from None
    return pairs
