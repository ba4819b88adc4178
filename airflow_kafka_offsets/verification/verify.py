"""Proves the coverage of a group: every record before its positions is in the target exactly once, or dead-lettered."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from airflow_kafka_offsets.core.offsets import Position, TopicPartition
from airflow_kafka_offsets.core.parameters import from_attributes
from airflow_kafka_offsets.core.text import count, first_few
from airflow_kafka_offsets.database.transactions import snapshot
from airflow_kafka_offsets.exceptions import ConfigurationError, VerificationError, Violation
from airflow_kafka_offsets.ledger.double_loads import loaded_by_others
from airflow_kafka_offsets.ledger.group_changes import deleted_or_renamed
from airflow_kafka_offsets.ledger.group_table import group_table
from airflow_kafka_offsets.ledger.groups import cluster_of
from airflow_kafka_offsets.ledger.positions import stored_positions
from airflow_kafka_offsets.ledger.publications import PublishedBatch, published_batches
from airflow_kafka_offsets.ledger.tables import Ledger, Tables
from airflow_kafka_offsets.sinks.fan_out import Sinks, as_sink
from airflow_kafka_offsets.sinks.fan_out_target import FanOutRows
from airflow_kafka_offsets.sinks.sink import Connections, Sink
from airflow_kafka_offsets.sinks.target_names import TargetNames, targets_in
from airflow_kafka_offsets.sinks.target_rows import TargetRows
from airflow_kafka_offsets.verification.batch_facts import Snapshot, batch_facts
from airflow_kafka_offsets.verification.facts import Coverage, Findings
from airflow_kafka_offsets.verification.kafka_comparison import KafkaComparison, without_transform
from airflow_kafka_offsets.verification.proof import prove

log = logging.getLogger(__name__)


def verify(
    group_id: str,
    *,
    sink: Sinks,
    engine: Engine,
    tables: Tables | None = None,
    kafka_config: Mapping[str, Any] | None = None,
    isolation_level: str = "read_committed",
    connections: Connections | None = None,
) -> Coverage:
    """Prove that every record before the positions of a group was loaded exactly once.

    Everything is read in one snapshot of the database, so loads may run meanwhile. A target that commits externally is
    read after it, and may have later batches. Rows are proved by their origin columns: `_batch_id`, `_kafka_topic`,
    `_kafka_partition` and `_kafka_offset`.

    :param group_id: the group
    :param sink: the target that the group loads into, or one of several; then only the rows of this one are proved
    :param engine: the database of the target and the positions
    :param tables: where the state tables are
    :param kafka_config: librdkafka configuration, to read all records that Kafka still has, and look up each in the
        target; those of batches with a transform are not compared. None reads the database only
    :param isolation_level: the isolation level of the loads
    :param connections: the contents of the target's connections
    :raises VerificationError: something is wrong; names the first violation, and has the first 1,000 and their number
    :raises ConfigurationError: the group is missing in the state tables, was deleted or renamed, or the target has no
        batch ids and is not the table that the group loads into
    :raises PlanningError: the positions belong to another cluster, or to an earlier topic of the same name
    :raises DatabaseUnavailableError: the database could not be read to the end
    """
    sink = as_sink(sink)
    ledger = Ledger(engine, tables or Tables.of())
    comparison = KafkaComparison(kafka_config, group_id, isolation_level) if kafka_config is not None else None
    with snapshot(engine) as conn:
        cluster_of(conn, ledger.tables, group_id)  # raises where there is no such group, and names those that there are
        positions = stored_positions(conn, ledger.tables, group_id)
        if not positions and (change := deleted_or_renamed(conn, ledger.tables, group_id)) is not None:
            raise ConfigurationError(f"{change}. Nothing was proved")
        sink = sink.qualified(conn, ledger.tables.offset_batches)
        rows = sink.connect(engine, connections).rows(conn)
        target, rows = _as_loaded(conn, ledger.tables, group_id, sink.name, rows)
        detail, unchecked = rows.detail, describe_unchecked(rows)
        shared = Snapshot(conn, ledger.tables, group_id, target, rows)
        _check_target(shared, looks_for_records=comparison is not None)
        findings = _findings(shared, positions, replaces_rows=sink.replaces_rows)
        published = _published(ledger, sink, findings)
        findings.leave_out({batch.batch_id for batch in published})
        for violation in _loaded_dead_letters(shared, findings):
            findings.add(violation)
        for other in loaded_by_others(conn, ledger.tables, group_id, sink.name):
            log.warning("The same offsets of group %r are there of another group, too: %s", group_id, other)
        if findings.count:
            _check_name(shared)
            if not rows.exists:
                text = f"database {engine.url.database!r} has no table {sink.name!r}: it was dropped with its rows"
                findings.violations.insert(0, Violation(text))
                findings.count += 1
        # Reading Kafka again takes as long as loading did; it adds nothing where the database is proof enough.
        if comparison is not None and not findings.count:
            for violation in comparison.run(shared, positions, findings.spans):
                findings.add(violation)
    if findings.count:
        raise VerificationError(group_id, tuple(findings.violations), findings.count)
    coverage = from_attributes(
        Coverage,
        findings,
        group_id=group_id,
        output_checked=detail != "nothing",
        reread=comparison.records if comparison is not None else None,
        published=sorted(
            batch.batch_id for batch in published if batch.group_id == group_id and not batch.is_committed
        ),
    )
    if coverage.output_checked:
        log.info("The coverage of group %r is proved: %s", group_id, coverage.text)
    else:
        log.warning("Group %r: %s: %s", group_id, unchecked, coverage.text)
    return coverage


def _as_loaded(
    conn: Connection, tables: Tables, group_id: str, target: str, rows: TargetRows
) -> tuple[str, TargetRows]:
    """Return the target of a group and the rows; where one of its several targets is given, the rows of this one."""
    known = group_table(conn, tables, group_id)
    several = targets_in(known.name) if known is not None else []
    names = TargetNames(conn, tables.offset_batches)
    branch = next((name for name in several if names.same(name, target)), None)
    if known is None or branch is None or len(several) == 1:
        return target, rows
    return known.name, FanOutRows({branch: rows})


def _published(ledger: Ledger, sink: Sink, findings: Findings) -> list[PublishedBatch]:
    """Return the batches of uncommitted rows that a target which commits externally has, or is about to have."""
    if not findings.uncommitted or not sink.commits_externally:
        return []
    # It was read after the state tables, and commits before them: they are asked again.
    return published_batches(ledger, sink.name, list(findings.uncommitted))


def describe_unchecked(rows: TargetRows) -> str:
    """Return the sentence about the rows of a target that cannot be proved, because they have no batch id."""
    limits = [branch.limit for branch in rows.branches.values() if branch.detail == "nothing"] or [rows.limit]
    proved = [repr(name) for name, branch in rows.branches.items() if branch.detail != "nothing"]
    what = f"history, positions and the rows of {first_few(proved)}" if proved else "history and positions"
    return (
        f"{'; '.join(limits)}: {what} are proved, the {'other ' if proved else ''}rows were not checked; the number of "
        "rows is that of the history"
    )


def _findings(snapshot: Snapshot, positions: Mapping[TopicPartition, Position], *, replaces_rows: bool) -> Findings:
    """Prove history, positions and rows.

    :return: of several targets, the findings of one, with the rows and the violations of all
    """
    rows = snapshot.rows
    if not rows.branches:
        batches = batch_facts(snapshot)
        return prove(batches, positions, target=snapshot.target, detail=rows.detail, replaces_rows=replaces_rows)
    found: list[Findings] = []
    # History, positions and dead letters are the same for all.
    for name, branch in rows.branches.items():
        batches = (batch.of_branch(snapshot.target, name) for batch in batch_facts(snapshot._replace(rows=branch)))
        findings = prove(batches, positions, target=name, detail=branch.detail, replaces_rows=replaces_rows)
        if branch.detail != "nothing":
            log.info("%r has %s, the number that was written of each batch", name, count(findings.rows, "row"))
        found.append(findings)
    kept = [violation for findings in found for violation in findings.violations]
    different = list(dict.fromkeys(kept))
    # Of those that are not kept, it is not known which are the same.
    number = sum(findings.count for findings in found) - len(kept) + len(different)
    rows_of_all, after = (sum(getattr(each, name) for each in found) for name in ("rows", "rows_after"))
    return replace(found[0], rows=rows_of_all, rows_after=after, violations=different, count=number)


def _check_target(snapshot: Snapshot, *, looks_for_records: bool) -> None:
    """Raise if nothing could be proved of the rows.

    :param looks_for_records: whether each record of Kafka is looked for in the target
    :raises ConfigurationError: the group loads into another target than one whose rows say nothing, in which no row
        would be missed; or the rows do not say enough to find records
    """
    rows = snapshot.rows
    if rows.detail == "nothing":
        _check_name(snapshot)
    if looks_for_records and rows.exists and rows.limit and not rows.branches:
        raise ConfigurationError(
            f"{rows.limit}: records of Kafka cannot be looked up in it. Verify without the Kafka connection."
        )


def _check_name(snapshot: Snapshot) -> None:
    """Raise if the group loads into another target: of a missing one, or of one whose rows say nothing, no row would be
    missed.

    :raises ConfigurationError: it does
    """
    conn, tables, group_id, target, rows = snapshot
    known, names = group_table(conn, tables, group_id), TargetNames(conn, tables.offset_batches)
    if known is None or names.same(known.name, target):
        return
    # A table with origin columns may have got another name, and others may hold what a function writes.
    if rows.detail == "nothing" or not rows.exists or not names.may_hold(known.name, target):
        raise ConfigurationError(
            f"Group {group_id!r} loads into {first_few(map(repr, targets_in(known.name)))}, by batch {known.batch_id} "
            f"of its history, not into {target!r}: nothing can be proved. Name the target that the group loads into: a "
            "table of this database, or the task of the load (--dag-id and --task-id). If it was renamed, run a load "
            "into it first"
        )


def _loaded_dead_letters(snapshot: Snapshot, findings: Findings) -> Iterator[Violation]:
    """Return offsets that a batch loaded as row and as dead letter, which the sums of a batch cannot show."""
    _, tables, group_id, _, rows = snapshot
    if not rows.exists or rows.detail != "offsets" or not findings.dead_letters:
        return
    of_batches = tables.dead_letters.c.batch_id.in_(without_transform(tables, group_id))
    query = sa.select(*tables.dead_letters.primary_key).where(of_batches)
    for topic, partition, batch_id, offset, times in rows.duplicates(query):
        others = f", and so were {times - 1:,} others" if times > 1 else ""
        text = (
            f"{TopicPartition(topic, partition)}: offset {offset} was loaded twice, batch {batch_id} has it as a row "
            f"and as a dead letter{others}"
        )
        yield Violation(text, topic, partition, offset, batch_id)
