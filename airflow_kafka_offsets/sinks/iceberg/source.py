"""The rows of a table as they are read back: by file, a record batch at a time, without what the statistics of files
rule out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.expressions.parser import parse
from pyiceberg.io.pyarrow import ArrowScan, _read_all_delete_files
from pyiceberg.manifest import DataFileContent, ManifestContent
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask, Table

from airflow_kafka_offsets.core.offsets import Slice
from airflow_kafka_offsets.core.origin import BATCH_ID, OFFSET, PARTITION, TOPIC
from airflow_kafka_offsets.exceptions import TargetError
from airflow_kafka_offsets.sinks.iceberg.shapes import arrow_columns

# More values than these pyiceberg compares with no statistics.
_MOST_VALUES = 200


class IcebergSource:
    """A table in one snapshot; see `LakeSource`."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.columns = arrow_columns(table.schema())

    def scan(
        self, columns: Sequence[str], batches: tuple[int, int] | None = None, within: Slice | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield rows; see `LakeSource.scan`."""
        conditions = []
        if batches is not None:
            conditions.append(f"{BATCH_ID} >= {batches[0]} and {BATCH_ID} <= {batches[1]}")
        if within is not None:
            # A topic's name has letters, digits, dots, dashes and underscores.
            conditions.append(f"{TOPIC} = '{within.topic}' and {PARTITION} = {within.partition}")
            conditions.append(f"{OFFSET} >= {within.start} and {OFFSET} < {within.end}")
        condition = parse(" and ".join(conditions)) if conditions else AlwaysTrue()
        files = plan(self.table, condition)
        yield from read(self.table, self.table.schema().select(*columns), files, columns)


def of_batches(batch_ids: Sequence[int]) -> BooleanExpression:
    """Return the condition that a row is of one of some batches, as far as statistics can tell.

    :param batch_ids: at least one, in order
    """
    span = f"{BATCH_ID} >= {batch_ids[0]} and {BATCH_ID} <= {batch_ids[-1]}"
    if len(batch_ids) > _MOST_VALUES:
        return parse(span)
    return parse(f"{span} and {BATCH_ID} in ({', '.join(map(str, batch_ids))})")


def since(batch_id: int) -> BooleanExpression:
    """Return the condition that a row is of a batch, or of a later one."""
    return parse(f"{BATCH_ID} >= {batch_id}")


def plan(table: Table, condition: BooleanExpression) -> list[FileScanTask]:
    """Return the files that may hold rows of a condition.

    :raises TargetError: pyiceberg cannot read the table
    """
    try:
        if _has_deletes_by_value(table):
            raise ValueError("it has equality deletes, which pyiceberg does not support")
        return list(table.scan(condition).plan_files())
    except ValueError as error:
        raise TargetError(
            f"Iceberg table {'.'.join(table.name())!r} cannot be read: {error}. Have the engine that writes it compact "
            "it"
        ) from error


def _has_deletes_by_value(table: Table) -> bool:
    """Return whether rows are deleted by value, which some engines write into files of their own.

    pyiceberg finds this out itself, but for deletes whose values are ruled out by the condition of a scan. Their rows
    would be back in a file that is written again for other rows.
    """
    snapshot = table.current_snapshot()
    manifests = snapshot.manifests(table.io) if snapshot is not None else []
    data = [each.min_sequence_number or 0 for each in manifests if each.content == ManifestContent.DATA]
    # Deletes concern older files. Those of files that were compacted stay for a while, and delete nothing.
    return any(
        entry.data_file.content == DataFileContent.EQUALITY_DELETES
        and (entry.sequence_number or 0) > min(data, default=0)
        for manifest in manifests
        if manifest.content == ManifestContent.DELETES
        for entry in manifest.fetch_manifest_entry(table.io)
    )


def read(
    table: Table, schema: Schema, files: Iterable[FileScanTask], columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of files, without those that other engines marked as deleted.

    :param schema: of the rows; columns that a file lacks are null
    :param columns: in their order; without them, that of the schema
    """
    scan = ArrowScan(table.metadata, table.io, schema, AlwaysTrue())
    types = arrow_columns(schema)
    for file in files:
        # `to_record_batches` holds all rows of the files that it reads.
        deletes = _read_all_delete_files(table.io, [file])
        for rows in scan._record_batches_from_scan_tasks_and_deletes([file], deletes):
            # Other engines write files whose texts are read as another type than those of pyarrow.
            rows = rows.cast(types)
            yield rows if columns is None else rows.select(columns)
