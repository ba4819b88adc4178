"""Insert rows, and replace rows of the same keys: through a temporary table, in the transaction of the commit. See
`upsert_checks` for what the key, the rows and the table have to be.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from secrets import token_hex
from typing import Any

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError, IntegrityError

from airflow_kafka_offsets.core.chunks import portions
from airflow_kafka_offsets.core.origin import BATCH_ID, RECORD, TIMESTAMP
from airflow_kafka_offsets.database.errors import is_outage
from airflow_kafka_offsets.database.mysql import error_number, is_mysql
from airflow_kafka_offsets.database.transactions import stream
from airflow_kafka_offsets.exceptions import RecordError, TargetError
from airflow_kafka_offsets.sinks.row_origin import quoted_names
from airflow_kafka_offsets.sinks.sql.refused_rows import (
    RowRefusedError,
    is_of_row,
    refused_row,
    refused_statement,
    savepoint,
    write_around,
)
from airflow_kafka_offsets.sinks.target_rows import LogOrder, OtherLogs
from airflow_kafka_offsets.staging.rows import Record, RefusedRecords, StagedRows, null_key

_TOPIC, _PARTITION, _OFFSET = RECORD

_RANK, _AT = "_kafka_rank", "_kafka_at"

_NONE = sa.false()

# Numbers in a query: databases have a limit.
_BATCHES_AT_ONCE = 1_000

# Of a key and a partition that are looked at together; others are once these are refused.
_OLDER_ROWS = 1_000

_INSERT: dict[str, Callable[[sa.Table], Any]] = {"postgresql": postgresql.insert, "sqlite": sqlite.insert}

# The place of a row in a table that nothing was deleted from: in the order in which the rows came.
_MYSQL_PLACE = "_kafka_place"
_PLACE = {"postgresql": "ctid", "sqlite": "rowid", "mysql": _MYSQL_PLACE, "mariadb": _MYSQL_PLACE}

_MYSQL_DUPLICATE = 1062


def upsert_rows(
    conn: Connection,
    table: sa.Table,
    columns: pa.Schema,
    rows: StagedRows,
    key: Sequence[str],
    append: Callable[[Connection, sa.Table, pa.Schema, StagedRows], int],
    log_order: LogOrder,
) -> int:
    """Insert the newest row of each key, or replace the stored row, unless that is newer.

    :param append: the fastest way into a table; into the temporary one here
    :param log_order: see `Output`
    :return: how many rows were inserted or replaced
    :raises RecordError: a key is null, or the database refuses a row, which is not to be a dead letter; names the
        record
    :raises TargetError: the database refuses the statement
    """
    statements = MySqlUpsert if is_mysql(conn.dialect) else Upsert
    upsert = statements(conn, table, tuple(columns.names), tuple(key), rows.refused, log_order)
    try:
        # The types of the target, without its constraints and defaults.
        staged = upsert.temporary(sa.select(*upsert.of(table)).where(sa.false()))
        sent = append(conn, staged, columns, rows)
        upsert.refuse_nulls(staged)
        upsert.delete(staged, rows.refused.reasons)
        if log_order.is_outdated:
            upsert = replace(upsert, newer=upsert.logs_of(staged, sa.true()).newer)
        while (count := upsert.try_to_merge(staged, sent)) is None:
            upsert.delete(staged, rows.refused.reasons)
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
    :param log_order: see `Output`
    :param newer: the batches of each topic whose rows stay, whatever their offsets are
    """

    conn: Connection
    table: sa.Table
    names: tuple[str, ...]
    key: tuple[str, ...]
    refused: RefusedRecords
    log_order: LogOrder
    newer: Mapping[str, list[int]] = field(default_factory=dict)

    @property
    def written(self) -> Sequence[str]:
        """The columns of a row that is replaced."""
        return [name for name in self.names if name not in self.key] or self.key

    def is_not_older(self, old: Any, new: Any) -> sa.ColumnElement[bool]:
        """Return the condition that a row replaces the one with its key.

        The later load wins over a row of another partition, and over one without an offset, which another program
        wrote.
        """
        is_not_older = sa.or_(
            old[_TOPIC].is_distinct_from(new[_TOPIC]),
            old[_PARTITION].is_distinct_from(new[_PARTITION]),
            old[_OFFSET].is_(None),
            old[_OFFSET] <= new[_OFFSET],
        )
        is_of_earlier = (
            old[_TOPIC].is_distinct_from(topic) | old[BATCH_ID].is_(None) | old[BATCH_ID].not_in(some)
            for topic, batch_ids in self.newer.items()
            for some in portions(batch_ids, _BATCHES_AT_ONCE)
        )
        return sa.and_(is_not_older, *is_of_earlier)

    def of(self, table: sa.FromClause) -> list[sa.ColumnElement[Any]]:
        return [table.columns[name] for name in self.names]

    def temporary(self, query: sa.Select[Any]) -> sa.Table:
        """Return a table with the result of a query, which lasts until the end of the transaction."""
        table = _new_table(query)
        dropped = "ON COMMIT DROP " if self.conn.dialect.name == "postgresql" else ""
        compiled = query.compile(dialect=self.conn.dialect)
        self.conn.exec_driver_sql(f"CREATE TEMPORARY TABLE {table.name} {dropped}AS {compiled}")
        return table

    def drop(self, table: sa.Table) -> None:
        """Drop a temporary table."""
        table.drop(self.conn)

    def clean_up(self) -> None:
        """Drop the temporary tables that neither the end of the transaction nor its rollback drops."""

    def refuse_nulls(self, staged: sa.Table) -> None:
        """Refuse the records of rows that do not say their key.

        :raises RecordError: the batch allows no dead letters; names the first one
        :raises TargetError: the transform dropped where a row is from
        """
        lacking = sa.or_(*(staged.c[name].is_(None) for name in (*self.key, *RECORD)))
        # Null before all others: databases have it at either end.
        order = [each for name in RECORD for each in (staged.c[name].is_not(None), staged.c[name])]
        for row in stream(self.conn, sa.select(staged).where(lacking).order_by(*order)):
            null = [name for name in (*self.key, *RECORD) if row._mapping[name] is None]
            if set(null) & set(RECORD):
                raise TargetError(
                    f"The transform returns a row whose {quoted_names(null)} is null: the newest row of its key is "
                    f"unknown. Nothing was written into {self.table.fullname!r}"
                )
            self.refused.add(Record(*(row._mapping[name] for name in RECORD)), null_key(null))

    def delete(self, staged: sa.Table, records: Collection[Record]) -> None:
        """Delete the rows of some records."""
        if not records:
            return
        doomed = self._table_of(staged, records)
        same = [doomed.c[name] == staged.c[name] for name in RECORD]
        self.conn.execute(staged.delete().where(doomed.select().where(*same).exists()))
        self.drop(doomed)

    def _table_of(self, staged: sa.Table, records: Collection[Record]) -> sa.Table:
        """Return a table of records, which the database can join: there may be many on either side."""
        table = self.temporary(sa.select(*(staged.c[name] for name in RECORD)).where(sa.false()))
        self.conn.execute(table.insert(), [dict(zip(RECORD, record, strict=True)) for record in records])
        return table

    def newest(self, staged: sa.FromClause) -> sa.Select[Any]:
        """Return the query for the newest row of each key: that of the highest offset in each partition, and of these
        the newest by timestamp.
        """
        # Rows of one record, as a transform may make, have the same offset: of these the last one.
        by_offset = [staged.c[_OFFSET].desc(), sa.literal_column(_PLACE[self.conn.dialect.name]).desc()]
        last = self._first(staged, (*self.key, _TOPIC, _PARTITION), by_offset).subquery("by_offset")
        timestamp = [last.c[TIMESTAMP].is_(None), last.c[TIMESTAMP].desc()] if TIMESTAMP in self.names else []
        return self._first(last, self.key, [*timestamp, last.c[_TOPIC].desc(), last.c[_PARTITION].desc()])

    def _first(self, rows: sa.FromClause, key: Sequence[str], order: Sequence[Any]) -> sa.Select[Any]:
        """Return the query for the first row of each key in an order."""
        rank = sa.func.row_number().over(partition_by=[rows.c[name] for name in key], order_by=order)
        ranked = sa.select(*self.of(rows), rank.label(_RANK)).subquery("ranked")
        return sa.select(*self.of(ranked)).where(ranked.c[_RANK] == sa.literal_column("1"))

    def older(self, newest: sa.Select[Any]) -> Mapping[str, list[int]]:
        """Return for each topic the batches whose rows of the keys would stay, and are of an earlier topic of its name:
        whatever their offsets are, they are older.
        """
        rows = newest.subquery("newest")
        return self.logs_of(rows, ~self.is_not_older(self.table.columns, rows.columns)).older

    def logs_of(self, rows: sa.FromClause, condition: sa.ColumnElement[bool]) -> OtherLogs:
        """Return the batches of other topics among those of rows that have the keys of other rows.

        :param condition: for the rows
        """
        stored = self.table.columns
        same = sa.and_(*(stored[name] == rows.c[name] for name in self.key))
        batch_ids = sa.select(stored[BATCH_ID]).where(same, condition, stored[BATCH_ID].is_not(None)).distinct()
        return self.log_order.others(self.conn, self.conn.scalars(batch_ids).all())

    def merge_over(self, newest: sa.Select[Any], older: Mapping[str, list[int]]) -> int:
        """Replace the rows of keys that are of some batches, whatever their offsets are; return how many.

        :param older: what `older` returned
        """
        count, rows, stored = 0, newest.subquery("newest"), self.table.alias()
        same = sa.and_(*(stored.c[name] == rows.c[name] for name in self.key))
        for topic, batch_ids in older.items():
            for some in portions(batch_ids, _BATCHES_AT_ONCE):
                is_older, of_key = (
                    (table[_TOPIC] == topic) & table[BATCH_ID].in_(some) for table in (self.table.c, stored.c)
                )
                is_one = sa.exists(sa.select(sa.literal_column("1")).select_from(stored).where(same, of_key))
                count += self.merge(sa.select(*self.of(rows)).where(is_one), is_older)
        return count

    def merge(self, newest: sa.Select[Any], is_older: sa.ColumnElement[bool] = _NONE) -> int:
        """Insert rows of different keys, or replace the rows of these keys that are not newer; return how many.

        :param is_older: the condition for rows of the table that are replaced although their offsets are higher
        """
        insert = _INSERT[self.conn.dialect.name](self.table).from_select(self.names, newest)
        old, new = self.table.columns, insert.excluded
        statement = insert.on_conflict_do_update(
            index_elements=[old[name] for name in self.key],
            set_={name: new[name] for name in self.written},
            where=self.is_not_older(old, new) | is_older,
        )
        return int(self.conn.execute(statement, execution_options={"preserve_rowcount": True}).rowcount)

    def try_to_merge(self, staged: sa.Table, most: int) -> int | None:
        """Merge the newest row of each key, or refuse records of theirs and merge nothing.

        :param most: how many rows there are at most
        :return: how many rows were inserted or replaced; None where records were refused
        :raises RecordError: a row is refused that is not to be a dead letter; names the record
        :raises TargetError: the database refuses the statement
        """
        newest = self.newest(staged)
        try:
            with savepoint(self.conn):
                count = self.merge(newest)
                # Otherwise keys are there several times, or rows stay.
                return count if count == most else count + self.merge_over(newest, self.older(newest))
        except DBAPIError as error:
            if is_outage(error):
                raise
            if not is_of_row(error):
                raise refused_statement(error, self.table) from None
            refused = error
        # Outside of the handler: an error that follows must not have the database's, which quotes the row, in its
        # context.
        found = self._refuse_records(self.temporary(newest))
        if not found:
            # The database takes each row by itself.
            raise refused_statement(refused, self.table)
        self._refuse_older(staged, found)
        return None

    def _refuse_older(self, staged: sa.Table, refused: Collection[Record]) -> None:
        """Refuse older rows of the keys of refused records. Without these, one of them is the newest: by looking at the
        rows of these keys alone, many refused rows of a key do not take a look at all rows each.
        """
        records = self._table_of(staged, refused)
        same = [records.c[name] == staged.c[name] for name in RECORD]
        of_records = sa.select(*(staged.c[name] for name in self.key)).where(records.select().where(*same).exists())
        keys = self.temporary(of_records.distinct())
        self.drop(records)
        place: sa.ColumnElement[Any] = sa.literal_column(_PLACE[self.conn.dialect.name])
        rank = sa.func.row_number().over(
            partition_by=[staged.c[name] for name in (*self.key, _TOPIC, _PARTITION)],
            order_by=[staged.c[_OFFSET].desc(), place.desc()],
        )
        is_one = keys.select().where(*(keys.c[name] == staged.c[name] for name in self.key)).exists()
        ranked = sa.select(*self.of(staged), rank.label(_RANK), place.label(_AT)).where(is_one).subquery("ranked")
        some = sa.select(*self.of(ranked)).where(ranked.c[_RANK] <= sa.literal_column(str(_OLDER_ROWS)))
        rows = self.temporary(some.order_by(ranked.c[_AT]))
        self.drop(keys)
        while refused:
            self.delete(rows, refused)
            refused = self._refuse_records(self.temporary(self.newest(rows)))
        self.drop(rows)

    def _refuse_records(self, newest: sa.Table) -> Collection[Record]:
        """Find the rows that the database refuses by merging ranges of offsets, which are halved until one offset is
        left, and refuse their records. Merge nothing.

        :param newest: the rows to merge, each of which can be merged by itself; it is dropped
        :return: their records
        """
        known = len(self.refused.reasons)
        offset, of_topic, of_partition = (newest.c[name] for name in (_OFFSET, _TOPIC, _PARTITION))
        partitions = sa.select(of_topic, of_partition, sa.func.min(offset), sa.func.max(offset))
        partitions = partitions.group_by(of_topic, of_partition).order_by(of_topic, of_partition)
        older = self.older(sa.select(*self.of(newest)))
        trial = self.conn.begin_nested()
        for topic, partition, first, last in self.conn.execute(partitions).all():
            rows = sa.select(*self.of(newest)).where(of_topic == topic, of_partition == partition)
            merge = partial(self._merge_offsets, rows, older, offset)
            write_around(self.conn, first, last + 1, merge, partial(self._refuse_offset, topic, partition))
        trial.rollback()
        self.drop(newest)
        return list(self.refused.reasons)[known:]

    def _refuse_offset(self, topic: str, partition: int, offset: int, refused: RowRefusedError) -> None:
        record = Record(topic, partition, offset)
        if not refused.has_bad_value:
            raise RecordError(str(refused), *record, may_be_kept=False) from None
        self.refused.add(record, str(refused))

    def _merge_offsets(
        self,
        rows: sa.Select[Any],
        older: Mapping[str, list[int]],
        offset: sa.ColumnElement[int],
        first: int,
        end: int,
    ) -> int:
        some = rows.where(offset >= first, offset < end)
        try:
            return self.merge(some) + self.merge_over(some, older)
        except DBAPIError as error:
            if not is_of_row(error):
                raise
            raise refused_row(error, self.table) from None


