"""The rows that a commit removes from a table of files: those of replaced offsets, those of a batch, or those that
newer rows of the same keys replace. They are selected in Arrow, because no query can join them with the state tables.

A file with no other rows is dropped; of any other file, the remaining rows are written again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy.engine import Connection

from airflow_kafka_offsets.core.instants import TimeSpan
from airflow_kafka_offsets.core.offsets import Span, TopicPartition
from airflow_kafka_offsets.core.origin import BATCH_ID, OFFSET, PARTITION, RECORD, TIMESTAMP, TOPIC
from airflow_kafka_offsets.core.text import count, first_few, shortened
from airflow_kafka_offsets.exceptions import ConfigurationError, TargetError
from airflow_kafka_offsets.sinks.lake.attempts import attempts
from airflow_kafka_offsets.sinks.lake.newest import NewestRows, portions, positions
from airflow_kafka_offsets.sinks.lake.snapshot import Bounds, LakeFile, RowSource, Snapshot
from airflow_kafka_offsets.sinks.table import Output
from airflow_kafka_offsets.sinks.target_rows import Removed, ReplacedOffsets
from airflow_kafka_offsets.staging.manifest import StagedFile
from airflow_kafka_offsets.writers.data_files import Files, write_data_files
from airflow_kafka_offsets.writers.lake_writer import FileFormat
from airflow_kafka_offsets.writers.object_files import Nowhere
from airflow_kafka_offsets.writers.table_rows import with_columns

_KEYS = (BATCH_ID, TOPIC, PARTITION)

Key = tuple[int, str, int]
"""A batch, a topic and a partition."""


class ReplacedRows(NamedTuple):
    """The offsets of earlier batches whose rows are removed.

    :param target: the name of the table, for messages
    :param ranges: by batch and partition
    :param span: of time, if only the rows of records within it are removed
    """

    target: str
    ranges: Mapping[Key, list[Span]]
    span: TimeSpan | None = None

    @classmethod
    def read(cls, conn: Connection, target: str, replaced: ReplacedOffsets) -> ReplacedRows:
        """Return offsets as plain numbers.

        :param conn: of the database with the state tables
        """
        ranges: dict[Key, list[Span]] = defaultdict(list)
        for row in conn.execute(replaced.ranges):
            ranges[row.batch_id, row.topic, row.partition].append((row.start_offset, row.end_offset))
        return cls(target, dict(ranges), replaced.span)

    @property
    def batch_ids(self) -> list[int]:
        """The batches that wrote some of the rows, in order."""
        return sorted({batch_id for batch_id, _, _ in self.ranges})

    @property
    def columns(self) -> list[str]:
        """The columns that are read."""
        return [BATCH_ID, *RECORD, *([TIMESTAMP] if self.span is not None else [])]

    def check_columns(self, table: pa.Schema) -> None:
        """Check that the table says which rows are of these offsets.

        :raises ConfigurationError: a column is missing
        """
        if missing := [name for name in self.columns if name not in table.names]:
            raise ConfigurationError(
                f"Table {self.target!r} has no column {', '.join(missing)}: the rows of the offsets to replace cannot "
                "be identified. Nothing was changed; delete the rows yourself and rewind without replacing, or load "
                "into a new table."
            )

    def counted(self, rows: pa.Table) -> Counter[Key]:
        """Return how many rows there are of each batch and partition."""
        return count_rows(rows)

    def mask(self, rows: pa.RecordBatch | pa.Table) -> pa.ChunkedArray | pa.Array:
        """Return for each row whether it is removed.

        :param rows: at least the columns of `columns`
        :raises ConfigurationError: a row of these batches does not say where it is from, or of which time
        """
        self._refuse_silent(rows)
        found = pc.is_in(rows.column(BATCH_ID), value_set=pa.array([], rows.column(BATCH_ID).type))
        for key in count_rows(rows):
            for start, end in self.ranges.get(key, ()):
                offset = rows.column(OFFSET)
                of_key = [pc.equal(rows.column(name), value) for name, value in zip(_KEYS, key, strict=True)]
                of_range = [pc.greater_equal(offset, start), pc.less(offset, end)]
                found = pc.or_(found, all_of([*of_key, *of_range]))
        return found if self.span is None else pc.and_(found, self._is_within(rows, found, self.span))

    def _is_within(self, rows: pa.RecordBatch | pa.Table, found: pa.Array, span: TimeSpan) -> pa.Array:
        timestamp = rows.column(TIMESTAMP)
        silent = pc.sum(pc.and_(found, pc.is_null(timestamp))).as_py()
        if silent:
            raise ConfigurationError(
                f"Table {self.target!r} holds {count(silent, 'row')} of the offsets that are read, without a "
                f"{TIMESTAMP}: it is unknown whether they are in the span to replace. Nothing was changed; replay a "
                "range of offsets, or without all_records."
            )
        is_within = pc.greater_equal(timestamp, pa.scalar(span.since, timestamp.type))
        if span.until is not None:
            is_within = pc.and_(is_within, pc.less(timestamp, pa.scalar(span.until, timestamp.type)))
        return is_within

    def _refuse_silent(self, rows: pa.RecordBatch | pa.Table) -> None:
        batches = rows.column(BATCH_ID)
        ours = pc.is_in(batches, value_set=pa.array(self.batch_ids, batches.type))
        for name in RECORD:
            silent = pc.and_(ours, pc.is_null(rows.column(name)))
            if pc.any(silent).as_py():
                batch_id = pc.min(batches.filter(silent)).as_py()
                raise ConfigurationError(
                    f"Table {self.target!r} holds rows of batch {batch_id} without topic, partition and offset: the "
                    "rows of the offsets to replace cannot be identified. Nothing was changed; have the transform "
                    "keep the columns _kafka_topic, _kafka_partition and _kafka_offset, and delete these rows "
                    "yourself."
                )


def count_rows(rows: pa.RecordBatch | pa.Table) -> Counter[Key]:
    """Return how many rows there are of each batch and partition."""
    table = pa.table({name: rows.column(name) for name in _KEYS})
    counts = table.group_by(list(_KEYS)).aggregate([([], "count_all")]).to_pylist()
    return Counter({(row[BATCH_ID], row[TOPIC], row[PARTITION]): row["count_all"] for row in counts})


def as_removed(removed: Iterable[tuple[int, str, int, int]]) -> list[Removed]:
    """Return row counts by batch, topic and partition in the form in which a target reports them."""
    return [Removed(batch, TopicPartition(topic, partition), rows) for batch, topic, partition, rows in removed]


def all_of(conditions: list[pa.Array]) -> pa.Array:
    """Return where all conditions are true; where one of them is null, it is not."""
    return pc.fill_null(reduce(pc.and_, conditions), False)


@dataclass(frozen=True)
class BatchRows:
    """All rows of a batch, whose table does not say which records they are of.

    :param place: the topic and the partition as whose rows they are counted
    """

    batch_id: int
    place: tuple[str, int] = ("", 0)

    @property
    def batch_ids(self) -> list[int]:
        return [self.batch_id]

    @property
    def columns(self) -> list[str]:
        return [BATCH_ID]

    def counted(self, rows: pa.Table) -> Counter[Key]:
        return +Counter({(self.batch_id, *self.place): rows.num_rows})

    def mask(self, rows: pa.RecordBatch | pa.Table) -> pa.ChunkedArray | pa.Array:
        return pc.fill_null(pc.equal(rows.column(BATCH_ID), self.batch_id), False)


RowFilter = ReplacedRows | BatchRows
"""Which rows are removed."""


def of_output(snapshot: Snapshot, output: Output) -> RowFilter:
    """Return which rows are of a batch: those in its ranges, if the table has origin columns, because rows of other
    state tables may have the same batch id.
    """
    if not set(RECORD) <= set(snapshot.columns.names):
        return BatchRows(output.batch_id, output.ranges[0].topic_partition if output.ranges else ("", 0))
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
    """The contents of a file.

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

    def find(self, snapshot: RowSource) -> Removal:
        """Return the files with rows that are removed.

        If other writers remove files of the version meanwhile, the current version is searched; then a commit based on
        `snapshot` fails.

        :raises TargetError: nothing may be removed from the table, or a file of the current version is missing
        """
        removal = self._find_again(snapshot)
        if removal.files:
            snapshot.check_removal(removal.files)
        return removal

    def count(self, snapshot: RowSource) -> int:
        """Return the number of the rows."""
        return self._find_again(snapshot).counts.total()

    def _find_again(self, snapshot: RowSource) -> Removal:
        tries = attempts(snapshot.name)
        while True:
            next(tries)
            try:
                return self._find(snapshot)
            except FileNotFoundError as error:
                current = snapshot.refresh()
                if current.version == snapshot.version:
                    raise missing_file(snapshot.name, error) from None
                snapshot = current

    def _find(self, snapshot: RowSource) -> Removal:
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

    def _look(self, snapshot: RowSource, file: LakeFile) -> _Found:
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
                mask = self.rows.mask(part).combine_chunks()
                counts += self.rows.counted(part.filter(mask))
                removed.append(places.filter(mask))
                part, places = part.filter(pc.invert(mask)), places.filter(pc.invert(mask))
            if self.newest is not None:
                replaced, newer = self.newest.replaced(part, places)
                removed.append(replaced)
                outdated.append(newer)
        return _Found(seen, pa.concat_arrays(removed), counts, pc.unique(pa.concat_arrays(outdated)))


