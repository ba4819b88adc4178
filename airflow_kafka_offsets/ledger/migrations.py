"""The migrations of the state tables from one schema version to the next, in order.

A migration names its columns itself, since `Tables` has the columns of the current version only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import ExecutableDDLElement
from sqlalchemy.sql.compiler import DDLCompiler

from airflow_kafka_offsets.core.text import first_few
from airflow_kafka_offsets.exceptions import LedgerError
from airflow_kafka_offsets.ledger.tables import Tables

_AHEAD = ("ahead_offset", "ahead_before_ms")

_LOADED = ("loaded_offset", "loaded_before_ms")


class DropColumn(ExecutableDDLElement):
    """`ALTER TABLE … DROP COLUMN …`."""

    inherit_cache = False

    def __init__(self, table: sa.Table, column: str) -> None:
        self.table = table
        self.column = column


class LockTables(ExecutableDDLElement):
    """`LOCK TABLE …`: no other transaction reads or writes the tables until this one ends. Postgres only."""

    inherit_cache = False

    def __init__(self, *tables: sa.Table) -> None:
        self.tables = tables


@compiles(DropColumn)
def _drop_column(element: DropColumn, compiler: DDLCompiler, **_: object) -> str:
    names = compiler.preparer
    return f"ALTER TABLE {names.format_table(element.table)} DROP COLUMN {names.quote(element.column)}"


@compiles(LockTables)
def _lock_tables(element: LockTables, compiler: DDLCompiler, **_: object) -> str:
    return f"LOCK TABLE {', '.join(map(compiler.preparer.format_table, element.tables))} IN ACCESS EXCLUSIVE MODE"


Statement = ExecutableDDLElement | sa.Update


@dataclass(frozen=True, slots=True)
class Migration:
    """A step from one schema version to the next.

    :param to_version: the version of the tables after it
    :param altered: returns the tables that it alters
    :param check: raises LedgerError where the data do not allow it
    :param statements: returns the statements to run, without those that an interrupted migration has run already
    """

    to_version: int
    altered: Callable[[Tables], Sequence[sa.Table]]
    check: Callable[[Connection, Tables], None]
    statements: Callable[[Connection, Tables], Iterator[Statement]]


def upgrade(conn: Connection, tables: Tables, version: int) -> None:
    """Run the migrations from a version to the current one.

    :raises LedgerError: the data do not allow a migration; nothing of it was run
    """
    for migration in _after(version):
        # No load may commit between the check and the statements.
        for lock in _locks(conn, tables, migration):
            conn.execute(lock)
        migration.check(conn, tables)
        for statement in migration.statements(conn, tables):
            conn.execute(statement)
        conn.execute(_note_version(tables, migration))


def upgrade_statements(conn: Connection, tables: Tables, version: int) -> Iterator[Statement]:
    """Yield the statements that `upgrade` would run, without running them.

    :raises LedgerError: the data do not allow a migration
    """
    for migration in _after(version):
        migration.check(conn, tables)
        yield from _locks(conn, tables, migration)
        yield from migration.statements(conn, tables)
        yield _note_version(tables, migration)


def _after(version: int) -> list[Migration]:
    return [migration for migration in MIGRATIONS if migration.to_version > version]


def _locks(conn: Connection, tables: Tables, migration: Migration) -> Iterator[LockTables]:
    # SQLite has one writer at a time; in other databases the first ALTER TABLE ends the lock.
    if conn.dialect.name == "postgresql":
        yield LockTables(*migration.altered(tables))


def _note_version(tables: Tables, migration: Migration) -> sa.Update:
    version = tables.schema_version
    before = version.c.version == migration.to_version - 1
    return version.update().where(before).values(version=migration.to_version)


def _drop(conn: Connection, table: sa.Table, *columns: str) -> Iterator[DropColumn]:
    # A database without transactional DDL keeps the changes of an interrupted migration.
    existing = {column["name"] for column in sa.inspect(conn).get_columns(table.name, schema=table.schema)}
    return (DropColumn(table, column) for column in columns if column in existing)


def _altered_by_2(tables: Tables) -> Sequence[sa.Table]:
    return tables.consumed_offsets, tables.offset_ranges


def _check_2(conn: Connection, tables: Tables) -> None:
    """Refuse where records after a position are loaded already: without these columns they would be loaded again."""
    inspector = sa.inspect(conn)
    offsets, ranges, batches = tables.consumed_offsets, tables.offset_ranges, tables.offset_batches.c
    ahead: sa.ColumnClause[int] = sa.column("ahead_offset", sa.BigInteger)
    groups: set[str] = set()
    if "ahead_offset" in {column["name"] for column in inspector.get_columns(offsets.name, schema=offsets.schema)}:
        groups |= set(conn.scalars(sa.select(offsets.c.consumer_group).where(ahead > offsets.c.offset_value)))
    if "ahead_offset" in {column["name"] for column in inspector.get_columns(ranges.name, schema=ranges.schema)}:
        # Staged files of an open batch may have such records, too.
        groups |= set(
            conn.scalars(
                sa.select(batches.consumer_group)
                .join(ranges, ranges.c.batch_id == batches.batch_id)
                .where(
                    batches.state.in_(("planned", "staged")),
                    ranges.c.end_offset == ranges.c.target_offset,
                    ahead > ranges.c.end_offset,
                )
            )
        )
    if groups:
        raise LedgerError(
            f"The state tables cannot be upgraded to schema version 2: records after the positions of group "
            f"{first_few(map(repr, sorted(groups)))} are loaded already (lateness), which version 2 does not store, so that "
            "they would be loaded again. Nothing was changed. With the installed version of airflow-kafka-offsets before the "
            "upgrade, run a load without until for each of these groups, which moves the positions past those records; then "
            "run 'airflow kafka-offsets init' again"
        )


def _statements_2(conn: Connection, tables: Tables) -> Iterator[Statement]:
    yield from _drop(conn, tables.consumed_offsets, *_AHEAD)
    yield from _drop(conn, tables.offset_ranges, *_LOADED, *_AHEAD)


MIGRATIONS = (Migration(2, _altered_by_2, _check_2, _statements_2),)
