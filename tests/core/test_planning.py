"""Which offsets a batch loads. The ids (P08, P19, …) are those of the cases in `docs/semantics.md`."""

import re
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from airflow_kafka_offsets.core.offsets import Gap, OffsetRange, PartitionLog, Position, TopicPartition, split
from airflow_kafka_offsets.core.planning import (
    UNKNOWN_RECORD_BYTES,
    First,
    OnDataLoss,
    Plan,
    Start,
    check_open,
    decide,
    share,
)
from airflow_kafka_offsets.exceptions import (
    DataLossError,
    KafkaOffsetsError,
    LogTruncatedError,
    NoPositionError,
    PlanningError,
    TopicRecreatedError,
)
from tests.support.examples import examples

T0, T1, T2 = (TopicPartition("t", partition) for partition in range(3))
ID, OTHER_ID = "vVZ4aDWLQP2NkY0pxyHJYA", "Xw-aDWLQP2NkY0pxyHJYBQ"


def bounds(plan: Plan) -> dict[TopicPartition, tuple[int, int]]:
    return {one.topic_partition: (one.start, one.end) for one in plan.ranges}


def offsets(plan: Plan) -> int:
    return sum(map(len, plan.ranges))


class TestStoredPositions:
    def test_a_range_goes_from_the_position_to_the_end_offset(self) -> None:
        plan = decide({T0: Position(5, ID)}, {T0: PartitionLog(0, 9, ID)})
        assert plan == Plan(ranges=(OffsetRange("t", 0, 5, 9, 9, ID, "stored"),))

    def test_a_position_at_the_end_offset_leaves_nothing_to_load(self) -> None:
        assert decide({T0: Position(9)}, {T0: PartitionLog(0, 9)}) == Plan()

    def test_a_position_at_the_beginning_offset_lost_nothing(self) -> None:
        assert bounds(decide({T0: Position(4)}, {T0: PartitionLog(4, 9)})) == {T0: (4, 9)}

    def test_ranges_come_sorted_by_topic_and_partition(self) -> None:
        tps = [TopicPartition(topic, partition) for topic in ("b", "a") for partition in (10, 2)]
        plan = decide({tp: Position(0) for tp in tps}, {tp: PartitionLog(0, 1) for tp in tps})
        assert [one.topic_partition for one in plan.ranges] == sorted(tps)

    def test_positions_of_topics_that_are_not_loaded_do_not_matter(self) -> None:
        plan = decide({T0: Position(1), TopicPartition("other", 0): Position(77)}, {T0: PartitionLog(0, 2)})
        assert bounds(plan) == {T0: (1, 2)}


class TestFirstRun:
    def test_earliest_begins_at_the_beginning_offset(self) -> None:
        plan = decide({}, {T0: PartitionLog(20, 100, ID)}, start="earliest")
        assert plan.ranges == (OffsetRange("t", 0, 20, 100, 100, ID, "earliest"),)

    def test_P20_latest_stores_the_end_offset_and_loads_nothing(self) -> None:
        plan = decide({}, {T0: PartitionLog(20, 100, ID)}, start="latest")
        assert plan == Plan(initial=(OffsetRange("t", 0, 100, 100, 100, ID, "latest"),))

    def test_P20_what_comes_after_latest_is_loaded(self) -> None:
        (stored,) = decide({}, {T0: PartitionLog(0, 4)}, start="latest").initial
        plan = decide({T0: Position(stored.end)}, {T0: PartitionLog(0, 7)}, start="latest")
        assert bounds(plan) == {T0: (4, 7)}

    def test_none_forbids_to_choose_and_names_the_topic(self) -> None:
        with pytest.raises(NoPositionError, match=r"Nothing is stored of topic 't'.*start='earliest'"):
            decide({}, {T0: PartitionLog(0, 3)}, start="none")

    def test_none_names_every_topic_without_a_position(self) -> None:
        logs = {TopicPartition(topic, 0): PartitionLog(0, 3) for topic in ("known", "new_one", "new_two")}
        with pytest.raises(NoPositionError, match=r"(?s)new_one.*new_two") as raised:
            decide({TopicPartition("known", 0): Position(1)}, logs, start="none")
        assert "known" not in str(raised.value).replace("unknown", "")

    def test_none_loads_from_stored_positions(self) -> None:
        assert bounds(decide({T0: Position(1)}, {T0: PartitionLog(0, 3)}, start="none")) == {T0: (1, 3)}

    def test_an_empty_partition_gets_a_position_so_that_a_later_loss_is_seen(self) -> None:
        plan = decide({}, {T0: PartitionLog(7, 7)}, start="earliest")
        assert plan.ranges == ()
        assert [(one.topic_partition, one.start, one.end) for one in plan.initial] == [(T0, 7, 7)]


