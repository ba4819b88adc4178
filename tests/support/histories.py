"""Histories of groups as `verify` reads them: batches, with the rows and dead letters that they left."""

from hypothesis import strategies as st

from airflow_kafka_offsets.core.offsets import Gap, OffsetRange, Position, TopicPartition
from airflow_kafka_offsets.exceptions import Violation
from airflow_kafka_offsets.sinks.target_rows import Detail, RowCount
from airflow_kafka_offsets.verification.facts import BatchFacts, Findings, LoadedRange
from airflow_kafka_offsets.verification.proof import prove

T0 = TopicPartition("t", 0)
ID, OTHER_ID = "vVZ4aDWLQP2NkY0pxyHJYA", "Xw-aDWLQP2NkY0pxyHJYBQ"

Log = dict[int, int]  # offsets of records, and their timestamps in milliseconds


def proved(
    batches: list[BatchFacts], positions: dict[TopicPartition, Position], detail: Detail = "offsets"
) -> Findings:
    return prove(batches, positions, target="target", detail=detail)


def only(found: Findings) -> Violation:
    assert len(found.violations) == 1, found.violations
    return found.violations[0]


def tally(offsets: list[int], tp: TopicPartition = T0) -> RowCount:
    return RowCount(*tp, len(offsets), len(set(offsets)), min(offsets), max(offsets))


def loaded(
    batch_id: int, start: int, end: int, *, how: str = "stored", topic_id: str = ID, gap: Gap | None = None
) -> BatchFacts:
    """A batch of one partition whose every offset holds a record."""
    count = end - start
    return BatchFacts(
        batch_id,
        state="committed",
        target_table="target",
        row_count=count,
        ranges=(LoadedRange(OffsetRange(*T0, start, end, end, topic_id, how), count),),
        gaps=(gap,) if gap else (),
        rows=(tally(list(range(start, end))),) if count else (),
    )


FIRST, SECOND = loaded(1, 0, 10, how="earliest"), loaded(2, 10, 15)
AT_15 = {T0: Position(15, ID)}


def records_of(log: Log, one: OffsetRange) -> list[int]:
    return [offset for offset in sorted(log) if one.start <= offset < one.end]


def draw_range(draw: st.DrawFn, position: Position | None, tp: TopicPartition) -> tuple[OffsetRange, Gap | None]:
    how = "earliest" if position is None else "stored"
    start = position.offset if position is not None else draw(st.integers(0, 3))
    gap = None
    if draw(st.integers(0, 4)) == 0:
        gap = Gap(*tp, start, start + draw(st.integers(1, 4)), "expired", "skipped")
        start, how = gap.end, "skipped-gap" if position is not None else how
    end = start + draw(st.integers(0, 8))
    return OffsetRange(*tp, start, end, end, ID, how), gap


def without(things: tuple[object, ...], which: int) -> tuple[object, ...]:
    return things[:which] + things[which + 1 :]


def rewind(
    batch_id: int,
    start: int,
    end: int,
    *,
    how: str = "rewind",
    topic_id: str = ID,
    replaced: tuple[int, int] | None = None,
) -> BatchFacts:
    one = OffsetRange(*T0, start, end, end, topic_id, how)
    return BatchFacts(batch_id, "rewind", "committed", ranges=(LoadedRange(one, replaced=replaced),))
