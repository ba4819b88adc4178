"""What a group loads into, as far as the page can know: the history has its name, and tasks of DAGs the parameters of
tables.

The API server has no DAG files, and often neither the drivers nor the credentials of a lake: rows of tables of the
database of the positions are verified and removed here, and those of other targets with commands, where there are DAG
files. A task says there what the target is.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_kafka_offsets.escaping import command_line
from airflow_kafka_offsets.ledger.group_table import GroupTable, group_table
from airflow_kafka_offsets.ledger.tables import Tables
from airflow_kafka_offsets.plugin.sources import DEFAULT_KAFKA, Registered, Source
from airflow_kafka_offsets.sinks.fan_out import of_tables
from airflow_kafka_offsets.sinks.sink import DatabaseTable
from airflow_kafka_offsets.sinks.target_names import TargetNames, in_words

if TYPE_CHECKING:
    from airflow_kafka_offsets.plugin.rewinds import RewindEstimate, RewindForm

WITHOUT_VALUE = ("to-earliest", "to-latest", "to-current", "undo")


@dataclass(frozen=True, slots=True)
class GroupTarget:
    """The target of a group.

    :param name: as the history has it; None where nothing was loaded
    :param tables: what it consists of, as a task of a DAG says: the history alone names no table to read or to delete
        from. Empty where no task does, or where it is not a table of this database
    :param existing: the table of this database that has the name
    :param task: the DAG and the task that have loaded the last batch, if they can be named in commands
    :param verifiers: DAGs and tasks that verify the group
    """

    name: str | None = None
    tables: tuple[DatabaseTable, ...] = ()
    existing: DatabaseTable | None = None
    task: tuple[str, str] | None = None
    verifiers: tuple[tuple[str, str], ...] = ()

    @property
    def can_verify(self) -> bool:
        """Return whether the page itself can verify the group."""
        return bool(self.tables)

    @property
    def unknown(self) -> str:
        """Return why rows of the target cannot be read or removed here."""
        if self.name is None:
            return "Nothing was loaded yet"
        if self.existing is None:
            return f"Target {in_words(self.name)} is not a table of this database"
        return f"No task of a DAG names table {in_words(self.name)}: its pipeline is unknown"


def group_target(conn: Connection, tables: Tables, source: Source, group_id: str, dags: Registered) -> GroupTarget:
    """Return the target of a group."""
    named = [
        (dag_id, task)
        for dag_id, tasks in dags.items()
        for task in tasks
        if (task.source, task.group_id) == (source, group_id)
    ]
    verifiers = tuple(sorted((dag_id, task.task_id) for dag_id, task in named if task.verifies))
    known = group_table(conn, tables, group_id)
    if known is None:
        return GroupTarget(verifiers=verifiers)
    names = TargetNames(conn, tables.offset_batches)
    sinks = [of_tables(task.tables).qualified(conn, tables.offset_batches) for _, task in named if task.tables]
    of_dags = [tuple(sink.tables) for sink in sinks if names.same(sink.name, known.name)]
    # Less can be proved of a table with a key: where tasks differ, it is taken for one.
    found = max(of_dags, key=lambda of_task: [table.upsert_key for table in of_task], default=())
    existing = None if found else names.existing(known.name)
    return GroupTarget(known.name, found, existing, _task(conn, tables, known, dags), verifiers)


def _task(conn: Connection, tables: Tables, known: GroupTable, dags: Registered) -> tuple[str, str] | None:
    """Return the task of the last batch, if its DAG still has it, and it alone has the parameters: it is not mapped."""
    batches = tables.offset_batches.c
    query = sa.select(batches.dag_id, batches.task_id, batches.map_index)
    found = conn.execute(query.where(batches.batch_id == known.batch_id)).one()
    is_mapped = found.map_index is not None and found.map_index >= 0
    is_known = not is_mapped and found.task_id in {task.task_id for task in dags.get(found.dag_id, ())}
    return (found.dag_id, found.task_id) if is_known else None


def verify_command(source: Source, group_id: str, target: GroupTarget) -> str | None:
    """Return the command that verifies a group; None where no arguments name its target."""
    named = _of_task(target)
    if named is None and target.existing is not None:
        named = _options(table=target.existing.table, table_schema=target.existing.schema)
    return None if named is None else command_line("verify", group_id, *_database(source), *named)


def dead_letter_commands(source: Source, group_id: str, target: GroupTarget, batch: int | None) -> dict[str, str]:
    """Return the commands that replay and that count dead letters to drop, by what they do; to replay is left out where
    no task has the pipeline.

    :param batch: of which batch; None is all
    """
    of = [group_id, *_database(source), *_options(batch=str(batch) if batch is not None else None)]
    task = _of_task(target)
    commands = {"Replay them through the pipeline of the task": [*of, *task]} if task is not None else {}
    commands["Drop their contents; it counts them, and --execute deletes"] = of
    verbs = {title: title.partition(" ")[0].lower() for title in commands}
    return {
        title: command_line("dead-letters", verbs[title], *words, "--reason", "why")
        for title, words in commands.items()
    }


def replace_command(source: Source, group_id: str, estimate: RewindEstimate, form: RewindForm) -> str | None:
    """Return the command that previews a rewind which also removes rows of the target; None where no arguments name
    it.
    """
    named, open_batch, scenario = _of_task(estimate.target), estimate.preview.open_batch, form.scenario
    if named is None:
        return None
    words = ["import" if scenario == "import" else "rewind", group_id, *_database(source)]
    words += _options(kafka_conn_id=estimate.kafka_conn_id if estimate.kafka_conn_id != DEFAULT_KAFKA else None)
    for scope in form.scope.split():
        words += _options(topic=scope)
    if scenario in WITHOUT_VALUE:
        words.append(f"--{scenario}")
    else:
        name = "from-group" if scenario == "import" else scenario
        words += _options(**{name: "-" if scenario == "from-file" else form.value})
    words += _options(
        isolation_level=form.isolation_level if form.isolation_level != "read_committed" else None,
        abandon=str(open_batch) if form.abandon and open_batch is not None else None,
    )
    command = command_line(*words, "--replace", *named)
    if scenario == "from-file":
        return f"printf '%s\\n' {shlex.join(form.value.splitlines())} | {command}"
    return command


def _of_task(target: GroupTarget) -> list[str] | None:
    return None if target.task is None else _options(dag_id=target.task[0], task_id=target.task[1])


def _database(source: Source) -> list[str]:
    return _options(conn_id=source.conn_id, schema=source.schema, prefix=source.prefix)


def _options(**values: str | None) -> list[str]:
    """Return the words of options; those without a value are left out."""
    words: list[str] = []
    for name, value in values.items():
        option = f"--{name.replace('_', '-')}"
        if value and value.startswith("-") and value != "-":
            # It would be taken for an option.
            words.append(f"{option}={value}")
        elif value:
            words += [option, value]
    return words