class TestNewPartitions:
    @pytest.mark.parametrize("start", ["earliest", "latest", "none"])
    def test_P14_new_partitions_begin_at_their_beginning_offset_whatever_start_says(self, start: Start) -> None:
        logs = {T0: PartitionLog(0, 9), T1: PartitionLog(0, 4), T2: PartitionLog(3, 5)}
        plan = decide({T0: Position(9)}, logs, start=start)
        assert bounds(plan) == {T1: (0, 4), T2: (3, 5)}
        assert {one.how for one in plan.ranges} == {"new-partition"}
        assert plan.initial == ()

    def test_a_new_topic_beside_a_known_one_begins_where_start_says(self) -> None:
        logs = {T0: PartitionLog(0, 9), TopicPartition("u", 0): PartitionLog(0, 50)}
        plan = decide({T0: Position(2)}, logs, start="latest")
        assert bounds(plan) == {T0: (2, 9)}
        assert plan.initial == (OffsetRange("u", 0, 50, 50, 50, None, "latest"),)

    def test_a_new_topic_is_refused_under_none_beside_a_known_one(self) -> None:
        logs = {T0: PartitionLog(0, 9), TopicPartition("u", 0): PartitionLog(0, 50)}
        with pytest.raises(NoPositionError, match="'u'"):
            decide({T0: Position(2)}, logs, start="none")


class TestDataLoss:
    def test_P08_lost_offsets_are_an_error_that_counts_them(self) -> None:
        with pytest.raises(
            DataLossError,
            match=re.escape("t[0]: position 10, beginning offset 20, 10 offsets gone"),
        ):
            decide({T0: Position(10)}, {T0: PartitionLog(20, 30)})

    def test_P08_the_message_names_every_partition_and_the_way_out(self) -> None:
        with pytest.raises(DataLossError) as raised:
            decide(
                {T0: Position(1), T1: Position(2), T2: Position(3)},
                {T0: PartitionLog(5, 9), T1: PartitionLog(0, 9), T2: PartitionLog(7, 7)},
            )
        assert "t[0]: position 1, beginning offset 5, 4 offsets gone" in str(raised.value)
        assert "t[2]: position 3, beginning offset 7, 4 offsets gone" in str(raised.value)
        assert "t[1]" not in str(raised.value)
        assert "on_data_loss='skip'" in str(raised.value)

    def test_P08_skip_starts_at_the_beginning_offset_and_records_the_gap(self) -> None:
        plan = decide({T0: Position(10, ID)}, {T0: PartitionLog(20, 30, ID)}, on_data_loss="skip")
        assert plan.ranges == (OffsetRange("t", 0, 20, 30, 30, ID, "skipped-gap"),)
        (gap,) = plan.gaps
        assert (gap.topic, gap.partition, gap.start, gap.end) == ("t", 0, 10, 20)
        assert gap.cause == "expired"
        assert "on_data_loss='skip'" in gap.decision

    def test_P09_an_empty_log_that_ends_at_the_position_is_no_loss(self) -> None:
        assert decide({T0: Position(5)}, {T0: PartitionLog(5, 5)}) == Plan()

    def test_an_empty_log_beyond_the_position_is_a_loss(self) -> None:
        with pytest.raises(DataLossError, match=r"t\[0\]: position 5, beginning offset 8, 3 offsets gone"):
            decide({T0: Position(5)}, {T0: PartitionLog(8, 8)})

    def test_a_gap_without_records_behind_it_gets_an_empty_range_that_moves_the_position(self) -> None:
        plan = decide({T0: Position(5, ID)}, {T0: PartitionLog(8, 8, ID)}, on_data_loss="skip")
        assert plan.ranges == (OffsetRange("t", 0, 8, 8, 8, ID, "skipped-gap"),)
        assert [(gap.start, gap.end) for gap in plan.gaps] == [(5, 8)]
        assert offsets(plan) == 0

    def test_a_gap_of_a_partition_without_a_captured_target_is_recorded_without_loading_it(self) -> None:
        plan = decide(
            {T0: Position(5), T1: Position(0)},
            {T0: PartitionLog(8, 20), T1: PartitionLog(0, 3)},
            on_data_loss="skip",
            targets={T1: 3},
        )
        assert bounds(plan) == {T0: (8, 8), T1: (0, 3)}
        assert [(gap.start, gap.end) for gap in plan.gaps] == [(5, 8)]

    def test_a_first_run_loses_nothing(self) -> None:
        assert bounds(decide({}, {T0: PartitionLog(1000, 1001)})) == {T0: (1000, 1001)}


