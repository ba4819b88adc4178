"""Positions and open batches whose records are gone, or whose log is another one. The ids (P08, P19, …) are those of
the cases in `docs/semantics.md`.
"""

import re

import pytest

from airflow_kafka_offsets.core.offsets import OffsetRange, PartitionLog, Position
from airflow_kafka_offsets.core.planning import Plan, can_still_be_read, decide
from airflow_kafka_offsets.exceptions import DataLossError, LogTruncatedError, TopicRecreatedError
from tests.support.plans import ID, OTHER_ID, T0, T1, T2, bounds, offsets


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

    def test_a_truncated_log_is_an_error_under_skip_too(self) -> None:
        with pytest.raises(LogTruncatedError):
            decide({T0: Position(10)}, {T0: PartitionLog(0, 9)}, on_data_loss="skip")

    def test_a_truncated_log_is_an_error_though_the_captured_target_is_reached(self) -> None:
        with pytest.raises(LogTruncatedError):
            decide({T0: Position(10)}, {T0: PartitionLog(0, 9)}, targets={T0: 10})


class TestLeaderEpoch:
    def test_a_leader_epoch_that_went_back_is_a_log_that_was_cut(self) -> None:
        with pytest.raises(LogTruncatedError, match=r"t\[0\]: .* leader epoch 7, the leader has epoch 6 now"):
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
            assert can_still_be_read(ranges, logs, "fail")
            return
        with pytest.raises(
            LogTruncatedError, match=r"t\[0\]: position 9 .* leader epoch 4, the leader has epoch 3 now"
        ):
            can_still_be_read(ranges, logs, "fail")


class TestOpenBatch:
    RANGE = OffsetRange("t", 0, 10, 20, 20, ID)

    def test_a_range_that_is_still_in_the_log_goes_on(self) -> None:
        assert can_still_be_read([self.RANGE], {T0: PartitionLog(10, 20, ID)}, "fail") is True

    def test_a_recreated_topic_is_an_error_even_where_its_log_covers_the_range(self) -> None:
        with pytest.raises(TopicRecreatedError, match=r"t\[0\]"):
            can_still_be_read([self.RANGE], {T0: PartitionLog(0, 500, "another")}, "skip")

    def test_a_log_that_ends_before_the_range_is_truncated(self) -> None:
        with pytest.raises(LogTruncatedError, match=r"t\[0\]"):
            can_still_be_read([self.RANGE], {T0: PartitionLog(0, 19, ID)}, "skip")

    def test_an_expired_start_is_data_loss_or_a_reason_to_plan_anew(self) -> None:
        logs = {T0: PartitionLog(15, 20, ID)}
        with pytest.raises(DataLossError, match=r"t\[0\]: position 10, beginning offset 15, 5 offsets gone"):
            can_still_be_read([self.RANGE], logs, "fail")
        assert can_still_be_read([self.RANGE], logs, "skip") is False
