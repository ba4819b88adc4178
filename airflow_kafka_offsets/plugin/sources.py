"""Which connections hold groups: those of `[kafka_offsets] conn_ids`, and those that the tasks of DAGs name."""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

from airflow_kafka_offsets.core.plain import checked
from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.ledger.overview import GroupSummary
from airflow_kafka_offsets.sinks.sink import DatabaseTable

log = logging.getLogger(__name__)

DEFAULT_KAFKA = "kafka_default"

_OPTIONS = ("schema", "prefix", "kafka_conn_id")
_OPERATORS = "airflow_kafka_offsets."
_LOADING = ("KafkaBatchOperator", "KafkaBatchTask", "KafkaReplayOperator")


class Source(NamedTuple):
    """State tables: the connection of their database, their schema, and the prefix of their names."""

    conn_id: str
    schema: str | None = None
    prefix: str = ""

    def __str__(self) -> str:
        more = [self.schema and f"schema {self.schema}", self.prefix and f"prefix {self.prefix}"]
        return f"{self.conn_id} ({', '.join(filter(None, more))})" if any(more) else self.conn_id

    def order(self) -> tuple[str, ...]:
        """Return what sources are sorted by."""
        return self.conn_id, self.schema or "", self.prefix


@dataclass(frozen=True, slots=True)
class Discovery:
    """How state tables became known.

    :param kafka_conn_ids: connections of Kafka that their groups may be loaded through
    :param dag_ids: the DAGs whose tasks name them
    :param is_configured: whether the configuration names them
    """

    kafka_conn_ids: frozenset[str] = frozenset()
    dag_ids: frozenset[str] = frozenset()
    is_configured: bool = False


class RegisteredTask(NamedTuple):
    """What a task of a DAG names: of its state tables and its group, None where it has none, or a template has them.

    :param tables: those that the group is loaded into; empty where a target is no table of the database
    :param loads: whether the task loads records of the group
    :param verifies: whether it verifies the group
    """

    task_id: str
    group_id: str | None = None
    source: Source | None = None
    kafka_conn_id: str | None = None
    tables: tuple[DatabaseTable, ...] = ()
    loads: bool = True
    verifies: bool = False


@dataclass(frozen=True, slots=True)
class Schedule:
    """When a DAG runs.

    :param text: as Airflow shows it; None where it has none
    :param period: the time between its last run by the clock and the next one; None where there are none
    """

    dag_id: str
    text: str | None = None
    period: timedelta | None = None
    is_paused: bool = False


Registered = Mapping[str, Sequence[RegisteredTask]]
"""What the tasks of each DAG name; those of other packages, and mapped ones, are left out."""


class LoadingDags:
    """The DAGs that load groups, as their tasks say: by name, or by a template.

    The state tables have the DAG of a batch, too, and whoever may write them could give a group to another DAG. It
    counts for a group that no task which loads names, and only if the DAG has such a task with a template.
    """

    def __init__(self, registered: Registered, schedules: Mapping[str, Schedule] | None = None) -> None:
        self._schedules = schedules or {}
        self._kafka: dict[tuple[Source, str], set[str]] = defaultdict(set)
        self._kafka_of_templates: dict[tuple[Source, str], set[str]] = defaultdict(set)
        self._named: dict[tuple[Source, str], set[str]] = defaultdict(set)
        self._loads: dict[tuple[Source, str], set[str]] = defaultdict(set)
        self._templated: dict[Source | None, set[str]] = defaultdict(set)
        for dag_id, tasks in registered.items():
            for task in tasks:
                if task.source is not None and task.group_id is not None:
                    self._named[task.source, task.group_id].add(dag_id)
                    if task.loads:
                        self._loads[task.source, task.group_id].add(dag_id)
                    if task.kafka_conn_id is not None:
                        self._kafka[task.source, task.group_id].add(task.kafka_conn_id)
                elif task.loads:
                    self._templated[task.source].add(dag_id)
                    if task.source is not None and task.kafka_conn_id is not None:
                        self._kafka_of_templates[task.source, dag_id].add(task.kafka_conn_id)

    def of(self, source: Source, group: GroupSummary) -> Set[str]:
        """Return the DAGs that load a group."""
        if loads := self._loads.get((source, group.group_id)):
            return loads
        return group.dag_ids & (self._templated.get(source, set()) | self._templated.get(None, set()))

    def is_named(self, source: Source, group_id: str) -> bool:
        """Return whether a task that loads names a group."""
        return (source, group_id) in self._loads

    def naming(self, source: Source, group: GroupSummary) -> Set[str]:
        """Return the DAGs that load a group, or do something else with it, such as verify it."""
        return self.of(source, group) | self._named.get((source, group.group_id), set())

    def kafka_conn_ids(self, source: Source, group: GroupSummary) -> Set[str]:
        """Return the connections of Kafka that tasks name for a group, or tasks with a template of the DAGs that load
        it; none where they are not known, as of mapped tasks.
        """
        if named := self._kafka.get((source, group.group_id)):
            return named
        of_dags = (self._kafka_of_templates.get((source, dag_id), set()) for dag_id in self.of(source, group))
        return set().union(*of_dags)

    def schedules(self, source: Source, group: GroupSummary) -> list[Schedule]:
        """Return the schedules of the DAGs that load a group, in the order of their names."""
        return [self._schedules[dag_id] for dag_id in sorted(self.of(source, group)) if dag_id in self._schedules]