class TestRecreatedTopic:
    def test_P11_a_recreated_topic_that_is_shorter_is_not_taken_for_a_truncated_log(self) -> None:
        with pytest.raises(TopicRecreatedError):
            decide({T0: Position(100, OTHER_ID)}, {T0: PartitionLog(0, 2, ID)})

    def test_P12_a_recreated_topic_is_recognised_though_its_log_covers_the_position(self) -> None:
        with pytest.raises(TopicRecreatedError) as raised:
            decide({T0: Position(5, OTHER_ID)}, {T0: PartitionLog(0, 10, ID)})
        for told in ("t[0]", "position 5", OTHER_ID, ID, "0..10", "group_id"):
            assert told in str(raised.value)

    def test_a_recreated_topic_is_not_skipped_as_data_loss(self) -> None:
        with pytest.raises(TopicRecreatedError):
            decide({T0: Position(5, OTHER_ID)}, {T0: PartitionLog(8, 10, ID)}, on_data_loss="skip")

    def test_fewer_partitions_than_stored_are_a_recreated_topic(self) -> None:
        with pytest.raises(TopicRecreatedError, match=r"t\[1\]: position 7 is stored.*no such partition"):
            decide({T0: Position(1), T1: Position(7)}, {T0: PartitionLog(0, 9)})

    @pytest.mark.parametrize(("stored", "reported"), [(None, ID), (ID, None), (None, None)])
    def test_an_id_that_nobody_reported_is_not_compared(self, stored: str | None, reported: str | None) -> None:
        plan = decide({T0: Position(1, stored)}, {T0: PartitionLog(0, 2, reported)})
        assert bounds(plan) == {T0: (1, 2)}

    def test_the_range_carries_the_id_that_is_reported_now(self) -> None:
        (one,) = decide({T0: Position(1, None)}, {T0: PartitionLog(0, 2, ID)}).ranges
        assert one.topic_id == ID


class TestTruncatedLog:
    def test_a_position_beyond_the_end_of_the_same_topic_is_a_truncated_log(self) -> None:
        with pytest.raises(LogTruncatedError) as raised:
            decide(
                {T0: Position(10, ID), T1: Position(3, ID)}, {T0: PartitionLog(0, 9, ID), T1: PartitionLog(0, 9, ID)}
            )
        assert "t[0]: position 10 is beyond the end offset 9" in str(raised.value)
        assert "t[1]" not in str(raised.value)

    def test_it_is_an_error_under_skip_too(self) -> None:
        with pytest.raises(LogTruncatedError):
            decide({T0: Position(10)}, {T0: PartitionLog(0, 9)}, on_data_loss="skip")

    def test_it_is_an_error_though_the_captured_target_is_reached(self) -> None:
        with pytest.raises(LogTruncatedError):
            decide({T0: Position(10)}, {T0: PartitionLog(0, 9)}, targets={T0: 10})


