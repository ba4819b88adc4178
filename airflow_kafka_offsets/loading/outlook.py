"""What the next load of a group would do: finish its open batch, or load a new one. Reads only, for the command line and web pages.

The decision is that of a load: `plan.decide_now` and `core.planning`. A load itself goes through `plan.plan`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sqlalchemy.engine import Engine

from airflow_kafka_offsets.core import planning
from airflow_kafka_offsets.core.offsets import Gap, OffsetRange
from airflow_kafka_offsets.core.planning import UNKNOWN_RECORD_BYTES
from airflow_kafka_offsets.kafka.cluster import Cluster
from airflow_kafka_offsets.ledger.batch_rows import Batch
from airflow_kafka_offsets.ledger.batches import open_batch
from airflow_kafka_offsets.ledger.positions import read_positions
from airflow_kafka_offsets.ledger.record_sizes import bytes_per_offset
from airflow_kafka_offsets.ledger.tables import Tables
from airflow_kafka_offsets.loading.pipeline import LoadOptions
from airflow_kafka_offsets.loading.plan import decide_now


class PartitionOutlook(NamedTuple):
    """A partition of the next batch.

    :param skipped: how many offsets before the range are lost
    :param expected_bytes: an estimate from the last batches
    """

    range: OffsetRange
    skipped: int
    expected_bytes: int


@dataclass(frozen=True, slots=True)
class Outlook:
    """The next batch of a group.

    :param partitions: by topic and partition
    :param open_batch: the batch that a load finishes first; None if it plans a new one
    :param expired_batch: an open batch that a load abandons before, because its records expired
    """

    partitions: tuple[PartitionOutlook, ...]
    open_batch: Batch | None = None
    expired_batch: Batch | None = None


def next_batch(
    group_id: str, topics: Sequence[str], options: LoadOptions, *, engine: Engine, tables: Tables, cluster: Cluster
) -> Outlook:
    """Return what a load would do now.

    :raises PlanningError: the stored positions and the logs do not fit together, or offsets are lost and may not be skipped
    """
    sizes = bytes_per_offset(engine, tables, group_id)
    batch = open_batch(engine, tables, group_id)
    if batch is not None and _is_finished_first(batch, options, cluster):
        return Outlook(_partitions(batch.ranges, batch.gaps, sizes), open_batch=batch)
    plan = decide_now(group_id, topics, options, engine=engine, tables=tables, cluster=cluster, abandoned=batch)
    return Outlook(_partitions((*plan.ranges, *plan.initial), plan.gaps, sizes), expired_batch=batch)


def known_topics(engine: Engine, tables: Tables, group_id: str) -> list[str]:
    """Return the topics of a group's stored positions; without any, those of its open batch, the first."""
    if positions := read_positions(engine, tables, group_id):
        return sorted({tp.topic for tp in positions})
    batch = open_batch(engine, tables, group_id)
    return sorted({range_.topic for range_ in batch.ranges}) if batch is not None else []


def _is_finished_first(batch: Batch, options: LoadOptions, cluster: Cluster) -> bool:
    """Return whether a load would finish the open batch; it abandons one whose records expired.

    :raises PlanningError: they expired, and may not be skipped; or the log is another one
    """
    # A staged batch is committed without reading Kafka again.
    return batch.state == "staged" or planning.check_open(
        batch.ranges, cluster.logs(sorted({range_.topic for range_ in batch.ranges})), options.on_data_loss
    )


def _partitions(
    ranges: Sequence[OffsetRange], gaps: Sequence[Gap], sizes: Mapping[str, float]
) -> tuple[PartitionOutlook, ...]:
    skipped = {(gap.topic, gap.partition): gap.end - gap.start for gap in gaps}
    return tuple(
        PartitionOutlook(
            range_,
            skipped.get(range_.topic_partition, 0),
            round(len(range_) * (sizes.get(range_.topic) or UNKNOWN_RECORD_BYTES)),
        )
        for range_ in sorted(ranges, key=lambda range_: range_.topic_partition)
    )
