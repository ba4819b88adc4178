"""A table of Delta Lake in one version: its columns, its active files, and the numbers of what was published in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote

import deltalake
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake.exceptions import TableNotFoundError

from airflow_kafka_offsets.core.offsets import Slice
from airflow_kafka_offsets.core.origin import BATCH_ID, OFFSET, PARTITION, TOPIC
from airflow_kafka_offsets.exceptions import TargetError
from airflow_kafka_offsets.sinks.delta.columns import arrow_columns, unusable
from airflow_kafka_offsets.writers.object_files import ObjectFiles, is_local, local_path

_HISTORY_AT_ONCE = 16


class ActiveFile(NamedTuple):
    """A data file of the table.

    :param path: as the log has it, in which some characters are encoded
    :param partition: the value of each partition column
    """

    path: str
    bytes: int
    partition: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Its path below the location of the table."""
        if "://" in self.path:
            raise TargetError(
                f"The table names the file {self.path!r}, which is outside its location, as a shallow clone does"
            )
        return unquote(self.path)


class DeltaSnapshot:
    """A table in one version.

    :ivar columns: with Arrow's types
    :ivar required: the columns that may not be null
    """

    def __init__(self, name: str, table: deltalake.DeltaTable, files: ObjectFiles) -> None:
        self.name, self.table, self.files = name, table, files
        self.columns = arrow_columns(table.schema())
        self.required = [column.name for column in self.columns if not column.nullable]
        self.partition_by: list[str] = list(table.metadata().partition_columns)

    @classmethod
    def read(cls, name: str, uri: str, options: Mapping[str, Any]) -> DeltaSnapshot | None:
        """Return a table as it is now; None where there is none."""
        location = local_path(uri) if is_local(uri) else uri
        try:
            table = deltalake.DeltaTable(location, storage_options=dict(options) or None)
        except TableNotFoundError:
            return None
        return cls(name, table, ObjectFiles(uri, options))

    def again(self) -> DeltaSnapshot:
        """Return the table as it is now."""
        self.table.update_incremental()
        return DeltaSnapshot(self.name, self.table, self.files)

    @property
    def version(self) -> int:
        return self.table.version()

    def check(self) -> None:
        """Check that this package can write to the table.

        :raises TargetError: it has a feature that is not known here
        """
        if reasons := unusable(self.table):
            raise TargetError(
                f"Table {self.name!r} cannot be written to: {'; '.join(reasons)}. Drop the feature, or load into another table"
            )

    def last_number(self, series: str) -> int:
        """Return the number of the last publication of a series; -1 where there is none."""
        number = self.table.transaction_version(series)
        return -1 if number is None else number

    def history(self) -> Iterator[dict[str, Any]]:
        """Yield the commits, the last one first, as far as the log has them."""
        seen, limit = 0, _HISTORY_AT_ONCE
        while True:
            commits = self.table.history(limit)
            yield from commits[seen:]
            if len(commits) < limit:
                return
            seen, limit = len(commits), limit * 8

    def active(self, ranges: Mapping[str, tuple[Any, Any]] | None = None) -> list[ActiveFile]:
        """Return the data files that may hold rows within ranges; those whose statistics do not tell may.

        :param ranges: by column, the lowest and the highest value
        """
        actions = pa.table(self.table.get_add_actions())
        chosen = pa.repeat(pa.scalar(True), actions.num_rows)
        for name, (lowest, highest) in (ranges or {}).items():
            bounds = ("partition", "partition") if name in self.partition_by else ("min", "max")
            least, greatest = (_inner(actions, side, name) for side in bounds)
            if least is not None and greatest is not None:
                is_below = pc.greater(least, pa.scalar(highest, least.type))
                is_above = pc.less(greatest, pa.scalar(lowest, greatest.type))
                chosen = pc.and_not(chosen, pc.fill_null(pc.or_(is_below, is_above), False))
        found = actions.filter(chosen)
        partitions = found["partition"].to_pylist() if "partition" in found.schema.names else [{}] * found.num_rows
        rows = zip(found["path"].to_pylist(), found["size_bytes"].to_pylist(), partitions, strict=True)
        return [ActiveFile(path, size, partition or {}) for path, size, partition in rows]

    def read_file(self, file: ActiveFile, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file, with the types of the table; columns that the file lacks are null."""
        schema = pa.schema([self.columns.field(name) for name in columns])
        with self.files.open(file.name) as opened, pq.ParquetFile(opened) as parquet:
            held = [name for name in columns if name in parquet.schema_arrow.names and name not in file.partition]
            # Without a column there are still rows.
            for batch in parquet.iter_batches(columns=held or parquet.schema_arrow.names[:1]):
                arrays = [
                    batch.column(column.name).cast(column.type)
                    if column.name in held
                    else pa.repeat(pa.scalar(file.partition.get(column.name), column.type), batch.num_rows)
                    for column in schema
                ]
                yield pa.RecordBatch.from_arrays(
                    arrays, schema=pa.schema([field.with_nullable(True) for field in schema])
                )

    def scan(
        self, columns: Sequence[str], batches: tuple[int, int] | None = None, within: Slice | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield rows; see `LakeSource.scan`."""
        ranges: dict[str, tuple[Any, Any]] = {}
        if batches is not None:
            ranges[BATCH_ID] = batches
        if within is not None:
            ranges[TOPIC] = (within.topic, within.topic)
            ranges[PARTITION] = (within.partition, within.partition)
            ranges[OFFSET] = (within.start, within.end - 1)
        for file in self.active(ranges):
            yield from self.read_file(file, columns)

    def batch_ids(self, at_least: int) -> set[int]:
        """Return the numbers of the batches that have rows, from one on."""
        if BATCH_ID not in self.columns.names:
            return set()
        found: set[int] = set()
        for rows in self.scan([BATCH_ID], (at_least, (1 << 63) - 1)):
            found.update(pc.unique(rows.column(0)).to_pylist())
        return {batch_id for batch_id in found if batch_id is not None and batch_id >= at_least}


def _inner(actions: pa.Table, side: str, name: str) -> pa.ChunkedArray | None:
    if side not in actions.schema.names:
        return None
    kind = actions.schema.field(side).type
    return pc.struct_field(actions[side], name) if kind.get_field_index(name) >= 0 else None
