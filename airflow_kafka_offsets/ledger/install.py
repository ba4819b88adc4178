"""`init`: create the state tables, or find out that they are there and fit."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError

from airflow_kafka_offsets.exceptions import ConfigurationError, DatabaseUnavailableError, LedgerError
from airflow_kafka_offsets.ledger.connection import is_outage, said, sqlstate, transact
from airflow_kafka_offsets.ledger.tables import SCHEMA_VERSION, Tables

_NO_SUCH_SCHEMA = "3F000"


def init(engine: Engine, tables: Tables) -> bool:
    """Create the state tables where they are missing. Idempotent, and safe when two tasks do it at once.

    :return: whether they were created now
    :raises LedgerError: they cannot be created, or were made by a newer version of this package
    :raises DatabaseUnavailableError: the database could not do it now, for want of room for example
    """
    tables.check_names(engine.dialect)
    if _is_installed(engine, tables):
        return False
    try:
        transact(engine, lambda conn: _create(conn, tables))
    except DBAPIError as error:
        # Two tasks of a first run create the tables at the same time: one of them loses, and finds the work done.
        if _is_installed(engine, tables):
            return False
        if is_outage(error):
            raise DatabaseUnavailableError(
                f"The state tables could not be created in database {engine.url.database!r}: {said(error)}. Nothing was "
                "written; run the task again when the database has what it lacked."
            ) from error
        where = f"schema {tables.metadata.schema!r}" if tables.metadata.schema else "the default schema"
        missing = sqlstate(error) == _NO_SUCH_SCHEMA
        mended = f"CREATE SCHEMA {tables.metadata.schema}, and grant" if missing else "Grant"
        raise LedgerError(
            f"The state tables cannot be created in {where} of database {engine.url.database!r} "
            f"as user {engine.url.username!r}: {said(error)}. {mended} CREATE on the schema, or let somebody "
            f"who may run DDL apply the output of 'airflow kafka-offsets init --show-sql'."
        ) from error
    return True


def _create(conn: Connection, tables: Tables) -> None:
    tables.metadata.create_all(conn)
    if _version(conn, tables) is None:
        conn.execute(tables.schema_version.insert().values(version=SCHEMA_VERSION))


def installed_version(conn: Connection, tables: Tables) -> int | None:
    """The schema version of the state tables, which is this package's; None where they are not there.

    :raises LedgerError: they are of another version
    """
    if not sa.inspect(conn).has_table(tables.schema_version.name, schema=tables.schema_version.schema):
        return None
    version = _version(conn, tables)
    if version is not None and version != SCHEMA_VERSION:
        raise LedgerError(
            f"The state tables have schema version {version}, this package works with {SCHEMA_VERSION}. "
            "Install the version of airflow-kafka-offsets that wrote them, or a newer one."
        )
    return version


def check_installed(conn: Connection, tables: Tables) -> None:
    """Make sure that there are state tables.

    :raises ConfigurationError: there are none
    :raises LedgerError: they are of another version
    """
    if installed_version(conn, tables) is None:
        raise ConfigurationError(
            f"Database {conn.engine.url.database!r} has no table {tables.schema_version.fullname!r}, or an empty one: nothing was "
            "ever loaded into it, or the state tables are in another schema or have another prefix. The first load makes them, or "
            "'airflow kafka-offsets init'"
        )


def _is_installed(engine: Engine, tables: Tables) -> bool:
    with engine.connect() as conn:
        return installed_version(conn, tables) is not None


def _version(conn: Connection, tables: Tables) -> int | None:
    version: int | None = conn.scalar(sa.select(sa.func.max(tables.schema_version.c.version)))
    return version
