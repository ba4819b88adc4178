"""The checks of `doctor` in a database: the state tables, privileges, and targets. Nothing is changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError

from airflow_kafka_offsets.database.errors import STATE_RIGHTS, database_message, is_outage, sqlstate
from airflow_kafka_offsets.database.tables import check_rights
from airflow_kafka_offsets.database.transactions import transaction
from airflow_kafka_offsets.exceptions import OlderLedgerError, TargetError
from airflow_kafka_offsets.ledger.install import installed_version
from airflow_kafka_offsets.ledger.tables import Ledger
from airflow_kafka_offsets.sinks.fan_out import of_tables
from airflow_kafka_offsets.sinks.sink import DatabaseTable
from airflow_kafka_offsets.sinks.sql.column_types import created_table
from airflow_kafka_offsets.sinks.table import Output

_INSUFFICIENT_PRIVILEGE = "42501"

_NO_SUCH_SCHEMA = "3F000"

# In other databases DDL ends a transaction, so that it cannot be tried and rolled back.
_DDL_IN_TRANSACTIONS = ("postgresql", "sqlite")


class CheckFailedError(Exception):
    """A check failed.

    :param fix: what to do about it; empty is what helps against every failure of the check
    """

    def __init__(self, found: str, fix: str = "") -> None:
        self.fix = fix
        super().__init__(found)


class CheckSkipped(Exception):  # noqa: N818 - nothing is wrong
    """A check cannot be made, or there is nothing to check; the message says why."""


class CheckWarning(Exception):  # noqa: N818 - loads can run
    """What a check found could be better; the command succeeds all the same."""


class _RolledBackError(Exception):
    """Rolls back a transaction that was only a trial."""


def existing_version(ledger: Ledger) -> int | None:
    """Return the schema version of the state tables, all of which exist; None where there are none."""
    engine, tables = ledger.engine, ledger.tables
    tables.check_names(engine.dialect)
    with engine.connect() as conn:
        try:
            version = installed_version(conn, tables)
        except DBAPIError as error:
            if sqlstate(error) != _INSUFFICIENT_PRIVILEGE:
                raise
            schema = f", and USAGE on schema {tables.metadata.schema}" if tables.metadata.schema else ""
            raise CheckFailedError(
                f"they exist, but this user may not read them: {database_message(error)}",
                f"GRANT {STATE_RIGHTS}{schema}",
            ) from error
        has_table = sa.inspect(conn).has_table
        missing = [
            table.fullname
            for table in tables.metadata.sorted_tables
            if version is not None and not has_table(table.name, schema=table.schema)
        ]
    if missing:
        raise CheckFailedError(
            f"schema version {version}, but without {', '.join(missing)}",
            "restore the tables from a backup: their positions and history are lost",
        )
    return version


def try_to_create(engine: Engine, metadata: sa.MetaData, schema_option: str) -> None:
    """Check that this user may create tables, in a transaction that is rolled back.

    :param schema_option: names their schema
    """
    if engine.dialect.name not in _DDL_IN_TRANSACTIONS:
        raise CheckSkipped("they do not exist yet, and are created by the first load")
    try:
        with transaction(engine) as conn:
            metadata.create_all(conn, checkfirst=False)
            raise _RolledBackError
    except _RolledBackError:
        return
    except DBAPIError as error:
        if sqlstate(error) != _NO_SUCH_SCHEMA:
            raise
        schema = metadata.schema
        quoted = engine.dialect.identifier_preparer.quote(schema) if schema else ""
        create = f"CREATE SCHEMA {quoted}" if schema else f"name a schema with {schema_option}"
        raise CheckFailedError(database_message(error), f"{create}, and grant USAGE and CREATE on it") from error


def schemas_of_everybody(conn: Connection) -> Sequence[str]:
    """Return the schemas of the user's search path in which everybody may create (CVE-2018-1058)."""
    if conn.dialect.name != "postgresql":
        return ()
    schemas = sa.func.unnest(sa.func.current_schemas(sa.false())).column_valued("name")
    return conn.scalars(sa.select(schemas).where(sa.func.has_schema_privilege("public", schemas, "CREATE"))).all()


def look_at_target(ledger: Ledger, target: DatabaseTable, *, knows_batches: bool) -> str:
    """Return what this user may do with a target.

    :param knows_batches: whether there are state tables, which have to know the last batch of its rows
    :raises KafkaOffsetsError: loads cannot write to it
    """
    engine, sink = ledger.engine, ledger.qualified(of_tables([target]))
    (target,), connected = sink.tables, sink.connect(engine)
    if connected.prepare(None).known is None:
        created = created_table(target.table, target.schema, pa.schema([]))
        try_to_create(engine, created.metadata, "--table-schema")
        return f"{sink.name} does not exist yet; this user may create it, and the first load does"
    table = sa.Table(target.table, sa.MetaData(), schema=target.schema)
    if knows_batches:
        try:
            with engine.connect() as conn:
                connected.refuse_unknown_rows(conn, ledger.tables.offset_batches, Output(0, "", (), ""))
        except OlderLedgerError as error:
            raise CheckFailedError(str(error), "restore the state tables and the table to the same moment") from error
    try:
        with engine.connect() as conn:
            check_rights(conn, table, ("DELETE",), "delete from table {table!r}")
    except TargetError as error:
        return f"{sink.name}: has the privileges for loads, but not for rewinds and replays that replace rows: {error}"
    return f"{sink.name}: has the privileges for loads, replays and rewinds"


def missing_rights(ledger: Ledger, rights: Iterable[tuple[sa.Table, str]]) -> Iterator[str]:
    """Yield the privileges that this user lacks, each tried by a statement that changes no row."""
    engine, tables = ledger.engine, ledger.tables
    for table, right in rights:
        try:
            with transaction(engine) as conn:
                conn.execute(_STATEMENTS[right](table))
        except DBAPIError as error:
            if is_outage(error) and engine.dialect.name != "sqlite":
                raise
            yield f"{right} on {table.fullname} ({database_message(error)})"
    if engine.dialect.name == "postgresql":
        name = engine.dialect.identifier_preparer.format_table(tables.offset_batches)
        sequence = sa.func.pg_get_serial_sequence(name, "batch_id")
        with engine.connect() as conn:
            # None if the sequence has no owner that Postgres knows.
            if conn.scalar(sa.select(sa.func.has_sequence_privilege(sequence, "USAGE"))) is False:
                yield f"USAGE on the sequence of {tables.offset_batches.fullname}"


_STATEMENTS: dict[str, Callable[[sa.Table], sa.Executable]] = {
    "SELECT": lambda table: sa.select(table).where(sa.false()),
    "INSERT": lambda table: table.insert().from_select(list(table.columns), sa.select(table).where(sa.false())),
    "UPDATE": lambda table: table.update().where(sa.false()).values({table.columns[0]: table.columns[0]}),
    "DELETE": lambda table: table.delete().where(sa.false()),
}
"""A statement for each privilege. It changes no row; the database checks the privilege all the same."""
