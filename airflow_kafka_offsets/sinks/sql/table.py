"""A table of the database that holds the positions: rows are written in the transaction that moves the positions."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from airflow_kafka_offsets.core.origin import BATCH_ID
from airflow_kafka_offsets.core.templates import Templated
from airflow_kafka_offsets.exceptions import ConfigurationError, OlderLedgerError, TargetError

if TYPE_CHECKING:
    import pyarrow as pa
    import sqlalchemy as sa
    from sqlalchemy.engine import Connection, Engine

    from airflow_kafka_offsets.sinks.sink import Output
    from airflow_kafka_offsets.sinks.sql.rows import SqlRows
    from airflow_kafka_offsets.sinks.sql.target import SqlTarget
    from airflow_kafka_offsets.staging.rows import TargetColumns
    from airflow_kafka_offsets.writers.arrow_writer import ArrowWriter


@dataclass(frozen=True, slots=True)
class SqlTable(Templated):
    """Append rows to a table, or upsert them. Columns are matched by name; a missing table is created from the rows'
    columns.

    The number of rows of a batch is the one that the database reports. If triggers or rules of the table drop rows, or
    write them elsewhere, it is lower than that of the rows sent, and a warning is logged.

    A created table on SQLite has text for decimals of more than 15 digits, which SQLite's own numbers would round;
    where a column would, a load refuses them.

    MariaDB and MySQL need PyMySQL and InnoDB tables. A created table has DATETIME(6) in UTC there, and its texts differ
    by case.

    With `upsert_key`, on Postgres, SQLite, MariaDB and MySQL, a row is inserted, or replaces the one with the same key:
    the newest wins. Columns that the rows do not hold keep their values.

    * Of a partition, the highest offset is the newest: the row of a lower one never replaces it, whichever group loads
      it, and however often. This goes by the topic's name: after a topic was recreated, delete what the earlier one
      left.
    * Where a key is in several partitions, those of one batch are compared by `_kafka_timestamp`, where the table has
      it, then by the topic's name, then by the partition's number, and the greatest wins; a later batch wins over an
      earlier one.
    * The number of rows of a batch is that of the rows that it inserted or replaced, and not that of the records:
      several of one key are one row, and one that is older than what is there is none.
    * The table needs the columns `_kafka_topic`, `_kafka_partition` and `_kafka_offset`, and a primary key or a unique
      index of exactly the key's columns; a created one has them. The user needs SELECT, INSERT and UPDATE, and
      temporary tables.
    * A null in the key is an error that names the record, or makes it a dead letter. Tombstones, where the key is in
      the value, are such: a transform leaves them out.
    * `verify` proves positions and history, and not the rows: later batches replace those of earlier ones.

    :param table: the table's name (templated)
    :param schema: its schema; None is the connection's default (templated)
    :param conn_id: the Airflow connection of the database, which holds the positions too (templated)
    :param upsert_key: the columns that a row is known by, for example `("id",)`; without them all rows are appended
        (templated)
    """

    template_fields: ClassVar[tuple[str, ...]] = ("table", "schema", "conn_id", "upsert_key")

    table: str
    schema: str | None = None
    conn_id: str | None = None
    upsert_key: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name for messages and the history."""
        return f"{self.schema}.{self.table}" if self.schema else self.table

    @property
    def replaces_rows(self) -> bool:
        """Whether a record that is written again replaces its row."""
        return bool(self.upsert_key)

    def prepare(self, engine: Engine, columns: pa.Schema | None, *, may_grow: bool = False) -> TargetColumns:
        """Check, before Spark starts, that the rows can be written; create the table where it is missing.

        :param columns: the columns of the rows, or None where a transform decides them
        :param may_grow: whether the commit adds columns that the table lacks
        :raises TargetError: the table does not fit, cannot be created, or may not be written to
        :raises ConfigurationError: `upsert_key` does not fit the rows or the database; the name is none, begins with
            that of a schema, or is that of a view; or a name is longer than the database keeps
        """
        from airflow_kafka_offsets.core.origin import RECORD
        from airflow_kafka_offsets.database.mysql import check_driver, check_transactional
        from airflow_kafka_offsets.database.rights import check_rights
        from airflow_kafka_offsets.sinks.sql import upsert_key
        from airflow_kafka_offsets.sinks.sql.column_types import check_names, match, required
        from airflow_kafka_offsets.sinks.sql.new_columns import check_growth, grown
        from airflow_kafka_offsets.staging.rows import TargetColumns

        if not isinstance(self.table, str) or not self.table.strip():
            raise ConfigurationError(f"SqlTable needs the name of a table; got table={self.table!r}")
        check_driver(engine.dialect)
        if self.upsert_key:
            upsert_key.check_key(engine.dialect, self.upsert_key, columns)
        with engine.connect() as conn:
            check_names(
                conn.dialect,
                {"schema": [self.schema or ""], "table": [self.table], "column": columns.names if columns else []},
            )
            table = self.reflect(conn)
            if table is not None:
                self._refuse_view(conn)
                check_transactional(conn, self.schema, [self.table])
                check_rights(conn, table, ("INSERT",), "insert into table {table!r}")
                if _leads_an_index(table, BATCH_ID):  # see refuse_unknown_rows
                    check_rights(conn, table, ("SELECT",), "look for rows of unknown batches in table {table!r}")
        if table is None:
            if columns is None:
                return TargetColumns(self.name, None)
            table = self._create(engine, columns)
        if columns is not None:
            if may_grow:
                check_growth(engine, table, columns)
            match(grown(table, columns) if may_grow else table, columns, engine.dialect)
        needed = required(table)
        if self.upsert_key:
            with engine.connect() as conn:
                upsert_key.check_target(conn, table, self.upsert_key)
            needed += [name for name in dict.fromkeys((*self.upsert_key, *RECORD)) if name not in needed]
        return TargetColumns(self.name, tuple(column.name for column in table.columns), tuple(needed), may_grow)

    def writer(self, engine: Engine, columns: pa.Schema | None, output: Output) -> ArrowWriter:
        """Return the writer of files that the commit reads."""
        from airflow_kafka_offsets.writers.arrow_writer import ArrowWriter

        return ArrowWriter()

    def open(self, conn: Connection, output: Output) -> AbstractContextManager[SqlTarget]:
        """Return the table as it is written to over the connection of a transaction."""
        from airflow_kafka_offsets.sinks.sql.target import SqlTarget

        return nullcontext(SqlTarget(conn, self))

    def refuse_unknown_rows(self, conn: Connection, batches: sa.Table, batch_id: int) -> None:
        """Raise if the state tables are older than the target, as after a restored backup.

        Loads would load records again that are in the target already. The state tables number the batches: rows of a
        later batch that they do not know, or of this one before it is written, were numbered by tables that are gone.
        These rows are looked for where the target has an index on `_batch_id` (a created one does); elsewhere every
        commit would have to read the whole table.

        :param batches: the state table `offset_batches`
        :param batch_id: the batch that is about to be written
        :raises OlderLedgerError: there are such rows; names their batch
        """
        import sqlalchemy as sa

        table = self.reflect(conn)
        if table is None or not _leads_an_index(table, BATCH_ID):
            return
        column = table.columns[BATCH_ID]
        known = sa.exists().where(batches.c.batch_id == column, column != batch_id)
        # Not "the first such row": Postgres would take a table scan for the quickest way to just one, and find none.
        unknown = conn.scalar(sa.select(sa.func.min(column)).where(column >= batch_id, ~known))
        if unknown is not None:
            raise OlderLedgerError(
                f"Table {self.name!r} holds rows of batch {unknown}, which the state tables do not know; the next "
                f"batch would be {batch_id}. The state tables were restored from an older backup than the table, or "
                "created again. Nothing was written: their records would be loaded again. Restore both to the same "
                f"moment, or delete the rows with {BATCH_ID} >= {batch_id}, which this load then brings back."
            )

    def rows(self, conn: Connection) -> SqlRows:
        """Return the rows as `verify` reads them: nothing is known of those that later batches replace by key."""
        from airflow_kafka_offsets.sinks.sql.rows import SqlRows

        return SqlRows(conn, self.name, self.reflect(conn), self.replaces_rows)

    def reflect(self, conn: Connection) -> sa.Table | None:
        """Return the table as the transaction first saw it; None where there is none."""
        from airflow_kafka_offsets.database.reflection import reflected

        return reflected(conn, self.table, self.schema)

    def _refuse_view(self, conn: Connection) -> None:
        import sqlalchemy as sa
        from sqlalchemy.engine.reflection import ObjectKind

        views = sa.inspect(conn).get_multi_columns(self.schema, filter_names=[self.table], kind=ObjectKind.ANY_VIEW)
        if views:
            raise ConfigurationError(
                f"{self.name!r} is a view, and rows are loaded into tables: name the table that it shows, or a table "
                "of its own"
            )

    def _create(self, engine: Engine, columns: pa.Schema) -> sa.Table:
        import sqlalchemy as sa

        from airflow_kafka_offsets.database.errors import database_message, is_outage
        from airflow_kafka_offsets.database.transactions import transact
        from airflow_kafka_offsets.sinks.sql.column_types import created_table

        schema, dot, name = self.table.partition(".")
        if dot and schema in sa.inspect(engine).get_schema_names():
            raise ConfigurationError(
                f"There is no table {self.table!r}, and it is not created under that name: {schema!r} is a schema, "
                f"which is a parameter of its own, as in SqlTable({name!r}, schema={schema!r})"
            )
        table = created_table(self.table, self.schema, columns, self.upsert_key)
        try:
            transact(engine, table.create)
        except sa.exc.DBAPIError as error:
            if is_outage(error):
                raise
            with engine.connect() as conn:
                created = self.reflect(conn)
            if created is not None:  # by another group, at the same moment
                return created
            raise TargetError(
                f"Table {self.name!r} does not exist in database {engine.url.database!r}, and user "
                f"{engine.url.username!r} cannot create it: {database_message(error)}. Create it, or grant CREATE on "
                "the schema."
            ) from error
        return table


def _leads_an_index(table: sa.Table, name: str) -> bool:
    import sqlalchemy as sa

    keys = [key for key in table.constraints if isinstance(key, (sa.PrimaryKeyConstraint, sa.UniqueConstraint))]
    return any(next((column.name for column in index.columns), None) == name for index in (*table.indexes, *keys))
