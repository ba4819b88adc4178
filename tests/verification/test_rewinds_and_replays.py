"""What rewinds and replays leave, and what they must record."""

from dataclasses import replace

import pytest

from airflow_kafka_offsets.core.offsets import Gap, OffsetRange, Position
from airflow_kafka_offsets.verification.facts import BatchFacts, LoadedRange, RemovedOutput, Span
from airflow_kafka_offsets.verification.proof import prove
from tests.support.histories import FIRST, ID, OTHER_ID, SECOND, T0, loaded, only, proved, rewind, tally


def test_rows_behind_a_position_that_was_moved_back_are_there_by_decision() -> None:
    found = proved([FIRST, SECOND, rewind(3, 15, 4)], {T0: Position(4, ID)})
    assert (found.violations, found.rows_after) == ([], 11)
    # What was loaded again is duplicated already.
    assert proved([FIRST, SECOND, rewind(3, 15, 4), loaded(4, 4, 12)], {T0: Position(12, ID)}).rows_after == 3
    at_4 = {T0: Position(4, OTHER_ID)}
    assert proved([FIRST, rewind(2, 10, 4, how="recreated", topic_id=OTHER_ID)], at_4).rows_after == 0


def test_a_rewind_starts_where_the_history_had_come_to() -> None:
    violation = only(proved([FIRST, rewind(2, 9, 4)], {T0: Position(4, ID)}))

    assert "batch 2 begins at offset 9, but the history is at offset 10 with batch 1" in violation.words


def test_a_move_forward_names_what_it_passes_over_unless_it_was_loaded() -> None:
    at_30 = {T0: Position(30, ID)}
    gap = Gap("t", 0, 15, 30, "passed over", "moved forward by somebody")
    forward = rewind(3, 15, 30)

    assert proved([FIRST, SECOND, replace(forward, gaps=(gap,))], at_30).violations == []
    violation = only(proved([FIRST, SECOND, forward], at_30))
    assert "batch 3 moved the position from offset 15 to 30, and offsets 15..30, which were never loaded, are" in (
        violation.words
    )
    assert (violation.offset, violation.batch_id) == (15, 3)
    # Of another partition, or too short.
    for wrong in (replace(gap, partition=1), replace(gap, topic="u")):
        assert only(proved([FIRST, SECOND, replace(forward, gaps=(wrong,))], at_30)).offset == 15
    assert only(proved([FIRST, SECOND, replace(forward, gaps=(replace(gap, end=28),))], at_30)).offset == 28


@pytest.mark.parametrize(
    ("replaced", "violations"), [(None, []), ((4, 10), ["offsets 4..10"]), ((8, 10), ["offsets 8..10"])]
)
def test_loaded_offsets_may_be_skipped_unless_they_were_removed(
    replaced: tuple[int, int] | None, violations: list[str]
) -> None:
    gone = (replaced[1] - replaced[0]) if replaced is not None else 0
    first = replace(FIRST, rows=(tally([*range(10 - gone)]),), replaced={T0: RemovedOutput(gone)} if gone else {})

    found = proved([first, rewind(2, 10, 4, replaced=replaced), rewind(3, 4, 10)], {T0: Position(10, ID)})

    assert len(found.violations) == len(violations)
    assert all(words in one.words for words, one in zip(violations, found.violations, strict=True))


def test_offsets_of_an_earlier_topic_are_not_those_that_the_next_one_skips() -> None:
    anew = rewind(2, 10, 3, how="recreated", topic_id=OTHER_ID)

    found = proved([FIRST, anew, rewind(3, 3, 9, topic_id=OTHER_ID)], {T0: Position(9, OTHER_ID)})

    assert "offsets 3..9, which were never loaded" in only(found).words


def replay_into_target(batch_id: int, start: int, end: int, after: frozenset[int] = frozenset()) -> BatchFacts:
    one = OffsetRange(*T0, start, end, end, ID, "replay")
    return BatchFacts(
        batch_id,
        "replay",
        "committed",
        "target",
        row_count=end - start,
        ranges=(LoadedRange(one, end - start, replaced=(start, end)),),
        rows=(tally(list(range(start, end))),),
        after=after,
    )


def test_a_replay_that_was_committed_late_replaces_what_was_loaded_before_that() -> None:
    """Planned before a rewind and a load that were committed before it."""
    first = replace(FIRST, rows=(), replaced={T0: RemovedOutput(10)})
    late = replay_into_target(2, 0, 5, frozenset({4}))
    again = replace(loaded(4, 3, 10), rows=(tally(list(range(5, 10))),), replaced={T0: RemovedOutput(2)})
    history = [first, late, rewind(3, 10, 3, replaced=(3, 10)), again]

    found = proved(history, {T0: Position(10, ID)})

    assert found.violations == []
    assert found.spans == [Span("t", 0, 5, 10, 1, 4), Span("t", 0, 0, 5, 2, 2)]
    # What comes after it goes on from what is there, and not from the replay.
    more = proved([*history, loaded(5, 10, 12)], {T0: Position(12, ID)})
    assert [(one.start, one.end) for one in more.spans] == [(5, 10), (0, 5), (10, 12)]


