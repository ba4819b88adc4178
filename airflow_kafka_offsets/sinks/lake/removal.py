"""The rows that a commit removes from a lake table: files without other rows are dropped, and the rows that stay of all
others are written again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from airflow_kafka_offsets.core.offsets import Span
from airflow_kafka_offsets.core.origin import BATCH_ID, RECORD
from airflow_kafka_offsets.sinks.lake.newest import NewestRows, portions, positions
from airflow_kafka_offsets.sinks.lake.replaced import Key, ReplacedRows, count_rows
from airflow_kafka_offsets.sinks.lake.table_format import Bounds, LakeFile, Snapshot
from airflow_kafka_offsets.sinks.table import Output
from airflow_kafka_offsets.staging.manifest import StagedFile
from airflow_kafka_offsets.writers.data_files import write_data_files
from airflow_kafka_offsets.writers.lake_writer import TableFormat as FileFormat


class RowFilter(Protocol):
    """Which rows are removed; `ReplacedRows` is one."""

    @property
    def batch_ids(self) -> Sequence[int]:
        """The batches that wrote some of them, in order."""

    @property
    def columns(self) -> list[str]:
        """The columns that are read."""

    def mask(self, rows: pa.RecordBatch | pa.Table) -> pa.ChunkedArray | pa.Array:
        """Return for each row whether it is removed."""


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


def of_output(snapshot: Snapshot, output: Output) -> RowFilter:
    """Return which rows are of a batch: those of its ranges, where the table says it. Rows of another installation may
    have its number.
    """
    if not set(RECORD) <= set(snapshot.columns.names):
        return BatchRows(output.batch_id)
    ranges: dict[Key, list[Span]] = {}
    for read in output.ranges:
        ranges.setdefault((output.batch_id, read.topic, read.partition), []).append((read.start, read.end))
    return ReplacedRows(snapshot.name, ranges)


class KeptRows(NamedTuple):
    """A file whose rows are written again, and which of them stay.

    :param stay: for each row whether it does
    """

    file: LakeFile
    stay: pa.Array


@dataclass
class Removal:
    """The files with rows that are removed, in one version of a table.

    :ivar within: bounds by which they were found
    :ivar whole: files that hold no other rows
    :ivar mixed: files that also hold rows which stay
    :ivar counts: how many rows are removed, by batch and partition; those that are replaced by key are not counted
    :ivar outdated: the keys of a batch, by number, of which the table has a newer row
    """

    within: Sequence[Bounds] = ()
    whole: list[LakeFile] = field(default_factory=list)
    mixed: list[KeptRows] = field(default_factory=list)
    counts: Counter[Key] = field(default_factory=Counter)
    outdated: pa.Array = field(default_factory=lambda: pa.array([], pa.int32()))

    @property
    def files(self) -> list[LakeFile]:
        """All files that are dropped."""
        return [*self.whole, *(kept.file for kept in self.mixed)]


class _Found(NamedTuple):
    """What there is in a file.

    :param removed: the positions of rows that are removed
    """

    rows: int
    removed: pa.Array
    counts: Counter[Key]
    outdated: pa.Array


@dataclass
class Search:
    """Looks for the rows that a commit removes. Files never change: in a later version, only new ones are read.

    :param rows: that are removed
    :param newest: the rows of a batch that replace others of the same keys
    """

    rows: RowFilter | None = None
    newest: NewestRows | None = None
    _found: dict[Hashable, _Found] = field(default_factory=dict)

    def find(self, snapshot: Snapshot) -> Removal:
        """Return the files with rows that are removed.

        Where others remove files of the version meanwhile, this is about the table as it is now. A commit that goes on
        from `snapshot` fails then.

        :raises FileNotFoundError: files of the current version are missing
        :raises TargetError: nothing may be removed from the table
        """
        removal = self._find_again(snapshot)
        if removal.files:
            snapshot.check_removal()
        return removal

    def count(self, snapshot: Snapshot) -> int:
        """Return the number of the rows."""
        return self._find_again(snapshot).counts.total()

    def _find_again(self, snapshot: Snapshot) -> Removal:
        while True:
            try:
                return self._find(snapshot)
            except FileNotFoundError:
                current = snapshot.refresh()
                if current.version == snapshot.version:
                    raise
                snapshot = current

    def _find(self, snapshot: Snapshot) -> Removal:
        ids = self.rows.batch_ids if self.rows is not None and BATCH_ID in snapshot.columns.names else ()
        within: list[Bounds] = [{BATCH_ID: (ids[0], ids[-1])}] if ids else []
        if self.newest is not None:
            within.append(self.newest.index.bounds())
        removal = Removal(within)
        outdated = [removal.outdated]
        for file in snapshot.files(within) if within else ():
            is_near = self.newest is not None and snapshot.may_hold(file, self.newest.index)
            if not is_near and not _is_of_batches(file, ids):
                continue
            if file.key not in self._found:
                self._found[file.key] = self._look(snapshot, file)
            found = self._found[file.key]
            removal.counts += found.counts
            outdated.append(found.outdated)
            if len(found.removed) == found.rows > 0:
                removal.whole.append(file)
            elif len(found.removed):
                removal.mixed.append(KeptRows(file, without(found.rows, found.removed)))
        removal.outdated = pc.unique(pa.chunked_array(outdated))
        return removal

    def _look(self, snapshot: Snapshot, file: LakeFile) -> _Found:
        wanted = [
            *(self.rows.columns if self.rows else ()),
            *((*RECORD, *self.newest.index.names) if self.newest else ()),
        ]
        columns = [name for name in dict.fromkeys([BATCH_ID, *wanted]) if name in snapshot.columns.names]
        seen, removed, outdated, counts = 0, [pa.array([], pa.int64())], [pa.array([], pa.int32())], Counter[Key]()
        for part in portions(snapshot, file, columns):
            places = positions(seen, part.num_rows)
            seen += part.num_rows
            if self.rows is not None:
                mask = _one_chunk(self.rows.mask(part))
                counts += _counted(self.rows, part.filter(mask))
                removed.append(places.filter(mask))
                part, places = part.filter(pc.invert(mask)), places.filter(pc.invert(mask))
            if self.newest is not None:
                replaced = self.newest.replaced(part, places)
                removed.append(replaced.rows)
                outdated.append(replaced.outdated)
        return _Found(seen, pa.concat_arrays(removed), counts, pc.unique(pa.concat_arrays(outdated)))


def rewrite(snapshot: Snapshot, shape: FileFormat, directory: str, kept: Sequence[KeptRows]) -> Iterator[StagedFile]:
    """Write rows that stay into new files.

    :param directory: of the files
    """

    def rows() -> Iterator[pa.RecordBatch]:
        columns = shape.layout.columns
        for file, stay in kept:
            seen = 0
            for part in snapshot.read(file, snapshot.columns.names):
                staying = part.filter(stay.slice(seen, part.num_rows))
                seen += part.num_rows
                yield _with_columns(staying, columns)

    for file in write_data_files(snapshot.storage(), rows(), shape.layout, partial(shape.path, directory)):
        yield StagedFile(file.path, file.rows, file.bytes, "", shape.to_json(file))


def without(rows: int, removed: pa.Array) -> pa.Array:
    """Return for each row of a file whether it stays.

    :param removed: the positions of those that do not
    """
    return pc.invert(pc.is_in(positions(0, rows), value_set=removed))


def _with_columns(rows: pa.RecordBatch, columns: pa.Schema) -> pa.RecordBatch:
    arrays = [
        rows.column(column.name).cast(column.type)
        if column.name in rows.schema.names
        else pa.nulls(len(rows), column.type)
        for column in columns
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=columns)


def _counted(goes: RowFilter, rows: pa.Table) -> Counter[Key]:
    if set(RECORD) <= set(rows.column_names):
        return count_rows(rows)
    return +Counter({(goes.batch_ids[0], "", 0): rows.num_rows})


def _is_of_batches(file: LakeFile, ids: Sequence[int]) -> bool:
    """Return whether a file may hold rows of one of some batches, which are in order."""
    if file.batches is None or not ids:
        return bool(ids)
    first = bisect_left(ids, file.batches[0])
    return first < len(ids) and ids[first] <= file.batches[1]


def _one_chunk(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
