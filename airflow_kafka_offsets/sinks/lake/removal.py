"""Rows that are taken back: files without others are dropped, and files with both are written again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from airflow_kafka_offsets.core.origin import BATCH_ID, RECORD, TOPIC
from airflow_kafka_offsets.sinks.lake.file_table import ActiveFile, FileTable
from airflow_kafka_offsets.sinks.lake.replaced import Key, ReplacedRows, count_rows
from airflow_kafka_offsets.sinks.table import Output
from airflow_kafka_offsets.writers.data_files import DataFile, write_data_files
from airflow_kafka_offsets.writers.delta_files import delta_layout


class RowFilter(Protocol):
    """Which rows are taken back; `ReplacedRows` is one."""

    @property
    def batch_ids(self) -> Sequence[int]: ...

    @property
    def columns(self) -> list[str]: ...

    def mask(self, rows: pa.RecordBatch | pa.Table) -> pa.ChunkedArray | pa.Array: ...


@dataclass(frozen=True)
class BatchRows:
    """All rows of a batch, whose table does not say which records they are of."""

    batch_id: int

    @property
    def batch_ids(self) -> list[int]:
        return [self.batch_id]

    @property
    def columns(self) -> list[str]:
        return [BATCH_ID]

    def mask(self, rows: pa.RecordBatch | pa.Table) -> pa.ChunkedArray | pa.Array:
        return pc.fill_null(pc.equal(rows.column(BATCH_ID), self.batch_id), False)


@dataclass(frozen=True)
class Removal:
    """What is removed from a table in one version.

    :param counts: rows, by batch and partition
    :param whole: files all of whose rows go
    :param mixed: files some of whose rows stay
    """

    goes: RowFilter
    counts: Counter[Key]
    whole: tuple[ActiveFile, ...]
    mixed: tuple[ActiveFile, ...]

    @property
    def paths(self) -> set[str]:
        return {file.path for file in (*self.whole, *self.mixed)}


def plan_removal(snapshot: FileTable, goes: RowFilter) -> Removal:
    """Find the files with rows that are taken back.

    :raises ConfigurationError: rows do not say where they are from
    :raises TargetError: nothing may be removed from the table
    """
    counts: Counter[Key] = Counter()
    whole: list[ActiveFile] = []
    mixed: list[ActiveFile] = []
    for file in _candidates(snapshot, goes):
        going = total = 0
        for rows in snapshot.read_file(file, goes.columns):
            gone = rows.filter(goes.mask(rows))
            counts.update(count_rows(gone) if TOPIC in goes.columns else {(goes.batch_ids[0], "", 0): gone.num_rows})
            going, total = going + gone.num_rows, total + rows.num_rows
        if going:
            (whole if going == total else mixed).append(file)
    if counts:
        snapshot.check_removal()
    return Removal(goes, +counts, tuple(whole), tuple(mixed))


def rewrite(
    snapshot: FileTable, removal: Removal, path: Callable[[Mapping[str, Any]], str], file_bytes: int
) -> Iterator[DataFile]:
    """Write the rows again that stay of the files with both.

    :param path: returns a new path for a file of a partition
    """
    columns = pa.schema([column.with_nullable(True) for column in snapshot.columns])
    measured = snapshot.measured(columns)
    layout = delta_layout(columns, snapshot.partition_by, file_bytes=file_bytes, measured=measured)

    def staying(file: ActiveFile) -> Iterator[pa.RecordBatch]:
        for rows in snapshot.read_file(file, snapshot.columns.names):
            yield rows.filter(pc.invert(removal.goes.mask(rows)))

    for file in removal.mixed:
        yield from write_data_files(snapshot.files, staying(file), layout, path)


def of_output(snapshot: FileTable, output: Output) -> RowFilter:
    """Return which rows are of a batch: those of its ranges, where the table says it."""
    if not set(RECORD) <= set(snapshot.columns.names):
        return BatchRows(output.batch_id)
    ranges: dict[Key, list[tuple[int, int]]] = {}
    for read in output.ranges:
        ranges.setdefault((output.batch_id, read.topic, read.partition), []).append((read.start, read.end))
    return ReplacedRows(snapshot.name, ranges)


def _candidates(snapshot: FileTable, goes: RowFilter) -> Collection[ActiveFile]:
    ids = goes.batch_ids
    return snapshot.active({BATCH_ID: (ids[0], ids[-1])}) if ids and BATCH_ID in snapshot.columns.names else ()
