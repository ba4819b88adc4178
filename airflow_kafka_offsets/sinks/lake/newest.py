"""The newest row of each key in the files of a batch, and the rows of the table that they replace.

Within a partition, the highest offset is the newest. If a key is in several partitions, the rows of one batch are
compared by `_kafka_timestamp`, then by topic and partition, and the greatest wins; a later batch wins over an earlier
one. `SqlTable` has the same rules.

The keys of the batch, and some numbers for each, are in memory; the files are read in portions. In the place of a long
text there is its digest: records choose how long keys are.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_kafka_offsets.core.origin import BATCH_ID, OFFSET, PARTITION, RECORD, TIMESTAMP, TOPIC
from airflow_kafka_offsets.sinks.lake.snapshot import LakeFile, RowSource
from airflow_kafka_offsets.sinks.target_rows import LogOrder, OtherLogs

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection


class KeyIndex:
    """The keys of a batch.

    :param keys: each of them once, as `_with_digests` makes them
    :ivar exact: the different values of each column without digests
    """

    def __init__(self, keys: pa.Table) -> None:
        self.names: list[str] = keys.column_names
        self.values = [pc.unique(keys.column(name)) for name in self.names]
        self._steps: list[pa.Array] = []
        codes = self._of_column(keys, 0)
        for number in range(1, len(self.names)):
            joined = self._joined(codes, keys, number)
            self._steps.append(pc.unique(joined))
            codes = pc.index_in(joined, value_set=self._steps[-1])
        self.count = keys.num_rows
        columns = zip(self.names, self.values, strict=True)
        self.exact = {name: values for name, values in columns if not _are_long(values)}

    def numbers(self, rows: pa.Table) -> pa.ChunkedArray:
        """Return the number of the key of each row; null where the batch has no such key."""
        rows = _with_digests(rows.select(self.names))
        codes = self._of_column(rows, 0)
        for number, step in enumerate(self._steps, start=1):
            codes = pc.index_in(self._joined(codes, rows, number), value_set=step, skip_nulls=True)
        return codes

    def _of_column(self, rows: pa.Table, number: int) -> pa.ChunkedArray:
        return pc.index_in(rows.column(self.names[number]), value_set=self.values[number], skip_nulls=True)

    def _joined(self, codes: pa.ChunkedArray, rows: pa.Table, number: int) -> pa.ChunkedArray:
        """Return one number for a key so far and the value of one more column. Both numbers are those of rows, and
        small.
        """
        shifted = pc.multiply(codes.cast(pa.int64()), len(self.values[number]))
        return pc.add(shifted, self._of_column(rows, number).cast(pa.int64()))

    def bounds(self) -> dict[str, tuple[Any, Any]]:
        """Return the least and the greatest value of each column whose values have an order in all statistics."""
        ends = {name: pc.min_max(values) for name, values in self.exact.items()}
        return {
            name: (found["min"].as_py(), found["max"].as_py())
            for name, found in ends.items()
            if is_ordered(found["min"].type)
        }


_ORDERED = {pa.int32(), pa.int64(), pa.date32(), pa.string(), pa.large_string()}


def is_ordered(kind: pa.DataType) -> bool:
    """Return whether Arrow and the statistics of files order the values of a type alike."""
    return kind in _ORDERED or (pa.types.is_timestamp(kind) and kind.unit == "us")


_ROWS_AT_ONCE, _BYTES_AT_ONCE = 1 << 20, 64 << 20

_LONG = 64
"""A longer value of a key is represented by its digest, which has one byte more, so that it is none of the others."""

_LOG_SHIFT = 1 << 32
"""A log is the number of its topic times this, plus its partition."""

_LONG_AGO = pa.scalar(-(1 << 63), pa.int64())
"""Where a timestamp is null: before all others."""

_KEY, _LOG, _AT, _FILE, _ROW = "key", "log", "at", "file", "row"


class NewestRows:
    """The newest row of each key in the files of a batch.

    :param conn: for the order of logs; see `Output`
    :ivar index: the keys
    :ivar files: the files, in order
    """

    def __init__(
        self,
        table: RowSource,
        files: Sequence[LakeFile],
        key: Sequence[str],
        log_order: LogOrder,
        conn: Connection,
    ) -> None:
        self.files, self._log_order, self._conn = tuple(files), log_order, conn
        self._looked_up, self._found = set[int](), OtherLogs(defaultdict(list), defaultdict(list))
        self._table, self._key = table, list(key)
        keys, topics = list[pa.Table](), set[str]()
        for _, rows in self._read([*self._key, TOPIC]):
            keys = [_distinct(pa.concat_tables([*keys, _with_digests(rows.select(self._key))]))]
            topics.update(pc.unique(rows.column(TOPIC)).to_pylist())
        self._topics = pa.array(sorted(topics), pa.large_string())
        self.index = KeyIndex(*keys)
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
        found = list[pa.Table]()
        seen = [0] * len(self.files)
        for number, rows in self._read([*self._key, *RECORD, *timestamp]):
            count = rows.num_rows
            instants = rows.column(TIMESTAMP).cast(pa.int64()) if timestamp else pa.nulls(count, pa.int64())
            places = pa.table(
                {
                    _KEY: self.index.numbers(rows),
                    _LOG: self._logs(rows),
                    OFFSET: rows.column(OFFSET).cast(pa.int64()),
                    _AT: pc.fill_null(instants, _LONG_AGO),
                    _FILE: pa.repeat(pa.scalar(number, pa.int32()), count),
                    _ROW: positions(seen[number], count),
                }
            )
            seen[number] += count
            # Rows of one record, as a transform may make, have the same offset: of these the last one.
            found = [_last(pa.concat_tables([*found, places]), [_KEY, _LOG], [OFFSET])]
        return _last(found[0], [_KEY], [_AT, _LOG]).sort_by(_KEY).combine_chunks()

    def _logs(self, rows: pa.Table) -> pa.ChunkedArray:
        """Return the log of each row as a number; null where no row of the batch is of its topic."""
        topics = pc.index_in(rows.column(TOPIC).cast(pa.large_string()), value_set=self._topics, skip_nulls=True)
        return pc.add(pc.multiply(topics.cast(pa.int64()), _LOG_SHIFT), rows.column(PARTITION).cast(pa.int64()))

    def replaced(self, rows: pa.Table, places: pa.Array) -> tuple[pa.Array, pa.Array]:
        """Return the positions of the rows of the table that are replaced; and the keys, by number, of which one of the
        rows is newer than that of the batch.

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
        same = pc.fill_null(is_same_log, False).combine_chunks()
        self._look_up(rows, same if self._log_order.is_outdated else is_newer)
        is_newer = pc.and_(is_newer, pc.invert(_are_of(self._found.older, rows)))
        is_newer = pc.or_(is_newer, pc.and_(same, _are_of(self._found.newer, rows)))
        return places.filter(pc.invert(is_newer)), pc.unique(numbers.filter(is_newer))

    def _look_up(self, rows: pa.Table, some: pa.Array) -> None:
        """Find out which batches are of an earlier or a later topic of the same name.

        :param some: of which rows
        """
        batch_ids = rows.column(BATCH_ID).combine_chunks().filter(some)
        if unknown := {*pc.unique(batch_ids).drop_null().to_pylist()} - self._looked_up:
            self._looked_up |= unknown
            for known, found in zip(self._found, self._log_order.others(self._conn, unknown), strict=True):
                for topic, batches in found.items():
                    known[topic] += batches

    def kept(self, number: int, outdated: pa.Array) -> pa.Array:
        """Return the positions of the rows of a file that stay.

        :param number: of the file
        :param outdated: the keys, by number, of which the table has a newer row
        """
        rows = self._rows.filter(pc.equal(self._rows.column(_FILE), number))
        if len(outdated):
            rows = rows.filter(pc.invert(pc.is_in(rows.column(_KEY), value_set=outdated)))
        return rows.column(_ROW).combine_chunks()


