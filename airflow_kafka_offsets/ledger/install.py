"""Create the state tables, upgrade them, and check their version.

The migrations from one schema version to the next are at the end, in order. A migration names its columns itself, since `Tables` has
the columns of the current version only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Dialect
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import ExecutableDDLElement
from sqlalchemy.sql.compiler import DDLCompiler

from airflow_kafka_offsets.core.text import first_few
from airflow_kafka_offsets.database.errors import database_message, is_outage, sqlstate
from airflow_kafka_offsets.database.transactions import transact
from airflow_kafka_offsets.exceptions import ConfigurationError, DatabaseUnavailableError, LedgerError
from airflow_kafka_offsets.ledger.tables import (
    PARTIAL_INDEX_DIALECTS,
    SCHEMA_VERSION,
    Ledger,
    Tables,
    UtcDateTime,
    sql_text,
)

# In other databases each DDL statement is a transaction of its own.
_BEGIN = {"postgresql": "BEGIN", "sqlite": "BEGIN IMMEDIATE"}

_NO_SUCH_SCHEMA = "3F000"


def initialize(ledger: Ledger) -> bool:
    """Create missing state tables, and upgrade those of an earlier schema version.

    Idempotent, and safe in two processes at once. With transactional DDL (Postgres, SQLite) an upgrade is one transaction; in
    other databases the next call finishes an upgrade that was interrupted.

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
    :raises LedgerError: the tables cannot be created, or are of another version
    :raises DatabaseUnavailableError: the database is unavailable, or out of space for example
    """
    tables = ledger.tables
    tables.check_names(ledger.engine.dialect)
    with ledger.connect() as conn:
        if installed_version(conn, tables) is not None:
            return False
    return _change(ledger, lambda conn: _create(conn, tables), "created", "Grant CREATE on the schema")


def statements(ledger: Ledger) -> str:
    """Return the SQL that `init` would run, for users without the right to run DDL; empty where there is nothing to do.

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
    try:
        return transact(engine, work)
    except DBAPIError as error:
        # Where two processes create the tables at the same time, one of them gets an error.
        with ledger.connect() as conn:
            if stored_version(conn, tables) == SCHEMA_VERSION:
                return False
        if is_outage(error):
            raise DatabaseUnavailableError(
                f"The state tables could not be {done} in database {engine.url.database!r}: {database_message(error)}. Nothing "
                "was written; run the task again when the database is back."
            ) from error
        if sqlstate(error) == _NO_SUCH_SCHEMA:
            way_out = _missing_schema(tables, engine.dialect)
        where = f"schema {tables.metadata.schema!r}" if tables.metadata.schema else "the default schema"
        raise LedgerError(
            f"The state tables cannot be {done} in {where} of database {engine.url.database!r} as user "
            f"{engine.url.username!r}: {database_message(error)}. {way_out}, or let an administrator apply the output of "
            "'airflow kafka-offsets init --show-sql'."
        ) from error


def _missing_schema(tables: Tables, dialect: Dialect) -> str:
    schema = tables.metadata.schema
    if schema is None:
        return (
            "No schema of the user's search_path exists: name one with --schema (offsets_schema), or create one of them"
        )
    return f"CREATE SCHEMA {dialect.identifier_preparer.quote(schema)}, and grant CREATE on the schema"


def _create(conn: Connection, tables: Tables) -> bool:
    tables.metadata.create_all(conn)
    if stored_version(conn, tables) is None:
        conn.execute(tables.schema_version.insert().values(version=SCHEMA_VERSION))
    return True


def stored_version(conn: Connection, tables: Tables) -> int | None:
    """Return the schema version of the state tables, which may be an earlier one; None where there are none.

    :raises LedgerError: they are of a newer version than this package knows
    """
    if not sa.inspect(conn).has_table(tables.schema_version.name, schema=tables.schema_version.schema):
        return None
    version: int | None = conn.scalar(sa.select(sa.func.max(tables.schema_version.c.version)))
    if version is not None and version > SCHEMA_VERSION:
        raise LedgerError(
            f"The state tables have schema version {version}, this package works with {SCHEMA_VERSION}. "
            "Install the version of airflow-kafka-offsets that wrote them, or a newer one."
        )
    return version


def installed_version(conn: Connection, tables: Tables) -> int | None:
    """Return the schema version of the state tables, which is the current one; None where there are none.

    :raises LedgerError: they are of another version
    """
    version = stored_version(conn, tables)
    if version is not None and version < SCHEMA_VERSION:
        raise LedgerError(
            f"The state tables have schema version {version}, this package works with {SCHEMA_VERSION}. Stop what uses them with "
            "an earlier version of airflow-kafka-offsets, and upgrade them with 'airflow kafka-offsets init'."
        )
    return version


