"""Rows and dead letters that are not what the batches wrote."""

from dataclasses import replace

import pytest

from airflow_kafka_offsets.core.offsets import Position, TopicPartition
from airflow_kafka_offsets.sinks.target_rows import RowCount
from airflow_kafka_offsets.verification.facts import BatchFacts, Span
from tests.support.histories import AT_15, FIRST, ID, SECOND, T0, loaded, only, proved, tally


def test_rows_too_many_are_counted() -> None:
    batch = replace(SECOND, ranges=(replace(SECOND.ranges[0], records=4),))

    assert only(proved([FIRST, batch], AT_15)).words.endswith("which wrote 4: there are too many")


@pytest.mark.parametrize("aside", [[], [11, 12]])
def test_dead_letters_are_counted(aside: list[int]) -> None:
    ranges = (replace(SECOND.ranges[0], dead_letters=1, records=6),)
    batch = replace(SECOND, ranges=ranges, dead_letters=(tally(aside),) if aside else ())

    violation = only(proved([FIRST, batch], AT_15))

    assert (
        f"dead_letters holds {len(aside)} records of batch 2, offsets 10..15, which dead-lettered 1" in violation.words
    )


def test_missing_rows_are_counted() -> None:
    batch = replace(SECOND, rows=(tally([10, 11, 14]),))

    violation = only(proved([FIRST, batch], AT_15))

    assert violation.words == (
        "t[0]: table 'target' holds 3 rows of batch 2, offsets 10..15, which wrote 5: rows are missing"
    )


def test_a_row_that_took_the_place_of_another_is_seen() -> None:
    batch = replace(SECOND, rows=(tally([10, 11, 11, 13, 14]),))

    assert "holds 5 rows of batch 2, offsets 10..15, but only 4 different offsets" in (
        only(proved([FIRST, batch], AT_15)).words
    )


def test_rows_of_a_partition_that_the_batch_did_not_load_are_named() -> None:
    batch = replace(SECOND, rows=(*SECOND.rows, tally([3], TopicPartition("t", 1))))

    violation = only(proved([FIRST, batch], AT_15))

    assert "which loaded nothing of this partition" in violation.words
    assert (violation.partition, violation.offset) == (1, 3)


def test_rows_without_an_offset_are_told_where_others_have_one() -> None:
    batch = replace(SECOND, rows=(*SECOND.rows, RowCount(None, None, 2)))

    violation = only(proved([FIRST, batch], AT_15))

    assert violation.words == "table 'target' holds rows of batch 2 without topic, partition or offset (2)"


def test_rows_older_than_the_columns_are_only_counted() -> None:
    older = replace(FIRST, rows=(RowCount(None, None, 10),))

    found = proved([older, SECOND], AT_15)

    assert found.violations == []
    assert found.spans == [Span("t", 0, 10, 15, 2, 2)]
    fewer = replace(FIRST, rows=(RowCount(None, None, 9),))
    assert "holds 9 rows of batch 1, which wrote 10" in only(proved([fewer, SECOND], AT_15)).words


def test_a_batch_in_another_table_is_told_as_such() -> None:
    batch = replace(SECOND, rows=(), target_table="elsewhere")

    assert only(proved([FIRST, batch], AT_15)).words.endswith(
        "rows are missing (into table 'elsewhere', by the history)"
    )


def test_a_transform_decides_how_many_rows_but_not_their_offsets() -> None:
    batch = replace(SECOND, has_transform=True, row_count=2, rows=(tally([11, 11]),))

    assert proved([FIRST, batch], AT_15).violations == []
    violation = only(proved([FIRST, replace(batch, rows=(tally([9, 11]),))], AT_15))
    assert "holds rows of batch 2 at offset 9, outside of what it loaded, 10..15" in violation.words


@pytest.mark.parametrize(("count", "violations"), [(10, 0), (9, 1)])
def test_with_the_batch_alone_rows_are_counted(count: int, violations: int) -> None:
    batch = replace(FIRST, rows=(RowCount(None, None, count),))

    found = proved([batch], {T0: Position(10, ID)}, "batches")

    assert len(found.violations) == violations
    assert found.rows == count


def test_without_any_column_only_the_history_is_proved() -> None:
    bare = [replace(batch, rows=()) for batch in (FIRST, SECOND)]

    assert proved(bare, AT_15, "nothing").rows == 15
    assert proved([bare[0], replace(loaded(2, 11, 15), rows=())], AT_15, "nothing").violations


@pytest.mark.parametrize(("kind", "state", "is_open"), [("load", "planned", True), ("load", "abandoned", False)])
def test_an_open_batch_is_told_and_proves_nothing(kind: str, state: str, is_open: bool) -> None:
    batch = BatchFacts(3, kind, state, ranges=loaded(3, 15, 20).ranges)

    found = proved([FIRST, SECOND, batch], AT_15)

    assert found.violations == []
    assert found.open_batch == (3 if is_open else None)
    assert found.batches == 2


def test_rows_of_an_unknown_batch_are_told_as_such() -> None:
    violation = only(proved([FIRST, SECOND, BatchFacts(7, rows=(tally([15, 16]),))], AT_15))

    assert violation.words.startswith(
        "t[0]: table 'target' holds 2 rows of batch 7, which the state tables do not know"
    )


def test_rows_of_an_unknown_batch_in_several_partitions_are_counted_together() -> None:
    unknown = BatchFacts(7, rows=(tally([15, 16]), tally([3], TopicPartition("t", 1))))

    violation = only(proved([FIRST, SECOND, unknown], AT_15))

    assert violation.words.startswith("t[0]: table 'target' holds 3 rows of batch 7 in 2 partitions, which the state ")


def test_dead_letters_of_a_batch_that_is_not_committed_are_a_violation() -> None:
    batch = BatchFacts(3, state="abandoned", dead_letters=(tally([15]),))

    violation = only(proved([FIRST, SECOND, batch], AT_15))

    assert "dead_letters holds 1 dead letters of batch 3, which is abandoned and not committed" in violation.words


def test_a_dead_letter_outside_of_its_range_is_named() -> None:
    ranges = (replace(SECOND.ranges[0], dead_letters=1, records=6),)
    batch = replace(SECOND, ranges=ranges, dead_letters=(tally([20]),))

    violation = only(proved([FIRST, batch], AT_15))

    assert "dead_letters holds records of batch 2 at offset 20, outside of what it loaded, 10..15" in violation.words


class TestManyViolations:
    LOST = tuple(replace(loaded(n, 10 * n, 10 * n + 10), rows=()) for n in range(1, 1_201))
    OPEN = tuple(BatchFacts(n, "load", "planned", rows=(tally([n]),)) for n in range(2_001, 3_501))

    def test_the_first_are_kept_and_all_are_counted(self) -> None:
        found = proved([FIRST, *self.LOST], {T0: Position(12_010, ID)})
        assert (found.count, len(found.violations)) == (1_200, 1_000)
        assert "of batch 1," in found.violations[0].words

    def test_those_that_are_left_out_have_taken_no_place_of_others(self) -> None:
        wrong = BatchFacts(4_000, "load", "abandoned", rows=(tally([1]),))
        found = proved([*self.OPEN, wrong], {})
        assert found.count == 1_501
        found.leave_out({batch.batch_id for batch in self.OPEN})
        assert (found.count, [violation.batch_id for violation in found.violations]) == (1, [4_000])
