"""Which table a group loads into, as far as the page can know: the history has its name, and tasks of DAGs its parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_kafka_offsets.ledger.group_table import group_table, same_table_names
from airflow_kafka_offsets.ledger.tables import Tables
from airflow_kafka_offsets.plugin.sources import Registered, Source
from airflow_kafka_offsets.sinks.sql.table import SqlTable


@dataclass(frozen=True, slots=True)
class GroupTarget:
    """The target of a group.

    :param name: as the history has it; None where nothing was loaded
    :param sink: None where it is no table of this database, or is not known
    :param is_of_dag: whether a task of a DAG says how the table is loaded: by which key rows are replaced
    """

    name: str | None = None
    sink: SqlTable | None = None
    is_of_dag: bool = False

    @property
    def unknown(self) -> str:
        """Return why rows of the target cannot be read or removed here."""
        if self.name is None:
            return "Nothing was loaded yet"
        if self.sink is None:
            return f"Target {self.name} is no table of this database"
        return f"No task of a DAG names table {self.name}: how its rows are loaded is not known"


def group_target(
    conn: Connection, tables: Tables, source: Source, group_id: str, dags: Mapping[str, Registered]
) -> GroupTarget:
    """Return the target of a group."""
    known = group_table(conn, tables, group_id)
    if known is None:
        return GroupTarget()
    names = same_table_names(conn, known.name)
    of_dags = [
        table
        for registered in dags.values()
        for table in registered.tables.get((source, group_id), ())
        if table.name in names
    ]
    if of_dags:
        # Less can be proved of a table with a key: where tasks differ, it is taken for one.
        sink = max(of_dags, key=lambda table: (table.replaces_rows, table.upsert_key))
        return GroupTarget(known.name, sink, is_of_dag=True)
    return GroupTarget(known.name, _existing(conn, known.name))


def _existing(conn: Connection, name: str) -> SqlTable | None:
    inspector = sa.inspect(conn)
    if inspector.has_table(name):
        return SqlTable(name)
    schema, dot, table = name.partition(".")
    # A dot may also be part of a table's name.
    return SqlTable(table, schema) if dot and inspector.has_table(table, schema=schema) else None
