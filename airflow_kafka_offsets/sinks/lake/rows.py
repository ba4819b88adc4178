"""The rows of a table of files by origin, as `verify` reads them: only the origin columns, file by file.

Memory is bounded: first the rows of each batch are counted, then batches are read in portions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_kafka_offsets.core.offsets import Slice
from airflow_kafka_offsets.core.origin import BATCH_ID, OFFSET, PARTITION, TOPIC
from airflow_kafka_offsets.database.transactions import stream
from airflow_kafka_offsets.sinks.lake.removal import all_of
from airflow_kafka_offsets.sinks.lake.snapshot import RowSource
from airflow_kafka_offsets.sinks.row_origin import PLACE, OriginRows
from airflow_kafka_offsets.sinks.target_rows import Batches, DuplicatedOffsets, RowCount

_ROWS_AT_ONCE = 2_000_000

_DEAD_LETTERS_AT_ONCE = 100_000


@dataclass(frozen=True)
class LakeRows(OriginRows):
    """The rows of a table of files; see `OriginRows`.

    :param conn: of the database with the state tables
    :param source: None where there is no such table
    :param replaced: whether later batches replace the rows of earlier ones
    """

    conn: Connection
    name: str
    source: RowSource | None
    replaced: bool = False

    @property
    def columns(self) -> list[str] | None:
        return None if self.source is None else self.source.columns.names

    def counts(self, other_groups: sa.Select[int]) -> Iterator[tuple[int, RowCount]]:
        if self.source is None:
            return
        others = set(self.conn.scalars(other_groups))
        rows: Counter[int] = Counter()
        for found in self.source.scan([BATCH_ID]):
            for row in pc.value_counts(found.column(0)).to_pylist():
                rows[row["values"]] += row["counts"]
        wanted = sorted((batch_id, count) for batch_id, count in rows.items() if batch_id not in {None, *others})
        if self.detail != "offsets":
            yield from ((batch_id, RowCount(None, None, count)) for batch_id, count in wanted)
            return
        for batches in _portions(wanted):
            yield from self._counted(batches)

    def _counted(self, batches: Sequence[int]) -> Iterator[tuple[int, RowCount]]:
        assert self.source is not None
        ids = pa.array(batches, pa.int64())
        found = [
            rows.filter(pc.is_in(rows.column(BATCH_ID), value_set=ids.cast(rows.column(BATCH_ID).type)))
            for rows in self.source.scan(PLACE, (batches[0], batches[-1]))
        ]
        if not found:
            return
        keys = [BATCH_ID, TOPIC, PARTITION]
        values = [([], "count_all"), (OFFSET, "count_distinct"), (OFFSET, "min"), (OFFSET, "max")]
        grouped = pa.Table.from_batches(found).group_by(keys).aggregate(values)
        for row in grouped.sort_by([(name, "ascending") for name in keys]).to_pylist():
            numbers = (row["count_all"], *(row[f"{OFFSET}_{what}"] for what in ("count_distinct", "min", "max")))
            yield row[BATCH_ID], RowCount(row[TOPIC], row[PARTITION], *numbers)

    def duplicates(self, dead_letters: sa.Select[int, str, int, int]) -> Iterator[DuplicatedOffsets]:
        assert self.source is not None
        order = list(dead_letters.subquery("_kafka_dead_letters").c)
        pending: list[tuple[int, str, int, int]] = []
        found: list[DuplicatedOffsets] = []
        for batch_id, group in groupby(stream(self.conn, sa.select(*order).order_by(*order)), lambda row: row[0]):
            pending += [(batch_id, *row[1:]) for row in group]
            if len(pending) >= _DEAD_LETTERS_AT_ONCE:
                found += self._duplicates(pending)
                pending = []
        found += self._duplicates(pending)
        yield from sorted(found, key=lambda part: (part.topic, part.partition, part.batch_id))

    def _duplicates(self, dead_letters: Sequence[tuple[int, str, int, int]]) -> Iterator[DuplicatedOffsets]:
        """Yield the dead letters of some batches that have rows, too."""
        if not dead_letters or self.source is None:
            return
        wanted = set(dead_letters)
        offsets = pa.array(sorted({place[3] for place in wanted}), pa.int64())
        found: set[tuple[int, str, int, int]] = set()
        for rows in self.source.scan(PLACE, (dead_letters[0][0], dead_letters[-1][0])):
            near = rows.filter(pc.is_in(rows.column(OFFSET), value_set=offsets))
            places = zip(*(near.column(name).to_pylist() for name in PLACE), strict=True)
            found |= wanted.intersection(places)
        by_partition = sorted((topic, partition, batch_id, offset) for batch_id, topic, partition, offset in found)
        for (topic, partition, batch_id), group in groupby(by_partition, lambda place: place[:3]):
            same = [place[3] for place in group]
            yield DuplicatedOffsets(topic, partition, batch_id, same[0], len(same))

    def offsets(self, of_batches: Batches, within: Slice) -> Iterator[int]:
        assert self.source is not None
        ids = pa.array(sorted(of_batches.read_ids(self.conn)), pa.int64())
        found = [pa.array([], pa.int64())]
        for rows in self.source.scan(PLACE, (of_batches.first, of_batches.last), within):
            offset = rows.column(OFFSET)
            conditions = [
                pc.is_in(rows.column(BATCH_ID), value_set=ids.cast(rows.column(BATCH_ID).type)),
                pc.equal(rows.column(TOPIC), within.topic),
                pc.equal(rows.column(PARTITION), within.partition),
                pc.greater_equal(offset, within.start),
                pc.less(offset, within.end),
            ]
            found.append(offset.filter(all_of(conditions)).cast(pa.int64()))
        merged = pa.chunked_array(found)
        yield from merged.take(pc.sort_indices(merged)).to_pylist()


def _portions(counts: Iterable[tuple[int, int]]) -> Iterator[list[int]]:
    """Yield batches together that have few rows, and one with many alone.

    :param counts: the rows of each batch, in the order of the batches
    """
    portion: list[int] = []
    rows = 0
    for batch_id, count in counts:
        if portion and rows + count > _ROWS_AT_ONCE:
            yield portion
            portion, rows = [], 0
        portion.append(batch_id)
        rows += count
    if portion:
        yield portion
