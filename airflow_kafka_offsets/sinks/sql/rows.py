"""Reads of a table's rows for `verify`: by grouped queries, whatever the table's size, and offset by offset where Kafka is read too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_kafka_offsets.core.offsets import Slice
from airflow_kafka_offsets.core.origin import BATCH_ID, RECORD
from airflow_kafka_offsets.database.transactions import stream
from airflow_kafka_offsets.sinks.sink import Batches, Detail, DuplicatedOffsets, Origin, RowCount


class SqlRows(NamedTuple):
    """The rows of a table; see `TargetRows`.

    :param table: None where there is no such table
    :param replaced: whether later batches replace the rows of earlier ones
    """

    conn: Connection
    name: str
    table: sa.Table | None
    replaced: bool

    @property
    def exists(self) -> bool:
        return self.table is not None

    @property
    def detail(self) -> Detail:
        missing = self._missing()
        if self.table is not None and (self.replaced or BATCH_ID in missing):
            return "nothing"
        return "batches" if self.table is None or missing else "offsets"

    @property
    def limit(self) -> str:
        if self.replaced:
            return f"Rows of table {self.name!r} are replaced by those of later batches (upsert_key)"
        missing = self._missing()
        return f"Table {self.name!r} has no column {', '.join(missing)}" if missing else ""

    def _missing(self) -> list[str]:
        return [name for name in (BATCH_ID, *RECORD) if self.table is None or name not in self.table.columns]

    def _origin(self) -> Origin:
        assert self.table is not None
        return Origin(*(self.table.columns[name] for name in (BATCH_ID, *RECORD)))

    def counts(self, other_groups: sa.Select[int]) -> Iterator[tuple[int, RowCount]]:
        if self.table is None:
            return
        batch_id = self.table.columns[BATCH_ID]
        keys: list[sa.ColumnElement[Any]] = [batch_id]
        values: list[sa.ColumnElement[Any]] = [sa.null(), sa.null(), sa.func.count()]
        if self.detail == "offsets":
            _, topic, partition, offset = self._origin()
            keys += [topic, partition]
            values = [
                topic,
                partition,
                sa.func.count(),
                sa.func.count(sa.distinct(offset)),
                sa.func.min(offset),
                sa.func.max(offset),
            ]
        others = other_groups.subquery("_kafka_other_groups")
        of_others = others.select().where(others.c.batch_id == batch_id).exists()
        query = sa.select(batch_id, *values).where(batch_id.is_not(None), ~of_others).group_by(*keys).order_by(batch_id)
        for row in stream(self.conn, query):
            yield int(row[0]), RowCount(*row[1:])

    def duplicates(self, dead_letters: sa.Select[int, str, int, int]) -> Iterator[DuplicatedOffsets]:
        assert self.table is not None
        letters, origin = dead_letters.subquery("_kafka_dead_letters").c, self._origin()
        same = [column == letter for column, letter in zip(origin, letters, strict=True)]
        keys: list[Any] = [letters.topic, letters.partition, letters.batch_id]
        offset = letters.offset_value
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
