"""Step 1: the batch to do next."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from sqlalchemy.engine import Engine

from airflow_kafka_offsets.core import planning
from airflow_kafka_offsets.core.instants import instant
from airflow_kafka_offsets.core.offsets import Gap, TopicPartition
from airflow_kafka_offsets.database.transactions import now
from airflow_kafka_offsets.exceptions import ForeignBatchError, PositionsMovedError
from airflow_kafka_offsets.kafka.cluster import Cluster
from airflow_kafka_offsets.kafka.start_offsets import extend_to_positions, first_offsets, targets_until
from airflow_kafka_offsets.ledger.batch_rows import Batch
from airflow_kafka_offsets.ledger.batches import abandon, captured_targets, open_batch, record_plan
from airflow_kafka_offsets.ledger.first_positions import first_positions
from airflow_kafka_offsets.ledger.group_table import keep_to_table, same_table_names
from airflow_kafka_offsets.ledger.groups import read_generation
from airflow_kafka_offsets.ledger.positions import read_positions
from airflow_kafka_offsets.ledger.record_sizes import bytes_per_offset
from airflow_kafka_offsets.ledger.tables import Tables
from airflow_kafka_offsets.loading.context import LoadContext, format_first_positions, format_ranges
from airflow_kafka_offsets.loading.pipeline import LoadOptions
from airflow_kafka_offsets.loading.staged_batch import Staged, find_staged
from airflow_kafka_offsets.loading.staging_area import remove_attempt

log = logging.getLogger(__name__)


EXPIRED = "its records expired before they were read (on_data_loss='skip'); planned anew without them"
"""Why a batch is given up that was planned in time."""


class Planned(NamedTuple):
    """The batch to do next, and its files where an earlier try has staged it."""

    batch: Batch
    work: Staged | None = None


def plan(attempt: LoadContext, options: LoadOptions) -> Planned | None:
    """The batch to do next: the open one, whoever planned it, else a new one, written ahead; None where nothing is new.

    :raises ForeignBatchError: the group's batches are those of another load
    :raises DoubleLoadError: a replay has appended records to the table that the group would load into it again
    """
    pipeline, claim = attempt.pipeline, attempt.claim
    batch = open_batch(attempt.engine, pipeline.tables, claim.group_id)
    planned = _resumed(attempt, options, batch) if batch is not None else None
    if planned is not None:
        return planned
    keep_to_table(attempt.engine, pipeline.tables, claim, pipeline.topics, pipeline.sink.name)
    generation = read_generation(attempt.engine, pipeline.tables, claim.group_id)
    decided = decide(attempt, options)
    log_gaps(decided.gaps)
    if not decided.ranges and not decided.initial:
        log.info("Nothing to load for group %r in %s", pipeline.group_id, ", ".join(pipeline.topics))
        return None
    try:
        batch = record_plan(
            attempt.engine,
            pipeline.tables,
            claim,
            decided,
            attempt.recipe,
            generation,
            upsert=pipeline.sink.replaces_rows,
        )
    except PositionsMovedError as rewound:
        log.info("%s", rewound)
        return plan(attempt, options)
    if batch is None:
        log.info(
            "Nothing to load yet for group %r; it begins at %s", pipeline.group_id, format_first_positions(decided)
        )
        return None
    log.info(
        "Planned batch %d of group %r: %s offsets in %d partitions: %s",
        batch.batch_id,
        batch.group_id,
        f"{batch.offsets:,}",
        len(batch.ranges),
        format_ranges(batch),
    )
    return Planned(batch)


def decide(attempt: LoadContext, options: LoadOptions) -> planning.Plan:
    """What a new batch of this task instance would load, now; nothing is written."""
    pipeline = attempt.pipeline
    return dry_run(
        pipeline.group_id,
        pipeline.topics,
        options,
        engine=attempt.engine,
        tables=pipeline.tables,
        cluster=attempt.cluster,
        targets=captured_targets(attempt.engine, pipeline.tables, attempt.claim),
    )


def dry_run(
    group_id: str,
    topics: Sequence[str],
    options: LoadOptions,
    *,
    engine: Engine,
    tables: Tables,
    cluster: Cluster,
    targets: Mapping[TopicPartition, int] | None = None,
    given_up: Batch | None = None,
) -> planning.Plan:
    """What a new batch would load, now; nothing is written, and no open batch is looked at.

    :param targets: how far a task instance goes that has begun; None is for one that begins now
    :param given_up: the open batch, where it would be abandoned first
    :raises PlanningError: where the stored positions and the logs do not fit together
    """
    # Positions first, then the ends of the logs: the other way round, lag could come out negative.
    positions = read_positions(engine, tables, group_id)
    if given_up is not None:
        positions |= first_positions(given_up, positions)
    logs = cluster.logs(topics)
    if targets is None and options.until is not None:
        targets = targets_until(cluster, instant("until", options.until), logs)
    start = first_offsets(cluster, options.start, lambda: now(engine), logs, positions)
    return planning.decide(
        positions,
        extend_to_positions(cluster, logs, positions, start),
        start=start,
        on_data_loss=options.on_data_loss,
        max_records=options.max_records,
        max_bytes=options.max_bytes,
        bytes_per_offset=bytes_per_offset(engine, tables, group_id) if options.max_bytes else None,
        targets=targets,
    )


def _resumed(attempt: LoadContext, options: LoadOptions, batch: Batch) -> Planned | None:
    """The group's open batch, where it is this pipeline's to finish and can still be finished as it was planned.

    :return: None where its records are gone, the user chose to skip such, and the batch was given up for that
    :raises ForeignBatchError: it loads other topics, or into another table
    :raises PlanningError: the log is not what it was planned from
    """
    pipeline = attempt.pipeline
    topics = {one.topic for one in batch.ranges}
    is_mine = batch.target_table in same_table_names(attempt.engine, pipeline.sink.name)
    if not topics <= set(pipeline.topics) or not is_mine:
        raise ForeignBatchError(
            f"Group {batch.group_id!r} has the open batch {batch.batch_id}, of topics {', '.join(sorted(topics))} into table "
            f"{batch.target_table!r}; this load is of {', '.join(pipeline.topics)} into {pipeline.sink.name!r}. Run the load "
            "that began it to its end, and give every load a group_id of its own; or, where that load is no more, give the batch up: "
            f"airflow kafka-offsets abandon {batch.group_id} --batch {batch.batch_id} --conn-id CONN_ID."
        )
    if batch.fingerprint != attempt.fingerprint:
        log.warning(
            "Batch %d was planned by a try with other columns, another transform, or other code of it: those of this try "
            "make its rows",
            batch.batch_id,
        )
    work = find_staged(batch, attempt.fingerprint)
    if work is None and abandon_if_expired(attempt, options, batch):
        return None
    told = "committing its files" if work is not None else "finishing it first"
    log.info("Batch %d of group %r is %s by an earlier try: %s", batch.batch_id, batch.group_id, batch.state, told)
    return Planned(batch, work)


def abandon_if_expired(attempt: LoadContext, options: LoadOptions, batch: Batch) -> bool:
    """Abandon a batch whose records are gone, where the user chose to skip such.

    :raises PlanningError: they are gone, and the user did not; or the log is another one
    """
    pipeline = attempt.pipeline
    if planning.check_open(batch.ranges, attempt.cluster.logs(pipeline.topics), options.on_data_loss):
        return False
    log.warning("Batch %d of group %r is abandoned: %s", batch.batch_id, batch.group_id, EXPIRED)
    abandon(attempt.engine, pipeline.tables, attempt.claim, batch, EXPIRED)
    if batch.staging_uri is not None:
        remove_attempt(batch.batch_id, batch.staging_uri, pipeline.staging_dir)
    return True


def log_gaps(gaps: Iterable[Gap]) -> None:
    """What is not loaded is told before anything is."""
    for gap in gaps:
        log.warning(
            "%s[%d]: offsets %d..%d are %s: %s", gap.topic, gap.partition, gap.start, gap.end, gap.cause, gap.decision
        )
