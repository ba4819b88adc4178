"""Inserts rows, and replaces rows of the same keys: through a temporary table, in the transaction of the commit."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from secrets import token_hex
from typing import Any

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError

from airflow_kafka_offsets.core.origin import RECORD, TIMESTAMP
from airflow_kafka_offsets.database.errors import is_outage, refusal
from airflow_kafka_offsets.database.transactions import stream
from airflow_kafka_offsets.exceptions import RecordError, TargetError
from airflow_kafka_offsets.sinks.sql.refused_rows import (
    RowRefusedError,
    is_of_row,
    refused_row,
    savepoint,
    write_around,
)
from airflow_kafka_offsets.sinks.upsert_key import quoted_names
from airflow_kafka_offsets.staging.refused import Record, RefusedRecords, null_key
from airflow_kafka_offsets.staging.rows import StagedRows

_TOPIC, _PARTITION, _OFFSET = RECORD

_RANK = "_kafka_rank"

_INSERT: dict[str, Callable[[sa.Table], Any]] = {"postgresql": postgresql.insert, "sqlite": sqlite.insert}

_PLACE = {"postgresql": "ctid", "sqlite": "rowid"}


def upsert_rows(
    conn: Connection,
    table: sa.Table,
    columns: pa.Schema,
    rows: StagedRows,
    key: Sequence[str],
    append: Callable[[Connection, sa.Table, pa.Schema, StagedRows], int],
    statements: type[Upsert],
) -> int:
    """Insert the newest row of each key, or replace the row that is there by it, unless that is newer.

    :param append: the fastest way into a table; into the temporary one here
    :param statements: those of the database
    :return: how many rows were inserted or replaced
    :raises RecordError: a key is null, or the database refuses a row, which is not to be a dead letter; names the
        record
    :raises TargetError: the database refuses the statement
    """
    upsert = statements(conn, table, tuple(columns.names), tuple(key), rows.refused)
    try:
        # The types of the target, without its constraints and defaults.
        staged = upsert.temporary(sa.select(*upsert.of(table)).where(sa.false()))
        append(conn, staged, columns, rows)
        upsert.refuse_nulls(staged)
        count = None
        while count is None:
            # Without the refused records, an older row of the same key may be the newest.
            upsert.delete(staged, rows.refused.reasons)
            count = upsert.try_to_merge(staged)
        if conn.dialect.name != "postgresql":  # which drops it at the end of the transaction
            upsert.drop(staged)
        return count
    finally:
        upsert.clean_up()


@dataclass(frozen=True, slots=True)
class Upsert:
    """The statements of one upsert.

    :param names: the columns to write
    :param refused: takes the records of rows that the target refuses
    """

    conn: Connection
    table: sa.Table
    names: tuple[str, ...]
    key: tuple[str, ...]
    refused: RefusedRecords

    @property
    def place(self) -> sa.ColumnElement[Any]:
        """The place of a row in a table that nothing was deleted from: in the order in which the rows came."""
        return sa.literal_column(_PLACE[self.conn.dialect.name])

    @property
    def written(self) -> Sequence[str]:
        """The columns of a row that is replaced."""
        return [name for name in self.names if name not in self.key] or self.key

    def is_not_older(self, old: Any, new: Any) -> sa.ColumnElement[bool]:
        """Return the condition that a row replaces the one with its key.

        The later load wins over a row of another partition, and over one without an offset, which another program
        wrote.
        """
        return sa.or_(
            old[_TOPIC].is_distinct_from(new[_TOPIC]),
            old[_PARTITION].is_distinct_from(new[_PARTITION]),
            old[_OFFSET].is_(None),
            old[_OFFSET] <= new[_OFFSET],
        )

    def of(self, table: sa.FromClause) -> list[sa.ColumnElement[Any]]:
        return [table.columns[name] for name in self.names]

    def temporary(self, query: sa.Select[Any]) -> sa.Table:
        """Return a table with the result of a query, which lasts until the end of the transaction."""
        # A name that no table has: temporary ones are found before all others.
        name = f"_upsert_{token_hex(8)}"
        table = sa.Table(
            name, sa.MetaData(), *(sa.Column(column.name, column.type) for column in query.selected_columns)
        )
        dropped = "ON COMMIT DROP " if self.conn.dialect.name == "postgresql" else ""
        compiled = query.compile(dialect=self.conn.dialect)
        self.conn.exec_driver_sql(f"CREATE TEMPORARY TABLE {name} {dropped}AS {compiled}")
        return table

    def drop(self, table: sa.Table) -> None:
        """Drop a temporary table."""
        table.drop(self.conn)

    def clean_up(self) -> None:
        """Drop the temporary tables that neither the end of the transaction nor its rollback drops."""

    def refuse_nulls(self, staged: sa.Table) -> None:
        """Refuse the records of rows that do not say their key.

        :raises RecordError: refused records are no dead letters; names the first one
        :raises TargetError: the transform dropped where a row is from
        """
        lacking = sa.or_(*(staged.c[name].is_(None) for name in (*self.key, *RECORD)))
        query = (
            sa.select(staged)
            .where(lacking)
            .order_by(
                # Null before all others: databases have it at either end.
                *(order for name in RECORD for order in (staged.c[name].is_not(None), staged.c[name]))
            )
        )
        for row in stream(self.conn, query):
            null = [name for name in (*self.key, *RECORD) if row._mapping[name] is None]
            if set(null) & set(RECORD):
                raise TargetError(
                    f"The transform returns a row whose {quoted_names(null)} is null: which row of its key is the "
                    f"newest cannot be known. Nothing was written into {self.table.fullname!r}"
                )
            self.refused.add(Record(*(row._mapping[name] for name in RECORD)), null_key(null))

    def delete(self, staged: sa.Table, records: Collection[Record]) -> None:
        """Delete the rows of some records."""
        if not records:
            return
        # A table of them, which the database can join: there may be many on either side.
        doomed = self.temporary(sa.select(*(staged.c[name] for name in RECORD)).where(sa.false()))
        self.conn.execute(doomed.insert(), [dict(zip(RECORD, record, strict=True)) for record in records])
        same = [doomed.c[name] == staged.c[name] for name in RECORD]
        self.conn.execute(staged.delete().where(doomed.select().where(*same).exists()))
        self.drop(doomed)

    def newest(self, staged: sa.FromClause) -> sa.Select[Any]:
        """Return the query for the newest row of each key: that of the highest offset in each partition, and of these
        the newest by timestamp.
        """
        # Rows of one record, as a transform may make, have the same offset: of these the last one.
        by_offset = [staged.c[_OFFSET].desc(), self.place.desc()]
        last = self._first(staged, (*self.key, _TOPIC, _PARTITION), by_offset).subquery("by_offset")
        timestamp = [last.c[TIMESTAMP].is_(None), last.c[TIMESTAMP].desc()] if TIMESTAMP in self.names else []
        return self._first(last, self.key, [*timestamp, last.c[_TOPIC].desc(), last.c[_PARTITION].desc()])

    def _first(self, rows: sa.FromClause, key: Sequence[str], order: Sequence[Any]) -> sa.Select[Any]:
        """Return the query for the first row of each key in an order."""
        rank = sa.func.row_number().over(partition_by=[rows.c[name] for name in key], order_by=order)
        ranked = sa.select(*self.of(rows), rank.label(_RANK)).subquery("ranked")
        return sa.select(*self.of(ranked)).where(ranked.c[_RANK] == sa.literal_column("1"))

    def merge(self, newest: sa.Select[Any]) -> int:
        """Insert rows of different keys, or replace the rows of these keys that are not newer; return how many."""
        insert = _INSERT[self.conn.dialect.name](self.table).from_select(self.names, newest)
        old, new = self.table.columns, insert.excluded
        statement = insert.on_conflict_do_update(
            index_elements=[old[name] for name in self.key],
            set_={name: new[name] for name in self.written},
            where=self.is_not_older(old, new),
        )
        return int(self.conn.execute(statement, execution_options={"preserve_rowcount": True}).rowcount)

    def try_to_merge(self, staged: sa.Table) -> int | None:
        """Merge the newest row of each key, or refuse records of theirs and merge nothing.

        :return: how many rows were inserted or replaced; None where records were refused
        :raises RecordError: a row is refused that is not to be a dead letter; names the record
        :raises TargetError: the database refuses the statement
        """
        newest = self.newest(staged)
        try:
            with savepoint(self.conn):
                return self.merge(newest)
        except DBAPIError as error:
            if is_outage(error):
                raise
            if not is_of_row(error):
                raise self._refused_statement(error) from None
            refused = error
        # Outside of the handler: an error that follows must not have the database's, which quotes the row, in its
        # context.
        if not self._refuse_records(self.temporary(newest)):
            # The database takes each row by itself.
            raise self._refused_statement(refused)
        return None

    def _refuse_records(self, newest: sa.Table) -> bool:
        """Find the rows that the database refuses by merging ranges of offsets, which are halved until one offset is
        left, and refuse their records. Merge nothing.

        :param newest: the rows to merge, each of which can be merged by itself; it is dropped
        :return: whether there are such rows
        """
        known = len(self.refused.reasons)
        offset, of_topic, of_partition = (newest.c[name] for name in (_OFFSET, _TOPIC, _PARTITION))
        partitions = sa.select(of_topic, of_partition, sa.func.min(offset), sa.func.max(offset))
        partitions = partitions.group_by(of_topic, of_partition).order_by(of_topic, of_partition)
        trial = self.conn.begin_nested()
        for topic, partition, first, last in self.conn.execute(partitions).all():
            rows = sa.select(*self.of(newest)).where(of_topic == topic, of_partition == partition)
            merge = partial(self._merge_offsets, rows, offset)
            write_around(self.conn, first, last + 1, merge, partial(self._refuse_offset, topic, partition))
        trial.rollback()
        self.drop(newest)
        return len(self.refused.reasons) > known

    def _refuse_offset(self, topic: str, partition: int, offset: int, refused: RowRefusedError) -> None:
        record = Record(topic, partition, offset)
        if not refused.has_bad_value:
            raise RecordError(str(refused), *record) from None
        self.refused.add(record, str(refused))

    def _merge_offsets(self, rows: sa.Select[Any], offset: sa.ColumnElement[int], first: int, end: int) -> int:
        try:
            return self.merge(rows.where(offset >= first, offset < end))
        except DBAPIError as error:
            if not is_of_row(error):
                raise
            raise refused_row(error, self.table) from None

    def _refused_statement(self, error: DBAPIError) -> TargetError:
        return TargetError(f"Nothing was written into {self.table.fullname!r}: {refusal(error, self.table)}")
