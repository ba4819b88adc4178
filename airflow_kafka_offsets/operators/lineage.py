"""OpenLineage: what the operators read and write, as events of Airflow's OpenLineage provider name and describe it.

The provider imports nothing of this unless it is installed and switched on: it calls `get_openlineage_facets_on_…` of
an operator, in a separate process, and the operator imports this module there. Names are those of OpenLineage's
naming of datasets (https://openlineage.io/docs/spec/naming). No value comes from the password, the login or the extra
of a connection.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote

from airflow.providers.openlineage.extractors import OperatorLineage
from attrs import define
from openlineage.client.event_v2 import InputDataset, OutputDataset
from openlineage.client.facet_v2 import (
    DatasetFacet,
    RunFacet,
    input_statistics_input_dataset,
    output_statistics_output_dataset,
    schema_dataset,
    symlinks_dataset,
)

from airflow_kafka_offsets.hooks.connections import kafka_config, open_database, open_ledger, sink_connections
from airflow_kafka_offsets.ledger.overview import TopicTotals, read_topic_totals
from airflow_kafka_offsets.operators.results import topic_uris
from airflow_kafka_offsets.sinks.lake.sink import fields_of
from airflow_kafka_offsets.sinks.sink import Sink
from airflow_kafka_offsets.sinks.table import Dataset

if TYPE_CHECKING:
    from sqlalchemy.engine import Engine

    from airflow_kafka_offsets.ledger.tables import Ledger
    from airflow_kafka_offsets.loading.pipeline import Pipeline
    from airflow_kafka_offsets.operators.positions import KafkaRewindOperator

log = logging.getLogger(__name__)

T = TypeVar("T")

FACET = "kafkaOffsets"
"""The name of the run facet."""

MOST_PARTITIONS = 1_000
"""How many partitions a facet names at most."""


@define
class KafkaOffsetsRunFacet(RunFacet):
    """The effect of a task on a group.

    :param kind: `load`, `replay`, `rewind` or `verify`
    :param ranges: `topic`, `partition`, `start` and `end` (exclusive) of each partition; for a rewind, `old` and `new`
        instead of `start` and `end`. None if unknown, or for more than `MOST_PARTITIONS`
    :param batches: the ids of the batches in the history
    :param rows: written; of a rewind, removed
    :param complete: false where something was left to load
    """

    groupId: str  # noqa: N815 - OpenLineage names fields so
    kind: str
    ranges: list[dict[str, Any]] | None = None
    batches: list[int] | None = None
    records: int | None = None
    rows: int | None = None
    deadLetters: int | None = None  # noqa: N815
    complete: bool | None = None


def load_lineage(
    pipeline: Pipeline, *, kind: str, kafka_conn_id: str, read_done: Callable[[Ledger], Mapping[str, Any] | None]
) -> OperatorLineage[Any, Any]:
    """Return what a load, or a replay, reads and writes.

    :param read_done: returns what is done so far, as `outcome` does
    """
    columns = _known("columns of records", lambda: fields_of(pipeline.record_format.columns()), logging.DEBUG)
    totals: Mapping[str, TopicTotals] = {}
    assert pipeline.sink.conn_id is not None
    with open_ledger(pipeline.sink.conn_id, pipeline.state_tables.schema, pipeline.state_tables.prefix) as ledger:
        tables = _known("the target", lambda: datasets_of(pipeline.sink, ledger.engine)) or []
        done = _known("what is loaded", lambda: read_done(ledger))
        if done is not None and (batches := done["batches"]):
            totals = _known("what is loaded of topics", lambda: read_topic_totals(ledger, batches)) or {}
    rows = done["rows"] if done is not None and len(tables) == 1 else None
    return OperatorLineage(
        inputs=_topics(kafka_conn_id, pipeline.topics, columns, totals),
        outputs=[_output(table, rows) for table in tables],
        run_facets={FACET: _load_facet(pipeline.group_id, kind, done)},
    )


def rewind_lineage(rewind: KafkaRewindOperator, done: Mapping[str, Any] | None) -> OperatorLineage[Any, Any]:
    """Return what a rewind makes a group read again, and the target whose rows it removes.

    :param done: what the operator returned
    """
    facet = KafkaOffsetsRunFacet(groupId=rewind.group_id, kind="rewind")
    partitions: Sequence[Mapping[str, Any]] = ()
    if done is not None:
        partitions = done["partitions"]
        moved = [
            {
                "topic": partition["topic"],
                "partition": partition["partition"],
                "old": partition["old_offset"],
                "new": partition["new_offset"],
            }
            for partition in partitions
            if partition["old_offset"] != partition["new_offset"]
        ]
        facet.ranges = moved if len(moved) <= MOST_PARTITIONS else None
        facet.batches = [done["batch_id"]] if done["batch_id"] is not None else []
        facet.rows, facet.deadLetters = done["rows_removed"], done["dead_letters_removed"]
        facet.complete = done["executed"]
    topics = sorted({partition["topic"] for partition in partitions})
    return OperatorLineage(
        inputs=_topics(rewind.kafka_conn_id, topics),
        outputs=[_output(table) for table in _tables_over(rewind.conn_id, rewind.replace)],
        run_facets={FACET: facet},
    )


def verify_lineage(group_id: str, sink: Sink, done: Mapping[str, Any] | None) -> OperatorLineage[Any, Any]:
    """Return what a verification reads.

    :param done: what the operator returned
    """
    facet = KafkaOffsetsRunFacet(groupId=group_id, kind="verify")
    if done is not None:
        facet.records, facet.rows, facet.deadLetters = (done[name] for name in ("records", "rows", "dead_letters"))
    tables = _tables_over(sink.conn_id, sink)
    return OperatorLineage(
        inputs=[InputDataset(table.namespace, table.name, facets=_facets(table)) for table in tables],
        run_facets={FACET: facet},
    )


def datasets_of(sink: Sink, engine: Engine) -> list[Dataset]:
    """Return the targets of a sink as they are now."""
    return list(sink.connect(engine, sink_connections(sink)).datasets())


def _tables_over(conn_id: str | None, sink: Sink | None) -> list[Dataset]:
    if sink is None or conn_id is None:
        return []
    with open_database(conn_id) as engine:
        return _known("the target", lambda: datasets_of(sink, engine)) or []


def _topics(
    kafka_conn_id: str,
    topics: Iterable[str],
    columns: Sequence[tuple[str, str]] | None = None,
    totals: Mapping[str, TopicTotals] | None = None,
) -> list[InputDataset]:
    uris = _known("the cluster", lambda: topic_uris(kafka_config(kafka_conn_id)["bootstrap.servers"], topics))
    return [_topic(uri, columns, totals or {}) for uri in uris or ()]


def _topic(uri: str, columns: Sequence[tuple[str, str]] | None, totals: Mapping[str, TopicTotals]) -> InputDataset:
    namespace, _, topic = uri.rpartition("/")
    name = unquote(topic)
    dataset = InputDataset(namespace, name, facets=_facets(Dataset(namespace, name, columns)))
    if (read := totals.get(name)) is not None:
        statistics = input_statistics_input_dataset.InputStatisticsInputDatasetFacet(
            rowCount=read.records, size=read.bytes
        )
        dataset.inputFacets = {"inputStatistics": statistics}
    return dataset


def _output(table: Dataset, rows: int | None = None) -> OutputDataset:
    dataset = OutputDataset(table.namespace, table.name, facets=_facets(table))
    if rows is not None:
        statistics = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(rowCount=rows)
        dataset.outputFacets = {"outputStatistics": statistics}
    return dataset


def _facets(table: Dataset) -> dict[str, DatasetFacet]:
    facets: dict[str, DatasetFacet] = {}
    if table.fields is not None:
        fields = [schema_dataset.SchemaDatasetFacetFields(name=name, type=type_) for name, type_ in table.fields]
        facets["schema"] = schema_dataset.SchemaDatasetFacet(fields=fields)
    if table.symlink is not None:
        namespace, name = table.symlink
        identifier = symlinks_dataset.Identifier(namespace=namespace, name=name, type="TABLE")
        facets["symlinks"] = symlinks_dataset.SymlinksDatasetFacet(identifiers=[identifier])
    return facets


def _load_facet(group_id: str, kind: str, done: Mapping[str, Any] | None) -> KafkaOffsetsRunFacet:
    facet = KafkaOffsetsRunFacet(groupId=group_id, kind=kind)
    if done is not None:
        by_topic: Mapping[str, Mapping[str, Sequence[int]]] | None = done["ranges"]
        # A list: OpenLineage hides values by names of keys, and a topic may be called token.
        if by_topic is not None:
            facet.ranges = [
                {"topic": topic, "partition": int(partition), "start": start, "end": end}
                for topic, partitions in by_topic.items()
                for partition, (start, end) in partitions.items()
            ]
        facet.batches, facet.records, facet.rows = done["batches"], done["records"], done["rows"]
        facet.deadLetters, facet.complete = done["dead_letters"], done["complete"]
    return facet


def _known(what: str, read: Callable[[], T], level: int = logging.WARNING) -> T | None:
    """Return what a function reads; None if it fails, so that the event is sent without it."""
    try:
        return read()
    except Exception as error:
        # The message of a driver may hold what a log must not.
        log.log(level, "OpenLineage gets no word of %s: %s", what, type(error).__name__)
        return None
