"""Positions beyond the end that `read_committed` reports: those of open transactions are kept, those beyond all records
are not.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import pytest

from airflow_kafka_offsets.core.offsets import PartitionLog, Position, TopicPartition
from airflow_kafka_offsets.core.planning import First
from airflow_kafka_offsets.kafka.cluster import Cluster
from airflow_kafka_offsets.kafka.start_offsets import extend_to_positions

TP = TopicPartition("orders", 0)
LAST_STABLE, HIGH_WATERMARK = 4, 7


class OpenTransaction(Cluster):
    """A cluster whose log ends in an open transaction."""

    def __init__(self) -> None:
        """Ask nobody."""

    def logs_of_partitions(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, PartitionLog]:
        return {TP: PartitionLog(0, LAST_STABLE)}

    def high_watermarks(
        self, partitions: Collection[TopicPartition], *, partial: bool = False
    ) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, HIGH_WATERMARK)


@pytest.mark.parametrize("how", ["stored", "first"])
@pytest.mark.parametrize(
    ("offset", "end"),
    [
        (LAST_STABLE, LAST_STABLE),
        (LAST_STABLE + 1, LAST_STABLE + 1),
        (HIGH_WATERMARK, HIGH_WATERMARK),
        (HIGH_WATERMARK + 1, LAST_STABLE),
    ],
    ids=["last-stable", "within", "at-the-very-end", "truncated"],
)
def test_a_log_ends_at_a_position_of_which_it_has_all_records(how: str, offset: int, end: int) -> None:
    positions = {TP: Position(offset)} if how == "stored" else {}
    start = {TP: First(offset, "group")} if how == "first" else {}

    extended = extend_to_positions(OpenTransaction(), {TP: PartitionLog(0, LAST_STABLE)}, positions, start)

    assert extended == {TP: PartitionLog(0, end)}