def check_installed(conn: Connection, tables: Tables) -> None:
    """Check that there are state tables.

    :raises ConfigurationError: there are none
    :raises LedgerError: they are of another version
    """
    if installed_version(conn, tables) is None:
        raise ConfigurationError(
            f"Database {conn.engine.url.database!r} has no table {tables.schema_version.fullname!r}, or an empty one: nothing was "
            "ever loaded into it, or the state tables are in another schema or have another prefix. The first load creates them, or "
            "'airflow kafka-offsets init'"
        )


class TableStatement(ExecutableDDLElement):
    """A statement about tables, whose quoted names replace `{}`, as the name of an index replaces `{index}`."""

    inherit_cache = False

    def __init__(self, text: str, *tables: sa.Table, index: str = "") -> None:
        self.text = text
        self.tables = tables
        self.index = index


@compiles(TableStatement)
def _with_names(element: TableStatement, compiler: DDLCompiler, **_: object) -> str:
    preparer = compiler.preparer
    return element.text.format(
        ", ".join(map(preparer.format_table, element.tables)), index=preparer.quote(element.index)
    )


Statement = TableStatement | sa.Update


def upgrade_statements(conn: Connection, tables: Tables, version: int) -> Iterator[Statement]:
    """Yield the statements that upgrade the tables from a version to the current one.

    To upgrade, run each statement before the next one is asked for: a migration locks tables before it checks their data.

    :raises LedgerError: the data do not allow a migration
    """
    stored = tables.schema_version
    for to_version, migration in MIGRATIONS.items():
        if to_version > version:
            yield from migration(conn, tables)
            yield stored.update().where(stored.c.version == to_version - 1).values(version=to_version)


def _drop_lateness(conn: Connection, tables: Tables) -> Iterator[Statement]:
    """Drop the columns of records that were loaded after a position."""
    offsets, ranges = tables.consumed_offsets, tables.offset_ranges
    # SQLite has one writer at a time; in other databases the first ALTER TABLE ends the lock.
    if conn.dialect.name == "postgresql":
        # No load may commit between the check and the statements.
        yield TableStatement("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE", offsets, ranges)
    _refuse_lateness(conn, tables)
    ahead = ("ahead_offset", "ahead_before_ms")
    for table, columns in ((offsets, ahead), (ranges, ("loaded_offset", "loaded_before_ms", *ahead))):
        # A database without transactional DDL keeps the changes of an interrupted migration.
        existing = _column_names(conn, table)
        for column in columns:
            if column in existing:
                yield TableStatement(f"ALTER TABLE {{}} DROP COLUMN {column}", table)


def _refuse_lateness(conn: Connection, tables: Tables) -> None:
    """Raise an error where records after a position are loaded already: without these columns they would be loaded again."""
    offsets, ranges, batches = tables.consumed_offsets, tables.offset_ranges, tables.offset_batches.c
    ahead: sa.ColumnClause[int] = sa.column("ahead_offset", sa.BigInteger)
    # Staged files of an open batch may have such records, too.
    of_open_batches = (
        sa.select(batches.consumer_group)
        .join(ranges, ranges.c.batch_id == batches.batch_id)
        .where(
            batches.state.in_(("planned", "staged")),
            ranges.c.end_offset == ranges.c.target_offset,
            ahead > ranges.c.end_offset,
        )
    )
    of_positions = sa.select(offsets.c.consumer_group).where(ahead > offsets.c.offset_value)
    groups: set[str] = set()
    for table, query in ((offsets, of_positions), (ranges, of_open_batches)):
        if "ahead_offset" in _column_names(conn, table):
            groups |= set(conn.scalars(query))
    if groups:
        raise LedgerError(
            f"The state tables cannot be upgraded to schema version 2: records after the positions of group "
            f"{first_few(map(repr, sorted(groups)))} are loaded already (lateness), which version 2 does not store, so that "
            "they would be loaded again. Nothing was changed. With the installed version of airflow-kafka-offsets before the "
            "upgrade, run a load without until for each of these groups, which moves the positions past those records; then "
            "run 'airflow kafka-offsets init' again"
        )


def _add_authors(conn: Connection, tables: Tables) -> Iterator[Statement]:
    """Add the columns of who triggered a task's run, and of the users of its process and of the database."""
    existing = _column_names(conn, tables.offset_batches)
    for column in ("triggered_by", "os_user", "database_user"):
        if column not in existing:
            # SQL Server has no "ADD COLUMN"; the others need no "COLUMN".
            yield TableStatement(f"ALTER TABLE {{}} ADD {column} TEXT", tables.offset_batches)


