"""Prove the coverage of a group: every record up to its positions is in the target exactly once, or was set aside."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from sqlalchemy.engine import Connection, Engine

from airflow_kafka_offsets import identity
from airflow_kafka_offsets.coverage import Coverage, Findings, Span, Violation
from airflow_kafka_offsets.exceptions import (
    ConfigurationError,
    DataLossError,
    VerificationError,
)
from airflow_kafka_offsets.formats import BATCH_ID
from airflow_kafka_offsets.kafka import Cluster
from airflow_kafka_offsets.ledger import Tables, audit, loaded_offsets
from airflow_kafka_offsets.ledger.connection import snapshot
from airflow_kafka_offsets.ledger.group_table import group_table, same_table_names
from airflow_kafka_offsets.ledger.groups import cluster_of
from airflow_kafka_offsets.ledger.positions import stored_positions
from airflow_kafka_offsets.offsets import PartitionLog, Position, Slice, TopicPartition
from airflow_kafka_offsets.proof import prove
from airflow_kafka_offsets.sinks import SqlTable

log = logging.getLogger(__name__)


def verify(
    group_id: str,
    *,
    sink: SqlTable,
    engine: Engine,
    tables: Tables | None = None,
    kafka_config: Mapping[str, Any] | None = None,
    isolation_level: str = "read_committed",
) -> Coverage:
    """Prove that every record below the positions of a group was loaded exactly once.

    Everything is read in one snapshot of the database, so that loads may go on meanwhile. What can be proved of the rows
    depends on the target's columns `_batch_id`, `_kafka_topic`, `_kafka_partition` and `_kafka_offset`.

    :param sink: the target that the group loads into
    :param engine: the database of the target and the positions
    :param tables: where the state tables are
    :param kafka_config: librdkafka configuration, to read again all records that Kafka still has, and look for each in the
        target. Those of batches with a transform are not compared. None is to ask the database alone
    :param isolation_level: the one that the group is loaded with; for reading again
    :raises VerificationError: something is wrong; names the first violation, and carries all of them
    :raises ConfigurationError: the state tables know no such group, or it loads into another table than one whose rows do not
        say their batch
    :raises PlanningError: the positions belong to another cluster, or to an earlier topic of the same name
    :raises DatabaseUnavailableError: the database could not be read to the end
    """
    tables = tables or Tables()
    cluster = Cluster(kafka_config, isolation_level=isolation_level) if kafka_config is not None else None
    with snapshot(engine) as conn:
        seen = _Snapshot(conn, tables, group_id, cluster_of(conn, tables, group_id), audit.output(conn, sink))
        _check_table(seen)
        if cluster is not None:
            _check_columns(seen.target, sink)
        positions = stored_positions(conn, tables, group_id)
        found = prove(
            audit.history(conn, tables, group_id, seen.target),
            positions,
            target=sink.name,
            detail=seen.target.detail,
            keyed=bool(sink.upsert_key),
        )
        violations = [*_missing_table(seen, found), *found.violations, *_rows_of_dead_letters(seen, found)]
        reread = None
        # Reading Kafka again takes as long as loading did; it adds nothing where the database is proof enough.
        if cluster is not None and kafka_config is not None and not violations:
            comparison = _Comparison(seen, cluster, _consumer_config(kafka_config, group_id, isolation_level))
            violations = comparison.run(positions, found)
            reread = comparison.records
    if violations:
        raise VerificationError(group_id, tuple(violations))
    coverage = Coverage(
        group_id=group_id,
        partitions=found.partitions,
        batches=found.batches,
        records=found.records,
        rows=found.rows,
        dead_letters=found.dead_letters,
        gaps=found.gaps,
        open_batch=found.open_batch,
        output_checked=seen.target.detail != "nothing",
        reread=reread,
    )
    if coverage.output_checked:
        log.info("The coverage of group %r is proved: %s", group_id, coverage)
    else:
        log.warning("Group %r: %s: %s", group_id, unchecked(sink), coverage)
    return coverage


def unchecked(sink: SqlTable) -> str:
    """What was proved, and what was not, where the rows of a target do not tell which batch wrote them."""
    why = (
        f"Rows of table {sink.name!r} are replaced by those of later batches (upsert_key)"
        if sink.upsert_key
        else f"Table {sink.name!r} has no column {BATCH_ID}"
    )
    return f"{why}: history and positions are proved, its rows were not looked at; the number of rows is what the history says"


class _Snapshot(NamedTuple):
    """What all questions to the database share."""

    conn: Connection
    tables: Tables
    group_id: str
    cluster_id: str | None
    target: audit.Output


def _check_table(snapshot: _Snapshot) -> None:
    """Rows that do not say their batch would be missed in no table: the history says which one is the group's."""
    conn, tables, group_id, _, target = snapshot
    found = group_table(conn, tables, group_id) if target.detail == "nothing" else None
    if found is not None and found.name not in same_table_names(conn, target.name):
        raise ConfigurationError(
            f"Group {group_id!r} loads into table {found.name!r}, as batch {found.batch_id} of its history says, and the table named is "
            f"{target.name!r}, whose rows do not tell their batch: nothing can be proved of it. Name the table that the group "
            "loads into; one that was renamed is known by its new name from the next load into it on."
        )


