"""The migrations of the state tables from one schema version to the next, in order.

A migration names its columns itself, since `Tables` has the columns of the current version only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import ExecutableDDLElement
from sqlalchemy.sql.compiler import DDLCompiler

from airflow_kafka_offsets.core.text import first_few
from airflow_kafka_offsets.exceptions import LedgerError
from airflow_kafka_offsets.ledger.tables import Tables


class TableStatement(ExecutableDDLElement):
    """A statement about tables, whose quoted names replace `{}`."""

    inherit_cache = False

    def __init__(self, text: str, *tables: sa.Table) -> None:
        self.text = text
        self.tables = tables


@compiles(TableStatement)
def _with_names(element: TableStatement, compiler: DDLCompiler, **_: object) -> str:
    return element.text.format(", ".join(map(compiler.preparer.format_table, element.tables)))


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


def _column_names(conn: Connection, table: sa.Table) -> set[str]:
    return {column["name"] for column in sa.inspect(conn).get_columns(table.name, schema=table.schema)}


MIGRATIONS: dict[int, Callable[[Connection, Tables], Iterator[Statement]]] = {2: _drop_lateness}
"""The migrations by the version to which they lead. A migration yields statements, without those that an interrupted one has run."""
