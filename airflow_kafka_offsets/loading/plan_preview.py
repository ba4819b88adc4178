"""What a load would do now, for the command line: the decision of `loading.plan`, of which nothing is stored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from airflow_kafka_offsets.core import planning
from airflow_kafka_offsets.core.offsets import Gap, OffsetRange, Slice, TopicPartition
from airflow_kafka_offsets.core.slices import split
from airflow_kafka_offsets.kafka.cluster import Cluster
from airflow_kafka_offsets.ledger.batch_rows import Batch
from airflow_kafka_offsets.ledger.batches import bytes_per_offset, open_batch
from airflow_kafka_offsets.ledger.positions import read_positions
from airflow_kafka_offsets.ledger.tables import Ledger
from airflow_kafka_offsets.loading.pipeline import LoadOptions
from airflow_kafka_offsets.loading.plan import decide_now


class PartitionPlan(NamedTuple):
    """A partition of the next batch.

    :param slices: how many Spark reads in parallel
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
    :param expired_batch: an open batch that a load abandons before, because its records expired
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
    :param writes_files: whether Spark tasks write the files of the target, as for a lake table
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
        or planning.can_still_be_read(
            batch.ranges, cluster.logs(sorted({range_.topic for range_ in batch.ranges})), options.on_data_loss
        )
    ):
        return PlanPreview(of_partitions(batch.ranges, batch.gaps), open_batch=batch)
    decided = decide_now(ledger, cluster, group_id, topics, options, abandoned=batch)
    return PlanPreview(of_partitions((*decided.ranges, *decided.initial), decided.gaps), expired_batch=batch)


def known_topics(ledger: Ledger, group_id: str) -> list[str]:
    """Return the topics of a group's stored positions; without any, those of its open batch, the first."""
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