def configured(option: str) -> dict[Source, Discovery]:
    """Return what `[kafka_offsets] conn_ids` names: `warehouse, lake?schema=team&prefix=x_&kafka_conn_id=kafka_eu`.

    :raises ConfigurationError: an entry is of another form
    """
    found: dict[Source, Discovery] = {}
    for place, entry in enumerate(filter(None, (part.strip() for part in option.split(","))), start=1):
        conn_id, _, query = entry.partition("?")
        options = dict(parse_qsl(query, keep_blank_values=True))
        if unknown := sorted(options.keys() - set(_OPTIONS)):
            raise ConfigurationError(
                f"[kafka_offsets] conn_ids: entry {place} has {', '.join(unknown)}; an entry may have "
                f"{', '.join(_OPTIONS)}"
            )
        source = Source(conn_id, options.get("schema") or None, options.get("prefix", ""))
        kafka = {options["kafka_conn_id"]} if options.get("kafka_conn_id") else set()
        before = found.get(source, Discovery())
        found[source] = Discovery(before.kafka_conn_ids | kafka, is_configured=True)
    return found


def of_serialized_dag(data: Mapping[str, Any]) -> list[RegisteredTask]:
    """Return what the tasks of a serialized DAG name. A task is left out that says something else than those of this
    package, because its class or its sink is a DAG author's own.
    """
    found: list[RegisteredTask] = []
    for task in data.get("dag", {}).get("tasks", ()):
        values = task.get("__var", {})
        if not str(values.get("_task_module", "")).startswith(_OPERATORS):
            continue
        try:
            found.append(_registered(values))
        except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
            log.warning("Pages leave out task %r: %s", values.get("task_id"), type(error).__name__)
    return found


def _registered(values: Mapping[str, Any]) -> RegisteredTask:
    kind = values["task_type"]
    task = RegisteredTask(
        values["task_id"],
        _rendered(values.get("group_id")),
        loads=kind in _LOADING,
        verifies=kind == "KafkaVerifyOperator",
    )
    state = _rendered(values.get("kafka_offsets_state"))
    if state is None:
        return task
    named = json.loads(state)
    if named["conn_id"] is None:
        return task
    source = checked(Source, {name: named[name] for name in Source._fields})
    of_kafka = {"kafka_conn_id": named["kafka_conn_id"], "tables": tables_of(named["tables"])}
    return checked(RegisteredTask, {**task._asdict(), "source": source, **of_kafka})


def _rendered(value: Any) -> str | None:
    return value if isinstance(value, str) and "{{" not in value else None


def tables_of(given: Iterable[Mapping[str, Any]]) -> tuple[DatabaseTable, ...]:
    """Return tables of their fields as JSON has them.

    :raises TypeError: they are of other types
    """
    tables = tuple(checked(DatabaseTable, {**table, "upsert_key": tuple(table["upsert_key"])}) for table in given)
    if not all(isinstance(name, str) for table in tables for name in table.upsert_key):
        raise TypeError("a key has other names than texts")
    return tables


def merged(configured: Mapping[Source, Discovery], registered: Registered) -> dict[Source, Discovery]:
    """Return all state tables, in the order of their names."""
    found = dict(configured)
    for dag_id, tasks in registered.items():
        for task in tasks:
            if task.source is not None:
                known = found.get(task.source, Discovery())
                kafka = known.kafka_conn_ids | ({task.kafka_conn_id} if task.kafka_conn_id is not None else set())
                found[task.source] = replace(known, kafka_conn_ids=kafka, dag_ids=known.dag_ids | {dag_id})
    return {
        source: replace(found[source], kafka_conn_ids=found[source].kafka_conn_ids or frozenset({DEFAULT_KAFKA}))
        for source in sorted(found, key=Source.order)
    }
