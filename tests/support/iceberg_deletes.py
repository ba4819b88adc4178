"""Deletes as other engines write them into Iceberg tables, in files of their own; pyiceberg reads some of them, and
writes none.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.conversions import to_bytes
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
)
from pyiceberg.table import Table
from pyiceberg.table.update.snapshot import _FastAppendFiles
from pyiceberg.typedef import Record

# Of the specification: the columns of a file with deletes by position.
_FILE_PATH, _POS = 2147483546, 2147483545


class _DeletesWriter(ManifestWriterV2):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


def delete_by_position(table: Table, positions: list[int]) -> None:
    """Delete rows of the first file."""
    path = next(iter(table.scan().plan_files())).file.file_path
    rows = pa.table({"file_path": pa.array([path] * len(positions)), "pos": pa.array(positions, pa.int64())})
    _append(table, _written(table, rows, (_FILE_PATH, _POS)), DataFileContent.POSITION_DELETES, {}, None)


def delete_by_value(table: Table, column: str, value: int) -> None:
    """Delete the rows with a value in a column of whole numbers."""
    column_id = table.schema().find_field(column).field_id
    file = _written(table, pa.table({column: pa.array([value], pa.int64())}), (column_id,))
    bound = {column_id: to_bytes(table.schema().find_field(column).field_type, value)}  # type: ignore[arg-type]
    statistics = {"value_counts": {column_id: 1}, "lower_bounds": bound, "upper_bounds": bound}
    _append(table, file, DataFileContent.EQUALITY_DELETES, statistics, [column_id])


def compact_with_deletes(table: Table, keys: list[int]) -> None:
    """Write the data files again with the rows of some keys, as an engine does that knows all deletes; these stay."""
    (old,) = _entries(table)
    rows = pq.read_table(old.file_path.removeprefix("file://")).filter(pc.field("key").isin(keys))
    with table.transaction() as transaction:
        snapshot = transaction.update_snapshot().overwrite()
        snapshot.delete_by_predicate(AlwaysTrue())
        with snapshot as update:
            update.delete_data_file(old)
            for new in _dataframe_to_data_files(transaction.table_metadata, rows, table.io, uuid.uuid4()):
                update.append_data_file(new)


def _entries(table: Table) -> list[DataFile]:
    snapshot = table.current_snapshot()
    assert snapshot is not None
    entries = (entry for each in snapshot.manifests(table.io) for entry in each.fetch_manifest_entry(table.io))
    return [entry.data_file for entry in entries if entry.data_file.content == DataFileContent.DATA]


def _written(table: Table, rows: pa.Table, field_ids: tuple[int, ...]) -> tuple[str, int, int]:
    path = f"{table.location()}/data/deletes-{len(table.snapshots())}.parquet"
    fields = [
        field.with_metadata({"PARQUET:field_id": str(field_id)})
        for field, field_id in zip(rows.schema, field_ids, strict=True)
    ]
    pq.write_table(rows.cast(pa.schema(fields)), path.removeprefix("file://"))
    return path, rows.num_rows, len(table.io.new_input(path))


def _append(
    table: Table,
    file: tuple[str, int, int],
    content: DataFileContent,
    statistics: Mapping[str, Any],
    equality_ids: list[int] | None,
) -> None:
    path, rows, size = file
    entry = DataFile.from_args(
        content=content,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=rows,
        file_size_in_bytes=size,
        equality_ids=equality_ids,
        **statistics,
    )
    entry.spec_id = table.spec().spec_id

    class Deletes(_FastAppendFiles):
        def _existing_manifests(self) -> list[ManifestFile]:
            writer = _DeletesWriter(
                table.spec(), table.schema(), self.new_manifest_output(), self._snapshot_id, self._compression
            )
            added = ManifestEntry.from_args(
                status=ManifestEntryStatus.ADDED,
                snapshot_id=self._snapshot_id,
                sequence_number=None,
                file_sequence_number=None,
                data_file=entry,
            )
            with writer:
                writer.add_entry(added)
            return [*super()._existing_manifests(), writer.to_manifest_file()]

    with table.transaction() as transaction:
        update = transaction.update_snapshot().fast_append()
        update.__class__ = Deletes
        with update:
            pass
