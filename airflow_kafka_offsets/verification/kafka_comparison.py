"""Compares the records that Kafka still has with what was loaded, offset by offset."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import sqlalchemy as sa

from airflow_kafka_offsets.core import log_identity
from airflow_kafka_offsets.core.offsets import PartitionLog, Position, Slice, TopicPartition
from airflow_kafka_offsets.database.transactions import stream
from airflow_kafka_offsets.exceptions import DataLossError, Violation
from airflow_kafka_offsets.kafka.cluster import Cluster
from airflow_kafka_offsets.ledger.groups import cluster_of
from airflow_kafka_offsets.ledger.tables import Tables
from airflow_kafka_offsets.sinks.target_rows import Batches
from airflow_kafka_offsets.verification.batch_facts import Snapshot
from airflow_kafka_offsets.verification.facts import Span


class KafkaComparison:
    """Reads again what batches without a transform loaded, and looks for each record in the target and in
    `dead_letters`.

    :param config: librdkafka configuration
    """

    def __init__(self, config: Mapping[str, Any], group_id: str, isolation_level: str) -> None:
        # Imported where Kafka is read.
        from airflow_kafka_offsets.kafka.consumer import consumer_config
        from airflow_kafka_offsets.kafka.reader import read

        self.records = 0
        self._cluster = Cluster(config, isolation_level=isolation_level)
        self._read = partial(read, config=consumer_config(config, group_id, isolation_level))

    def run(
        self, snapshot: Snapshot, positions: Mapping[TopicPartition, Position], spans: Iterable[Span]
    ) -> Iterator[Violation]:
        """Yield a violation for each span of offsets with lost records.

        :param positions: of the snapshot: later loads are not looked at
        :raises PlanningError: the cluster or a topic is not the one that was loaded
        """
        conn, tables, group_id, _, rows = snapshot
        topics = sorted({tp.topic for tp in positions})
        if not topics or not rows.exists:  # then all there is are dead letters, which were counted
            return
        log_identity.check_cluster(group_id, cluster_of(conn, tables, group_id), self._cluster.cluster_id())
        logs = self._cluster.logs(topics)
        offsets = {tp: position.offset for tp, position in positions.items()}
        log_identity.check_positions(positions, self._cluster.extended(logs, offsets), topics)
        for span in spans:
            yield from self._compare(snapshot, span, logs)

    def _compare(
        self, snapshot: Snapshot, span: Span, logs: Mapping[TopicPartition, PartitionLog]
    ) -> Iterator[Violation]:
        tp = span.topic_partition
        readable = span.slice_within(logs[tp].beginning, logs[tp].end)
        if readable is None:
            return
        missing = self._missing(readable, _loaded(snapshot, readable, span))
        first = next(missing, None)
        if first is None:
            return
        more, batch_id = sum(1 for _ in missing), _batch_at(snapshot, span, first)
        others = f", as {'is' if more == 1 else 'are'} {more:,} more up to offset {span.end}" if more else ""
        text = (
            f"{tp}: the record at offset {first}, which was loaded by batch {batch_id}, is neither in table "
            f"{snapshot.target!r} nor a dead letter{others}. Kafka still has it: load it again"
        )
        yield Violation(text, *tp, first, batch_id)

    def _missing(self, slice_: Slice, loaded: Iterator[int]) -> Iterator[int]:
        """Return offsets of Kafka's records that were not loaded: two ascending sequences, side by side."""
        at = next(loaded, None)
        for offset in self._offsets(slice_):
            self.records += 1
            while at is not None and at < offset:
                at = next(loaded, None)
            if at != offset:
                yield offset

    def _offsets(self, slice_: Slice) -> Iterator[int]:
        """Return the offsets of the records of a slice that Kafka has now; retention may go on meanwhile."""
        while True:
            try:
                for batch in self._read(slice_):
                    yield from batch.column("offset").to_pylist()
                return
            except DataLossError:
                tp = TopicPartition(slice_.topic, slice_.partition)
                beginning = self._cluster.logs_of_partitions([tp])[tp].beginning
                if beginning <= slice_.start:
                    raise
                slice_ = replace(slice_, start=min(beginning, slice_.end))


def _loaded(snapshot: Snapshot, slice_: Slice, span: Span) -> Iterator[int]:
    """Return the offsets within a slice that the batches of a span left in the target or dead-lettered, in ascending
    order.
    """
    columns, batches = snapshot.tables.dead_letters.c, _batches(snapshot, span, span.replays)
    dead_letters = sa.select(columns.offset_value).where(
        batches.include(columns.batch_id),
        columns.topic == slice_.topic,
        columns.partition == slice_.partition,
        columns.offset_value >= slice_.start,
        columns.offset_value < slice_.end,
    )
    dead_letter_offsets = (int(row[0]) for row in stream(snapshot.conn, dead_letters.order_by(columns.offset_value)))
    return heapq.merge(snapshot.rows.offsets(batches, slice_), dead_letter_offsets)


def _batch_at(snapshot: Snapshot, span: Span, offset: int) -> int:
    """Return the batch of a span whose range an offset is in: the ranges of a span's batches follow one another."""
    ranges = snapshot.tables.offset_ranges.c
    query = sa.select(ranges.batch_id).where(
        _batches(snapshot, span).include(ranges.batch_id),
        ranges.topic == span.topic,
        ranges.partition == span.partition,
        ranges.start_offset <= offset,
        ranges.end_offset > offset,
    )
    # A later batch may have replayed the dead letter of the record.
    return int(snapshot.conn.execute(query.order_by(ranges.batch_id).limit(1)).scalar_one())


def _batches(snapshot: Snapshot, span: Span, replays: Sequence[int] = ()) -> Batches:
    batch_id = snapshot.tables.offset_batches.c.batch_id
    wanted = batch_id.between(span.first_batch, span.last_batch) | batch_id.in_(replays)
    ids = without_transform(snapshot.tables, snapshot.group_id).where(wanted)
    return Batches(min((span.first_batch, *replays)), max((span.last_batch, *replays)), ids)


def without_transform(tables: Tables, group_id: str) -> sa.Select[Any]:
    """Return the query for the group's batches that left a row for every record."""
    batches = tables.offset_batches.c
    return sa.select(batches.batch_id).where(
        batches.consumer_group == group_id, batches.state == "committed", batches.transform.is_(None)
    )
