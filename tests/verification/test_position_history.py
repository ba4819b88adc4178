"""Positions that do not follow one another, or do not end where they are stored."""

from dataclasses import replace

import pytest

from airflow_kafka_offsets.core.offsets import Gap, OffsetRange, Position
from airflow_kafka_offsets.exceptions import Violation
from airflow_kafka_offsets.verification.facts import LoadedRange, Span
from tests.support.histories import AT_15, FIRST, ID, OTHER_ID, SECOND, T0, loaded, only, proved


def test_a_hole_names_its_offsets_and_the_batches_around_it() -> None:
    violation = only(proved([FIRST, loaded(3, 12, 15)], AT_15))

    assert violation == Violation(
        "t[0]: batch 3 begins at offset 12, but the history is at offset 10 with batch 1: offsets 10..12 are in no "
        "batch and in no recorded gap",
        "t",
        0,
        10,
        3,
    )


def test_an_overlap_names_its_offsets() -> None:
    violation = only(proved([FIRST, loaded(2, 8, 15)], AT_15))

    assert violation.words.endswith("offsets 8..10 were loaded already")
    assert (violation.offset, violation.batch_id) == (8, 2)


def test_a_range_that_goes_back_is_named() -> None:
    back = replace(loaded(3, 15, 15), ranges=(LoadedRange(OffsetRange(*T0, 15, 12, 12, ID), 0),))

    violation = proved([FIRST, SECOND, back], {T0: Position(12, ID)}).violations[0]

    assert "batch 3 goes from offset 15 back to 12" in violation.words


def test_a_gap_bridges_exactly_from_where_the_history_had_come_to_the_range() -> None:
    gap = Gap(*T0, 10, 12, "expired", "skipped")
    batch = loaded(2, 12, 15, how="skipped-gap", gap=gap)

    assert proved([FIRST, batch], AT_15).gaps == 2
    short = replace(batch, gaps=(replace(gap, end=11),))
    assert "offsets 11..12 are in no batch" in only(proved([FIRST, short], AT_15)).words
    late = replace(batch, gaps=(replace(gap, start=11),))
    assert "batch 2 skips offsets 11..12, but the history is at offset 10" in (only(proved([FIRST, late], AT_15)).words)


def test_a_gap_of_another_batch_bridges_nothing() -> None:
    other = replace(loaded(2, 10, 10), gaps=(Gap(*T0, 10, 12, "expired", "skipped"),), ranges=())

    assert "offsets 10..12 are in no batch" in only(proved([FIRST, other, loaded(3, 12, 15)], AT_15)).words


def test_a_history_cannot_begin_where_a_position_was_stored() -> None:
    violation = only(proved([SECOND], AT_15))

    assert "the history begins with batch 2 at offset 10, which was a stored position before" in violation.words


@pytest.mark.parametrize(("offset", "effect"), [(12, "would be loaded again"), (20, "in between were never loaded")])
def test_a_position_that_was_moved_by_hand_is_told_with_its_effect(offset: int, effect: str) -> None:
    first = proved([FIRST, SECOND], {T0: Position(offset, ID)}).violations[0]

    assert f"position {offset} is stored, but the history ends at offset 15 with batch 2" in first.words
    assert effect in first.words
    assert first.offset == min(offset, 15)


def test_rows_that_the_position_has_not_passed_are_named() -> None:
    _, behind = proved([FIRST, SECOND], {T0: Position(12, ID)}).violations

    assert "holds a row of offset 14, which is not before position 12" in behind.words
    assert behind.offset == 14


def test_a_topic_that_was_made_anew_begins_a_history_of_its_own() -> None:
    anew = loaded(3, 0, 4, how="earliest", topic_id=OTHER_ID)

    found = proved([FIRST, SECOND, anew], {T0: Position(4, OTHER_ID)})

    assert found.violations == []
    # Offsets of the old topic cannot be read in the new one.
    assert found.spans == [Span("t", 0, 0, 4, 3, 3)]


def test_carrying_on_in_another_topic_of_the_same_name_is_a_violation() -> None:
    other = loaded(3, 15, 20, topic_id=OTHER_ID)

    violation = only(proved([FIRST, SECOND, other], {T0: Position(20, OTHER_ID)}))

    assert f"batch 3 carries on at offset 15 in topic id {OTHER_ID}" in violation.words


def test_ids_that_a_broker_told_only_later_are_no_change() -> None:
    untold = replace(FIRST, ranges=(LoadedRange(replace(FIRST.ranges[0].range, topic_id=None), 10),))

    assert proved([untold, SECOND], AT_15).violations == []


def test_an_id_that_was_told_is_not_forgotten() -> None:
    untold = replace(SECOND, ranges=(LoadedRange(replace(SECOND.ranges[0].range, topic_id=None), 5),))
    other = loaded(3, 15, 20, topic_id=OTHER_ID)

    violation = only(proved([FIRST, untold, other], {T0: Position(20, OTHER_ID)}))

    assert f"where batch 2 stopped in topic id {ID}" in violation.words