class TestCapturedTargets:
    def test_a_task_instance_loads_up_to_the_ends_it_captured(self) -> None:
        plan = decide({T0: Position(3)}, {T0: PartitionLog(0, 100)}, targets={T0: 10})
        assert plan.ranges == (OffsetRange("t", 0, 3, 10, 10),)

    def test_a_reached_target_leaves_nothing_to_load(self) -> None:
        assert decide({T0: Position(10)}, {T0: PartitionLog(0, 100)}, targets={T0: 10}) == Plan()

    def test_a_position_beyond_the_target_is_never_moved_back(self) -> None:
        assert decide({T0: Position(50)}, {T0: PartitionLog(0, 100)}, targets={T0: 10}) == Plan()

    def test_a_partition_that_was_not_captured_is_left_to_the_next_task_instance(self) -> None:
        logs = {T0: PartitionLog(0, 100), T1: PartitionLog(0, 5)}
        assert bounds(decide({T0: Position(3)}, logs, targets={T0: 10})) == {T0: (3, 10)}

    def test_a_target_beyond_the_end_offset_is_not_waited_for(self) -> None:
        assert bounds(decide({T0: Position(3)}, {T0: PartitionLog(0, 8)}, targets={T0: 10})) == {T0: (3, 8)}

    def test_a_capped_range_remembers_the_uncapped_end(self) -> None:
        (one,) = decide({T0: Position(0)}, {T0: PartitionLog(0, 100)}, max_records=10).ranges
        assert (one.end, one.target) == (10, 100)

    def test_a_partition_whose_share_is_nothing_has_an_empty_range_that_remembers_its_target(self) -> None:
        logs = {T0: PartitionLog(0, 5), T1: PartitionLog(0, 9)}
        plan = decide({T0: Position(0), T1: Position(0)}, logs, max_records=1)
        assert {one.topic_partition: (one.start, one.end, one.target) for one in plan.ranges} == {
            T0: (0, 0, 5),
            T1: (0, 1, 9),
        }


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

    def test_nothing_to_load_needs_no_limit(self) -> None:
        assert decide({T0: Position(9)}, {T0: PartitionLog(0, 9)}, max_bytes=1) == Plan()


class TestResolvedStarts:
    def test_a_topic_begins_where_its_partitions_were_found_to(self) -> None:
        logs = {T0: PartitionLog(0, 9, ID), T1: PartitionLog(0, 9, ID)}
        plan = decide({}, logs, start={T0: First(4, "timestamp"), T1: First(9, "timestamp")})
        assert plan.ranges == (OffsetRange("t", 0, 4, 9, 9, ID, "timestamp"),)
        assert plan.initial == (OffsetRange("t", 1, 9, 9, 9, ID, "timestamp"),)

    def test_known_topics_need_none(self) -> None:
        assert bounds(decide({T0: Position(3)}, {T0: PartitionLog(0, 9)}, start={})) == {T0: (3, 9)}

    def test_what_a_group_committed_and_retention_took_is_lost_too(self) -> None:
        logs = {T0: PartitionLog(7, 9)}
        with pytest.raises(DataLossError, match=re.escape("t[0]: position 5, beginning offset 7, 2 offsets gone")):
            decide({}, logs, start={T0: First(5, "group")})
        plan = decide({}, logs, start={T0: First(5, "group")}, on_data_loss="skip")
        assert [(one.start, one.end, one.how) for one in plan.ranges] == [(7, 9, "group")]
        assert [(gap.start, gap.end) for gap in plan.gaps] == [(5, 7)]

    def test_a_commit_beyond_the_end_offset_is_not_taken(self) -> None:
        with pytest.raises(LogTruncatedError, match=re.escape("t[0]: position 10 is beyond the end offset 9")):
            decide({}, {T0: PartitionLog(0, 9)}, start={T0: First(10, "group")})