def _add_spans(conn: Connection, tables: Tables) -> Iterator[Statement]:
    """Add the columns of the span of time whose records a replay takes."""
    existing, batches = _column_names(conn, tables.offset_batches), tables.offset_batches
    for column in ("records_since_ms", "records_until_ms"):
        if column not in existing:
            yield TableStatement(f"ALTER TABLE {{}} ADD {column} BIGINT", batches)


def _add_error_class(conn: Connection, tables: Tables) -> Iterator[Statement]:
    """Add the column of what is wrong with a dead letter. Those that are there have none."""
    if "error_class" not in _column_names(conn, tables.dead_letters):
        yield TableStatement("ALTER TABLE {} ADD error_class VARCHAR(20)", tables.dead_letters)


def _add_schemas(conn: Connection, tables: Tables) -> Iterator[Statement]:
    """Add what schema ids meant, the columns that a batch added to its target, and what is still to be sent or dropped of dead
    letters.
    """
    dialect, letters, batches = conn.dialect, tables.dead_letters, tables.offset_batches
    instant = UtcDateTime().compile(dialect=dialect)
    for table, columns in (
        (letters, {"schema_id": "BIGINT"}),
        (batches, {"added_columns": "TEXT", "letters_topic": "VARCHAR(249)", "letters_sent_at": instant}),
    ):
        existing = _column_names(conn, table)
        for column, type_ in columns.items():
            if column not in existing:
                yield TableStatement(f"ALTER TABLE {{}} ADD {column} {type_}", table)
    yield TableStatement(
        "CREATE TABLE IF NOT EXISTS {} (digest VARCHAR(64) NOT NULL, type VARCHAR(20) NOT NULL, texts TEXT NOT NULL, "
        "PRIMARY KEY (digest))",
        tables.schema_texts,
    )
    yield TableStatement(
        "CREATE TABLE IF NOT EXISTS {} (batch_id BIGINT NOT NULL, part VARCHAR(20) NOT NULL, schema_id BIGINT NOT NULL, "
        "digest VARCHAR(64) NOT NULL, PRIMARY KEY (batch_id, part, schema_id))",
        tables.batch_schemas,
    )
    if dialect.name in PARTIAL_INDEX_DIALECTS:
        yield TableStatement(
            "CREATE INDEX IF NOT EXISTS {index} ON {} (consumer_group, batch_id) "
            "WHERE coalesce(error_class, '') NOT IN ('dropped', 'size')",
            letters,
            index=f"{tables.prefix}dead_letters_with_contents",
        )
        yield TableStatement(
            "CREATE INDEX IF NOT EXISTS {index} ON {} (consumer_group) "
            "WHERE letters_topic IS NOT NULL AND letters_sent_at IS NULL",
            batches,
            index=f"{tables.prefix}offset_batches_unsent",
        )


def _add_publications(conn: Connection, tables: Tables) -> Iterator[Statement]:
    """Add what targets need that commit elsewhere, or get files of Spark's tasks: when a batch began to be published, since when it may
    have left files, and a name of these tables; and the number of rows in each of several targets.
    """
    dialect, batches = conn.dialect, tables.offset_batches
    existing, instant = _column_names(conn, batches), UtcDateTime().compile(dialect=dialect)
    for column, type_ in {"publishing_at": instant, "files_since": instant, "outputs": "TEXT"}.items():
        if column not in existing:
            yield TableStatement(f"ALTER TABLE {{}} ADD {column} {type_}", batches)
    yield TableStatement(
        "CREATE TABLE IF NOT EXISTS {} (number INTEGER NOT NULL, installation_id VARCHAR(40) NOT NULL, PRIMARY KEY (number))",
        tables.installation,
    )
    if dialect.name in PARTIAL_INDEX_DIALECTS:
        yield TableStatement(
            "CREATE INDEX IF NOT EXISTS {index} ON {} (consumer_group) WHERE publishing_at IS NOT NULL",
            batches,
            index=f"{tables.prefix}offset_batches_publishing",
        )
        yield TableStatement(
            "CREATE INDEX IF NOT EXISTS {index} ON {} (consumer_group) WHERE files_since IS NOT NULL",
            batches,
            index=f"{tables.prefix}offset_batches_with_files",
        )


def _column_names(conn: Connection, table: sa.Table) -> set[str]:
    return {column["name"] for column in sa.inspect(conn).get_columns(table.name, schema=table.schema)}


MIGRATIONS: dict[int, Callable[[Connection, Tables], Iterator[Statement]]] = {
    2: _drop_lateness,
    3: _add_authors,
    4: _add_spans,
    5: _add_error_class,
    6: _add_schemas,
    7: _add_publications,
}
"""The migrations by the version to which they lead. A migration yields statements, without those that an interrupted one has run."""
