"""Prove the coverage of a group: every record up to its positions is in the target exactly once, or was set aside."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

from sqlalchemy.engine import Engine

from airflow_kafka_offsets.core.offsets import TopicPartition
from airflow_kafka_offsets.core.origin import BATCH_ID
from airflow_kafka_offsets.database.transactions import snapshot
from airflow_kafka_offsets.exceptions import ConfigurationError, VerificationError, Violation
from airflow_kafka_offsets.kafka.cluster import Cluster
from airflow_kafka_offsets.ledger.group_table import group_table, same_table_names
from airflow_kafka_offsets.ledger.groups import cluster_of
from airflow_kafka_offsets.ledger.positions import stored_positions
from airflow_kafka_offsets.ledger.tables import Tables
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from airflow_kafka_offsets.verification import batch_records, offset_queries
from airflow_kafka_offsets.verification.findings import Coverage, Findings
from airflow_kafka_offsets.verification.kafka_comparison import KafkaComparison, Snapshot, consumer_config
from airflow_kafka_offsets.verification.proof import prove

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
        seen = Snapshot(
            conn, tables, group_id, cluster_of(conn, tables, group_id), batch_records.target_output(conn, sink)
        )
        _check_table(seen)
        if cluster is not None:
            _check_columns(seen.target, sink)
        positions = stored_positions(conn, tables, group_id)
        found = prove(
            batch_records.batch_records(conn, tables, group_id, seen.target),
            positions,
            target=sink.name,
            detail=seen.target.detail,
            keyed=bool(sink.upsert_key),
        )
        violations = [*_missing_table(seen, found), *found.violations, *_rows_of_dead_letters(seen, found)]
        reread = None
        # Reading Kafka again takes as long as loading did; it adds nothing where the database is proof enough.
        if cluster is not None and kafka_config is not None and not violations:
            comparison = KafkaComparison(seen, cluster, consumer_config(kafka_config, group_id, isolation_level))
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


def _check_table(snapshot: Snapshot) -> None:
    """Rows that do not say their batch would be missed in no table: the history says which one is the group's."""
    conn, tables, group_id, _, target = snapshot
    found = group_table(conn, tables, group_id) if target.detail == "nothing" else None
    if found is not None and found.name not in same_table_names(conn, target.name):
        raise ConfigurationError(
            f"Group {group_id!r} loads into table {found.name!r}, as batch {found.batch_id} of its history says, and the table named is "
            f"{target.name!r}, whose rows do not tell their batch: nothing can be proved of it. Name the table that the group "
            "loads into; one that was renamed is known by its new name from the next load into it on."
        )


def _check_columns(target: batch_records.Output, sink: SqlTable) -> None:
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


def _missing_table(snapshot: Snapshot, found: Findings) -> Iterator[Violation]:
    if snapshot.target.table is None and found.violations:
        yield Violation(
            f"database {snapshot.conn.engine.url.database!r} has no table {snapshot.target.name!r}: it was dropped with the "
            "rows of the group, or the group loads into another one"
        )


def _rows_of_dead_letters(snapshot: Snapshot, found: Findings) -> Iterator[Violation]:
    """Offsets that one batch loaded twice, which the sums of batches cannot show; ranges keep those of different batches apart."""
    conn, tables, group_id, _, target = snapshot
    if target.table is None or target.detail != "offsets" or not found.dead_letters:
        return
    for topic, partition, batch_id, offset, count in offset_queries.dead_letters_loaded(conn, tables, target, group_id):
        yield Violation(
            f"{TopicPartition(topic, partition)}: offset {offset} was loaded twice, batch {batch_id} has it as a row and as a dead "
            f"letter{f', and so were {count - 1:,} others' if count > 1 else ''}",
            topic,
            partition,
            offset,
            batch_id,
        )
