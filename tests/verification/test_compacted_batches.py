"""Compacted batches are proved as others are: the number of rows of each, and the offsets of all together."""

from dataclasses import replace

import pytest

from airflow_kafka_offsets.core.offsets import OffsetRange
from airflow_kafka_offsets.sinks.target_rows import Detail
from airflow_kafka_offsets.verification.facts import BatchFacts, LoadedRange, RemovedOutput, Span
from tests.support.histories import AT_15, FIRST, ID, SECOND, T0, only, proved, rewind, tally

ALL = LoadedRange(OffsetRange(*T0, 0, 15, 15, ID, "earliest"), 15)


def compacted(first: BatchFacts = FIRST, second: BatchFacts = SECOND, **of_range: object) -> list[BatchFacts]:
    """Two loads of one partition, the ranges of which are those of the second."""
    whole = replace(ALL, **of_range)  # type: ignore[arg-type]
    return [replace(first, ranges=(), is_compacted=True), replace(second, ranges=(whole,), compacted_from=1)]


@pytest.mark.parametrize("detail", ["offsets", "batches", "nothing"])
def test_they_are_proved(detail: Detail) -> None:
    found = proved(compacted(), AT_15, detail)

    assert found.violations == []
    assert (found.batches, found.records, found.rows, found.partitions) == (2, 15, 15, 1)
    assert found.spans == [Span(*T0, 0, 15, 1, 2)]
    assert found.by_number == (2 if detail == "batches" else 0)


def test_a_missing_row_of_the_first() -> None:
    found = proved(compacted(replace(FIRST, rows=(tally(list(range(9))),))), AT_15)

    of_batch, of_partition = found.violations
    assert of_batch.batch_id == 1
    assert "holds 9 rows of batch 1, which wrote 10" in str(of_batch)
    assert "t[0]: table 'target' holds 14 rows of batches 1 to 2, offsets 0..15" in str(of_partition)


def test_a_missing_row_of_the_last() -> None:
    wrong = only(proved(compacted(second=replace(SECOND, rows=(tally([10, 11, 13, 14]),))), AT_15))

    assert (wrong.topic, wrong.partition, wrong.batch_id) == (*T0, 2)
    assert "holds 14 rows of batches 1 to 2, offsets 0..15, which wrote 15: rows are missing" in str(wrong)


def test_an_offset_of_the_first_in_the_place_of_one_of_the_last() -> None:
    wrong = only(proved(compacted(second=replace(SECOND, rows=(tally([3, 10, 11, 13, 14]),))), AT_15))

    assert "holds 15 rows of batches 1 to 2, offsets 0..15, but only 14 different offsets" in str(wrong)


def test_dead_letters_of_a_batch_that_has_none() -> None:
    wrong = only(proved(compacted(replace(FIRST, dead_letters=(tally([4]),))), AT_15))

    assert "dead_letters holds records of batch 1, which loaded nothing of this partition" in str(wrong)


def test_rows_that_a_rewind_replaced() -> None:
    removed = RemovedOutput(2), RemovedOutput(5)
    first = replace(FIRST, rows=(tally(list(range(8))),), replaced={T0: removed[0]})
    second = replace(SECOND, rows=(), replaced={T0: removed[1]})

    found = proved([*compacted(first, second), rewind(3, 15, 8, replaced=(8, 15))], {T0: replace(AT_15[T0], offset=8)})

    assert found.violations == []
    assert found.rows == 8


def test_lost_rows_that_a_rewind_replaced() -> None:
    """Nothing was left to be removed: the target had lost them."""
    lost = compacted(replace(FIRST, rows=()), replace(SECOND, rows=()), is_replaced=True)

    found = proved([*lost, rewind(3, 15, 0, replaced=(0, 15))], {T0: replace(AT_15[T0], offset=0)})

    assert found.violations == []


def test_what_each_run_has_is_its_own() -> None:
    first, second = compacted()
    later = replace(
        second, batch_id=4, compacted_from=4, ranges=(replace(ALL, range=OffsetRange(*T0, 15, 20, 20, ID)),)
    )
    later = replace(later, ranges=(replace(later.ranges[0], records=5),), rows=(tally(list(range(15, 20))),))

    found = proved([first, second, later], {T0: replace(AT_15[T0], offset=20)})

    assert found.violations == []
    assert found.rows == 20
