"""A table in its database: its checks, its creation, its rows."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.engine.reflection import ObjectKind

from airflow_kafka_offsets.core.origin import BATCH_ID, RECORD
from airflow_kafka_offsets.database.errors import database_message, is_outage
from airflow_kafka_offsets.database.mysql import check_driver, check_transactional
from airflow_kafka_offsets.database.tables import check_rights, reflected
from airflow_kafka_offsets.database.transactions import transact
from airflow_kafka_offsets.exceptions import ConfigurationError, OlderLedgerError, TargetError
from airflow_kafka_offsets.sinks.sql import upsert_key
from airflow_kafka_offsets.sinks.sql.column_types import check_names, created_table, match, required
from airflow_kafka_offsets.sinks.sql.names import dataset_name
from airflow_kafka_offsets.sinks.sql.new_columns import check_growth, grown
from airflow_kafka_offsets.sinks.sql.rows import SqlRows
from airflow_kafka_offsets.sinks.sql.target import SqlTarget
from airflow_kafka_offsets.sinks.table import Dataset, Output, Table
from airflow_kafka_offsets.staging.rows import TargetColumns

if TYPE_CHECKING:
    from airflow_kafka_offsets.sinks.sql.table import SqlTable


@dataclass(frozen=True, slots=True)
class ConnectedSqlTable(Table):
    """A table in the database of the positions; see `Table`."""

    sink: SqlTable
    engine: Engine

    def prepare(self, columns: pa.Schema | None, *, may_grow: bool = False) -> TargetColumns:
        """Check, before Spark starts, that the rows can be written; create the table where it is missing.

        :param columns: the columns of the rows, or None where a transform decides them
        :param may_grow: whether the commit adds columns that the table lacks
        :raises TargetError: the table does not fit, cannot be created, or may not be written to
        :raises ConfigurationError: `upsert_key` does not fit the rows or the database; the name is none, begins with
            that of a schema, or is that of a view; or a name is longer than the database keeps
        """
        sink, engine = self.sink, self.engine
        if not isinstance(sink.table, str) or not sink.table.strip():
            raise ConfigurationError(f"SqlTable needs the name of a table; got table={sink.table!r}")
        check_driver(engine.dialect)
        if sink.upsert_key:
            upsert_key.check_key(engine.dialect, sink.upsert_key, columns)
        with engine.connect() as conn:
            check_names(
                conn.dialect,
                {"schema": [sink.schema or ""], "table": [sink.table], "column": columns.names if columns else []},
            )
            table = self.reflect(conn)
            if table is not None:
                self._refuse_view(conn)
                check_transactional(conn, sink.schema, [sink.table])
                check_rights(conn, table, ("INSERT",), "insert into table {table!r}")
                if _leads_an_index(table, BATCH_ID):  # see refuse_unknown_rows
                    check_rights(conn, table, ("SELECT",), "look for rows of unknown batches in table {table!r}")
        if table is None:
            if columns is None:
                return TargetColumns(sink.name, None)
            table = self._create(columns)
        if columns is not None:
            if may_grow:
                check_growth(engine, table, columns)
            match(grown(table, columns) if may_grow else table, columns, engine.dialect)
        needed = required(table)
        if sink.upsert_key:
            with engine.connect() as conn:
                upsert_key.check_target(conn, table, sink.upsert_key)
            needed += [name for name in dict.fromkeys((*sink.upsert_key, *RECORD)) if name not in needed]
        return TargetColumns(sink.name, tuple(column.name for column in table.columns), tuple(needed), may_grow)

    def publish(self, conn: Connection, output: Output) -> AbstractContextManager[SqlTarget]:
        """Return the table as it is written to over the connection of a transaction."""
        return nullcontext(SqlTarget(conn, self))

    def refuse_unknown_rows(self, conn: Connection, batches: sa.Table, output: Output) -> None:
        """Raise if the state tables are older than the target, as after a restored backup.

        Loads would load records again that are in the target already. The state tables number the batches: rows of a
        later batch that they do not know, or of this one before it is written, were numbered by tables that are gone.
        These rows are looked for where the target has an index on `_batch_id` (a created one does); elsewhere every
        commit would have to read the whole table.

        :param batches: the state table `offset_batches`
        :param output: of the batch that is about to be written
        :raises OlderLedgerError: there are such rows; names their batch
        """
        table = self.reflect(conn)
        if table is None or not _leads_an_index(table, BATCH_ID):
            return
        column = table.columns[BATCH_ID]
        batch_id = output.batch_id
        known = sa.exists().where(batches.c.batch_id == column, column != batch_id)
        # Not "the first such row": Postgres would take a table scan for the quickest way to just one, and find none.
        unknown = conn.scalar(sa.select(sa.func.min(column)).where(column >= batch_id, ~known))
        if unknown is not None:
            raise OlderLedgerError(
                f"Table {self.sink.name!r} holds rows of batch {unknown}, which the state tables do not know; the next "
                f"batch would be {batch_id}. The state tables were restored from an older backup than the table, or "
                "created again. Nothing was written: their records would be loaded again. Restore both to the same "
                f"moment, or delete the rows with {BATCH_ID} >= {batch_id}, which this load then brings back."
            )

    def rows(self, conn: Connection) -> SqlRows:
        """Return the rows as `verify` reads them: nothing is known of those that later batches replace by key."""
        return SqlRows(conn, self.sink.name, self.reflect(conn), self.sink.replaces_rows)

    def reflect(self, conn: Connection) -> sa.Table | None:
        """Return the table as the transaction first saw it; None where there is none."""
        return reflected(conn, self.sink.table, self.sink.schema)

    def _refuse_view(self, conn: Connection) -> None:

        views = sa.inspect(conn).get_multi_columns(
            self.sink.schema, filter_names=[self.sink.table], kind=ObjectKind.ANY_VIEW
        )
        if views:
            raise ConfigurationError(
                f"{self.sink.name!r} is a view, and rows are loaded into tables: name the table that it shows, or a "
                "table "
                "of its own"
            )

    def _create(self, columns: pa.Schema) -> sa.Table:

        engine = self.engine
        schema, dot, name = self.sink.table.partition(".")
        if dot and schema in sa.inspect(engine).get_schema_names():
            raise ConfigurationError(
                f"There is no table {self.sink.table!r}, and it is not created under that name: {schema!r} is a "
                "schema, "
                f"which is a parameter of its own, as in SqlTable({name!r}, schema={schema!r})"
            )
        table = created_table(self.sink.table, self.sink.schema, columns, self.sink.upsert_key)
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
                f"Table {self.sink.name!r} does not exist in database {engine.url.database!r}, and user "
                f"{engine.url.username!r} cannot create it: {database_message(error)}. Create it, or grant CREATE on "
                "the schema."
            ) from error
        return table

    def datasets(self) -> list[Dataset]:
        # Before the URI is made: the first connection shows the default schema.
        inspector, sink = sa.inspect(self.engine), self.sink
        columns = None
        if inspector.has_table(sink.table, sink.schema):
            found = inspector.get_columns(sink.table, sink.schema)
            columns = [(column["name"], column["type"].compile(self.engine.dialect)) for column in found]
        return [Dataset(*dataset_name(uri), columns) for uri in sink.uris(self.engine)]


def _leads_an_index(table: sa.Table, name: str) -> bool:
    keys = [key for key in table.constraints if isinstance(key, (sa.PrimaryKeyConstraint, sa.UniqueConstraint))]
    return any(next((column.name for column in index.columns), None) == name for index in (*table.indexes, *keys))
