"""The newest row of each key in the files of a batch, and which rows of the table they replace.

Of a partition, the highest offset is the newest. Where a key is in several partitions, those of one batch are compared
by `_kafka_timestamp`, then by topic and partition, and the greatest wins; a later batch wins over an earlier one.
`SqlTable` has the same rules.

What is in memory are the keys of the batch, and some numbers for each; the files are read in portions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from airflow_kafka_offsets.core.origin import OFFSET, PARTITION, RECORD, TIMESTAMP, TOPIC
from airflow_kafka_offsets.sinks.lake.key_index import KeyIndex
from airflow_kafka_offsets.sinks.lake.table_format import LakeFile, Snapshot

_ROWS_AT_ONCE = 1 << 20

_LOG_SHIFT = 1 << 32
"""A log is the number of its topic times this, plus its partition."""

_LONG_AGO = pa.scalar(-(1 << 63), pa.int64())
"""Where a timestamp is null: before all others."""

_KEY, _LOG, _AT, _FILE, _ROW = "key", "log", "at", "file", "row"


class Replaced(NamedTuple):
    """What the newest rows of a batch do to some rows of the table.

    :param rows: the positions of those that go
    :param outdated: the keys, by number, of which one of them is newer than the row of the batch
    """

    rows: pa.Array
    outdated: pa.Array


class NewestRows:
    """The newest row of each key in the files of a batch.

    :ivar index: the keys
    :ivar files: the files, in order
    """

    def __init__(self, table: Snapshot, files: Sequence[LakeFile], key: Sequence[str]) -> None:
        self.files = tuple(files)
        self._table, self._key = table, list(key)
        keys, topics = pa.table({}), pa.chunked_array([], pa.large_string())
        for _, rows in self._read([*self._key, TOPIC]):
            found = rows.select(self._key)
            keys = _distinct(pa.concat_tables([keys, found]) if keys.num_columns else found)
            topics = pc.unique(
                pa.chunked_array([*topics.chunks, *rows.column(TOPIC).chunks], rows.schema.field(TOPIC).type)
            )
            topics = pa.chunked_array([topics])
        self._topics = topics.combine_chunks().take(pc.sort_indices(topics))
        self.index = KeyIndex(keys)
        self._rows = self._newest()

    def __len__(self) -> int:
        return int(self.index.count)

    def _read(self, columns: Sequence[str]) -> Iterator[tuple[int, pa.Table]]:
        """Yield some rows of each file, with the number of the file."""
        names = list(dict.fromkeys(columns))
        for number, file in enumerate(self.files):
            for rows in portions(self._table, file, names):
                yield number, rows

    def _newest(self) -> pa.Table:
        """Return where the newest row of each key is, in the order of the keys' numbers."""
        timestamp = [TIMESTAMP] if TIMESTAMP in self._table.columns.names else []
        found: pa.Table | None = None
        seen = [0] * len(self.files)
        for number, rows in self._read([*self._key, *RECORD, *timestamp]):
            count = rows.num_rows
            places = pa.table(
                {
                    _KEY: self.index.numbers(rows),
                    _LOG: self._logs(rows),
                    OFFSET: rows.column(OFFSET).cast(pa.int64()),
                    _AT: _instants(rows.column(TIMESTAMP)) if timestamp else pa.repeat(_LONG_AGO, count),
                    _FILE: pa.repeat(pa.scalar(number, pa.int32()), count),
                    _ROW: positions(seen[number], count),
                }
            )
            seen[number] += count
            # Rows of one record, as a transform may make, have the same offset: of these the last one.
            found = _last(places if found is None else pa.concat_tables([found, places]), [_KEY, _LOG], [OFFSET])
        assert found is not None
        return _last(found, [_KEY], [_AT, _LOG]).sort_by(_KEY).combine_chunks()

    def _logs(self, rows: pa.Table) -> pa.ChunkedArray:
        """Return the log of each row as a number; null where no row of the batch is of its topic."""
        topics = pc.index_in(rows.column(TOPIC).cast(self._topics.type), value_set=self._topics, skip_nulls=True)
        return pc.add(pc.multiply(topics.cast(pa.int64()), _LOG_SHIFT), rows.column(PARTITION).cast(pa.int64()))

    def replaced(self, rows: pa.Table, places: pa.Array) -> Replaced:
        """Return which rows of the table are replaced, and by which rows of the batch are not.

        :param rows: with the columns of the key, and those that name the record
        :param places: the positions of the rows in their file
        """
        numbers = self.index.numbers(rows).combine_chunks()
        near = numbers.is_valid()
        rows, places, numbers = rows.filter(near), places.filter(near), numbers.filter(near)
        is_same_log = pc.equal(self._logs(rows), self._rows.column(_LOG).take(numbers))
        is_later = pc.greater(rows.column(OFFSET).cast(pa.int64()), self._rows.column(OFFSET).take(numbers))
        # The age of a row that does not say where it is from is not known.
        is_newer = pc.fill_null(pc.and_kleene(is_same_log, is_later), False).combine_chunks()
        return Replaced(places.filter(pc.invert(is_newer)), pc.unique(numbers.filter(is_newer)))

    def kept(self, number: int, outdated: pa.Array) -> pa.Array:
        """Return the positions of the rows of a file that stay.

        :param number: of the file
        :param outdated: the keys, by number, of which the table has a newer row
        """
        rows = self._rows.filter(pc.equal(self._rows.column(_FILE), number))
        if len(outdated):
            rows = rows.filter(pc.invert(pc.is_in(rows.column(_KEY), value_set=outdated)))
        return rows.column(_ROW).combine_chunks()


def positions(first: int, count: int) -> pa.Array:
    """Return the positions of some rows in a file."""
    return pc.add(pc.cumulative_sum(pa.repeat(pa.scalar(1, pa.int64()), count)), first - 1)


def portions(table: Snapshot, file: LakeFile, columns: Sequence[str]) -> Iterator[pa.Table]:
    """Yield the rows of a file, many at once: looking keys up costs the less for a row, the more there are."""
    held: list[pa.RecordBatch] = []
    for rows in table.read(file, columns):
        held.append(rows)
        if sum(each.num_rows for each in held) >= _ROWS_AT_ONCE:
            yield pa.Table.from_batches(held)
            held = []
    if held:
        yield pa.Table.from_batches(held)


def _instants(timestamps: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.fill_null(timestamps.cast(pa.int64()), _LONG_AGO)


def _distinct(rows: pa.Table) -> pa.Table:
    """Return each key once."""
    names = rows.column_names
    if len(names) == 1:
        return pa.table({names[0]: pc.unique(rows.column(0))})
    return rows.group_by(names).aggregate([])


def _last(rows: pa.Table, by: list[str], order: list[str]) -> pa.Table:
    """Return the last row of each group in an order, and of equal ones the one that comes last."""
    keys = [(name, "ascending") for name in order]
    rows = rows.take(pc.sort_indices(rows, sort_keys=keys))
    place = positions(0, rows.num_rows)
    last = rows.select(by).append_column("place", place).group_by(by).aggregate([("place", "max")])
    return rows.take(last.column("place_max"))
