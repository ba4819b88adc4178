"""Step 1: decide the batch to load next.

The group's open batch is resumed first. If the target has its rows, and its files and records are gone, it is committed
without files. For a new batch, `core.planning` decides the ranges, and the ledger stores them before anything is read.
`next_batch` makes the same decision for the command line, and writes nothing.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from airflow_kafka_offsets.core import planning
from airflow_kafka_offsets.core.instants import instant
from airflow_kafka_offsets.core.offsets import Gap, OffsetRange, PartitionLog, Slice, TopicPartition
from airflow_kafka_offsets.core.options import Limits
from airflow_kafka_offsets.core.planning import OnDataLoss, can_still_be_read
from airflow_kafka_offsets.core.slices import split
from airflow_kafka_offsets.core.text import count, first_few
from airflow_kafka_offsets.database.transactions import now
from airflow_kafka_offsets.escaping import command_line
from airflow_kafka_offsets.exceptions import DataLossError, ForeignBatchError, PositionsMovedError
from airflow_kafka_offsets.kafka.cluster import Cluster
from airflow_kafka_offsets.kafka.start_offsets import TimeSearch, extend_to_positions, first_offsets, targets_until
from airflow_kafka_offsets.ledger.batch_rows import Batch
from airflow_kafka_offsets.ledger.batches import (
    abandon,
    bytes_per_offset,
    captured_targets,
    first_ranges,
    open_batch,
    record_plan,
)
from airflow_kafka_offsets.ledger.claims import Claim
from airflow_kafka_offsets.ledger.group_table import keep_to_table
from airflow_kafka_offsets.ledger.groups import read_generation
from airflow_kafka_offsets.ledger.positions import (
    positions_after,
    positions_unmoved_for,
    read_positions,
    without_dead_letters,
)
from airflow_kafka_offsets.ledger.publications import published_reads, run_pending_cleanups
from airflow_kafka_offsets.ledger.tables import Ledger
from airflow_kafka_offsets.loading.context import LoadContext
from airflow_kafka_offsets.loading.pipeline import LoadOptions
from airflow_kafka_offsets.loading.stage import StagedBatch, resume_staged
from airflow_kafka_offsets.loading.staging_area import directory_of_attempt, remove_attempt, staging_root
from airflow_kafka_offsets.sinks.sink import Sink
from airflow_kafka_offsets.sinks.target_names import TargetNames
from airflow_kafka_offsets.staging.manifest import Manifest

log = logging.getLogger(__name__)


def is_published(context: LoadContext, kind: str, batch: Batch) -> bool:
    """Return whether the target has the rows of an open batch already."""
    return batch.is_publishing and context.publication(batch, kind).is_published()


def find_files(context: LoadContext, claim: Claim, batch: Batch, on_data_loss: OnDataLoss) -> StagedBatch | None:
    """Return the open batch as an earlier attempt staged it, or as the target has it if its files are lost; None if it
    has to be staged.

    :raises PlanningError: a log is not the one that the batch was planned from
    """
    published = is_published(context, claim.kind, batch)
    staged = resume_staged(context, claim, batch, is_published=published)
    return _find_published(context, batch, on_data_loss) if staged is None and published else staged


def _find_published(context: LoadContext, batch: Batch, on_data_loss: OnDataLoss) -> StagedBatch | None:
    """Return a batch that the target has, if its files and records are gone: the rows are the only copy, and the
    positions move after them. The contents of its dead letters are lost.

    :return: None where the batch can be staged again, or `on_data_loss` is "fail" and it had dead letters
    :raises PlanningError: a log is not the one that the batch was planned from
    """
    if can_still_be_read(batch.ranges, context.cluster.logs_of_ranges(batch.ranges), "skip"):
        return None
    reads = published_reads(context.ledger, batch.batch_id)
    lost = sum(read.dead_letters for read in reads.values())
    if lost and on_data_loss == "fail":
        return None
    log.warning(
        "The files of batch %d are lost, and its records expired, but its rows are in %s: the positions move after "
        "them%s",
        batch.batch_id,
        context.pipeline.sink.name,
        f"; its {count(lost, 'dead letter')} cannot be had any more" if lost else "",
    )
    staging_dir = context.pipeline.staging.dir
    directory = directory_of_attempt(batch.batch_id, batch.staging_uri or "", staging_dir) or staging_root(staging_dir)
    return StagedBatch(directory, Manifest(batch.batch_id, "", (), ()), without_dead_letters(reads), is_lost=True)


EXPIRED = "its records expired before they were read (on_data_loss='skip'); planned again without them"
"""Why a batch is abandoned whose records were there when it was planned."""


MOST_EXPIRED = 8
"""How many batches in a row may be planned again without their expired records."""


def expired_too_often(batch: Batch, cause: DataLossError) -> DataLossError:
    """Return the error for a group whose records expire faster than they are read."""
    return DataLossError(
        f"{MOST_EXPIRED} batches of group {batch.group_id!r} in a row could not be read before their first records "
        f"expired, the last of {count(batch.offsets, 'offset')}: {cause} Lengthen the retention of the topic, or give "
        "Spark more executors, and run the task again"
    )


Planned = tuple[Batch, StagedBatch | None]
"""The batch to load next, and its files where an earlier attempt completed them."""


def plan(context: LoadContext, claim: Claim, options: LoadOptions) -> Planned | None:
    """Return the batch to load next: the open one, whichever run planned it, or a new one, which is stored first.

    :return: None where there is nothing to load
    :raises ForeignBatchError: the group's batches belong to another load
    :raises PlanningError: the stored positions and the logs do not fit together
    :raises DoubleLoadError: another group or a replay has put records into the table that the group would load into it
    """
    pipeline, ledger = context.pipeline, context.ledger
    batch = open_batch(ledger, claim.group_id)
    planned = _resume(context, claim, options, batch) if batch is not None else None
    if planned is not None:
        return planned
    keep_to_table(claim, pipeline.topics, pipeline.sink.name)
    run_pending_cleanups(ledger, context.table, claim.group_id)
    generation = read_generation(ledger, claim.group_id)
    decided = decide_for_claim(context, claim, options)
    log_gaps(decided.gaps)
    if not decided.ranges and not decided.initial:
        topics = ", ".join(pipeline.topics)
        log.info(
            "No more records to load for group %r in %s; later ones are for the next run", pipeline.group_id, topics
        )
        _warn_of_open_transactions(context, decided.logs)
        return None
    try:
        batch = record_plan(claim, decided, context.recipe, generation, **_beside(context, options))
    except PositionsMovedError as moved:
        log.info("%s", moved)
        return plan(context, claim, options)
    if batch is None:
        first = first_few(f"{range_.topic_partition} {range_.end}" for range_ in decided.initial)
        until = "" if options.until is None else f", and until is {options.until}"
        log.info("Nothing to load yet for group %r; it begins at %s%s", pipeline.group_id, first, until)
        return None
    log_planned(batch, "load")
    _log_limits(batch, options.limits, pipeline.sink)
    return batch, None


def _warn_of_open_transactions(context: LoadContext, logs: Mapping[TopicPartition, PartitionLog]) -> None:
    """Log which positions have waited long for open transactions, for which a consumer in Kafka would wait, too."""
    behind, group_id = context.cluster.held_back(logs), context.pipeline.group_id
    unmoved = positions_unmoved_for(context.ledger, group_id, planning.LONG_OPEN) if behind else {}
    waiting = sorted(tp for tp in behind if tp in unmoved and unmoved[tp] >= logs[tp].end)
    if waiting:
        log.warning(
            "Group %r waits for open transactions: %s. Its positions there have not moved for %d minutes. The records "
            "are loaded when the producers end the transactions, or the brokers do (transaction.timeout.ms). If they "
            "stay open, find them with 'kafka-transactions.sh find-hanging', and abort them",
            group_id,
            first_few(f"{count(behind[tp], 'offset')} from {tp} {logs[tp].end}" for tp in waiting),
            planning.LONG_OPEN.total_seconds() // 60,
        )


def plan_after(
    context: LoadContext, claim: Claim, options: LoadOptions, batch: Batch, staged: StagedBatch
) -> Batch | None:
    """Return the prefetched batch: it starts where an open batch ends, and is stored in the state `prefetched`.

    :param batch: the open one, which is about to be committed
    :param staged: its files
    :return: None if nothing remains to be loaded, or the batch would begin a partition: then it is planned after the
        commit
    :raises PlanningError: as for `plan`
    """
    ledger = context.ledger
    generation = read_generation(ledger, claim.group_id)
    decided = decide_for_claim(context, claim, options, after=(batch, staged))
    # Where a partition begins is stored with the first batch that has it: were it abandoned with the open one, that
    # would be lost.
    begins = decided.initial or not all(range_.continues for range_ in decided.ranges)
    if begins or not decided.ranges:
        return None
    log_gaps(decided.gaps)
    prefetched = record_plan(claim, decided, context.recipe, generation, **_beside(context, options), prefetched=True)
    if prefetched is not None:
        log_planned(prefetched, "load", f"Prefetched, to be staged while batch {batch.batch_id} is committed:")
    return prefetched


def _beside(context: LoadContext, options: LoadOptions) -> dict[str, bool]:
    """Return the options that allow loading offsets which are in the target already."""
    return {
        "upsert": context.pipeline.sink.replaces_rows,
        "beside_others": options.coordination.other_groups == "allow",
    }


def log_planned(batch: Batch, kind: str, planned: str = "Planned") -> None:
    """Log the offsets of a new batch.

    :param planned: what was done
    """
    log.info(
        "%s batch %d, a %s of group %r: %s in %s: %s",
        planned,
        batch.batch_id,
        kind,
        batch.group_id,
        count(batch.offsets, "offset"),
        count(len(batch.ranges), "partition"),
        first_few(batch.ranges),
    )


def _log_limits(batch: Batch, given: Limits, sink: Sink) -> None:
    """Log why a batch is not the whole backlog, if the user did not decide that."""
    remain = sum(range_.target - range_.end for range_ in batch.ranges)
    if remain and not given.are_chosen:
        usual = given.of_batch(1, appends_files=sink.appends_files)
        log.info(
            "%s remain for later batches. Without Limits, a batch into %s has at most %s offsets, or more of many "
            "partitions, and about %d GiB; Limits.max_records chooses another size",
            count(remain, "offset"),
            sink.name,
            f"{usual.max_records:,}",
            (usual.max_bytes or 0) >> 30,
        )


def decide_for_claim(
    context: LoadContext, claim: Claim, options: LoadOptions, after: tuple[Batch, StagedBatch] | None = None
) -> planning.Plan:
    """Decide what a new batch of a task instance would load now, up to the ends that its first attempt captured.

    :param after: the open batch and its files, if the plan is for the case that it is committed first
    """
    pipeline, targets = context.pipeline, captured_targets(claim)
    return decide_now(
        context.ledger,
        context.cluster,
        pipeline.group_id,
        pipeline.topics,
        options,
        targets,
        after=after,
        appends_files=pipeline.sink.appends_files,
    )


def decide_now(
    ledger: Ledger,
    cluster: Cluster,
    group_id: str,
    topics: Sequence[str],
    options: LoadOptions,
    targets: Mapping[TopicPartition, int] | None = None,
    abandoned: Batch | None = None,
    after: tuple[Batch, StagedBatch] | None = None,
    *,
    appends_files: bool,
) -> planning.Plan:
    """Decide what a new batch would load now; nothing is written, and an open batch is ignored.

    :param targets: the end offsets that the first attempt of a task instance captured; None decides them now
    :param abandoned: the open batch, if the plan is for the case that it is abandoned first
    :param after: the open batch and its files, if the plan is for the case that it is committed first
    :param appends_files: whether the target does, see `Limits.of_batch`
    :raises PlanningError: the stored positions and the logs do not fit together
    """
    # Positions are read before the ends of the logs: the other way round, lag could be negative.
    positions = read_positions(ledger, group_id)
    if abandoned is not None:
        positions |= positions_after(first_ranges(abandoned, positions))
    if after is not None:
        positions |= positions_after(after[0].ranges)
    logs = cluster.logs(topics)
    limits = options.limits.of_batch(len(logs), appends_files=appends_files)
    search, present = TimeSearch(cluster, group_id), partial(now, ledger.engine)
    if targets is None and options.until is not None:
        targets = targets_until(search, instant("until", options.until), present, logs, positions)
    start = first_offsets(cluster, options.start, present, logs, positions, find=search.first_records)
    decided = planning.decide(
        positions,
        extend_to_positions(cluster, logs, positions, start),
        start=start,
        on_data_loss=options.on_data_loss,
        max_records=limits.max_records,
        max_bytes=limits.max_bytes,
        bytes_per_offset=_sizes(ledger, group_id, after) if limits.max_bytes is not None else None,
        targets=targets,
        group_id=group_id,
    )
    return replace(decided, logs=logs)


def _sizes(ledger: Ledger, group_id: str, staged: tuple[Batch, StagedBatch] | None) -> dict[str, float]:
    """Return the average size of a record by topic: of the staged batch, which may be the first one, and of others."""
    sizes = bytes_per_offset(ledger, group_id)
    return sizes if staged is None else sizes | staged[1].bytes_per_offset(staged[0].ranges)


def _resume(context: LoadContext, claim: Claim, options: LoadOptions, batch: Batch) -> Planned | None:
    """Return the group's open batch, if it belongs to this pipeline and can still be loaded as it was planned.

    :return: None where the batch was abandoned, because its records are gone and `on_data_loss` is `skip`
    :raises ForeignBatchError: the batch loads other topics, or loads into another table
    :raises PlanningError: a log is not the one that the batch was planned from
    """
    pipeline = context.pipeline
    topics = {range_.topic for range_ in batch.ranges}
    with context.ledger.connect() as conn:
        names = TargetNames(conn, context.ledger.tables.offset_batches)
        is_own = names.same(batch.target_table or "", pipeline.sink.name)
    if not topics <= set(pipeline.topics) or not is_own:
        raise ForeignBatchError(
            f"Group {batch.group_id!r} has the open batch {batch.batch_id}, of topics {', '.join(sorted(topics))} "
            f"into table {batch.target_table!r}; this load is of {', '.join(pipeline.topics)} into "
            f"{pipeline.sink.name!r}. Finish the load that planned it, and give every load its own group_id. If that "
            f"load no longer exists, abandon the batch: {command_line('abandon', batch.group_id)} --batch "
            f"{batch.batch_id} --conn-id CONN_ID --reason WHY."
        )
    if batch.fingerprint != context.recipe.fingerprint:
        log.warning(
            "Batch %d was planned with other columns, another transform, or other code of the transform; this "
            "attempt uses the current ones",
            batch.batch_id,
        )
    staged = find_files(context, claim, batch, options.on_data_loss)
    if staged is None and abandon_if_expired(context, claim, options, batch):
        return None
    action = "staging it" if staged is None else "committing its files"
    log.info(
        "Batch %d of group %r was %s by an earlier attempt: %s", batch.batch_id, batch.group_id, batch.state, action
    )
    return batch, staged


def abandon_if_expired(context: LoadContext, claim: Claim, options: LoadOptions, batch: Batch) -> bool:
    """Abandon a batch whose records are gone, if `on_data_loss` is `skip`, and the target does not have its rows.

    :return: whether the batch was abandoned
    :raises PlanningError: records are gone and `on_data_loss` is `fail`, or a topic was recreated
    """
    pipeline = context.pipeline
    logs = context.cluster.logs_of_ranges(batch.ranges)
    if can_still_be_read(batch.ranges, logs, options.on_data_loss, batch.group_id):
        return False
    # It may have been published since it was read.
    current = open_batch(context.ledger, claim.group_id)
    if current is not None and is_published(context, claim.kind, current):
        return False
    log.warning("Batch %d of group %r is abandoned: %s", batch.batch_id, batch.group_id, EXPIRED)
    for batch_id, staging_uri in abandon(claim, batch, EXPIRED).items():
        remove_attempt(batch_id, staging_uri, pipeline.staging.dir)
    return True


def log_gaps(gaps: Iterable[Gap]) -> None:
    """Log the offsets that a plan leaves out, before anything is loaded."""
    for gap in gaps:
        log.warning("%s: offsets %d..%d are %s: %s", gap.topic_partition, gap.start, gap.end, gap.cause, gap.decision)


class PartitionPlan(NamedTuple):
    """A partition of the next batch.

    :param slices: the number of slices that Spark reads in parallel
    :param skipped: how many offsets before the range are lost
    :param expected_bytes: an estimate from the last batches
    """

    range: OffsetRange
    slices: int
    skipped: int
    expected_bytes: int


@dataclass(frozen=True, slots=True)
class PlanPreview:
    """The next batch of a group.

    :param partitions: by topic and partition
    :param open_batch: the batch that a load finishes first; None if it plans a new one
    :param expired_batch: an open batch that a load abandons first, because its records expired
    """

    partitions: tuple[PartitionPlan, ...]
    open_batch: Batch | None = None
    expired_batch: Batch | None = None


def next_batch(
    ledger: Ledger,
    cluster: Cluster,
    group_id: str,
    topics: Sequence[str],
    options: LoadOptions,
    *,
    slice_offsets: int,
    writes_files: bool = False,
) -> PlanPreview:
    """Return what a load would do now.

    :param slice_offsets: the pipeline's
    :param writes_files: whether Spark tasks write the files of the target, as for a lake table without an upsert
    :raises PlanningError: the stored positions and the logs do not fit together, or offsets are lost and may not be
        skipped
    """

    def of_partitions(ranges: Sequence[OffsetRange], gaps: Sequence[Gap]) -> tuple[PartitionPlan, ...]:
        return _partitions(ranges, gaps, sizes, split(ranges, slice_offsets, writes_files=writes_files))

    sizes = bytes_per_offset(ledger, group_id)
    batch = open_batch(ledger, group_id)
    # A staged batch is committed without reading Kafka again. A batch whose records expired is abandoned.
    if batch is not None and (
        batch.state == "staged"
        or can_still_be_read(batch.ranges, cluster.logs_of_ranges(batch.ranges), options.on_data_loss, batch.group_id)
    ):
        return PlanPreview(of_partitions(batch.ranges, batch.gaps), open_batch=batch)
    decided = decide_now(ledger, cluster, group_id, topics, options, abandoned=batch, appends_files=writes_files)
    return PlanPreview(of_partitions((*decided.ranges, *decided.initial), decided.gaps), expired_batch=batch)


def known_topics(ledger: Ledger, group_id: str) -> list[str]:
    """Return the topics of a group's stored positions; without positions, those of its open batch."""
    if positions := read_positions(ledger, group_id):
        return sorted({tp.topic for tp in positions})
    batch = open_batch(ledger, group_id)
    return sorted({range_.topic for range_ in batch.ranges}) if batch is not None else []


def _partitions(
    ranges: Sequence[OffsetRange], gaps: Sequence[Gap], sizes: Mapping[str, float], slices: Sequence[Slice]
) -> tuple[PartitionPlan, ...]:
    slices_of = Counter(TopicPartition(slice_.topic, slice_.partition) for slice_ in slices)
    skipped = {gap.topic_partition: gap.end - gap.start for gap in gaps}
    return tuple(
        PartitionPlan(
            range_,
            slices_of[range_.topic_partition],
            skipped.get(range_.topic_partition, 0),
            round(len(range_) * (sizes.get(range_.topic) or planning.UNKNOWN_RECORD_BYTES)),
        )
        for range_ in sorted(ranges, key=lambda range_: range_.topic_partition)
    )
