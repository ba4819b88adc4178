"""Functions that `FunctionSink` sinks call in the tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_kafka_offsets.core.instants import TimeSpan
from airflow_kafka_offsets.exceptions import RecordError
from airflow_kafka_offsets.sinks.function import FunctionSink
from airflow_kafka_offsets.sinks.function_target import ReplacedRange, WrittenBatch
from tests.support.loads import Loader, rows

LINES = sa.Table(
    "lines",
    sa.MetaData(),
    sa.Column("_batch_id", sa.BigInteger, index=True),
    sa.Column("_kafka_topic", sa.Text),
    sa.Column("_kafka_partition", sa.Integer),
    sa.Column("_kafka_offset", sa.BigInteger),
    sa.Column("line", sa.Text),
)
"""What `insert` writes: a text of each row."""

TOTALS = sa.Table("totals", sa.MetaData(), sa.Column("group_id", sa.Text, unique=True), sa.Column("rows", sa.Integer))
"""What it also writes: the number of rows of a group."""


def create(engine: sa.Engine) -> None:
    LINES.create(engine)
    TOTALS.create(engine)


def insert(conn: Connection, batches: Iterator[pa.RecordBatch], batch: WrittenBatch) -> None:
    """Insert a line for each row, and count it."""
    for some in batches:
        origin = [name for name in some.schema.names if name in LINES.columns]
        lines = [
            {"line": f"{row['id']}: {row['name']}"} | {name: row[name] for name in origin} for row in some.to_pylist()
        ]
        conn.execute(LINES.insert(), lines)
        counted = TOTALS.update().where(TOTALS.c.group_id == batch.group_id)
        if not conn.execute(counted.values(rows=TOTALS.c.rows + some.num_rows)).rowcount:
            conn.execute(TOTALS.insert(), {"group_id": batch.group_id, "rows": some.num_rows})


def remove(conn: Connection, ranges: Sequence[ReplacedRange], span: TimeSpan | None) -> Counter[tuple[int, str, int]]:
    """Take back what `insert` wrote."""
    assert span is None
    removed = Counter[tuple[int, str, int]]()
    for range_ in ranges:
        of_range = [
            LINES.c._batch_id == range_.batch_id,
            LINES.c._kafka_topic == range_.topic,
            LINES.c._kafka_partition == range_.partition,
            LINES.c._kafka_offset >= range_.start,
            LINES.c._kafka_offset < range_.end,
        ]
        count = conn.execute(LINES.delete().where(*of_range)).rowcount
        conn.execute(TOTALS.update().values(rows=TOTALS.c.rows - count))
        removed[range_[:3]] += count
    return removed


def picky(conn: Connection, batches: Iterator[pa.RecordBatch], batch: WrittenBatch) -> None:
    """Do as `insert`, and refuse the first record whose name begins with "bad"."""
    given = []
    for some in batches:
        insert(conn, iter([some]), batch)
        given += some.to_pylist()
    for row in given:
        if row["name"].startswith("bad"):
            raise RecordError("a bad name", row["_kafka_topic"], row["_kafka_partition"], row["_kafka_offset"])


def sink(function: str, **options: str) -> FunctionSink:
    """Return a sink of a function of this module."""
    return FunctionSink(f"{__name__}.{function}", **options)


PROVED = sink("insert", remove=f"{__name__}.remove", table="lines")


def written(loader: Loader) -> list[int]:
    """The offset of every line."""
    return [offset for (offset,) in rows(loader.engine, "SELECT _kafka_offset FROM lines ORDER BY _kafka_offset")]
