"""A table in its database: its checks, its creation, its new columns, its rows, and its name in OpenLineage."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.engine.reflection import ObjectKind

from airflow_kafka_offsets.core.origin import BATCH_ID, RECORD
from airflow_kafka_offsets.database.errors import database_message, is_outage, lacks_rights
from airflow_kafka_offsets.database.mysql import check_driver, is_mysql
from airflow_kafka_offsets.database.session import unify_transaction
from airflow_kafka_offsets.database.tables import (
    check_policies,
    check_rights,
    check_transactional,
    forget_reflected,
    reflected,
    without_placeholders,
)
from airflow_kafka_offsets.database.transactions import transact
from airflow_kafka_offsets.exceptions import ConfigurationError, TargetError
from airflow_kafka_offsets.sinks.sql import insert, upsert, upsert_checks
from airflow_kafka_offsets.sinks.sql.column_types import (
    add_column,
    check_names,
    created_table,
    created_type,
    is_added,
    is_created,
    match,
    match_added,
    required,
)
from airflow_kafka_offsets.sinks.sql.kept_values import value_checks
from airflow_kafka_offsets.sinks.sql.rows import SqlRows
from airflow_kafka_offsets.sinks.table import REWIND_AFTER, Dataset, LastBatch, Output, Table, Target
from airflow_kafka_offsets.sinks.target_names import TargetNames
from airflow_kafka_offsets.sinks.target_rows import BY_OFFSETS, LogOrder, Removed, ReplacedOffsets
from airflow_kafka_offsets.staging.rows import StagedRows, TargetColumns

if TYPE_CHECKING:
    from airflow_kafka_offsets.sinks.sql.table import SqlTable


Writer = Callable[[Connection, sa.Table, pa.Schema, StagedRows], int]

log = logging.getLogger(__name__)

_TRANSACTIONAL_DDL = ("postgresql", "sqlite")

# Of a table that gets fields of older schemas; Postgres has 1,600 at most, SQLite 2,000: those of the newest have room.
# InnoDB has 8,126 bytes for what each row keeps in its page, up to 41 of a text.
_MOST_COLUMNS, _MOST_COLUMNS_OF_MYSQL = 1_000, 190

_PORTS = {"postgres": 5432, "mysql": 3306}

_SCHEMES = {"postgresql": "postgres", "mariadb": "mysql"}


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
        :raises ConfigurationError: `upsert_key` does not fit the rows or the database; the name is empty, begins with a
            schema, or is that of a view; or a name is too long for the database
        """
        sink, engine = self.sink, self.engine
        if not isinstance(sink.table, str) or not sink.table.strip():
            raise ConfigurationError(f"SqlTable needs the name of a table; got table={sink.table!r}")
        check_driver(engine.dialect)
        if sink.upsert_key:
            upsert_checks.check_key(engine.dialect, sink.upsert_key, columns)
        with engine.connect() as conn:
            names = {"schema": [sink.schema or ""], "table": [sink.table], "column": columns.names if columns else []}
            check_names(conn.dialect, names)
            table = self._writable(conn)
        if table is None and columns is None:
            return TargetColumns(sink.name, None)
        if table is None:
            table = self._create(columns)
        if columns is not None:
            if may_grow:
                check_growth(engine, table, columns)
            match(_grown(table, columns) if may_grow else table, columns, engine.dialect)
        needed = required(table)
        if sink.upsert_key:
            with engine.connect() as conn:
                upsert_checks.check_target(conn, table, sink.upsert_key)
            needed += [name for name in dict.fromkeys((*sink.upsert_key, *RECORD)) if name not in needed]
        return TargetColumns(sink.name, tuple(column.name for column in table.columns), tuple(needed), may_grow)

    def added_check(self) -> Callable[[pa.Field], None]:
        with self.engine.connect() as conn:
            table = self.reflect(conn)
        names = {column.name for column in table.columns} if table is not None else set()
        most = _MOST_COLUMNS_OF_MYSQL if is_mysql(self.engine.dialect) else _MOST_COLUMNS

        def check(column: pa.Field) -> None:
            match_added(table, column, self.engine.dialect)
            if column.name not in names and len(names) >= most:
                raise TargetError(f"the table has no room for it: of its columns, only {most:,} may be such")
            names.add(column.name)

        return check

    def drop_unused(self) -> bool:
        def work(conn: Connection) -> bool:
            table = self.reflect(conn)
            if table is None or not is_created(table):
                return False
            with _locked(conn, table):
                if conn.execute(sa.select(sa.literal(1)).select_from(table).limit(1)).first() is not None:
                    return False
                table.drop(conn)
            return True

        try:
            was_dropped = transact(self.engine, work)
        except sa.exc.DBAPIError as error:
            if is_outage(error):
                raise
            return False  # it has another owner, or other objects depend on it, or LOCK TABLES is not granted
        if was_dropped:
            log.warning("Table %s, which an earlier load created and never wrote to, is created again", self.sink.name)
        return was_dropped

    def publish(self, conn: Connection, output: Output) -> AbstractContextManager[SqlTarget]:
        """Return the table as it is written to over the connection of a transaction."""
        return nullcontext(SqlTarget(conn, self, output.log_order))

    def last_batch(self, conn: Connection, output: Output) -> LastBatch | None:
        """Return the highest batch id of the rows.

        It is read only if the table has an index on `_batch_id`, as a created one: otherwise every commit would read
        the whole table.
        """
        table = self.reflect(conn)
        if table is None or not _leads_an_index(table, BATCH_ID):
            return None
        last = conn.scalar(sa.select(sa.func.max(table.columns[BATCH_ID])))
        return None if last is None else LastBatch(last)

    def way_out(self, conn: Connection, batches: sa.Table, output: Output) -> str:
        """Return the advice, with the first batch that the state tables do not know."""
        names = TargetNames(conn, batches)
        query = sa.select(batches.c.target_table, sa.func.max(batches.c.batch_id)).group_by(batches.c.target_table)
        numbers = [
            number
            for name, number in conn.execute(query.where(batches.c.row_count.is_not(None))).all()
            if names.may_hold(self.sink.name, name)
        ]
        column = sa.column(BATCH_ID, sa.BigInteger)
        rows = sa.table(self.sink.table, column, schema=self.sink.schema)
        first = conn.scalar(sa.select(sa.func.min(rows.c[BATCH_ID])).where(column > max(numbers, default=-1)))
        if first is None:  # rows of other batches, such as of a table that got this name
            # A class with slots is made anew, which super() does not know.
            return Table.way_out(self, conn, batches, output)
        return (
            f"Restore both to the same moment, or delete the rows with {BATCH_ID} >= {first}: the next load loads "
            f"their records again. {REWIND_AFTER} Set {BATCH_ID} of rows that were copied on purpose to null."
        )

    def rows(self, conn: Connection) -> SqlRows:
        """Return the rows as `verify` reads them: without detail if later batches replace rows by key.

        :raises TargetError: the table lacks a column of the key
        """
        table = self.reflect(conn)
        if table is not None:
            upsert_checks.check_key_columns(table, self.sink.upsert_key)
        return SqlRows(conn, self.sink.name, table, self.sink.replaces_rows)

    def reflect(self, conn: Connection) -> sa.Table | None:
        """Return the table as the transaction first saw it; None if it does not exist."""
        return reflected(conn, self.sink.table, self.sink.schema)

    def _writable(self, conn: Connection) -> sa.Table | None:
        """Check that the user may write to the table, and return it; None if it does not exist."""
        schema, name = self.sink.schema, self.sink.table
        table = self.reflect(conn)
        if table is None:
            return None
        if sa.inspect(conn).get_multi_columns(schema, filter_names=[name], kind=ObjectKind.ANY_VIEW):
            raise ConfigurationError(
                f"{self.sink.name!r} is a view, but rows are loaded into tables: name the table of the view, or "
                "another table"
            )
        check_transactional(conn, [table])
        check_rights(conn, table, ("INSERT",), "insert into table {table!r}")
        check_policies(conn, table)
        if _leads_an_index(table, BATCH_ID):  # see last_batch
            check_rights(conn, table, ("SELECT",), "look for rows of unknown batches in table {table!r}")
        return table

    def _create(self, columns: pa.Schema) -> sa.Table:
        engine = self.engine
        schema, dot, name = self.sink.table.partition(".")
        if dot and schema in sa.inspect(engine).get_schema_names():
            raise ConfigurationError(
                f"There is no table {self.sink.table!r}, and it is not created under that name: {schema!r} is a "
                f"schema, which is a parameter of its own, as in SqlTable({name!r}, schema={schema!r})"
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
            advice = f"Create the table{', or grant CREATE on the schema' if lacks_rights(error) else ''}"
            if self.sink.schema is not None and self.sink.schema not in sa.inspect(engine).get_schema_names():
                advice = f"Create the schema, or correct schema={self.sink.schema!r}"
            raise TargetError(
                f"Table {self.sink.name!r} does not exist in database {engine.url.database!r}, and user "
                f"{engine.url.username!r} cannot create it: {database_message(error)}. {advice}."
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


@contextmanager
def _locked(conn: Connection, table: sa.Table) -> Iterator[None]:
    """Keep other sessions from writing to a table until it is dropped. SQLite has one writer at a time."""
    name = conn.dialect.identifier_preparer.format_table(table)
    if conn.dialect.name == "postgresql":
        conn.exec_driver_sql(f"LOCK TABLE {name} IN ACCESS EXCLUSIVE MODE")
    if not is_mysql(conn.dialect):
        yield
        return
    # DROP TABLE ends the transaction and its locks, but not this one.
    conn.exec_driver_sql(f"LOCK TABLES {name} WRITE")
    try:
        yield
    finally:
        conn.exec_driver_sql("UNLOCK TABLES")


@dataclass(frozen=True)
class SqlTarget(Target):
    """A table, and the connection of a transaction; see `Target`.

    :param log_order: of the batch; see `Output`
    """

    conn: Connection
    table: ConnectedSqlTable
    log_order: LogOrder = BY_OFFSETS

    def add_columns(self, columns: pa.Schema) -> list[str]:
        """Add the columns that the table lacks; see `Target.add_columns`.

        On Postgres the table is locked until the end of the transaction: its readers wait.
        """
        conn, table = self.conn, self.table.reflect(self.conn)
        if table is None or not _lacking(table, columns):
            return []
        if conn.dialect.name == "postgresql":
            # Other transactions may add the same columns.
            name = conn.dialect.identifier_preparer.format_table(table)
            conn.exec_driver_sql(f"LOCK TABLE {name} IN ACCESS EXCLUSIVE MODE")
        forget_reflected(conn)
        table = self.table.reflect(conn)
        assert table is not None  # it is locked, or no other transaction writes to the database
        missing = _lacking(table, columns)
        for field in missing:
            # A colon would begin a parameter.
            conn.execute(sa.text(add_column(table, field, conn.dialect).replace(":", r"\:")))
        forget_reflected(conn)
        return [field.name for field in missing]

    def remove(self, replaced: ReplacedOffsets) -> list[Removed]:
        """Delete the rows of replaced offsets; see `Target.remove`."""
        return self.table.rows(self.conn).remove(replaced)

    def write(self, rows: StagedRows) -> int:
        """Write rows over the connection of the transaction.

        :return: the number of appended rows that the table has; with `upsert_key`, of inserted or replaced rows
        :raises TargetError: the table does not fit the rows
        :raises RecordError: the database refuses a row, which is not to be a dead letter; names the record it came from
        """
        conn, sink, schema = self.conn, self.table.sink, rows.schema()
        if schema is None:
            return 0
        unify_transaction(conn)
        table = self.table.reflect(conn)
        if table is None:
            raise TargetError(f"Table {sink.name!r} disappeared between staging and commit; nothing was written")
        columns, append = match(table, schema, conn.dialect), _writer(conn)
        rows.checks = value_checks(table, columns, conn.dialect)
        if not sink.upsert_key:
            count = append(conn, table, columns, rows)
            sent = len(rows) - rows.left_out
            if count != sent and BATCH_ID in table.columns:
                # A trigger may write them into partitions that inherit from the table.
                of_batch = sa.select(sa.func.count()).where(table.columns[BATCH_ID] == rows.batch_id)
                count = conn.scalar(of_batch) or 0
            if count != sent:
                log.warning(
                    "There are %s rows in table %r, but %s were sent: a trigger or a rule of the table drops rows, or "
                    "writes them elsewhere. The history has the number of those that are there",
                    f"{count:,}",
                    sink.name,
                    f"{sent:,}",
                )
            return count
        upsert_checks.check_key(conn.dialect, sink.upsert_key, schema)
        upsert_checks.check_target(conn, table, sink.upsert_key)
        return upsert.upsert_rows(conn, table, columns, rows, sink.upsert_key, append, self.log_order)


def _writer(conn: Connection) -> Writer:
    """Return the fastest way into the database."""
    if conn.dialect.name == "sqlite":
        return insert.insert_rows_sqlite
    if is_mysql(conn.dialect):
        from airflow_kafka_offsets.sinks.sql import mysql_load

        return mysql_load.load_rows
    if conn.dialect.name == "postgresql":
        if (reason := why_no_copy(conn.dialect)) is None:
            from airflow_kafka_offsets.sinks.sql import postgres_copy

            return postgres_copy.copy_rows
        log.warning(reason)
    return insert.insert_rows


def why_no_copy(dialect: sa.Dialect) -> str | None:
    """Return why Postgres gets rows by INSERT; None if it gets them by COPY."""
    if dialect.driver == "psycopg" and find_spec("pgpq") is not None:
        return None
    return (
        "Rows are written by INSERT, many times slower than by COPY, which needs pgpq and the driver psycopg (it is "
        f"{dialect.driver}): install 'airflow-kafka-offsets[postgres]'"
    )


def _leads_an_index(table: sa.Table, name: str) -> bool:
    keys = [key for key in table.constraints if isinstance(key, (sa.PrimaryKeyConstraint, sa.UniqueConstraint))]
    return any(next((column.name for column in index.columns), None) == name for index in (*table.indexes, *keys))


def _grown(table: sa.Table, columns: pa.Schema) -> sa.Table:
    """Return the table as it is after the commit has added the columns that it lacks.

    :raises TargetError: it cannot have a column of such a type
    """
    copy = table.to_metadata(sa.MetaData())
    for field in _lacking(table, columns):
        copy.append_column(sa.Column(field.name, created_type(field)))
    return copy


def check_growth(engine: Engine, table: sa.Table, columns: pa.Schema) -> None:
    """Check that the commit can add the columns that a table lacks.

    :raises ConfigurationError: the database has no transactions that add columns
    :raises TargetError: the user does not own the table, or it has a column whose name differs in case only
    """
    missing = _lacking(table, columns)
    if not missing:
        return
    existing = {column.name.lower(): column.name for column in table.columns}
    if alike := [(existing[field.name.lower()], field.name) for field in missing if field.name.lower() in existing]:
        raise TargetError(
            f"Table {table.fullname!r} has a column {alike[0][0]!r}, and cannot get column {alike[0][1]!r}, whose "
            "name differs in case only: rename the column, or the field by a transform"
        )
    if engine.dialect.name not in _TRANSACTIONAL_DDL:
        raise ConfigurationError(
            f"on_new_field='add' adds columns in the transaction of the commit, which {engine.dialect.name} does not "
            f"support: add {', '.join(repr(field.name) for field in missing)} to table {table.fullname!r} yourself"
        )
    if engine.dialect.name != "postgresql":
        return
    name = without_placeholders(engine.dialect).identifier_preparer.format_table(table)
    owner = sa.text(
        "SELECT pg_get_userbyid(relowner), pg_has_role(relowner, 'USAGE') FROM pg_class WHERE oid = to_regclass(:name)"
    )
    with engine.connect() as conn:
        row = conn.execute(owner, {"name": name}).one()
    if not row[1]:
        statements = "; ".join(add_column(table, field, engine.dialect) for field in missing)
        raise TargetError(
            f"User {engine.url.username!r} may not add columns to table {table.fullname!r}, which {row[0]!r} owns: let "
            f"the owner execute {statements}"
        )


def _lacking(table: sa.Table, columns: pa.Schema) -> list[pa.Field]:
    """Return the columns of rows that a table lacks."""
    return [field for field in columns if field.name not in table.columns and not is_added(field.name)]


def asset_uri(table: str, schema: str | None, engine: Engine) -> str:
    """Return the URI of a table, as Airflow's provider of its database defines it."""
    url = engine.url
    scheme = _SCHEMES.get(engine.dialect.name, engine.dialect.name)
    if scheme == "sqlite":
        return f"sqlite:///{quote((url.database or '').lstrip('/'))}/{quote(table, safe='')}"
    if scheme == "mysql":
        # A schema is a database there.
        path = [schema or url.database, table]
    else:
        # Known since the first connection of the load.
        path = [url.database, schema or engine.dialect.default_schema_name or "default", table]
    port = url.port or _PORTS.get(scheme)
    host = f"{url.host or 'localhost'}{f':{port}' if port else ''}"
    return f"{scheme}://{host}/{'/'.join(quote(name or '', safe='') for name in path)}"


def dataset_name(uri: str) -> tuple[str, str]:
    """Return the namespace and the name of a table in OpenLineage.

    :param uri: of its asset
    """
    if uri.startswith("sqlite:"):
        file, _, table = uri.rpartition("/")
        return unquote(file), unquote(table)
    scheme, _, rest = uri.partition("://")
    server, *path = rest.split("/")
    return f"{scheme}://{server}", ".".join(map(unquote, path))