def _are_of(batches: Mapping[str, list[int]], rows: pa.Table) -> pa.Array:
    """Return which rows are of some batches of their topics."""
    topics, batch_ids = (rows.column(name).combine_chunks() for name in (TOPIC, BATCH_ID))
    found = pa.repeat(pa.scalar(False), rows.num_rows)
    for topic, some in batches.items():
        is_one = pc.is_in(batch_ids, value_set=pa.array(some, batch_ids.type))
        found = pc.or_(found, pc.and_(is_one, pc.fill_null(pc.equal(topics, topic), False)))
    return found


def positions(first: int, count: int) -> pa.Array:
    """Return the positions of some rows in a file."""
    return pc.add(pc.cumulative_sum(pa.repeat(pa.scalar(1, pa.int64()), count)), first - 1)


def portions(table: RowSource, file: LakeFile, columns: Sequence[str]) -> Iterator[pa.Table]:
    """Yield the rows of a file in large portions, for which looking up keys costs less per row."""
    held: list[pa.RecordBatch] = []
    for rows in table.read(file, columns):
        held.append(rows)
        if sum(each.num_rows for each in held) >= _ROWS_AT_ONCE or sum(each.nbytes for each in held) >= _BYTES_AT_ONCE:
            yield pa.Table.from_batches(held)
            held = []
    if held:
        yield pa.Table.from_batches(held)


def _with_digests(keys: pa.Table) -> pa.Table:
    """Return keys with the digests of long values."""
    for number, name in enumerate(keys.column_names):
        if _are_long(keys.column(name)):
            chunks = [_digested(chunk) for chunk in keys.column(name).chunks]
            keys = keys.set_column(number, name, pa.chunked_array(chunks))
    return keys


def _are_long(values: pa.Array | pa.ChunkedArray) -> bool:
    """Return whether some values are long: texts or bytes."""
    if not any(check(values.type) for check in _OF_ANY_LENGTH):
        return False
    longest = pc.max(pc.binary_length(values)).as_py()
    return longest is not None and longest > _LONG


_OF_ANY_LENGTH = pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary


def _digested(values: pa.Array) -> pa.Array:
    is_long = pc.fill_null(pc.greater(pc.binary_length(values), _LONG), False)
    digests = [f"{hashlib.sha256(value.as_buffer()).hexdigest()}." for value in values.filter(is_long)]
    return pc.replace_with_mask(values, is_long, pa.array(digests, pa.string()).cast(values.type))


def _distinct(rows: pa.Table) -> pa.Table:
    """Return each key once."""
    names = rows.column_names
    if len(names) == 1:
        return pa.table({names[0]: pc.unique(rows.column(0))})
    return rows.group_by(names).aggregate([])


def _last(rows: pa.Table, by: list[str], order: list[str]) -> pa.Table:
    """Return the last row of each group in an order; of equal rows, the last one."""
    keys = [(name, "ascending") for name in order]
    rows = rows.take(pc.sort_indices(rows, sort_keys=keys))
    place = positions(0, rows.num_rows)
    last = rows.select(by).append_column("place", place).group_by(by).aggregate([("place", "max")])
    return rows.take(last.column("place_max"))
