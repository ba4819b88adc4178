"""Which connections hold groups: those of `[kafka_offsets] conn_ids`, and those that the tasks of DAGs name."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.ledger.tables import Tables
from airflow_kafka_offsets.sinks.sink import DatabaseTable

DEFAULT_KAFKA = "kafka_default"

_OPTIONS = ("schema", "prefix", "kafka_conn_id")
_OPERATORS = "airflow_kafka_offsets."


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

    @property
    def tables(self) -> Tables:
        return Tables.of(self.schema, self.prefix)


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


@dataclass(frozen=True, slots=True)
class Registered:
    """What the tasks of one DAG name.

    :param tables: those that tasks of a group load into, or verify, each with the others of the same task; tables of
        other databases, and targets that are no tables, are left out
    :param tasks: their ids, but for mapped ones
    :param verifiers: the tasks that verify a group
    """

    kafka_conn_ids: Mapping[Source, frozenset[str]] = field(default_factory=dict)
    groups: frozenset[str] = frozenset()
    tables: Mapping[tuple[Source, str], frozenset[tuple[DatabaseTable, ...]]] = field(default_factory=dict)
    tasks: frozenset[str] = frozenset()
    verifiers: Mapping[tuple[Source, str], frozenset[str]] = field(default_factory=dict)

    def loads(self, source: Source, group_id: str) -> bool:
        """Return whether tasks name a group and its state tables."""
        return group_id in self.groups and source in self.kafka_conn_ids


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


def of_serialized_dag(data: Mapping[str, Any]) -> Registered:
    """Return what the tasks of a serialized DAG name. Tasks of other packages and mapped tasks are left out."""
    found: dict[Source, frozenset[str]] = {}
    groups: set[str] = set()
    tables: dict[tuple[Source, str], frozenset[tuple[DatabaseTable, ...]]] = {}
    tasks: set[str] = set()
    verifiers: dict[tuple[Source, str], frozenset[str]] = {}
    for task in data.get("dag", {}).get("tasks", ()):
        values = task.get("__var", {})
        if not str(values.get("_task_module", "")).startswith(_OPERATORS):
            continue
        task_id = str(values["task_id"])
        tasks.add(task_id)
        group_id = values.get("group_id")
        group = group_id if isinstance(group_id, str) and "{{" not in group_id else None
        if group is not None:
            groups.add(group)
        state = values.get("kafka_offsets_state")
        if isinstance(state, str) and "{{" not in state:
            named = json.loads(state)
            if named["conn_id"] is not None:
                source = Source(named["conn_id"], named["schema"], named["prefix"])
                found[source] = found.get(source, frozenset()) | ({named["kafka_conn_id"]} - {None})
                if group is not None:
                    key = (source, group)
                    tables[key] = tables.get(key, frozenset()) | (
                        {tables_of(named["tables"])} if named["tables"] else set()
                    )
                    if values["task_type"] == "KafkaVerifyOperator":
                        verifiers[key] = verifiers.get(key, frozenset()) | {task_id}
    return Registered(found, frozenset(groups), tables, frozenset(tasks), verifiers)


def tables_of(given: Iterable[Mapping[str, Any]]) -> tuple[DatabaseTable, ...]:
    """Return tables of their fields as JSON has them."""
    return tuple(DatabaseTable(table["table"], table["schema"], tuple(table["upsert_key"])) for table in given)


def merged(configured: Mapping[Source, Discovery], registered: Mapping[str, Registered]) -> dict[Source, Discovery]:
    """Return all state tables, in the order of their names.

    :param registered: by DAG
    """
    found = dict(configured)
    for dag_id, names in registered.items():
        for source, kafka in names.kafka_conn_ids.items():
            known = found.get(source, Discovery())
            found[source] = Discovery(known.kafka_conn_ids | kafka, known.dag_ids | {dag_id}, known.is_configured)
    return {
        source: replace(found[source], kafka_conn_ids=found[source].kafka_conn_ids or frozenset({DEFAULT_KAFKA}))
        for source in sorted(found, key=Source.order)
    }
