"""What Kafka still has, compared with what was loaded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from sqlalchemy.engine import Connection

from airflow_kafka_offsets.core import log_identity
from airflow_kafka_offsets.core.offsets import PartitionLog, Position, Slice, TopicPartition
from airflow_kafka_offsets.exceptions import DataLossError, Violation
from airflow_kafka_offsets.kafka.cluster import Cluster
from airflow_kafka_offsets.ledger.tables import Tables
from airflow_kafka_offsets.verification import batch_records, offset_queries
from airflow_kafka_offsets.verification.findings import Findings, Span


class Snapshot(NamedTuple):
    """What all questions to the database share."""

    conn: Connection
    tables: Tables
    group_id: str
    cluster_id: str | None
    target: batch_records.Output


class KafkaComparison:
    """Reads again what batches without a transform loaded, and looks for each record in the target.

    :param config: the result of `consumer_config`
    """

    def __init__(self, snapshot: Snapshot, cluster: Cluster, config: Mapping[str, Any]) -> None:
        self.records = 0
        self._snapshot = snapshot
        self._cluster = cluster
        self._config = config

    def run(self, positions: Mapping[TopicPartition, Position], found: Findings) -> list[Violation]:
        """
        :param positions: of the snapshot: later loads are not looked at
        :raises PlanningError: the cluster or a topic is not the one that was loaded
        """
        topics = sorted({tp.topic for tp in positions})
        if not topics or self._snapshot.target.table is None:  # then all there is are dead letters, which were counted
            return []
        log_identity.check_cluster(self._snapshot.group_id, self._snapshot.cluster_id, self._cluster.cluster_id())
        logs = self._cluster.logs(topics)
        log_identity.check_positions(positions, logs, topics)
        return [violation for span in found.spans for violation in self._compare(span, logs)]

    def _compare(self, span: Span, logs: Mapping[TopicPartition, PartitionLog]) -> Iterator[Violation]:
        log_now = logs[TopicPartition(span.topic, span.partition)]
        readable = span.slice_within(log_now.beginning, log_now.end)
        if readable is None:
            return
        first, count = None, 0
        for offset in self._missing(readable, span):
            first = offset if first is None else first
            count += 1
        if first is not None:
            yield self._lost(span, first, count)

    def _missing(self, one: Slice, span: Span) -> Iterator[int]:
        """Offsets of Kafka's records that are not in the database: two ascending sequences, side by side."""
        conn, tables, group_id, _, target = self._snapshot
        loaded = offset_queries.of_span(conn, tables, target, group_id, span, one.start, one.end)
        at = next(loaded, None)
        for offset in self._offsets(one):
            self.records += 1
            while at is not None and at < offset:
                at = next(loaded, None)
            if at != offset:
                yield offset

    def _offsets(self, one: Slice) -> Iterator[int]:
        """The offsets of the records of a slice that Kafka has now, though retention may go on meanwhile."""
        from airflow_kafka_offsets.kafka.reader import read

        while True:
            try:
                for batch in read(one, self._config):
                    yield from batch.column("offset").to_pylist()
                return
            except DataLossError:
                tp = TopicPartition(one.topic, one.partition)
                beginning = self._cluster.logs([one.topic])[tp].beginning
                if beginning <= one.start:
                    raise
                one = replace(one, start=min(beginning, one.end))

    def _lost(self, span: Span, offset: int, count: int) -> Violation:
        conn, tables, group_id, _, target = self._snapshot
        batch_id = offset_queries.batch_at(conn, tables, group_id, span, offset)
        others = f", as {'is' if count == 2 else 'are'} {count - 1:,} more up to offset {span.end}" if count > 1 else ""
        return Violation(
            f"{TopicPartition(span.topic, span.partition)}: the record at offset {offset}, which was loaded by batch {batch_id}, is neither "
            f"in table {target.name!r} nor a dead letter{others}. Kafka has it still: load it again",
            span.topic,
            span.partition,
            offset,
            batch_id,
        )


def consumer_config(kafka_config: Mapping[str, Any], group_id: str, isolation_level: str) -> dict[str, Any]:
    """Return the configuration of a consumer as loads use it."""
    # Imported where Kafka is asked.
    from airflow_kafka_offsets.kafka.reader import consumer_config

    return consumer_config(kafka_config, group_id, isolation_level)
