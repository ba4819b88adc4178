"""Rows of a table of files are told apart as those of a SQL table are: both ways, for the same random rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.engine import Connection

from airflow_kafka_offsets.core.instants import TimeSpan, from_milliseconds
from airflow_kafka_offsets.core.offsets import Slice
from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.sinks.lake import rows as lake_rows
from airflow_kafka_offsets.sinks.lake.removal import ReplacedRows, as_removed, count_rows
from airflow_kafka_offsets.sinks.lake.rows import LakeRows
from airflow_kafka_offsets.sinks.lake.snapshot import Bounds, LakeFile, RowSource
from airflow_kafka_offsets.sinks.sql.rows import SqlRows
from airflow_kafka_offsets.sinks.target_rows import Batches, ReplacedOffsets, TargetRows

SCHEMA = pa.schema(
    [
        pa.field("_batch_id", pa.int64()),
        pa.field("_kafka_topic", pa.string()),
        pa.field("_kafka_partition", pa.int32()),
        pa.field("_kafka_offset", pa.int64()),
        pa.field("_kafka_timestamp", pa.timestamp("us", "UTC")),
    ]
)

Row = tuple[int | None, str, int, int]

ROWS = st.lists(
    st.tuples(st.sampled_from([1, 2, 3, 7, None]), st.sampled_from(["a", "b"]), st.integers(0, 1), st.integers(0, 6)),
    max_size=30,
)
RANGES = st.lists(
    st.tuples(st.sampled_from([1, 2, 3]), st.sampled_from(["a", "b"]), st.integers(0, 1), st.integers(0, 6)),
    min_size=1,
    max_size=5,
    unique=True,
)


class Files(RowSource):
    """Files of three rows each, read whole: the statistics never tell."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.columns = SCHEMA
        self._table = pa.Table.from_pylist(
            [dict(zip(SCHEMA.names, (*row, from_milliseconds(row[3])), strict=True)) for row in rows], schema=SCHEMA
        )

    def files(self, any_of: Sequence[Bounds] = ({},)) -> list[LakeFile]:
        return [LakeFile(first, first) for first in range(0, len(self._table), 3)]

    def _read(self, file: LakeFile, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        yield from self._table.select(list(columns)).slice(file.native, 3).to_batches()

    def without(self, mask: pa.Array) -> list[Row]:
        kept = self._table.filter(pa.compute.invert(mask)).select(SCHEMA.names[:4])
        return [tuple(row.values()) for row in kept.to_pylist()]

    @property
    def table(self) -> pa.Table:
        return self._table


def in_sql(conn: Connection, rows: Sequence[Row]) -> sa.Table:
    table = sa.Table(
        "target",
        sa.MetaData(),
        sa.Column("_batch_id", sa.BigInteger),
        sa.Column("_kafka_topic", sa.Text),
        sa.Column("_kafka_partition", sa.Integer),
        sa.Column("_kafka_offset", sa.BigInteger),
        sa.Column("_kafka_timestamp", sa.DateTime),
    )
    table.create(conn)
    values = [(*row, from_milliseconds(row[3]).replace(tzinfo=None)) for row in rows]
    if values:
        conn.execute(table.insert(), [dict(zip(SCHEMA.names, row, strict=True)) for row in values])
    return table


def selecting(conn: Connection, name: str, columns: Sequence[str], values: Sequence[Sequence[Any]]) -> sa.Select[Any]:
    types = {"topic": sa.Text}
    table = sa.Table(name, sa.MetaData(), *(sa.Column(column, types.get(column, sa.BigInteger)) for column in columns))
    table.create(conn)
    if values:
        conn.execute(table.insert(), [dict(zip(columns, row, strict=True)) for row in values])
    return sa.select(table)


def both(conn: Connection, rows: Sequence[Row]) -> tuple[TargetRows, TargetRows]:
    return SqlRows(conn, "target", in_sql(conn, rows), False), LakeRows(conn, "target", Files(rows))


def connected() -> Connection:
    return sa.create_engine("sqlite://").connect()


@given(ROWS, st.booleans())
def test_rows_are_counted_alike(rows: list[Row], one_by_one: bool) -> None:
    with connected() as conn, pytest.MonkeyPatch.context() as patch:
        if one_by_one:
            patch.setattr(lake_rows, "_ROWS_AT_ONCE", 1)
        others = selecting(conn, "others", ["batch_id"], [(7,)])
        sql, lake = both(conn, rows)

        assert sorted(lake.counts(others), key=repr) == sorted(sql.counts(others), key=repr)
        assert [batch for batch, _ in lake.counts(others)] == sorted(batch for batch, _ in lake.counts(others))


@given(ROWS, ROWS)
def test_dead_letters_that_have_rows_are_found_alike(rows: list[Row], dead_letters: list[Row]) -> None:
    with connected() as conn:
        names = ["batch_id", "topic", "partition", "offset_value"]
        known = sorted({dead_letter for dead_letter in dead_letters if dead_letter[0] is not None})
        query = selecting(conn, "letters", names, known)
        # A row for each offset: SQL counts pairs.
        sql, lake = both(conn, sorted({row for row in rows if row[0] is not None}))

        assert list(lake.duplicates(query)) == list(sql.duplicates(query))


@given(ROWS, st.integers(0, 5), st.integers(0, 5))
def test_their_offsets_are_found_alike(rows: list[Row], start: int, more: int) -> None:
    with connected() as conn:
        sql, lake = both(conn, rows)
        batches, within = Batches(1, 3, [1, 3]), Slice(0, "a", 1, start, start + more)

        assert list(lake.offsets(batches, within)) == list(sql.offsets(batches, within))


@given(ROWS, RANGES, st.sampled_from([None, (1, 4), (2, None)]))
def test_rows_are_removed_alike(
    rows: list[Row], ranges: list[tuple[int, str, int, int]], span_ms: tuple[int, int | None] | None
) -> None:
    span = None
    if span_ms is not None:
        since, until = span_ms
        span = TimeSpan(from_milliseconds(since), from_milliseconds(until) if until is not None else None)
    with connected() as conn:
        names = ["batch_id", "topic", "partition", "start_offset", "end_offset"]
        query = selecting(conn, "ranges", names, [(*place, start, start + 2) for *place, start in ranges])
        ids = sorted({row[0] for row in ranges})
        replaced = ReplacedOffsets(Batches(ids[0], ids[-1], ids), query, span)
        files, table = Files(rows), in_sql(conn, rows)

        wanted = SqlRows(conn, "target", table, False).remove(replaced)
        plain = ReplacedRows.read(conn, "target", replaced)
        mask = plain.mask(files.table)

        counts = count_rows(files.table.filter(mask))

        assert plain.batch_ids == ids
        assert sorted(as_removed((*key, rows) for key, rows in counts.items())) == sorted(wanted)
        left = conn.execute(sa.select(*list(table.columns)[:4])).all()
        assert sorted(files.without(mask), key=repr) == sorted(map(tuple, left), key=repr)


class TestRowsThatDoNotSayWhereTheyAreFrom:
    RANGES = ReplacedRows("iceberg://x/y", {(1, "a", 0): [(0, 5)]})

    def table(self, **values: Any) -> pa.Table:
        row = {"_batch_id": 1, "_kafka_topic": "a", "_kafka_partition": 0, "_kafka_offset": 3} | values
        return pa.Table.from_pylist([row], schema=SCHEMA)

    @pytest.mark.parametrize("name", ["_kafka_topic", "_kafka_partition", "_kafka_offset"])
    def test_one_of_a_batch_that_is_replaced_is_refused(self, name: str) -> None:
        with pytest.raises(ConfigurationError, match="'iceberg://x/y' holds rows of batch 1 without topic"):
            self.RANGES.mask(self.table(**{name: None}))

    def test_one_of_another_batch_stays(self) -> None:
        assert self.RANGES.mask(self.table(_batch_id=2, _kafka_offset=None)).to_pylist() == [False]

    def test_one_without_a_timestamp_is_refused_where_a_span_is_replaced(self) -> None:
        spanned = self.RANGES._replace(span=TimeSpan(from_milliseconds(0), None))
        with pytest.raises(ConfigurationError, match="holds 1 row of the offsets that are read, without a _kafka_time"):
            spanned.mask(self.table())

    def test_a_table_without_the_columns_is_refused(self) -> None:
        with pytest.raises(
            ConfigurationError,
            match="has no column _kafka_partition, _kafka_offset: the rows of the offsets to replace",
        ):
            self.RANGES.check_columns(pa.schema([SCHEMA.field(0), SCHEMA.field(1)]))
        self.RANGES.check_columns(SCHEMA)


class TestDetail:
    def rows(self, *names: str, **options: Any) -> LakeRows:
        files = Files([])
        files.columns = pa.schema([SCHEMA.field(name) for name in names])
        return LakeRows(connected(), "delta+file:///x", files, **options)

    def test_a_table_that_says_all(self) -> None:
        found = self.rows(*SCHEMA.names)
        assert (found.exists, found.detail, found.limit) == (True, "offsets", "")

    def test_one_that_says_batches(self) -> None:
        found = self.rows("_batch_id", "_kafka_topic")
        assert (found.detail, found.limit) == (
            "batches",
            "Table 'delta+file:///x' has no column _kafka_partition, _kafka_offset",
        )

    def test_one_that_says_nothing(self) -> None:
        assert self.rows("_kafka_topic").detail == "nothing"
        assert self.rows(*SCHEMA.names, replaced=True).detail == "nothing"

    def test_none(self) -> None:
        found = LakeRows(connected(), "delta+file:///x", None)
        assert (found.exists, found.detail, list(found.counts(sa.select(sa.literal(1))))) == (False, "batches", [])