class TestLeaderEpoch:
    def test_a_leader_epoch_that_went_back_is_a_log_that_was_cut(self) -> None:
        with pytest.raises(LogTruncatedError, match=r"t\[0\]: .* leader epoch 7, the leader is of epoch 6 now"):
            decide({T0: Position(5, ID, 7)}, {T0: PartitionLog(0, 9, ID, 6)})

    @pytest.mark.parametrize(("stored", "current"), [(7, 7), (7, 8), (None, 3), (7, None)])
    def test_a_later_epoch_and_an_unknown_one_are_no_error(self, stored: int | None, current: int | None) -> None:
        plan = decide({T0: Position(5, ID, stored)}, {T0: PartitionLog(0, 9, ID, current)})
        assert [one.leader_epoch for one in plan.ranges] == [stored]

    def test_behind_a_gap_no_epoch_is_known(self) -> None:
        plan = decide({T0: Position(5, ID, 3)}, {T0: PartitionLog(7, 9, ID, 4)}, on_data_loss="skip")
        assert [(one.leader_epoch, one.epoch_after) for one in plan.ranges] == [(None, 4)]

    @pytest.mark.parametrize("end", [9, None], ids=["whole", "capped"])
    def test_the_epoch_behind_a_range_is_that_of_the_leader_that_told_the_end(self, end: int | None) -> None:
        plan = decide({T0: Position(5, ID, 3)}, {T0: PartitionLog(0, 9, ID, 4)}, max_records=None if end else 2)
        (one,) = plan.ranges
        assert (one.end, one.leader_epoch, one.end_epoch, one.epoch_after) == (end or 7, 3, 4, 4)

    def test_so_it_is_of_a_position_that_is_stored_without_loading(self) -> None:
        plan = decide({}, {T0: PartitionLog(0, 9, ID, 4)}, start="latest")
        assert [(one.leader_epoch, one.end_epoch, one.epoch_after) for one in plan.initial] == [(None, 4, 4)]

    def test_a_range_of_which_nothing_is_read_leaves_the_epoch_of_its_position(self) -> None:
        """Nobody asked whether the log was cut before the position: a later leader's epoch would hide it for ever."""
        logs = {T0: PartitionLog(0, 9, ID, 4), T1: PartitionLog(0, 99, ID, 4)}
        plan = decide({T0: Position(5, ID, 3), T1: Position(5, ID, 3)}, logs, max_records=1)
        assert [(len(one), one.end_epoch, one.epoch_after) for one in plan.ranges] == [(0, 4, 3), (1, 4, 4)]

    @pytest.mark.parametrize("epoch", [3, 4, None])
    def test_a_leader_before_that_of_an_open_plan_is_that_of_a_log_that_was_cut(self, epoch: int | None) -> None:
        ranges = decide({T0: Position(5, ID, 3)}, {T0: PartitionLog(0, 9, ID, 4)}).ranges
        logs = {T0: PartitionLog(0, 9, ID, epoch)}
        if epoch != 3:
            assert check_open(ranges, logs, "fail")
            return
        with pytest.raises(
            LogTruncatedError, match=r"t\[0\]: position 9 .* leader epoch 4, the leader is of epoch 3 now"
        ):
            check_open(ranges, logs, "fail")


@examples(2000)
@given(
    timestamps=st.lists(st.integers(0, 20), min_size=1, max_size=40),
    loads=st.lists(
        st.tuples(
            st.integers(0, 40),  # how many records are there by then
            st.none() | st.integers(0, 22),  # until
            st.none() | st.integers(1, 9),  # max_records
        ),
        min_size=1,
        max_size=8,
    ),
)
@example(timestamps=[2, 0], loads=[(1, 2, None), (2, 1, None)])
@example(timestamps=[1, 3, 2], loads=[(2, 3, None), (3, 3, None), (3, 4, None)])
def test_loads_up_to_instants_load_every_record_once_and_late_ones_with_the_next(
    timestamps: list[int], loads: list[tuple[int, int | None, int | None]]
) -> None:
    """A model of reader and commit beside the real decision: what Kafka calls the offset of a time, and positions."""

    def offset_of(instant: int, end: int) -> int:
        return next((o for o, timestamp in enumerate(timestamps[:end]) if timestamp >= instant), end)

    position = Position(0)
    loaded: list[int] = []
    written = 0
    for more, until, max_records in loads:
        written = max(written, min(more, len(timestamps)))
        start = position.offset
        targets = {T0: offset_of(until, written)} if until is not None else None
        for _ in range(written + 2):
            plan = decide({T0: position}, {T0: PartitionLog(0, written)}, targets=targets, max_records=max_records)
            if not plan.ranges:
                break
            (one,) = plan.ranges
            loaded += [offset for piece in split(plan.ranges, 3) for offset in range(piece.start, piece.end)]
            position = Position(one.end)
        else:
            pytest.fail("the load does not come to an end")
        if until is None:
            assert position.offset == written
        else:
            # The first record at or after the instant is left, with all that arrived after it, however old.
            assert position.offset == max(start, offset_of(until, written))
            assert all(timestamps[offset] < until for offset in loaded if offset >= start)
    assert loaded == list(range(position.offset)), "a record was loaded twice, or passed over"
    # A load without a bound loads what was left.
    loaded += [
        o
        for one in decide({T0: position}, {T0: PartitionLog(0, len(timestamps))}).ranges
        for o in range(one.start, one.end)
    ]
    assert loaded == list(range(len(timestamps)))


