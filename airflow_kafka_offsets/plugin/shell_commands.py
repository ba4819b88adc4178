"""The commands that do what the page does not: they parse DAG files, and a task says there what the target is."""

from __future__ import annotations

import shlex

from airflow_kafka_offsets.plugin.group_targets import GroupTarget
from airflow_kafka_offsets.plugin.rewind_work import ISOLATION_LEVELS, RewindEstimate, RewindForm
from airflow_kafka_offsets.plugin.sources import DEFAULT_KAFKA, Source

_PROGRAM = ("airflow", "kafka-offsets")
_WITHOUT_VALUE = ("to-earliest", "to-latest", "to-current", "undo")


def verify_command(source: Source, group_id: str, target: GroupTarget) -> str | None:
    """Return the command that verifies a group; None where no arguments name its target."""
    named = _of_task(target)
    if named is None and len(target.tables) == 1:
        (table,) = target.tables
        named = _option("table", table.table) + (_option("table-schema", table.schema) if table.schema else [])
    return None if named is None else shlex.join([*_PROGRAM, "verify", group_id, *_database(source), *named])


def replace_command(source: Source, group_id: str, estimate: RewindEstimate, form: RewindForm) -> str | None:
    """Return the command that previews a rewind which also removes rows of the target; None where no arguments name
    it.
    """
    named, open_batch = _of_task(estimate.target), estimate.preview.open_batch
    if named is None:
        return None
    scenario, before = form.scenario, ""
    words = ["import" if scenario == "import" else "rewind", group_id, *_database(source)]
    if estimate.kafka_conn_id != DEFAULT_KAFKA:
        words += _option("kafka-conn-id", estimate.kafka_conn_id)
    for scope in form.scope.split():
        words += _option("topic", scope)
    if scenario in _WITHOUT_VALUE:
        words.append(f"--{scenario}")
    elif scenario == "import":
        words += _option("from-group", form.value)
    elif scenario == "from-file":
        before = f"printf '%s\\n' {shlex.join(form.value.splitlines())} | "
        words += _option("from-file", "-")
    else:
        words += _option(scenario, form.value)
    if form.isolation_level != ISOLATION_LEVELS[0]:
        words += _option("isolation-level", form.isolation_level)
    if form.abandon and open_batch is not None:
        words += _option("abandon", str(open_batch))
    return before + shlex.join([*_PROGRAM, *words, "--replace", *named])


def _of_task(target: GroupTarget) -> list[str] | None:
    if target.task is None:
        return None
    dag_id, task_id = target.task
    return [*_option("dag-id", dag_id), *_option("task-id", task_id)]


def _database(source: Source) -> list[str]:
    words = _option("conn-id", source.conn_id)
    words += _option("schema", source.schema) if source.schema else []
    return words + (_option("prefix", source.prefix) if source.prefix else [])


def _option(name: str, value: str) -> list[str]:
    # A value that begins with a dash would be taken for an option.
    return [f"--{name}={value}"] if value.startswith("-") and value != "-" else [f"--{name}", value]
