"""Where the ranges of a batch begin and end. The ids (P08, P19, …) are those of the cases in `docs/semantics.md`."""

import re

import pytest

from airflow_kafka_offsets.core.offsets import OffsetRange, PartitionLog, Position, TopicPartition
from airflow_kafka_offsets.core.planning import First, Plan, Start, decide
from airflow_kafka_offsets.exceptions import DataLossError, LogTruncatedError, NoPositionError
from tests.support.plans import ID, T0, T1, T2, bounds


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
        with pytest.raises(NoPositionError, match=r"There is no stored position of topic 't'.*start='earliest'"):
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


class TestResolvedStarts:
    def test_a_topic_begins_where_its_partitions_were_found_to(self) -> None:
        logs = {T0: PartitionLog(0, 9, ID), T1: PartitionLog(0, 9, ID)}
        plan = decide({}, logs, start={T0: First(4, "timestamp"), T1: First(9, "timestamp")})
        assert plan.ranges == (OffsetRange("t", 0, 4, 9, 9, ID, "timestamp"),)
        assert plan.initial == (OffsetRange("t", 1, 9, 9, 9, ID, "timestamp"),)

    def test_known_topics_need_none(self) -> None:
        assert bounds(decide({T0: Position(3)}, {T0: PartitionLog(0, 9)}, start={})) == {T0: (3, 9)}

    def test_committed_offsets_that_expired_are_lost_too(self) -> None:
        logs = {T0: PartitionLog(7, 9)}
        with pytest.raises(DataLossError, match=re.escape("t[0]: position 5, beginning offset 7, 2 offsets gone")):
            decide({}, logs, start={T0: First(5, "group")})
        plan = decide({}, logs, start={T0: First(5, "group")}, on_data_loss="skip")
        assert [(one.start, one.end, one.how) for one in plan.ranges] == [(7, 9, "group")]
        assert [(gap.start, gap.end) for gap in plan.gaps] == [(5, 7)]

    def test_a_commit_beyond_the_end_offset_is_not_taken(self) -> None:
        with pytest.raises(LogTruncatedError, match=re.escape("t[0]: position 10 is beyond the end offset 9")):
            decide({}, {T0: PartitionLog(0, 9)}, start={T0: First(10, "group")})