@dataclass(frozen=True, slots=True)
class MySqlUpsert(Upsert):
    """The statements of one upsert on MySQL and MariaDB.

    `ON DUPLICATE KEY UPDATE` uses any unique index as the key, and does not distinguish inserted from unchanged rows.
    So one statement replaces rows, and another inserts them.

    Temporary tables are created and dropped without an implicit COMMIT. They last until the session ends, which may be
    in a pool.

    :param temporaries: the names of those that are there
    """

    temporaries: list[str] = field(default_factory=list)

    def temporary(self, query: sa.Select[Any]) -> sa.Table:
        names = [column.name for column in query.selected_columns]
        # Of an outer join, all columns may be null; they keep the types, character sets and collations of the target.
        nothing = sa.select(sa.literal_column("1")).subquery("_kafka_nothing")
        types = sa.select(*(self.table.columns[name] for name in names)).where(sa.false())
        compiled = types.select_from(nothing.outerjoin(self.table, sa.false())).compile(dialect=self.conn.dialect)
        table = _new_table(query)
        self.temporaries.append(table.name)
        # Of another engine, rows would stay where the transaction returns to a savepoint.
        self.conn.exec_driver_sql(
            f"CREATE TEMPORARY TABLE {table.name} ({_MYSQL_PLACE} BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY) ENGINE = "
            f"InnoDB AS {compiled}"
        )
        self.conn.execute(table.insert().from_select(names, query))
        return table

    def drop(self, table: sa.Table) -> None:
        # Without TEMPORARY, the statement would commit.
        self.conn.exec_driver_sql(f"DROP TEMPORARY TABLE {table.name}")
        self.temporaries.remove(table.name)

    def clean_up(self) -> None:
        if self.temporaries and not self.conn.invalidated:
            # An error that is raised already is the one to raise; tables of a session that is lost are gone.
            with suppress(DBAPIError):
                self.conn.exec_driver_sql(f"DROP TEMPORARY TABLE IF EXISTS {', '.join(self.temporaries)}")
            self.temporaries.clear()

    def merge(self, newest: sa.Select[Any], is_older: sa.ColumnElement[bool] = _NONE) -> int:
        rows = self.temporary(newest)
        for is_last in (False, False, True):
            try:
                with savepoint(self.conn):
                    count = self._replace_and_insert(rows, is_older)
                break
            except IntegrityError as error:
                # Perhaps of a key that another transaction has inserted meanwhile: its row is there to be replaced now.
                if is_last or error_number(error.orig) != _MYSQL_DUPLICATE:
                    raise
        self.drop(rows)
        return count

    def _replace_and_insert(self, rows: sa.Table, is_older: sa.ColumnElement[bool]) -> int:
        """Write rows, those of known keys and those of new ones; fail where another transaction has just inserted one
        of the latter.
        """
        old, new = self.table.columns, rows.columns
        same = sa.and_(*(old[name] == new[name] for name in self.key))
        # Locked: a row that is to be replaced stays until it is.
        known = self.temporary(sa.select(*(new[name] for name in self.key)).join(self.table, same).with_for_update())
        replaced = self.table.update().values({old[name]: new[name] for name in self.written})
        count = self.conn.execute(replaced.where(same, self.is_not_older(old, new) | is_older)).rowcount
        is_known = known.select().where(*(known.c[name] == new[name] for name in self.key)).exists()
        inserted = self.conn.execute(
            self.table.insert().from_select(self.names, sa.select(*self.of(rows)).where(~is_known)),
            execution_options={"preserve_rowcount": True},
        )
        self.drop(known)
        return int(count) + int(inserted.rowcount)


def _new_table(query: sa.Select[Any]) -> sa.Table:
    """Return a table for the result of a query, by a name that no table has: temporary ones are found before others."""
    columns = (sa.Column(column.name, column.type) for column in query.selected_columns)
    return sa.Table(f"_upsert_{token_hex(8)}", sa.MetaData(), *columns)
