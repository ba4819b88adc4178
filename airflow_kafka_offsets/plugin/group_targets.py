"""What a group loads into, as far as the page can know: the history has its name, and tasks of DAGs the parameters of
tables.

The API server has no DAG files, and often neither the drivers nor the credentials of a lake: rows of tables of the
database of the positions are verified and removed here, and those of other targets with commands, where there are DAG
files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_kafka_offsets.ledger.group_table import GroupTable, group_table
from airflow_kafka_offsets.ledger.tables import Tables
from airflow_kafka_offsets.plugin.sources import Registered, Source
from airflow_kafka_offsets.sinks.fan_out import of_tables
from airflow_kafka_offsets.sinks.sink import DatabaseTable
from airflow_kafka_offsets.sinks.target_names import existing_table, same_table_names


@dataclass(frozen=True, slots=True)
class GroupTarget:
    """The target of a group.

    :param name: as the history has it; None where nothing was loaded
    :param tables: what it consists of; empty where it is no table of this database, or is not known
    :param is_of_dag: whether a task of a DAG says how the tables are loaded: by which key rows are replaced
    :param task: the DAG and the task that have loaded the last batch, if they can be named in commands
    :param verifiers: DAGs and tasks that verify the group
    """

    name: str | None = None
    tables: tuple[DatabaseTable, ...] = ()
    is_of_dag: bool = False
    task: tuple[str, str] | None = None
    verifiers: tuple[tuple[str, str], ...] = ()

    @property
    def can_verify(self) -> bool:
        """Return whether the page itself can verify the group."""
        return bool(self.tables) and self.is_of_dag

    @property
    def unknown(self) -> str:
        """Return why rows of the target cannot be read or removed here."""
        if self.name is None:
            return "Nothing was loaded yet"
        if not self.tables:
            return f"Target {self.name} is no table of this database"
        return f"No task of a DAG names table {self.name}: how its rows are loaded is not known"


def group_target(
    conn: Connection, tables: Tables, source: Source, group_id: str, dags: Mapping[str, Registered]
) -> GroupTarget:
    """Return the target of a group."""
    verifiers = sorted(
        (dag_id, task_id)
        for dag_id, registered in dags.items()
        for task_id in registered.verifiers.get((source, group_id), ())
    )
    known = group_table(conn, tables, group_id)
    if known is None:
        return GroupTarget(verifiers=tuple(verifiers))
    task = _task(conn, tables, known, dags)
    names = same_table_names(conn, known.name)
    of_dags = [
        of_task
        for registered in dags.values()
        for of_task in registered.tables.get((source, group_id), ())
        if of_tables(of_task).name in names
    ]
    # Less can be proved of a table with a key: where tasks differ, it is taken for one.
    found = max(of_dags, key=lambda of_task: [table.upsert_key for table in of_task], default=())
    if not found and (table := existing_table(conn, known.name)) is not None:
        found = (table,)
    return GroupTarget(known.name, found, bool(of_dags), task, tuple(verifiers))


def _task(
    conn: Connection, tables: Tables, known: GroupTable, dags: Mapping[str, Registered]
) -> tuple[str, str] | None:
    """Return the task of the last batch, if its DAG still has it."""
    batches = tables.offset_batches.c
    found = conn.execute(sa.select(batches.dag_id, batches.task_id).where(batches.batch_id == known.batch_id)).one()
    dag = dags.get(found.dag_id)
    return (found.dag_id, found.task_id) if dag is not None and found.task_id in dag.tasks else None
