"""Create and upgrade the state tables, check their version, and grant privileges on them; and the id by which external
targets distinguish publications of these state tables from those of others.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Dialect
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError

from airflow_kafka_offsets.core.text import first_few
from airflow_kafka_offsets.database.errors import database_message, is_outage, lacks_rights, sqlstate, translated_errors
from airflow_kafka_offsets.database.mysql import error_number, is_mysql
from airflow_kafka_offsets.database.tables import check_transactional, grantee, with_policies, without_placeholders
from airflow_kafka_offsets.database.transactions import transact
from airflow_kafka_offsets.exceptions import (
    ConfigurationError,
    DatabaseBusyError,
    DatabaseUnavailableError,
    LedgerError,
)
from airflow_kafka_offsets.ledger.migrations import OLDEST_VERSION, upgrade_statements
from airflow_kafka_offsets.ledger.tables import SCHEMA_VERSION, Ledger, Tables, sql_text

# In other databases each DDL statement is a separate transaction.
_BEGIN = {"postgresql": "BEGIN", "sqlite": "BEGIN IMMEDIATE"}

# Of MySQL, about a table that another session creates at this moment.
_BEING_CREATED = 1684

_NO_SUCH_SCHEMA = "3F000"

_LOCK_SECONDS = 60


def initialize(ledger: Ledger) -> bool:
    """Create missing state tables, and upgrade those of an earlier schema version.

    Idempotent, and safe in two processes at once. With transactional DDL (Postgres, SQLite) an upgrade is one
    transaction; in other databases the next call finishes an upgrade that was interrupted.

    :return: whether the database was changed
    :raises LedgerError: the tables cannot be created or upgraded, or are of a newer version than this package knows
    :raises DatabaseUnavailableError: the database is unavailable, or out of space for example
    """
    with ledger.connect() as conn:
        version = stored_version(conn, ledger.tables)
    if version is None:
        return create_missing(ledger)
    return version < SCHEMA_VERSION and _upgrade(ledger)


def create_missing(ledger: Ledger) -> bool:
    """Create missing state tables, as every load does first; tables of an earlier version are not upgraded.

    Workers with the earlier version of this package may still use them: an administrator decides when to upgrade.

    :return: whether they were created
    :raises LedgerError: the tables cannot be created, are of another version, or have no transactions
    :raises DatabaseBusyError: another process changes them
    :raises DatabaseUnavailableError: the database is unavailable, or out of space for example
    """
    tables = ledger.tables
    tables.check_names(ledger.engine.dialect)
    with ledger.connect() as conn:
        if installed_version(conn, tables) is not None:
            check_transactional(conn, tables.metadata.sorted_tables, error=LedgerError)
            _check_visible(conn, tables)
            return False
    return _change(ledger, lambda conn: _create(conn, tables), "created", "Grant CREATE on the schema")


def statements(ledger: Ledger) -> str:
    """Return the SQL that `init` would run, for users who may not run DDL; empty if there is nothing to do.

    :raises LedgerError: the tables cannot be upgraded, or are of a newer version than this package knows
    """
    tables, dialect = ledger.tables, ledger.engine.dialect
    with ledger.connect() as conn:
        version = stored_version(conn, tables)
        if version is None:
            return tables.ddl(dialect)
        text = sql_text(upgrade_statements(conn, tables, version), dialect)
    begin = _BEGIN.get(dialect.name)
    return f"{begin};\n\n{text}COMMIT;\n\n" if text and begin else text


def _upgrade(ledger: Ledger) -> bool:
    tables = ledger.tables

    def work(conn: Connection) -> bool:
        # Waits for the upgrade of another process. SQLite's transaction has its lock from the beginning.
        conn.execute(sa.select(tables.schema_version).with_for_update()).all()
        version = stored_version(conn, tables)
        if version is None or version == SCHEMA_VERSION:
            return False
        for statement in upgrade_statements(conn, tables, version):
            conn.execute(statement)
        return True

    return _change(ledger, work, "upgraded", "Run it as the owner of the tables")


def _change(ledger: Ledger, work: Callable[[Connection], bool], done: str, way_out: str) -> bool:
    """Run a transaction that changes the tables; return False where another process has changed them meanwhile."""
    engine, tables = ledger.engine, ledger.tables

    def alone(conn: Connection) -> bool:
        with _named_lock(conn, tables):
            return work(conn)

    try:
        return transact(engine, alone)
    except DBAPIError as error:
        # Where two processes create the tables at the same time, one of them gets an error.
        with ledger.connect() as conn:
            if stored_version(conn, tables) == SCHEMA_VERSION:
                return False
        if is_outage(error):
            raise DatabaseUnavailableError(
                f"The state tables could not be {done} in database {engine.url.database!r}: "
                f"{database_message(error)}. Nothing was written; run the task again when the database is available."
            ) from error
        if sqlstate(error) == _NO_SUCH_SCHEMA:
            way_out = _missing_schema(tables, engine.dialect)
        elif not lacks_rights(error):
            way_out = "Correct what it names"
        way_out += ", or let an administrator apply the output of 'kafka-offsets init --show-sql'."
        where = f"schema {tables.metadata.schema!r}" if tables.metadata.schema else "the default schema"
        raise LedgerError(
            f"The state tables cannot be {done} in {where} of database {engine.url.database!r} as user "
            f"{engine.url.username!r}: {database_message(error)}. {way_out}"
        ) from error


@contextmanager
def _named_lock(conn: Connection, tables: Tables) -> Iterator[None]:
    """Keep other processes from changing the tables, in databases in which DDL ends the transaction and its locks."""
    if not is_mysql(conn.dialect):
        yield
        return
    # Of the server: a name has 64 characters at most.
    digest = hashlib.sha256(
        f"{tables.metadata.schema or conn.engine.url.database}.{tables.prefix}".encode()
    ).hexdigest()[:32]
    name = f"airflow_kafka_offsets.{digest}"
    if conn.scalar(sa.select(sa.func.get_lock(name, _LOCK_SECONDS))) != 1:
        raise DatabaseBusyError(
            f"Another process has been changing the state tables of database {conn.engine.url.database!r} for longer "
            f"than {_LOCK_SECONDS} s. Nothing was changed; run the task again, or look for lock {name!r} on the server"
        )
    release = sa.select(sa.func.release_lock(name))
    try:
        yield
    except BaseException:
        # Where the connection broke, the server has released it, and this fails: the first error says why.
        with suppress(SQLAlchemyError):
            conn.scalar(release)
        raise
    conn.scalar(release)


def _missing_schema(tables: Tables, dialect: Dialect) -> str:
    schema = tables.metadata.schema
    if schema is None:
        return (
            "No schema of the user's search_path exists: name one with --schema (StateTables.schema), or create one of "
            "them"
        )
    return f"CREATE SCHEMA {dialect.identifier_preparer.quote(schema)}, and grant CREATE on the schema"


def _create(conn: Connection, tables: Tables) -> bool:
    tables.set_options(conn.dialect)
    tables.metadata.create_all(conn)
    if stored_version(conn, tables) is None:
        conn.execute(tables.schema_version.insert().values(version=SCHEMA_VERSION))
    return True


def stored_version(conn: Connection, tables: Tables) -> int | None:
    """Return the schema version of the state tables, which may be an earlier one; None where there are none.

    :raises LedgerError: they are of a newer version than this package knows, or of one that it cannot upgrade
    """
    try:
        if not sa.inspect(conn).has_table(tables.schema_version.name, schema=tables.schema_version.schema):
            return None
    except DBAPIError as error:
        # Whoever needs the tables creates them, and waits for the lock of the process that does.
        if error_number(error.orig) == _BEING_CREATED:
            return None
        raise
    version: int | None = conn.scalar(sa.select(sa.func.max(tables.schema_version.c.version)))
    if version is not None and version > SCHEMA_VERSION:
        raise LedgerError(
            f"The state tables have schema version {version}, this package works with {SCHEMA_VERSION}. "
            "Install the version of airflow-kafka-offsets that wrote them, or a newer one."
        )
    if version is not None and version < OLDEST_VERSION:
        raise LedgerError(
            f"The state tables have schema version {version}, from before the first release of airflow-kafka-offsets, "
            f"and cannot be upgraded (the oldest upgradable version is {OLDEST_VERSION}): note the positions in "
            f"{tables.consumed_offsets.fullname!r}, create new state tables under another schema or prefix, and set "
            "the positions there with 'kafka-offsets rewind GROUP --from-file FILE --new-group'."
        )
    return version


def installed_version(conn: Connection, tables: Tables) -> int | None:
    """Return the schema version of the state tables, which is the current one; None where there are none.

    :raises LedgerError: they are of another version
    """
    version = stored_version(conn, tables)
    if version is not None and version < SCHEMA_VERSION:
        raise LedgerError(
            f"The state tables have schema version {version}, this package works with {SCHEMA_VERSION}. Stop the "
            "loads that use an earlier version of airflow-kafka-offsets, and upgrade the tables with "
            "'kafka-offsets init'."
        )
    return version


def check_installed(conn: Connection, tables: Tables) -> None:
    """Check that there are state tables.

    :raises ConfigurationError: there are none
    :raises LedgerError: they are of another version, or policies hide rows
    """
    if installed_version(conn, tables) is None:
        raise ConfigurationError(
            f"Database {conn.engine.url.database!r} has no table {tables.schema_version.fullname!r}, or an empty one: "
            "nothing was loaded yet, or the state tables have another schema or prefix. The first load creates them, "
            "or 'kafka-offsets init'"
        )
    _check_visible(conn, tables)


def _check_visible(conn: Connection, tables: Tables) -> None:
    """Check that this user sees all rows of the state tables.

    :raises LedgerError: Postgres' row-level security applies
    """
    if hidden := with_policies(conn, tables.metadata.sorted_tables):
        raise LedgerError(
            f"{first_few(f'State table {table.fullname!r}' for table in hidden)} has row-level security, with policies "
            f"for user {conn.engine.url.username!r}: what was loaded would be loaded again where they hide it. ALTER "
            f"TABLE … DISABLE ROW LEVEL SECURITY, or ALTER ROLE {grantee(conn)} BYPASSRLS; to separate teams, give "
            "each state tables of its own"
        )


_ONLY_ROW = 1


def installation_id(ledger: Ledger, conn: Connection | None = None) -> str:
    """Return the unique name of these state tables, which the first call creates."""
    table = ledger.tables.installation
    query = sa.select(table.c.installation_id)

    def work(conn: Connection) -> str:
        found = conn.scalar(query)
        if found is None:
            found = uuid.uuid4().hex
            conn.execute(table.insert().values(number=_ONLY_ROW, installation_id=found))
        return str(found)

    if conn is not None:
        return work(conn)
    with translated_errors("The name of the state tables is not known"):
        try:
            return transact(ledger.engine, work)
        except IntegrityError:  # by another process, at the same moment
            return transact(ledger.engine, work)


def rights_of_loads(tables: Tables) -> Iterator[tuple[sa.Table, str]]:
    """Yield each privilege that loads, replays without `replace`, reports and `verify` need on a table.

    A test measures each privilege.
    """
    updated = (
        *(tables.consumer_groups, tables.consumed_offsets, tables.offset_batches, tables.offset_ranges),
        tables.schema_version,  # which `double_loads.lock_plans` locks
    )
    for table in tables.metadata.sorted_tables:
        yield table, "SELECT"
        if table not in (tables.schema_version, tables.replaced_output, tables.erased_offsets):
            yield table, "INSERT"
        if table in updated:
            yield table, "UPDATE"


def rights_of_moves(tables: Tables) -> Iterator[tuple[sa.Table, str]]:
    """Yield each privilege that rewinds, replays that replace rows, and changes of dead letters and groups need in
    addition to those of loads.
    """
    yield tables.replaced_output, "INSERT"
    for table in (tables.consumer_groups, tables.consumed_offsets, tables.dead_letters):
        yield table, "DELETE"
    # Dead letters that are bad still when they are replayed, or that are dropped.
    yield tables.dead_letters, "UPDATE"
    yield tables.erased_offsets, "INSERT"
    yield tables.erased_offsets, "UPDATE"  # a group that is renamed


def grants(tables: Tables, dialect: Dialect, role: str, *, moves: bool) -> str:
    """Return the statements that grant a role the privileges that it needs.

    :param moves: also for rewinds, and replays that replace rows
    """
    preparer = without_placeholders(dialect).identifier_preparer
    quoted, schema = preparer.quote(role), tables.metadata.schema
    lines = []
    if schema is not None and dialect.name == "postgresql":
        lines.append(f"GRANT USAGE ON SCHEMA {preparer.quote(schema)} TO {quoted};")
    by_table: dict[sa.Table, list[str]] = {}
    for table, right in (*rights_of_loads(tables), *(rights_of_moves(tables) if moves else ())):
        by_table.setdefault(table, []).append(right)
    for table, rights in by_table.items():
        lines.append(f"GRANT {', '.join(rights)} ON {preparer.format_table(table)} TO {quoted};")
    if dialect.name == "postgresql":
        batches = tables.offset_batches
        sequence = sa.Sequence(f"{batches.name}_batch_id_seq", schema=schema)
        lines.append(f"GRANT USAGE ON SEQUENCE {preparer.format_sequence(sequence)} TO {quoted};")
    return "".join(f"{line}\n" for line in lines)
