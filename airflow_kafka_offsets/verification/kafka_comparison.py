"""Compares the records that Kafka still has with what was loaded, offset by offset."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_kafka_offsets.core import log_identity
from airflow_kafka_offsets.core.offsets import PartitionLog, Position, Slice, TopicPartition
from airflow_kafka_offsets.database.transactions import stream
from airflow_kafka_offsets.exceptions import DataLossError, Violation
from airflow_kafka_offsets.kafka.cluster import Cluster
from airflow_kafka_offsets.ledger.groups import cluster_of
from airflow_kafka_offsets.ledger.tables import Tables
from airflow_kafka_offsets.sinks.sink import Batches, TargetRows
from airflow_kafka_offsets.verification.findings import Findings, Span


class Snapshot(NamedTuple):
    """What all queries of a verification share: one snapshot of the database, and the rows of the target in it.

    :param target: the target's name
    """

    conn: Connection
    tables: Tables
    group_id: str
    target: str
    rows: TargetRows


class KafkaComparison:
    """Reads again what batches without a transform loaded, and looks for each record in the target and in `dead_letters`.

    :param config: the configuration of a consumer
    """

    def __init__(self, snapshot: Snapshot, cluster: Cluster, config: Mapping[str, Any]) -> None:
        self.records = 0
        self._snapshot = snapshot
        self._cluster = cluster
        self._config = config

    def run(self, positions: Mapping[TopicPartition, Position], findings: Findings) -> list[Violation]:
        """Return a violation for each span of offsets with lost records.

        :param positions: of the snapshot: later loads are not looked at
        :raises PlanningError: the cluster or a topic is not the one that was loaded
        """
        conn, tables, group_id, _, rows = self._snapshot
        topics = sorted({tp.topic for tp in positions})
        if not topics or not rows.exists:  # then all there is are dead letters, which were counted
            return []
        log_identity.check_cluster(group_id, cluster_of(conn, tables, group_id), self._cluster.cluster_id())
        logs = self._cluster.logs(topics)
        log_identity.check_positions(positions, logs, topics)
        return [violation for span in findings.spans for violation in self._compare(span, logs)]

    def _compare(self, span: Span, logs: Mapping[TopicPartition, PartitionLog]) -> Iterator[Violation]:
        log_now = logs[TopicPartition(span.topic, span.partition)]
        readable = span.slice_within(log_now.beginning, log_now.end)
        if readable is None:
            return
        missing = self._missing(readable, span)
        first = next(missing, None)
        if first is None:
            return
        more, batch_id = sum(1 for _ in missing), self._batch_at(span, first)
        others = f", as {'is' if more == 1 else 'are'} {more:,} more up to offset {span.end}" if more else ""
        yield Violation(
            f"{TopicPartition(span.topic, span.partition)}: the record at offset {first}, which was loaded by batch {batch_id}, "
            f"is neither in table {self._snapshot.target!r} nor a dead letter{others}. Kafka has it still: load it again",
            span.topic,
            span.partition,
            first,
            batch_id,
        )

    def _missing(self, slice_: Slice, span: Span) -> Iterator[int]:
        """Return offsets of Kafka's records that are not in the database: two ascending sequences, side by side."""
        loaded = self._loaded(slice_, span)
        at = next(loaded, None)
        for offset in self._offsets(slice_):
            self.records += 1
            while at is not None and at < offset:
                at = next(loaded, None)
            if at != offset:
                yield offset

    def _offsets(self, slice_: Slice) -> Iterator[int]:
        """Return the offsets of the records of a slice that Kafka has now; retention may go on meanwhile."""
        # Imported where Kafka is read.
        from airflow_kafka_offsets.kafka.reader import read

        while True:
            try:
                for batch in read(slice_, self._config):
                    yield from batch.column("offset").to_pylist()
                return
            except DataLossError:
                tp = TopicPartition(slice_.topic, slice_.partition)
                beginning = self._cluster.logs([slice_.topic])[tp].beginning
                if beginning <= slice_.start:
                    raise
                slice_ = replace(slice_, start=min(beginning, slice_.end))

    def _loaded(self, slice_: Slice, span: Span) -> Iterator[int]:
        """Return the offsets within a slice that the batches of a span left in the target or dead-lettered, in ascending order."""
        conn, tables, group_id, _, rows = self._snapshot
        letters = tables.dead_letters.c
        ids = sa.select(tables.offset_batches.c.batch_id).where(*without_transform(tables, group_id))
        batches = Batches(span.first_batch, span.last_batch, ids)
        dead_letters = sa.select(letters.offset_value).where(
            batches.include(letters.batch_id),
            letters.topic == slice_.topic,
            letters.partition == slice_.partition,
            letters.offset_value >= slice_.start,
            letters.offset_value < slice_.end,
        )
        letter_offsets = (int(offset) for (offset,) in stream(conn, dead_letters.order_by(letters.offset_value)))
        return heapq.merge(rows.offsets(batches, slice_), letter_offsets)

    def _batch_at(self, span: Span, offset: int) -> int:
        """Return the batch of a span whose range an offset is in: the ranges of a span's batches follow one another."""
        conn, tables, group_id, _, _ = self._snapshot
        ranges, batches = tables.offset_ranges.c, tables.offset_batches.c
        query = (
            sa.select(ranges.batch_id)
            .join(tables.offset_batches, batches.batch_id == ranges.batch_id)
            .where(
                *without_transform(tables, group_id),
                ranges.batch_id.between(span.first_batch, span.last_batch),
                ranges.topic == span.topic,
                ranges.partition == span.partition,
                ranges.start_offset <= offset,
                ranges.end_offset > offset,
            )
        )
        return int(conn.execute(query).scalars().one())


def without_transform(tables: Tables, group_id: str) -> tuple[sa.ColumnElement[bool], ...]:
    """Return the conditions of the group's batches that left a row for every record."""
    batches = tables.offset_batches.c
    return (batches.consumer_group == group_id, batches.state == "committed", batches.transform.is_(None))
