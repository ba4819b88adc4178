"""The rights on the state tables that a database user needs, by what the user does, and the statements that grant them.

A test measures them right by right.
"""

from __future__ import annotations

from collections.abc import Iterator

import sqlalchemy as sa
from sqlalchemy.engine import Dialect

from airflow_kafka_offsets.database.tables import without_placeholders
from airflow_kafka_offsets.ledger.tables import Tables


def of_loads(tables: Tables) -> Iterator[tuple[sa.Table, str]]:
    """Yield each right that loads, replays that replace nothing, reports and `verify` need on a table."""
    updated = (tables.consumer_groups, tables.consumed_offsets, tables.offset_batches, tables.offset_ranges)
    for table in tables.metadata.sorted_tables:
        yield table, "SELECT"
        if table not in (tables.schema_version, tables.replaced_output):
            yield table, "INSERT"
        if table in updated:
            yield table, "UPDATE"


def of_moves(tables: Tables) -> Iterator[tuple[sa.Table, str]]:
    """Yield each right that rewinds, and replays that replace rows, need besides those of loads."""
    yield tables.replaced_output, "INSERT"
    for table in (tables.consumer_groups, tables.consumed_offsets, tables.dead_letters):
        yield table, "DELETE"
    # Dead letters that are bad still when they are replayed, or that are dropped.
    yield tables.dead_letters, "UPDATE"


def grants(tables: Tables, dialect: Dialect, role: str, *, moves: bool) -> str:
    """Return the statements that grant a role what it needs, and no more.

    :param moves: also for rewinds, and replays that replace rows
    """
    preparer = without_placeholders(dialect).identifier_preparer
    quoted, schema = preparer.quote(role), tables.metadata.schema
    lines = []
    if schema is not None and dialect.name == "postgresql":
        lines.append(f"GRANT USAGE ON SCHEMA {preparer.quote(schema)} TO {quoted};")
    by_table: dict[sa.Table, list[str]] = {}
    for table, right in (*of_loads(tables), *(of_moves(tables) if moves else ())):
        by_table.setdefault(table, []).append(right)
    for table, rights in by_table.items():
        lines.append(f"GRANT {', '.join(rights)} ON {preparer.format_table(table)} TO {quoted};")
    if dialect.name == "postgresql":
        batches = tables.offset_batches
        sequence = sa.Sequence(f"{batches.name}_batch_id_seq", schema=schema)
        lines.append(f"GRANT USAGE ON SEQUENCE {preparer.format_sequence(sequence)} TO {quoted};")
    return "".join(f"{line}\n" for line in lines)
