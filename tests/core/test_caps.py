"""How many offsets of a backlog a batch takes. The ids (P08, P19, …) are those of the cases in `docs/semantics.md`."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_kafka_offsets import Limits
from airflow_kafka_offsets.core.offsets import PartitionLog, Position, TopicPartition
from airflow_kafka_offsets.core.planning import UNKNOWN_RECORD_BYTES, Plan, decide, share
from tests.support.examples import examples
from tests.support.plans import T0, offsets


class TestShare:
    def test_a_cap_above_the_total_lag_changes_nothing(self) -> None:
        assert share([3, 0, 4], 7) == [3, 0, 4]

    def test_P19_shares_are_in_proportion_to_lag(self) -> None:
        assert share([1000, 3000, 6000], 1000) == pytest.approx([100, 300, 600], abs=1)

    def test_P19_a_small_partition_beside_a_huge_one_moves(self) -> None:
        assert share([1, 10**9], 100) == [1, 99]

    def test_P19_a_cap_below_the_number_of_partitions_goes_to_the_most_lag(self) -> None:
        assert share([5, 9, 7, 9], 2) == [0, 1, 0, 1]

    @examples(3000)
    @given(lags=st.lists(st.integers(0, 10**12) | st.integers(0, 5), max_size=40), cap=st.integers(1, 10**12))
    def test_P19_properties(self, lags: list[int], cap: int) -> None:
        shares = share(lags, cap)
        waiting = sum(1 for lag in lags if lag)
        assert len(shares) == len(lags)
        assert all(0 <= size <= lag for size, lag in zip(shares, lags, strict=True))
        assert sum(shares) == min(cap, sum(lags))
        if cap >= waiting:
            assert all(size >= 1 for size, lag in zip(shares, lags, strict=True) if lag)
        assert share(lags, cap) == shares

    @examples(1000)
    @given(lags=st.lists(st.integers(1, 10**6), min_size=2, max_size=20), cap=st.integers(1, 10**6))
    def test_P19_more_lag_never_means_a_smaller_share(self, lags: list[int], cap: int) -> None:
        by_lag = sorted(zip(lags, share(lags, cap), strict=True))
        largest_of: dict[int, int] = {}
        for lag, size in by_lag:
            # Partitions with the same lag may differ by the one offset that cannot be divided.
            largest_of[lag] = max(largest_of.get(lag, 0), size)
        sizes = list(largest_of.values())
        assert sizes == sorted(sizes)


class TestBatchesWithoutLimits:
    @pytest.mark.parametrize(
        ("given", "partitions", "appends_files", "expected"),
        [
            (Limits(), 4, False, (2_000_000, 4 << 30)),
            (Limits(time_budget=timedelta(hours=1)), 4, False, (2_000_000, 4 << 30)),
            (Limits(), 200, False, (5_000_000, 4 << 30)),
            (Limits(), 10_000, False, (8_000_000, 4 << 30)),
            (Limits(), 10_000, True, (128_000_000, 512 << 30)),
            (Limits(max_records=10**12), 4, False, (10**12, None)),
            (Limits(max_bytes=10**12), 4, True, (None, 10**12)),
        ],
    )
    def test_what_the_user_says_comes_first(
        self, given: Limits, partitions: int, appends_files: bool, expected: tuple[int | None, int | None]
    ) -> None:
        limits = given.of_batch(partitions, appends_files=appends_files)
        assert (limits.max_records, limits.max_bytes) == expected
        assert limits.time_budget == given.time_budget

    @examples(300)
    @given(lags=st.lists(st.integers(0, 10**9) | st.integers(0, 9), min_size=1, max_size=8), size=st.integers(1, 10**5))
    def test_the_batches_of_a_backlog_are_all_of_it(self, lags: list[int], size: int) -> None:
        limits = Limits().of_batch(len(lags), appends_files=False)
        assert limits.max_records is not None
        assert limits.max_bytes is not None
        logs = {TopicPartition("t", number): PartitionLog(0, lag) for number, lag in enumerate(lags)}
        ends = dict.fromkeys(logs, 0)
        batches = 0
        while True:
            plan = decide(
                {tp: Position(end) for tp, end in ends.items()},
                logs,
                max_records=limits.max_records,
                max_bytes=limits.max_bytes,
                bytes_per_offset={"t": float(size)},
            )
            if not plan.ranges:
                break
            batches += 1
            assert 1 <= offsets(plan) <= limits.max_records
            assert offsets(plan) * size <= max(limits.max_bytes, size)
            assert all(len(one) for one in plan.ranges), "a partition waits for others"
            assert {one.topic_partition: one.start for one in plan.ranges} == {
                tp: end for tp, end in ends.items() if end < logs[tp].end
            }
            ends |= {one.topic_partition: one.end for one in plan.ranges}
            if batches == 50:
                return
        assert ends == {tp: log.end for tp, log in logs.items()}


class TestCapInBytes:
    @staticmethod
    def offsets(max_bytes: int, max_records: int | None = None) -> int:
        logs = {T0: PartitionLog(0, 1000), TopicPartition("u", 0): PartitionLog(0, 3000)}
        sizes = {"t": 100.0, "u": 500.0}
        positions = {tp: Position(0) for tp in logs}
        return offsets(decide(positions, logs, bytes_per_offset=sizes, max_bytes=max_bytes, max_records=max_records))

    def test_everything_that_fits_is_planned(self) -> None:
        assert self.offsets(max_bytes=1_600_000) == 4000

    def test_a_backlog_is_cut_in_proportion_to_its_size(self) -> None:
        assert self.offsets(max_bytes=400_000) == 1000

    def test_the_smaller_of_two_limits_holds(self) -> None:
        assert self.offsets(max_bytes=400_000, max_records=10) == 10
        assert self.offsets(max_bytes=4_000, max_records=1000) == 10

    def test_a_record_larger_than_the_limit_is_loaded_by_itself(self) -> None:
        assert self.offsets(max_bytes=1) == 1

    def test_a_topic_without_a_batch_is_taken_for_records_of_a_kibibyte(self) -> None:
        plan = decide({T0: Position(0)}, {T0: PartitionLog(0, 1000)}, max_bytes=int(10 * UNKNOWN_RECORD_BYTES))
        assert offsets(plan) == 10

    def test_empty_range_needs_no_limit(self) -> None:
        assert decide({T0: Position(9)}, {T0: PartitionLog(0, 9)}, max_bytes=1) == Plan()