def test_replays_that_wait_for_each_other_are_taken_in_their_order() -> None:
    def left(batch: BatchFacts, offsets: list[int]) -> BatchFacts:
        gone = (batch.row_count or 0) - len(offsets)
        return replace(batch, rows=(tally(offsets),) if offsets else (), replaced={T0: RemovedOutput(gone)})

    # 5 was committed first, then 4, which replaced rows of it, then 3, which replaced rows of 4; then 2.
    history = [
        left(FIRST, []),
        replay_into_target(2, 6, 10, frozenset({3})),
        left(replay_into_target(3, 4, 8, frozenset({4})), [4, 5]),
        left(replay_into_target(4, 2, 6, frozenset({5})), [2, 3]),
        left(replay_into_target(5, 0, 4), [0, 1]),
    ]

    found = proved(history, {T0: Position(10, ID)})

    assert found.violations == []
    assert [(one.start, one.end, one.first_batch, one.last_batch) for one in found.spans] == [
        (0, 2, 5, 5),
        (2, 4, 4, 4),
        (4, 6, 3, 3),
        (6, 10, 2, 2),
    ]


def test_a_row_in_the_name_of_a_rewind_is_found() -> None:
    back = replace(rewind(2, 10, 4), rows=(tally([5]),))

    violation = only(proved([FIRST, back], {T0: Position(4, ID)}))

    assert "holds 1 rows of batch 2, which moved positions and loaded nothing" in violation.words


def test_a_row_of_a_replay_into_another_table_is_found() -> None:
    one = OffsetRange(*T0, 0, 5, 5, ID, "replay")
    replay = BatchFacts(2, "replay", "committed", "elsewhere", row_count=5, ranges=(LoadedRange(one, 5),))

    assert proved([FIRST, replay], {T0: Position(10, ID)}).violations == []
    stray = replace(replay, rows=(tally([3]),))
    violation = only(proved([FIRST, stray], {T0: Position(10, ID)}))
    assert "holds 1 rows of batch 2, a replay into table 'elsewhere'" in violation.words


def appended(batch_id: int, start: int, end: int, topic_id: str = ID) -> BatchFacts:
    """A replay without replace, into the group's own table."""
    one = OffsetRange(*T0, start, end, end, topic_id, "replay")
    rows = (tally(list(range(start, end))),)
    return BatchFacts(
        batch_id,
        "replay",
        "committed",
        "target",
        row_count=end - start,
        ranges=(LoadedRange(one, end - start),),
        rows=rows,
    )


def test_offsets_that_a_replay_appended_must_not_be_loaded_by_the_group() -> None:
    first, second = replace(FIRST, batch_id=3), replace(SECOND, batch_id=4)
    at_15 = {T0: Position(15, ID)}

    # Two replays append twice, as they were asked to; so it is where records are of another topic.
    assert proved([appended(1, 15, 20), appended(2, 17, 20), first, second], at_15).violations == []
    assert proved([appended(1, 0, 20, OTHER_ID), first, second], at_15).violations == []
    assert (
        proved([replace(appended(1, 8, 12), target_table="elsewhere", rows=()), first, second], at_15).violations == []
    )
    # In whichever order, and whatever became of the topic since.
    for history in ([appended(1, 8, 12), first, second], [first, second, appended(5, 8, 12)]):
        violation = only(proved(history, at_15))
        assert "offsets 8..12 were appended to table 'target' by batch" in violation.words
        assert (violation.topic, violation.partition, violation.offset) == ("t", 0, 8)
        anew = rewind(6, 15, 3, how="recreated", topic_id=OTHER_ID)
        assert "offsets 8..12" in only(proved([*history, anew], {T0: Position(3, OTHER_ID)})).words
        assert prove(history, at_15, target="target", detail="nothing", replaces_rows=True).violations == []


def test_appended_offsets_that_are_replaced_in_part_are_still_duplicated() -> None:
    def without_9(batch: BatchFacts, *offsets: int) -> BatchFacts:
        return replace(
            batch, rows=(tally([offset for offset in offsets if offset != 9]),), replaced={T0: RemovedOutput(1)}
        )

    history = [without_9(appended(1, 8, 12), *range(8, 12)), without_9(replace(FIRST, batch_id=3), *range(10))]
    span = appended(5, 8, 12)
    (range_,) = span.ranges
    taken = replace(range_, records=1, replaced=(8, 12))
    partly = replace(span, takes_span=True, row_count=1, rows=(tally([9]),), ranges=(taken,))

    violation = only(proved([*history, replace(SECOND, batch_id=4), partly], {T0: Position(15, ID)}))

    assert "offsets 8..12 were appended to table 'target' by batch 1" in violation.words


def test_a_partition_that_was_removed_begins_anew() -> None:
    removed = rewind(2, 10, 10, how="removed")

    assert proved([FIRST, removed], {}).violations == []
    assert proved([FIRST, removed, loaded(3, 0, 4, how="earliest")], {T0: Position(4, ID)}).violations == []
    still = only(proved([FIRST, removed], {T0: Position(10, ID)}))
    assert "no committed batch ever moved it there" in still.words


def test_a_rewind_into_a_topic_that_was_made_anew_begins_its_history() -> None:
    anew = rewind(2, 10, 3, how="recreated", topic_id=OTHER_ID)

    found = proved([FIRST, anew, loaded(3, 3, 5, topic_id=OTHER_ID)], {T0: Position(5, OTHER_ID)})

    assert found.violations == []
    assert found.spans == [Span("t", 0, 3, 5, 3, 3)]
