"""The rows of a table by origin: read for `verify`, and deleted if their offsets are loaded again.

Reads are grouped queries, whatever the table's size, and offset by offset if Kafka is read too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql
from sqlalchemy.engine import Connection

from airflow_kafka_offsets.core.offsets import Slice, TopicPartition
from airflow_kafka_offsets.core.origin import BATCH_ID, TIMESTAMP
from airflow_kafka_offsets.core.text import count
from airflow_kafka_offsets.database.mysql import is_mysql
from airflow_kafka_offsets.database.tables import reflected
from airflow_kafka_offsets.database.transactions import stream
from airflow_kafka_offsets.exceptions import ConfigurationError, TargetError
from airflow_kafka_offsets.sinks.row_origin import PLACE, OriginRows
from airflow_kafka_offsets.sinks.sink import DatabaseTable
from airflow_kafka_offsets.sinks.target_rows import (
    Batches,
    DuplicatedOffsets,
    OriginColumns,
    Removed,
    ReplacedOffsets,
    RowCount,
)

_MILLISECOND_DIGITS = 3

# One more than the longest name has.
_MOST_OF_TOPIC = "250"


@dataclass(frozen=True)
class SqlRows(OriginRows):
    """The rows of a table; see `OriginRows`.

    :param table: None where there is no such table
    :param replaced: whether later batches replace the rows of earlier ones
    """

    conn: Connection
    name: str
    table: sa.Table | None
    replaced: bool

    @property
    def columns(self) -> list[str] | None:
        return None if self.table is None else self.table.columns.keys()

    def _origin(self) -> OriginColumns:
        assert self.table is not None
        origin = OriginColumns(*(self.table.columns[name] for name in PLACE))
        if not is_mysql(self.conn.dialect):
            return origin
        # Of the column's character set, it may not be comparable with topics of the state tables, or ignore their case.
        topic = sa.cast(origin.topic, mysql.VARCHAR(charset="utf8mb4")).collate("utf8mb4_bin")
        return origin._replace(topic=topic)

    def counts(self, other_groups: sa.Select[int]) -> Iterator[tuple[int, RowCount]]:
        if self.table is None:
            return
        batch_id = self.table.columns[BATCH_ID]
        partition: list[Any] = []
        values: list[Any] = [sa.null(), sa.null(), sa.func.count()]
        if self.detail == "offsets":
            _, topic, number, offset = self._origin()
            # The topics of foreign rows are texts of any length. For drivers that number parameters, the expression of
            # GROUP BY would be another one with its numbers.
            if isinstance(topic.type, sa.String) and not isinstance(topic.type, sa.Enum):
                topic = sa.func.substr(topic, sa.literal_column("1"), sa.literal_column(_MOST_OF_TOPIC))
            partition = [topic, number]
            distinct = sa.func.count(sa.distinct(offset))
            values = [*partition, sa.func.count(), distinct, sa.func.min(offset), sa.func.max(offset)]
        others = other_groups.subquery("_kafka_other_groups")
        of_others = others.select().where(others.c.batch_id == batch_id).exists()
        query = sa.select(batch_id, *values).where(batch_id.is_not(None), ~of_others)
        for row in stream(self.conn, query.group_by(batch_id, *partition).order_by(batch_id)):
            yield int(row[0]), RowCount(*row[1:])

    def duplicates(self, dead_letters: sa.Select[int, str, int, int]) -> Iterator[DuplicatedOffsets]:
        assert self.table is not None
        columns, origin = dead_letters.subquery("_kafka_dead_letters").c, self._origin()
        same = [row == column for row, column in zip(origin, columns, strict=True)]
        keys: list[Any] = [columns.topic, columns.partition, columns.batch_id]
        offset = columns.offset_value
        query = sa.select(*keys, sa.func.min(offset), sa.func.count()).join(self.table, sa.and_(*same))
        for row in stream(self.conn, query.group_by(*keys).order_by(*keys)):
            yield DuplicatedOffsets(*row)

    def offsets(self, of_batches: Batches, within: Slice) -> Iterator[int]:
        origin = self._origin()
        query = sa.select(origin.offset).where(
            of_batches.include(origin.batch_id),
            origin.topic == within.topic,
            origin.partition == within.partition,
            origin.offset >= within.start,
            origin.offset < within.end,
        )
        for (offset,) in stream(self.conn, query.order_by(origin.offset)):
            yield int(offset)

    def count_replaced(self, replaced: ReplacedOffsets) -> int:
        """Return how many rows `remove` would delete now."""
        if self.table is None:
            return 0
        self._check_origin(replaced)
        query = sa.select(sa.func.count()).select_from(self.table).where(replaced.include(self._origin()))
        return self.conn.scalar(query) or 0

    def _check_origin(self, replaced: ReplacedOffsets) -> None:
        if missing := self.missing:
            raise ConfigurationError(
                f"Table {self.name!r} has no column {', '.join(missing)}: the rows of the offsets to replace cannot "
                "be identified. Nothing was changed; delete the rows yourself and rewind without replacing, or load "
                "into a new table."
            )
        origin = self._origin()
        silent = sa.or_(*(column.is_(None) for column in origin[1:]))
        of_batch = replaced.batches.include(origin.batch_id)
        batch = self.conn.scalar(sa.select(sa.func.min(origin.batch_id)).where(of_batch, silent))
        if batch is not None:
            raise ConfigurationError(
                f"Table {self.name!r} holds rows of batch {batch} without topic, partition and offset: the rows of "
                "the offsets to replace cannot be identified. Nothing was changed; have the transform keep the "
                "columns _kafka_topic, _kafka_partition and _kafka_offset, and delete these rows yourself."
            )

    def remove(self, replaced: ReplacedOffsets) -> list[Removed]:
        """Delete the rows of replaced offsets; see `Target.remove`."""
        if self.table is None:  # a table that was dropped holds no duplicates
            return []
        self._check_origin(replaced)
        origin = self._origin()
        timestamp = self._timestamp(replaced.include(origin)) if replaced.span is not None else None
        return delete_rows(self.conn, self.table, origin, replaced, timestamp)

    def _timestamp(self, condition: sa.ColumnElement[bool]) -> sa.ColumnElement[Any]:
        """Return the column of the records' timestamps.

        :param condition: which rows are looked at
        :raises ConfigurationError: there is none, it rounds Kafka's milliseconds, or a row does not say its timestamp
        """
        assert self.table is not None
        column = self.table.columns.get(TIMESTAMP)
        if column is None or not _keeps_milliseconds(column.type):
            what = f"no column {TIMESTAMP}" if column is None else f"a column {TIMESTAMP} of type {column.type}"
            raise ConfigurationError(
                f"Table {self.name!r} has {what}, but it must hold the milliseconds of Kafka's timestamps: the rows "
                "of the span to replace cannot be identified. Nothing was changed; replay a range of offsets, or "
                "without all_records."
            )
        silent = self.conn.scalar(sa.select(sa.func.count()).select_from(self.table).where(condition, column.is_(None)))
        if silent:
            raise ConfigurationError(
                f"Table {self.name!r} holds {count(silent, 'row')} of the offsets that are read, without a "
                f"{TIMESTAMP}: it is unknown whether they are in the span to replace. Nothing was changed; replay a "
                "range of offsets, or without all_records."
            )
        return column


def _keeps_milliseconds(type_: Any) -> bool:
    """Return whether a column has the milliseconds of each instant."""
    if isinstance(type_, (mysql.DATETIME, mysql.TIMESTAMP)):
        return (type_.fsp or 0) >= _MILLISECOND_DIGITS
    precision = getattr(type_, "precision", None)
    return isinstance(type_, sa.DateTime) and (precision is None or precision >= _MILLISECOND_DIGITS)


def _instant(value: datetime, conn: Connection) -> sa.ColumnElement[datetime]:
    # The sessions of Postgres have UTC for columns without a time zone; SQLite and MySQL compare without one.
    has_zones = conn.dialect.name == "postgresql"
    return sa.literal(value if has_zones else value.replace(tzinfo=None), sa.DateTime(timezone=has_zones))


def delete_rows(
    conn: Connection,
    table: sa.Table,
    origin: OriginColumns,
    replaced: ReplacedOffsets,
    timestamp: sa.ColumnElement[Any] | None,
) -> list[Removed]:
    """Delete the rows of replaced offsets, and return how many of each batch and partition these were.

    :param timestamp: that of the record; needed for a span of time
    """
    condition, keys = replaced.include(origin), origin[:3]
    if replaced.span is not None:
        assert timestamp is not None
        condition &= timestamp >= _instant(replaced.span.since, conn)
        if replaced.span.until is not None:
            condition &= timestamp < _instant(replaced.span.until, conn)
    counts = conn.execute(sa.select(*keys, sa.func.count()).where(condition).group_by(*keys)).all()
    deleted = conn.execute(table.delete().where(condition)).rowcount
    of_offsets = sa.select(sa.func.count()).select_from(table).where(condition)
    if deleted != sum(row[-1] for row in counts) and (kept := conn.scalar(of_offsets)):
        raise TargetError(
            f"Table {table.fullname!r} keeps {count(kept, 'row')} of the offsets to replace: a trigger or a rule "
            "prevents DELETE, as of tables whose rows are only marked. Nothing was changed; have the trigger let this "
            "user delete, or do without replacing"
        )
    return [Removed(batch, TopicPartition(topic, partition), count) for batch, topic, partition, count in counts]


def count_replaced(conn: Connection, table: DatabaseTable, replaced: ReplacedOffsets) -> int:
    """Return how many rows of a table a rewind would delete now."""
    found = reflected(conn, table.table, table.schema)
    return SqlRows(conn, table.table, found, bool(table.upsert_key)).count_replaced(replaced)
