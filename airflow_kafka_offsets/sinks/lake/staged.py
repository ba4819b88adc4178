"""The files that Spark's tasks wrote for a batch, on their way into a table."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import pyarrow as pa

from airflow_kafka_offsets.core.origin import BATCH_ID
from airflow_kafka_offsets.exceptions import StagedFileError
from airflow_kafka_offsets.sinks.lake.file_table import FileTable
from airflow_kafka_offsets.sinks.table import Output
from airflow_kafka_offsets.staging.manifest import StagedFile
from airflow_kafka_offsets.staging.rows import schema_text
from airflow_kafka_offsets.writers.table_rows import file_columns

_LOOKS_AT_ONCE = 32


class LakeSink(Protocol):
    """What the sinks of tables of files have."""

    @property
    def name(self) -> str: ...

    @property
    def uri(self) -> str: ...

    @property
    def sort_by(self) -> Sequence[str]: ...

    @property
    def file_bytes(self) -> int: ...

    def snapshot(self) -> FileTable | None:
        """Return the table as it is now; None where there is none."""


def writer_fields(sink: LakeSink, snapshot: FileTable, columns: pa.Schema | None, output: Output) -> dict[str, Any]:
    """Return the fields of a `LakeWriter` that writes data files for a table as it is now.

    :param columns: of the rows, or None where a transform decides them: then they are some of the table's
    """
    rows = columns if columns is not None else pa.schema([each for each in snapshot.columns if each.name != BATCH_ID])
    table = with_columns(snapshot.columns, rows)
    shape = {
        "uri": sink.uri,
        "columns": schema_text(table),
        "partition_by": list(snapshot.partition_by),
        "sort_by": list(sink.sort_by),
        "measured": snapshot.measured(table),
        "file_bytes": sink.file_bytes,
        "digest": layout_digest(snapshot, rows),
    }
    return {
        "table": sink.name,
        "columns": schema_text(rows),
        "shape": shape,
        "batch_id": output.batch_id,
        "attempt": output.attempt,
    }


def with_columns(table: pa.Schema, rows: pa.Schema) -> pa.Schema:
    """Return the columns of a table with those of rows that it lacks, nullable."""
    new = [each.with_nullable(True) for each in file_columns(rows) if each.name not in table.names]
    return pa.schema([*table, *new])


def layout_digest(snapshot: FileTable, rows: pa.Schema) -> str:
    """Return a digest of what a data file of these rows is like in the table as it is."""
    table = with_columns(snapshot.columns, rows)
    types = [(name, str(table.field(name).type)) for name in sorted({*rows.names, BATCH_ID} & set(table.names))]
    return hashlib.sha256(repr((types, snapshot.partition_by)).encode()).hexdigest()


def check_files(snapshot: FileTable, staged: Iterable[StagedFile], rows: pa.Schema) -> list[dict[str, Any]]:
    """Return what the writer knows of files, once they are proved to be there and to fit the table.

    :raises StagedFileError: one is missing, or was written for the table as it was; staging again helps
    """
    found = [(file, json.loads(file.data)) for file in staged]
    digest = layout_digest(snapshot, rows)
    if any(data["layout"] != digest for _, data in found):
        raise StagedFileError(
            f"Table {snapshot.name!r} has other columns or partitions than when the files of the batch were written"
        )
    with ThreadPoolExecutor(_LOOKS_AT_ONCE, thread_name_prefix="lake-look") as pool:
        sizes = pool.map(lambda file: snapshot.files.size(file.name), [file for file, _ in found])
        for (file, _), size in zip(found, sizes, strict=True):
            if size != file.bytes:
                what = "is not there" if size is None else f"has {size:,} bytes, and had {file.bytes:,}"
                raise StagedFileError(f"File {file.name} of table {snapshot.name!r} {what}")
    return [data["add"] for _, data in found]
