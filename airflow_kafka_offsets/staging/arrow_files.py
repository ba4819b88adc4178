"""Arrow files in a staging directory, of rows, dead letters, and records that tasks read instead of those in Kafka.

They are written with a digest of their bytes. The digests of files with rows and dead letters are checked before they
are read, which may have been written by whoever wrote the file: Arrow's reader trusts the lengths and offsets in it,
so each batch is validated, too.
"""

from __future__ import annotations

import hashlib
import io
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import pyarrow as pa

from airflow_kafka_offsets.core.offsets import Slice
from airflow_kafka_offsets.core.text import shortened
from airflow_kafka_offsets.exceptions import StagedFileError
from airflow_kafka_offsets.staging.directory import StagingDirectory
from airflow_kafka_offsets.staging.manifest import StagedFile

_CHUNK_BYTES = 1 << 20


class ArrowFileWriter(ExitStack):
    """Writes a new Arrow file. It is complete when the context is left, and `file` describes it from then on.

    :param name: in the directory
    :param schema: of the record batches
    """

    file: StagedFile

    def __init__(self, staging: StagingDirectory, name: str, schema: pa.Schema) -> None:
        super().__init__()
        self._name = name
        self._rows = 0
        self._stream = _HashedStream(self.enter_context(staging.filesystem.open_output_stream(staging.file(name))))
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        self.callback(self._describe)
        self._writer = self.enter_context(pa.ipc.new_file(self._stream, schema, options=options))

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)
        self._rows += batch.num_rows

    def _describe(self) -> None:
        # Called after the writer wrote the end of the file.
        self.file = StagedFile(self._name, self._rows, self._stream.tell(), self._stream.sha256.hexdigest())


class _HashedStream(io.RawIOBase):
    """A stream that computes the digest of what passes through it to another one, which it does not close."""

    def __init__(self, stream: pa.NativeFile) -> None:
        self.sha256 = hashlib.sha256()
        self._stream = stream
        self._size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.sha256.update(data)
        self._stream.write(data)
        size = memoryview(data).nbytes
        self._size += size
        return size

    def tell(self) -> int:
        return self._size


def record_batches(
    staging: StagingDirectory, file: StagedFile, schema: pa.Schema | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the record batches of a file, after checking its size and digest.

    :param schema: which it must have; None for any
    :raises StagedFileError: it is missing, unreadable, truncated, altered, or a file of another kind
    :raises ValueError: the name leads out of the directory; names come from a manifest, which anyone could have written
    """
    path = staging.file(file.name)
    rows = 0
    try:
        with _proved(staging, path, file) as stream, pa.ipc.open_file(stream) as reader:
            if schema is not None and reader.schema != schema:
                raise StagedFileError(f"Staged file {path} is of another kind")
            for batch in _valid_batches(reader, path):
                rows += batch.num_rows
                yield batch
    except (OSError, pa.ArrowException) as error:
        raise _unreadable(path, error) from error
    if rows != file.rows:
        raise StagedFileError(f"Staged file {path} holds {rows:,} rows, and its task reported {file.rows:,}")


def _valid_batches(reader: pa.ipc.RecordBatchFileReader, path: str) -> Iterator[pa.RecordBatch]:
    for index in range(reader.num_record_batches):
        try:
            batch = reader.get_batch(index)
            # What offsets beyond a buffer lead to is the memory of this process.
            batch.validate(full=True)
        except (SystemError, pa.ArrowException) as error:
            raise _unreadable(path, error) from error
        yield batch


def _unreadable(path: str, error: Exception) -> StagedFileError:
    return StagedFileError(f"Staged file {path} cannot be read: {type(error).__name__}: {shortened(str(error))}")


@contextmanager
def _proved(staging: StagingDirectory, path: str, file: StagedFile) -> Iterator[Any]:
    """Open a file whose size and digest are as the manifest says.

    A file in an object store is copied to an unnamed local file meanwhile, so that it is read over the network once.
    """
    with (
        staging.filesystem.open_input_file(path) as stream,
        nullcontext() if staging.is_local else tempfile.TemporaryFile() as copy,
    ):
        size, sha256 = 0, hashlib.sha256()
        while chunk := stream.read(_CHUNK_BYTES):
            size += len(chunk)
            sha256.update(chunk)
            if copy is not None:
                copy.write(chunk)
        if size != file.bytes:
            raise StagedFileError(f"Staged file {path} has {size:,} bytes, and was written with {file.bytes:,}")
        if sha256.hexdigest() != file.sha256:
            raise StagedFileError(f"Staged file {path} was altered: its SHA-256 is not that of what was written")
        proved = stream if copy is None else copy
        proved.seek(0)
        yield proved


SCHEMA = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", "UTC")),
        pa.field("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)
"""The columns of records, as `kafka.reader.read` yields them with headers."""


def write_records(staging: StagingDirectory, index: int, records: Iterable[pa.RecordBatch]) -> None:
    """Write the records of a slice, with the columns of `SCHEMA`.

    :param index: of the slice
    """
    with ArrowFileWriter(staging, _name(index), SCHEMA) as writer:
        for batch in records:
            writer.write(batch)


def read_records(staging: StagingDirectory, slice_: Slice) -> Iterator[pa.RecordBatch]:
    """Yield the records of a slice.

    :raises StagedFileError: the file was altered
    """
    path = staging.file(_name(slice_.index))
    with staging.filesystem.open_input_file(path) as stream, pa.ipc.open_file(stream) as reader:
        if reader.schema != SCHEMA:
            raise StagedFileError(f"Staged file {path} is of another kind")
        yield from _valid_batches(reader, path)


def _name(index: int) -> str:
    return f"records-{index}.arrow"