def _check_columns(target: audit.Output, sink: SqlTable) -> None:
    if sink.upsert_key:
        raise ConfigurationError(
            f"Rows of table {target.name!r} are replaced by those of later batches (upsert_key): records of Kafka cannot be "
            "looked for in it. Verify without the Kafka connection."
        )
    if target.table is not None and target.detail != "offsets":
        raise ConfigurationError(
            f"Table {target.name!r} lacks one of the columns _kafka_topic, _kafka_partition, _kafka_offset and _batch_id: "
            "records of Kafka cannot be looked for in it. Verify without the Kafka connection."
        )


def _missing_table(snapshot: _Snapshot, found: Findings) -> Iterator[Violation]:
    if snapshot.target.table is None and found.violations:
        yield Violation(
            f"database {snapshot.conn.engine.url.database!r} has no table {snapshot.target.name!r}: it was dropped with the "
            "rows of the group, or the group loads into another one"
        )


def _rows_of_dead_letters(snapshot: _Snapshot, found: Findings) -> Iterator[Violation]:
    """Offsets that one batch loaded twice, which the sums of batches cannot show; ranges keep those of different batches apart."""
    conn, tables, group_id, _, target = snapshot
    if target.table is None or target.detail != "offsets" or not found.dead_letters:
        return
    for topic, partition, batch_id, offset, count in loaded_offsets.dead_letters_loaded(conn, tables, target, group_id):
        yield Violation(
            f"{TopicPartition(topic, partition)}: offset {offset} was loaded twice, batch {batch_id} has it as a row and as a dead "
            f"letter{f', and so were {count - 1:,} others' if count > 1 else ''}",
            topic,
            partition,
            offset,
            batch_id,
        )


class _Comparison:
    """Reads again what batches without a transform loaded, and looks for each record in the target.

    :param config: the result of `consumer_config`
    """

    def __init__(self, snapshot: _Snapshot, cluster: Cluster, config: Mapping[str, Any]) -> None:
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
        identity.check_cluster(self._snapshot.group_id, self._snapshot.cluster_id, self._cluster.cluster_id())
        logs = self._cluster.logs(topics)
        identity.check_positions(positions, logs, topics)
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
        loaded = loaded_offsets.of_span(conn, tables, target, group_id, span, one.start, one.end)
        at = next(loaded, None)
        for offset in self._offsets(one):
            self.records += 1
            while at is not None and at < offset:
                at = next(loaded, None)
            if at != offset:
                yield offset

    def _offsets(self, one: Slice) -> Iterator[int]:
        """The offsets of the records of a slice that Kafka has now, though retention may go on meanwhile."""
        from airflow_kafka_offsets.spark.read import read

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
        batch_id = loaded_offsets.batch_at(conn, tables, group_id, span, offset)
        others = f", as {'is' if count == 2 else 'are'} {count - 1:,} more up to offset {span.end}" if count > 1 else ""
        return Violation(
            f"{TopicPartition(span.topic, span.partition)}: the record at offset {offset}, which was loaded by batch {batch_id}, is neither "
            f"in table {target.name!r} nor a dead letter{others}. Kafka has it still: load it again",
            span.topic,
            span.partition,
            offset,
            batch_id,
        )


def _consumer_config(kafka_config: Mapping[str, Any], group_id: str, isolation_level: str) -> dict[str, Any]:
    # Imported where Kafka is asked.
    from airflow_kafka_offsets.spark.read import consumer_config

    return consumer_config(kafka_config, group_id, isolation_level)