def missing_file(name: str, error: FileNotFoundError) -> TargetError:
    """Return the error for a table whose current version names a file that is not there."""
    return TargetError(
        f"Table {name!r} names a file that is missing: {shortened(str(error))}. Restore the file, or have the table's "
        "engine remove it from the table"
    )


def rewrite(
    snapshot: Snapshot, shape: FileFormat, directory: str, kept: Sequence[KeptRows], storage: Files | None = None
) -> Iterator[StagedFile]:
    """Write rows that stay into new files.

    :param directory: of the files
    :param storage: where they are written, if it is not that of the table
    :raises TargetError: other programs wrote rows that cannot be read, or not be written
    """

    def rows() -> Iterator[pa.RecordBatch]:
        columns = shape.layout.columns
        for file, stay in kept:
            seen = 0
            names = snapshot.columns.names if file.shape is None else file.shape.layout.columns.names
            for part in snapshot.read(file, names):
                staying = part.filter(stay.slice(seen, part.num_rows))
                seen += part.num_rows
                yield with_columns(staying, columns)

    path = partial(shape.path, directory)
    try:
        for file in write_data_files(storage or snapshot.storage, rows(), shape.layout, path):
            yield StagedFile(file.path, file.rows, file.bytes, "", shape.to_json(file))
        return
    except (ArithmeticError, ValueError) as error:  # such as an instant after the year 9999
        reason = type(error).__name__
    # Outside of the handler: its error may hold values of rows.
    raise TargetError(
        f"Rows of table {snapshot.name!r} that stay cannot be written again ({reason}): they are in "
        f"{first_few((repr(each.file.key) for each in kept), most=3)}"
    )


def try_rewrite(snapshot: Snapshot, kept: Sequence[KeptRows]) -> None:
    """Read rows that stay, and write them for a trial; see `rewrite`."""
    # Of a file that others remove meanwhile, the commit finds another.
    with suppress(FileNotFoundError):
        deque(rewrite(snapshot, snapshot.shape(), "trial", kept, Nowhere()) if kept else (), maxlen=0)


def without(rows: int, removed: pa.Array) -> pa.Array:
    """Return for each row of a file whether it stays.

    :param removed: the positions of those that do not
    """
    return pc.invert(pc.is_in(positions(0, rows), value_set=removed))


def _is_of_batches(file: LakeFile, ids: Sequence[int]) -> bool:
    """Return whether a file may hold rows of one of some batches, which are in order."""
    if file.batches is None or not ids:
        return bool(ids)
    first = bisect_left(ids, file.batches[0])
    return first < len(ids) and ids[first] <= file.batches[1]
