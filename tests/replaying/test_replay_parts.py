"""Which parts of a replay are missing."""

from airflow_kafka_offsets.core.offsets import Gap, OffsetRange
from airflow_kafka_offsets.ledger.batch_rows import Batch
from airflow_kafka_offsets.replaying.replay_batches import missing_parts


def part(batch_id: int, start: int, end: int, *, partition: int = 0, gap_from: int | None = None) -> Batch:
    one = OffsetRange("t", partition, start, end, end)
    gaps = (Gap("t", partition, gap_from, start, "expired", "skipped"),) if gap_from is not None else ()
    return Batch(batch_id, "loader", "abandoned", (one,), gaps)


def test_offsets_planned_by_other_parts_are_not_missing() -> None:
    assert missing_parts([part(4, 5, 10, gap_from=0)], [part(1, 0, 10)]) == []
    assert missing_parts([part(4, 10, 10, gap_from=0)], [part(1, 0, 10)]) == []


def test_unplanned_offsets_are_missing_in_order() -> None:
    one, two, elsewhere = part(2, 10, 20), part(3, 20, 30), part(4, 0, 10, partition=1)

    assert missing_parts([part(1, 0, 10)], [one, two, elsewhere]) == [one, two, elsewhere]


def test_successor_of_a_planned_part_is_missing() -> None:
    successor = part(4, 15, 20, gap_from=10)

    assert missing_parts([part(1, 0, 10)], [part(2, 10, 20), successor]) == [successor]
