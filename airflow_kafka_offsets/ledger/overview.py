"""The history of batches as rows for users: the command line and pages show them. Reads only."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.ledger.groups import cluster_of
from airflow_kafka_offsets.ledger.tables import Tables

Row = dict[str, Any]
"""Columns by name, with values of Python's types: numbers, text, instants with a time zone, None."""

_BATCH_COLUMNS = (
    "batch_id", "kind", "state", "scenario", "records", "row_count", "dead_letters", "generation", "attempt",
    "target_table", "transform", "who", "triggered_by", "os_user", "database_user", "dag_id", "task_id", "run_id",
    "map_index", "try_number", "planned_at", "staged_at", "committed_at", "reason", "records_since_ms",
    "records_until_ms", "added_columns", "outputs", "dead_letter_topic", "dead_letters_sent_at", "publish_started_at",
)  # fmt: skip
_RANGE_COLUMNS = (
    "topic", "partition", "start_offset", "end_offset", "target_offset", "records", "dead_letters", "bytes",
    "first_timestamp", "last_timestamp", "how", "replaced_start_offset", "replaced_end_offset",
)  # fmt: skip
_GAP_COLUMNS = ("topic", "partition", "start_offset", "end_offset", "cause", "decision")
_REPLACED_COLUMNS = ("topic", "partition", "replaced_batch_id", "row_count", "dead_letters")
_SCHEMA_COLUMNS = ("of", "schema_id", "type", "schema")


def batches(conn: Connection, tables: Tables, group_id: str, limit: int) -> list[Row]:
    """Return the latest batches of a group, the newest first.

    :raises ConfigurationError: there is no such group; names those that exist
    """
    cluster_of(conn, tables, group_id)
    columns = tables.offset_batches.c
    query = _select(tables.offset_batches, *_BATCH_COLUMNS).where(columns.consumer_group == group_id)
    return _rows(conn, query.order_by(columns.batch_id.desc()).limit(limit))


def batch(conn: Connection, tables: Tables, group_id: str, batch_id: int) -> Row | None:
    """Return a batch of a group; None where it has no such batch."""
    columns = tables.offset_batches.c
    query = _select(tables.offset_batches, *_BATCH_COLUMNS)
    rows = _rows(conn, query.where(columns.consumer_group == group_id, columns.batch_id == batch_id))
    return rows[0] if rows else None


def batch_parts(conn: Connection, tables: Tables, group_id: str, batch_id: int) -> list[Row]:
    """Return what a batch did to partitions: `part` is range, gap, replaced or schema, with the columns of all four.

    :raises ConfigurationError: the group, or a batch of it with that id, does not exist
    """
    cluster_of(conn, tables, group_id)
    owner = conn.scalar(
        sa.select(tables.offset_batches.c.consumer_group).where(tables.offset_batches.c.batch_id == batch_id)
    )
    if owner != group_id:
        known = f"it is one of group {owner!r}" if owner is not None else "there is no such batch"
        raise ConfigurationError(
            f"Group {group_id!r} has no batch {batch_id}: {known}. 'airflow kafka-offsets history' lists the group's "
            "batches"
        )
    parts = {
        "range": (tables.offset_ranges, _RANGE_COLUMNS),
        "gap": (tables.offset_gaps, _GAP_COLUMNS),
        "replaced": (tables.replaced_output, _REPLACED_COLUMNS),
    }
    names = dict.fromkeys([*(_label(name) for _, columns in parts.values() for name in columns), *_SCHEMA_COLUMNS])
    rows: list[Row] = []
    for part, (table, columns) in parts.items():
        query = (
            _select(table, *columns)
            .where(table.c.batch_id == batch_id)
            .order_by(*(table.c[name] for name in columns[:3]))
        )
        rows += [{"part": part} | names | row for row in _rows(conn, query)]
    read, texts = tables.batch_schemas.c, tables.schema_texts.c
    schemas = (
        sa.select(read.part.label("of"), read.schema_id, texts.type, texts.texts.label("schema"))
        .join(tables.schema_texts, texts.digest == read.digest)
        .where(read.batch_id == batch_id)
        .order_by(read.part, read.schema_id)
    )
    return rows + [{"part": "schema"} | names | row for row in _rows(conn, schemas)]


def _select(table: sa.Table, *names: str) -> sa.Select[Any]:
    return sa.select(*(table.c[name].label(_label(name)) for name in names))


def _label(name: str) -> str:
    return "rows" if name == "row_count" else name


def _rows(conn: Connection, query: sa.Select[Any]) -> list[Row]:
    # SQLAlchemy's names are of a subclass of str, which YAML cannot represent.
    return [{str(name): value for name, value in row.items()} for row in conn.execute(query).mappings()]
