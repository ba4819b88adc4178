"""Rows that are taken back: whole files are dropped, and only files that also hold other rows are written again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.manifest import DataFile
from pyiceberg.table import FileScanTask, Table, Transaction
from pyiceberg.table.update.snapshot import _OverwriteFiles

from airflow_kafka_offsets.core.offsets import Span
from airflow_kafka_offsets.core.origin import BATCH_ID, RECORD
from airflow_kafka_offsets.sinks.iceberg.source import of_batches, plan, read
from airflow_kafka_offsets.sinks.lake.replaced import Key, ReplacedRows, count_rows
from airflow_kafka_offsets.sinks.sink import Output
from airflow_kafka_offsets.writers.iceberg_data_file import TableShape
from airflow_kafka_offsets.writers.iceberg_files import DataFiles


class RemovedRows(Protocol):
    """Says which rows are taken back; `ReplacedRows` is one."""

    @property
    def batch_ids(self) -> list[int]:
        """The batches that wrote some of them, in order."""

    @property
    def columns(self) -> list[str]:
        """The columns by which they are told apart."""

    def mask(self, rows: pa.RecordBatch | pa.Table) -> pa.Array:
        """Return for each row whether it is one of them."""


class BatchRows(NamedTuple):
    """All rows of one batch."""

    batch_id: int

    @property
    def batch_ids(self) -> list[int]:
        return [self.batch_id]

    @property
    def columns(self) -> list[str]:
        return [BATCH_ID, *RECORD]

    def mask(self, rows: pa.RecordBatch | pa.Table) -> pa.Array:
        return pc.fill_null(pc.equal(rows.column(BATCH_ID), self.batch_id), False)


def of_output(table: Table, output: Output) -> RemovedRows:
    """Return which rows are of a batch: those of its ranges, where the table says it. Rows of another installation may have its number."""
    if not set(RECORD) <= set(table.schema().column_names):
        return BatchRows(output.batch_id)
    ranges: dict[Key, list[Span]] = {}
    for part in output.ranges:
        ranges.setdefault((output.batch_id, part.topic, part.partition), []).append((part.start, part.end))
    return ReplacedRows(".".join(table.name()), ranges)


@dataclass
class Removal:
    """The files that hold rows which are taken back, in one snapshot of a table.

    :ivar whole: files that hold nothing else
    :ivar mixed: files that also hold rows which stay
    :ivar counts: how many rows are taken back, by batch and partition
    """

    rows: RemovedRows
    whole: list[FileScanTask] = field(default_factory=list)
    mixed: list[FileScanTask] = field(default_factory=list)
    counts: Counter[Key] = field(default_factory=Counter)

    @classmethod
    def find(cls, table: Table, rows: RemovedRows) -> Removal:
        """Read the columns that say where rows are from, of the files that may hold some of them.

        Where others expire the snapshot meanwhile and remove its files, the rows are those of the table as it is now. A commit that goes on
        from `table` fails then: the current snapshot is another one.

        :raises FileNotFoundError: files of the current snapshot are missing
        """
        while True:
            try:
                return cls._find(table, rows)
            except FileNotFoundError:
                current = table.catalog.load_table(table.name())
                if current.metadata_location == table.metadata_location:
                    raise
                table = current

    @classmethod
    def _find(cls, table: Table, rows: RemovedRows) -> Removal:
        found = cls(rows)
        if not rows.batch_ids or table.current_snapshot() is None:
            return found
        names = table.schema().column_names
        columns = [name for name in dict.fromkeys((*rows.columns, *RECORD)) if name in names]
        schema = table.schema().select(*columns)
        for file in plan(table, of_batches(rows.batch_ids)):
            removed = stay = 0
            for part in read(table, schema, [file], columns):
                mask = rows.mask(part)
                count = pc.sum(mask).as_py() or 0
                if count and set(RECORD) <= set(columns):
                    found.counts += count_rows(part.filter(mask))
                removed, stay = removed + count, stay + part.num_rows - count
            if removed:
                (found.mixed if stay else found.whole).append(file)
        return found

    @property
    def is_empty(self) -> bool:
        return not self.whole and not self.mixed

    def apply(self, transaction: Transaction, snapshot: _OverwriteFiles, shape: TableShape, prefix: str) -> None:
        """Drop the files, and write anew those that hold other rows, too.

        :param prefix: the directory of new files
        """
        # By this pyiceberg finds the manifests that name the files.
        snapshot.delete_by_predicate(of_batches(self.rows.batch_ids))
        table = transaction._table
        for file in self._rewritten(table, transaction, shape, prefix):
            snapshot.append_data_file(file)
        for task in (*self.whole, *self.mixed):
            snapshot.delete_data_file(task.file)

    def _rewritten(self, table: Table, transaction: Transaction, shape: TableShape, prefix: str) -> Iterator[DataFile]:
        if not self.mixed:
            return
        files = DataFiles(shape, table.io, prefix)
        yield from files.write(self._kept(table, transaction, files.columns))

    def _kept(self, table: Table, transaction: Transaction, columns: pa.Schema) -> Iterator[pa.Table]:
        for part in read(table, transaction.table_metadata.schema(), self.mixed):
            kept = pa.Table.from_batches([part]).filter(pc.invert(self.rows.mask(part)))
            if kept.num_rows:
                yield kept.cast(columns)
