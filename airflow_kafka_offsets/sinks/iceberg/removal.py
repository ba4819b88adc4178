"""Rows that are taken back or replaced: whole files are dropped, and only files that also hold other rows are written
again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import AlwaysFalse, BooleanExpression, Or
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.update.snapshot import _OverwriteFiles

from airflow_kafka_offsets.core.offsets import Span
from airflow_kafka_offsets.core.origin import BATCH_ID, RECORD
from airflow_kafka_offsets.sinks.iceberg.key_index import KeyPruning
from airflow_kafka_offsets.sinks.iceberg.newest import NewestRows, portions, positions
from airflow_kafka_offsets.sinks.iceberg.source import of_batches, plan, read
from airflow_kafka_offsets.sinks.lake.replaced import Key, ReplacedRows, count_rows
from airflow_kafka_offsets.sinks.table import Output
from airflow_kafka_offsets.writers.data_files import write_data_files
from airflow_kafka_offsets.writers.iceberg_files import IcebergStorage, TableShape


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
    """Return which rows are of a batch: those of its ranges, where the table says it. Rows of another installation may
    have its number.
    """
    if not set(RECORD) <= set(table.schema().column_names):
        return BatchRows(output.batch_id)
    ranges: dict[Key, list[Span]] = {}
    for part in output.ranges:
        ranges.setdefault((output.batch_id, part.topic, part.partition), []).append((part.start, part.end))
    return ReplacedRows(".".join(table.name()), ranges)


class Kept(NamedTuple):
    """A file that is written again, and which of its rows stay.

    :param stay: for each row whether it does
    """

    file: FileScanTask
    stay: pa.Array


@dataclass
class Removal:
    """The files that hold rows which go, in one snapshot of a table.

    :ivar condition: by which they were found
    :ivar whole: files that hold nothing else
    :ivar mixed: files that also hold rows which stay
    :ivar counts: how many rows are taken back, by batch and partition; those that are replaced by key are not counted
    :ivar outdated: the keys of a batch, by number, of which the table has a newer row
    """

    condition: BooleanExpression
    whole: list[FileScanTask] = field(default_factory=list)
    mixed: list[Kept] = field(default_factory=list)
    counts: Counter[Key] = field(default_factory=Counter)
    outdated: pa.Array = field(default_factory=lambda: pa.array([], pa.int32()))

    @property
    def is_empty(self) -> bool:
        return not self.whole and not self.mixed

    def apply(self, snapshot: _OverwriteFiles) -> None:
        """Drop the files, also those that are written again."""
        # By this pyiceberg finds the manifests that name the files.
        snapshot.delete_by_predicate(self.condition)
        for task in (*self.whole, *(kept.file for kept in self.mixed)):
            snapshot.delete_data_file(task.file)


class _Found(NamedTuple):
    """What there is in a file.

    :param goes: the positions of rows that go
    """

    rows: int
    goes: pa.Array
    counts: Counter[Key]
    outdated: pa.Array


@dataclass
class Search:
    """Looks for the rows that go: those that are taken back, and those that the newest rows of a batch replace.

    Files never change. Where somebody else committed meanwhile, only files are read that were not there before.

    :param rows: are taken back
    :param newest: replace others
    """

    rows: RemovedRows | None = None
    newest: NewestRows | None = None
    _found: dict[tuple[str, ...], _Found] = field(default_factory=dict)

    def find(self, table: Table) -> Removal:
        """Read the columns of the key, and those that say where rows are from, of the files that may hold some of them.

        Where others expire the snapshot meanwhile and remove its files, the rows are those of the table as it is now. A
        commit that goes on from `table` fails then: the current snapshot is another one.

        :raises FileNotFoundError: files of the current snapshot are missing
        """
        while True:
            try:
                return self._find(table)
            except FileNotFoundError:
                current = table.catalog.load_table(table.name())
                if current.metadata_location == table.metadata_location:
                    raise
                table = current

    def _find(self, table: Table) -> Removal:
        conditions: list[BooleanExpression] = [AlwaysFalse(), AlwaysFalse()]
        if self.rows is not None and self.rows.batch_ids:
            conditions.append(of_batches(self.rows.batch_ids))
        if self.newest is not None:
            conditions.append(self.newest.index.condition())
        removal = Removal(Or(*conditions))
        if removal.condition == AlwaysFalse() or table.current_snapshot() is None:
            return removal
        pruning = KeyPruning(table, self.newest.index) if self.newest is not None else None
        outdated = [removal.outdated]
        for file in plan(table, removal.condition):
            if pruning is not None and self.rows is None and not pruning.may_hold(file.file):
                continue
            if (name := name_of(file)) not in self._found:
                self._found[name] = self._look(table, file)
            found = self._found[name]
            removal.counts += found.counts
            outdated.append(found.outdated)
            if not len(found.goes):
                continue
            if len(found.goes) == found.rows:
                removal.whole.append(file)
            else:
                removal.mixed.append(Kept(file, without(found.rows, found.goes)))
        removal.outdated = pc.unique(pa.chunked_array(outdated))
        return removal

    def _look(self, table: Table, file: FileScanTask) -> _Found:
        names = table.schema().column_names
        wanted = [*RECORD, *(self.rows.columns if self.rows else ()), *(self.newest.index.names if self.newest else ())]
        columns = [name for name in dict.fromkeys(wanted) if name in names]
        seen, goes, outdated, counts = 0, [pa.array([], pa.int64())], [pa.array([], pa.int32())], Counter[Key]()
        for part in portions(table, table.schema().select(*columns), file, columns):
            places = positions(seen, part.num_rows)
            seen += part.num_rows
            if self.rows is not None:
                mask = _one_chunk(self.rows.mask(part))
                if set(RECORD) <= set(columns):
                    counts += count_rows(part.filter(mask))
                goes.append(places.filter(mask))
                part, places = part.filter(pc.invert(mask)), places.filter(pc.invert(mask))
            if self.newest is not None:
                replaced = self.newest.replaced(part, places)
                goes.append(replaced.rows)
                outdated.append(replaced.outdated)
        return _Found(seen, pa.concat_arrays(goes), counts, pc.unique(pa.concat_arrays(outdated)))


def rewrite(table: Table, schema: Schema, shape: TableShape, prefix: str, parts: Sequence[Kept]) -> Iterator[DataFile]:
    """Write rows that stay into new files.

    :param schema: of the files
    :param prefix: the directory of new files
    """
    if not parts:
        return
    rows = _kept_rows(table, schema, parts, shape.layout.columns)
    for file in write_data_files(IcebergStorage(table.io), rows, shape.layout, partial(shape.path, prefix)):
        yield shape.entry(file)


def _kept_rows(table: Table, schema: Schema, parts: Sequence[Kept], columns: pa.Schema) -> Iterator[pa.RecordBatch]:
    for file, stay in parts:
        seen = 0
        for part in read(table, schema, [file]):
            kept = part.filter(stay.slice(seen, part.num_rows))
            seen += part.num_rows
            if kept.num_rows:
                yield kept.cast(columns)


def name_of(file: FileScanTask) -> tuple[str, ...]:
    """Return what is the same where a file has the same rows, without those that other engines marked as deleted."""
    return file.file.file_path, *sorted(each.file_path for each in file.delete_files)


def without(rows: int, goes: pa.Array) -> pa.Array:
    """Return for each row of a file whether it stays.

    :param goes: the positions of those that do not
    """
    return pc.invert(pc.is_in(positions(0, rows), value_set=goes))


def _one_chunk(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