# Everything that can be true of a cluster and of what is stored, without any relation between the two.

_topic_ids = st.sampled_from([None, ID, OTHER_ID])


@st.composite
def worlds(draw: st.DrawFn) -> tuple[dict[TopicPartition, Position], dict[TopicPartition, PartitionLog]]:
    positions: dict[TopicPartition, Position] = {}
    logs: dict[TopicPartition, PartitionLog] = {}
    for topic in draw(st.sampled_from([["a"], ["a", "b"], ["b", "a", "c"]])):
        topic_id, stored_id = draw(st.sampled_from([(ID, ID)] * 4 + [(None, ID), (ID, None), (ID, OTHER_ID)]))
        for partition in range(draw(st.integers(1, 4))):
            beginning = draw(st.integers(0, 30))
            end = beginning + draw(st.integers(0, 30))
            logs[TopicPartition(topic, partition)] = PartitionLog(beginning, end, topic_id)
            if draw(st.booleans()):
                offset = draw(st.integers(beginning, end) | st.integers(0, 70))
                positions[TopicPartition(topic, partition)] = Position(offset, stored_id)
    return positions, logs


@st.composite
def sound_worlds(draw: st.DrawFn) -> tuple[dict[TopicPartition, Position], dict[TopicPartition, PartitionLog]]:
    """Positions that fit their logs, apart from records that are gone."""
    positions, logs = draw(worlds())
    positions = {tp: replace(at, offset=min(at.offset, logs[tp].end), topic_id=None) for tp, at in positions.items()}
    return positions, logs


options = {
    "start": st.sampled_from(["earliest", "latest", "none"]),
    "on_data_loss": st.sampled_from(["fail", "skip"]),
    "max_records": st.none() | st.integers(1, 60),
}


@examples(1500)
@given(
    world=worlds(),
    targets=st.none() | st.dictionaries(st.sampled_from([T0, T1]), st.integers(0, 70)),
    **options,
)
def test_a_plan_is_within_the_logs_and_starts_at_the_position_or_by_a_documented_decision(
    world: tuple[dict[TopicPartition, Position], dict[TopicPartition, PartitionLog]],
    targets: dict[TopicPartition, int] | None,
    start: Start,
    on_data_loss: OnDataLoss,
    max_records: int | None,
) -> None:
    positions, logs = world
    try:
        plan = decide(positions, logs, start=start, on_data_loss=on_data_loss, max_records=max_records, targets=targets)
    except PlanningError:
        return
    gaps = {TopicPartition(gap.topic, gap.partition): gap for gap in plan.gaps}
    planned = [one.topic_partition for one in (*plan.ranges, *plan.initial)]
    assert len(set(planned)) == len(planned)
    for one in (*plan.ranges, *plan.initial):
        tp, log = one.topic_partition, logs[one.topic_partition]
        assert log.beginning <= one.start <= one.end <= one.target <= log.end
        assert one.topic_id == log.topic_id
        starts = {
            "stored": positions[tp].offset if tp in positions else None,
            "earliest": log.beginning,
            "new-partition": log.beginning,
            "latest": log.end,
            "skipped-gap": log.beginning,
        }
        assert one.start == starts[one.how]
        assert (one.how == "skipped-gap") == (tp in gaps)
    for tp, gap in gaps.items():
        assert on_data_loss == "skip"
        assert tp in planned
        assert (gap.start, gap.end) == (positions[tp].offset, logs[tp].beginning)
        assert gap.start < gap.end
    assert all(one.topic_partition not in positions and len(one) == 0 for one in plan.initial)
    assert set(logs) - set(positions) <= set(planned), "a partition stays without a position"


