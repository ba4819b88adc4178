"""Bounds of replays: what is read, what is refused, and how ranges are held against logs and cut."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_kafka_offsets.core.offsets import Gap, OffsetRange, PartitionLog, TopicPartition
from airflow_kafka_offsets.core.planning import Plan
from airflow_kafka_offsets.exceptions import ConfigurationError, DataLossError, LogTruncatedError, TopicRecreatedError
from airflow_kafka_offsets.ledger.batch_rows import Batch
from airflow_kafka_offsets.replaying.bounds import (
    BatchBounds,
    OffsetBounds,
    TimeBounds,
    bounds_as_json,
    check_bounds,
    cut_into_parts,
    describe_bounds,
    fit_to_logs,
    requested_ranges,
)

ID, OTHER_ID = "vVZ4aDWLQP2NkY0pxyHJYA", "MkU3OEVBNTcwNTJENDM2Qg"
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def one(partition: int, start: int, end: int, topic_id: str | None = None) -> OffsetRange:
    return OffsetRange("t", partition, start, end, end, topic_id, "replay")


class TestOffsets:
    @pytest.mark.parametrize(
        "given_as",
        [
            {"t": {1: (5, 9), 0: [0, 3]}},
            {"t": {"0": ["0", "3"], "1": [5, 9]}},
            {"t": {0: [0.0, Decimal("3.0")], 1: (5, 9)}},
            json.dumps({"t": {"0": [0, 3], "1": [5, 9]}}),
            [
                {"topic": "t", "partition": 1, "start": 5, "end": 9},
                {"topic": "t", "partition": 0, "start": 0, "end": 3},
            ],
        ],
        ids=["mapping", "text-keys", "whole-numbers", "json", "list"],
    )
    def test_every_shape_is_read_alike(self, given_as: Any) -> None:
        assert OffsetBounds(given_as).read() == (one(0, 0, 3), one(1, 5, 9))

    @pytest.mark.parametrize(
        "wrong",
        [
            *(
                "nothing",
                {"t": [0, 3]},
                {"t": {0: 3}},
                {"t": {0: (1, 2, 3)}},
                [{"topic": "t"}],
                7,
                {"t": {"x": (1, 2)}},
            ),
            *({"t": {0: (0.9, 2.9)}}, {"t": {0: (False, True)}}, {"t": {0: (0, 2**63)}}, '{"t": {"0": [0, 1e999]}}'),
            *({"t": {0: ("0", "+1")}}, "[" * 100_000),
        ],
        ids=[
            *("text", "no-partitions", "no-pair", "triple", "no-offsets", "number", "no-number"),
            *("fractions", "truth-values", "too-high", "infinite", "signed-text", "deep"),
        ],
    )
    def test_another_shape_is_refused_with_the_value(self, wrong: Any) -> None:
        with pytest.raises(ConfigurationError, match=r'OffsetBounds.ranges must be like {"orders": .*; got ranges='):
            OffsetBounds(wrong).read()

    @pytest.mark.parametrize("pair", [(-1, 3), (4, 3)], ids=["negative", "backwards"])
    def test_offsets_that_cannot_be_are_refused(self, pair: tuple[int, int]) -> None:
        with pytest.raises(ConfigurationError, match="must not be negative or end before they start"):
            OffsetBounds({"t": {0: pair}}).read()

    def test_a_partition_is_named_once(self) -> None:
        twice = [{"topic": "t", "partition": 0, "start": start, "end": start + 1} for start in (0, 5)]
        with pytest.raises(ConfigurationError, match=r"each partition once; got t\[0\] 0..1, t\[0\] 5..6"):
            OffsetBounds(twice).read()

    def test_planned_bounds_keep_their_topic_id(self) -> None:
        plain = bounds_as_json([one(0, 0, 3)], {T0: PartitionLog(0, 9, ID)})

        assert OffsetBounds(json.loads(json.dumps(plain))).read() == (one(0, 0, 3, ID),)


class TestCheck:
    def test_a_mapping_means_offsets(self) -> None:
        assert check_bounds({"t": {0: (0, 3)}}, ["t"]) == OffsetBounds({"t": {0: (0, 3)}})

    def test_a_topic_that_is_not_of_the_pipeline_is_refused(self) -> None:
        with pytest.raises(ConfigurationError, match="name topic 't'; the topics of this replay are 'u', 'v'"):
            check_bounds({"t": {0: (0, 3)}}, ["u", "v"])

    def test_instants_the_wrong_way_round_are_refused(self) -> None:
        with pytest.raises(ConfigurationError, match="until must be after since"):
            TimeBounds("2026-01-02", "2026-01-01")

    @pytest.mark.parametrize("number", [0, 2**63, "7"])
    def test_a_batch_is_a_number(self, number: Any) -> None:
        with pytest.raises(ConfigurationError, match=f"got batch_id={number!r}"):
            check_bounds(BatchBounds(number), ["t"])


def test_the_history_names_equal_bounds_alike() -> None:
    assert describe_bounds(OffsetBounds({"t": {1: (5, 9), 0: (0, 3)}}), ["t"]) == "offsets t[0] 0..3, t[1] 5..9"
    assert describe_bounds(BatchBounds(7), ["t"]) == "the ranges of batch 7"
    since = "u, t since 2026-01-01T00:00:00+00:00 until 2026-01-02T00:00:00+00:00".replace("u, t", "t, u")
    assert describe_bounds(TimeBounds("2026-01-01", datetime(2026, 1, 2, tzinfo=UTC)), ["u", "t"]) == since
    assert describe_bounds(TimeBounds("2026-01-01"), ["t"]) == "t since 2026-01-01T00:00:00+00:00 up to the end"


class TestFit:
    LOGS: ClassVar = {T0: PartitionLog(10, 100, ID, 4)}

    def test_bounds_inside_of_the_log_are_a_range(self) -> None:
        assert fit_to_logs([one(0, 10, 100)], self.LOGS, "fail") == Plan(
            (OffsetRange("t", 0, 10, 100, 100, ID, "replay", end_epoch=4),)
        )

    def test_expired_offsets_are_an_error_that_names_them(self) -> None:
        with pytest.raises(
            DataLossError, match=r"t\[0\]: offsets 5..10 are gone, the beginning offset is 10.*on_data_loss='skip'"
        ):
            fit_to_logs([one(0, 5, 20)], self.LOGS, "fail")

    def test_expired_offsets_may_be_skipped_and_are_recorded(self) -> None:
        plan = fit_to_logs([one(0, 5, 20)], self.LOGS, "skip")

        assert [(each.start, each.end) for each in plan.ranges] == [(10, 20)]
        assert [(gap.start, gap.end, gap.cause) for gap in plan.gaps] == [(5, 10, "expired")]

    def test_a_range_that_is_gone_as_a_whole_is_a_gap_and_nothing_else(self) -> None:
        plan = fit_to_logs([one(0, 5, 8)], self.LOGS, "skip")

        assert [(each.start, each.end) for each in plan.ranges] == [(8, 8)]
        assert [(gap.start, gap.end) for gap in plan.gaps] == [(5, 8)]

    @pytest.mark.parametrize("on_data_loss", ["fail", "skip"])
    def test_bounds_beyond_the_end_are_not_clamped(self, on_data_loss: Any) -> None:
        with pytest.raises(
            ConfigurationError, match=r"t\[0\] 10..101: the log ends at offset 100; t\[1\] 0..1: the topic has no"
        ):
            fit_to_logs([one(0, 10, 101), one(1, 0, 1)], self.LOGS, on_data_loss)

    def test_offsets_of_an_earlier_topic_mean_nothing(self) -> None:
        with pytest.raises(TopicRecreatedError, match=OTHER_ID):
            fit_to_logs([one(0, 10, 20, OTHER_ID)], self.LOGS, "skip")

    def test_offsets_that_were_there_and_are_not_are_a_cut_log(self) -> None:
        with pytest.raises(LogTruncatedError, match="101 is beyond the end offset 100"):
            fit_to_logs([one(0, 10, 101, ID)], self.LOGS, "skip")


def test_planned_range_includes_expired_offsets() -> None:
    batch = Batch(1, "g", "planned", (one(0, 10, 20), one(1, 0, 5)), (Gap("t", 0, 5, 10, "expired", "skipped"),))

    assert [(each.start, each.end) for each in requested_ranges(batch)] == [(5, 20), (0, 5)]


class TestCut:
    @given(
        st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 50)), max_size=6),
        st.integers(1, 60),
    )
    def test_the_parts_are_exactly_the_ranges_and_of_nearly_equal_size(
        self, sizes: list[tuple[int, int]], parts: int
    ) -> None:
        ranges = [one(partition, start, start + size) for partition, (start, size) in enumerate(sizes)]

        pieces = cut_into_parts(ranges, parts)

        offsets = [
            (each.topic_partition, offset) for part in pieces for each in part for offset in range(each.start, each.end)
        ]
        assert offsets == [(each.topic_partition, offset) for each in ranges for offset in range(each.start, each.end)]
        counts = [sum(map(len, part)) for part in pieces]
        assert len(pieces) == min(parts, len(offsets))
        assert not counts or (min(counts) >= 1 and max(counts) - min(counts) <= 1)
        assert pieces == cut_into_parts(ranges, parts)

    def test_only_the_first_piece_starts_with_the_ranges_epoch(self) -> None:
        begun = OffsetRange("t", 0, 0, 10, 10, ID, "replay", leader_epoch=3)

        assert [[each.leader_epoch for each in part] for part in cut_into_parts([begun], 2)] == [[3], [None]]