@examples(1000)
@given(world=sound_worlds(), cap=st.integers(1, 150))
def test_P19_a_capped_plan_spans_the_cap_or_all_there_is(
    world: tuple[dict[TopicPartition, Position], dict[TopicPartition, PartitionLog]], cap: int
) -> None:
    positions, logs = world
    everything = decide(positions, logs, on_data_loss="skip")
    capped = decide(positions, logs, on_data_loss="skip", max_records=cap)
    assert offsets(capped) == min(cap, offsets(everything))
    assert [(one.topic_partition, one.start, one.target) for one in capped.ranges] == [
        (one.topic_partition, one.start, one.end) for one in everything.ranges
    ]
    if cap >= sum(1 for one in everything.ranges if len(one)):
        assert [len(one) > 0 for one in capped.ranges] == [len(one) > 0 for one in everything.ranges]


@examples(500)
@given(world=worlds(), **options)
def test_the_same_input_gives_the_same_plan_in_any_order(
    world: tuple[dict[TopicPartition, Position], dict[TopicPartition, PartitionLog]],
    start: Start,
    on_data_loss: OnDataLoss,
    max_records: int | None,
) -> None:
    def outcome(
        positions: Mapping[TopicPartition, Position], logs: Mapping[TopicPartition, PartitionLog]
    ) -> Plan | tuple[type[KafkaOffsetsError], str]:
        try:
            return decide(positions, logs, start=start, on_data_loss=on_data_loss, max_records=max_records)
        except PlanningError as error:
            return type(error), str(error)

    positions, logs = world
    reordered = dict(reversed(positions.items())), dict(reversed(logs.items()))
    assert outcome(positions, logs) == outcome(*reordered)


@examples(1000)
@given(
    world=sound_worlds(),
    max_records=st.none() | st.integers(1, 25),
    growth=st.lists(st.integers(0, 9), min_size=1, max_size=8),
)
def test_successive_plans_load_everything_exactly_once_up_to_the_captured_targets(
    world: tuple[dict[TopicPartition, Position], dict[TopicPartition, PartitionLog]],
    max_records: int | None,
    growth: list[int],
) -> None:
    positions, logs = world
    expected = decide(positions, logs, on_data_loss="skip")
    assume(expected.ranges)
    loaded: dict[TopicPartition, list[int]] = {one.topic_partition: [] for one in expected.ranges}
    skipped: list[Gap] = []
    targets: dict[TopicPartition, int] | None = None
    # Each batch loads an offset, or is the one that records the gaps.
    for batch in range(offsets(expected) + 2):
        plan = decide(positions, logs, on_data_loss="skip", max_records=max_records, targets=targets)
        if not plan.ranges:
            break
        if targets is None:
            targets = {one.topic_partition: one.target for one in plan.ranges}
        skipped += plan.gaps
        for one in plan.ranges:
            loaded[one.topic_partition] += range(one.start, one.end)
            positions[one.topic_partition] = Position(one.end, one.topic_id)
        # Producers do not wait for the load.
        added = growth[batch % len(growth)]
        logs = {tp: replace(log, end=log.end + added) for tp, log in logs.items()}
    else:
        pytest.fail("the load does not come to an end")
    assert loaded == {one.topic_partition: list(range(one.start, one.end)) for one in expected.ranges}
    assert skipped == list(expected.gaps)


class TestOpenBatch:
    RANGE = OffsetRange("t", 0, 10, 20, 20, ID)

    def test_a_range_that_is_still_in_the_log_goes_on(self) -> None:
        assert check_open([self.RANGE], {T0: PartitionLog(10, 20, ID)}, "fail") is True

    def test_a_recreated_topic_is_an_error_even_where_its_log_covers_the_range(self) -> None:
        with pytest.raises(TopicRecreatedError, match=r"t\[0\]"):
            check_open([self.RANGE], {T0: PartitionLog(0, 500, "another")}, "skip")

    def test_a_log_that_ends_before_the_range_is_truncated(self) -> None:
        with pytest.raises(LogTruncatedError, match=r"t\[0\]"):
            check_open([self.RANGE], {T0: PartitionLog(0, 19, ID)}, "skip")

    def test_an_expired_start_is_data_loss_or_a_reason_to_plan_anew(self) -> None:
        logs = {T0: PartitionLog(15, 20, ID)}
        with pytest.raises(DataLossError, match=r"t\[0\]: position 10, beginning offset 15, 5 offsets gone"):
            check_open([self.RANGE], logs, "fail")
        assert check_open([self.RANGE], logs, "skip") is False
