"""How far a group is behind. The ids (L01, L02, …) are those of the cases in `docs/semantics.md`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_kafka_offsets.core.offsets import PartitionLog, Position, TopicPartition
from airflow_kafka_offsets.core.planning import First, Start, decide
from airflow_kafka_offsets.lag.report import Committed, LagReport, PartitionLag, evaluate

T0, T1, T2 = (TopicPartition("t", partition) for partition in range(3))
U0 = TopicPartition("u", 0)
ID, OTHER_ID = "vVZ4aDWLQP2NkY0pxyHJYA", "Xw-aDWLQP2NkY0pxyHJYBQ"
NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
LAST = datetime.max.replace(tzinfo=UTC)


def at(offset: int, timestamp: datetime | None = None, topic_id: str | None = None) -> Committed:
    return Committed(Position(offset, topic_id), timestamp)


def measured(
    committed: Committed,
    log: PartitionLog,
    waiting: dict[TopicPartition, datetime] | None = None,
    retention: timedelta | None = None,
) -> PartitionLag:
    kept = {"t": retention} if retention is not None else None
    report = evaluate({T0: committed}, {T0: log}, now=NOW, waiting=waiting, retention=kept)
    (one,) = report.partitions
    return one


class TestOffsets:
    def test_L01_the_lag_is_what_lies_between_the_position_and_the_end(self) -> None:
        one = measured(at(50), PartitionLog(20, 100))
        assert (one.position, one.beginning, one.end, one.lag, one.lost) == (50, 20, 100, 50, 0)

    @pytest.mark.parametrize(
        ("start", "lag"),
        [("earliest", 80), ("latest", 0), ("none", 80), ({T0: First(90, "timestamp")}, 10)],
        ids=["earliest", "latest", "none", "timestamp"],
    )
    def test_L02_without_a_position_the_lag_is_what_the_first_load_would_find(self, start: Start, lag: int) -> None:
        (one,) = evaluate({}, {T0: PartitionLog(20, 100)}, now=NOW, start=start).partitions
        assert (one.lag, one.lost, one.position, one.headroom, one.flags) == (lag, 0, None, None, ("no position",))

    def test_a_new_partition_of_a_known_topic_begins_at_its_beginning_whatever_start_says(self) -> None:
        report = evaluate({T0: at(100)}, dict.fromkeys((T0, T1), PartitionLog(20, 100)), now=NOW, start="latest")
        assert [one.lag for one in report.partitions] == [0, 80]

    @pytest.mark.parametrize("start", ["latest", {U0: First(15, "timestamp")}], ids=["latest", "timestamp"])
    def test_a_topic_is_known_also_where_only_other_partitions_of_it_are_stored(self, start: Start) -> None:
        ends = dict.fromkeys((T1, U0), PartitionLog(10, 20))
        report = evaluate({}, ends, now=NOW, start=start, known_topics={"t"})
        assert [one.lag for one in report.partitions] == [10, 0 if start == "latest" else 5]

    def test_commits_of_another_group_that_retention_has_passed_are_lost(self) -> None:
        (one,) = evaluate({}, {T0: PartitionLog(20, 100)}, now=NOW, start={T0: First(5, "group")}).partitions
        assert (one.lag, one.lost) == (80, 15)

    @pytest.mark.parametrize(("end", "lag"), [(7, 0), (9, 2)], ids=["read_committed", "read_uncommitted"])
    def test_L07_the_end_is_that_of_the_isolation_level(self, end: int, lag: int) -> None:
        assert measured(at(7), PartitionLog(0, end)).lag == lag

    def test_deleted_offsets_are_lost_and_not_lag(self) -> None:
        one = measured(at(10), PartitionLog(20, 100))
        assert (one.lag, one.lost, one.headroom) == (80, 10, -10)

    def test_deleted_offsets_of_an_empty_log_are_lost_too(self) -> None:
        one = measured(at(10), PartitionLog(20, 20))
        assert (one.lag, one.lost) == (0, 10)

    def test_L09_a_position_beyond_the_end_is_flagged_and_leaves_the_lag_unknown(self) -> None:
        report = evaluate({T0: at(11), T1: at(5)}, {T0: PartitionLog(2, 10), T1: PartitionLog(0, 9)}, now=NOW)
        beyond, fine = report.partitions
        assert (beyond.lag, beyond.beginning, beyond.end, beyond.flags) == (None, 2, 10, ("beyond the end",))
        assert beyond.error == "t[0]: position 11 is beyond the end offset 10: the log was truncated; rewind the group"
        assert (fine.lag, fine.error) == (4, None)
        assert (report.complete, report.lag, report.flags) == (False, 4, ("beyond the end",))

    def test_a_start_beyond_the_end_is_flagged_too(self) -> None:
        (one,) = evaluate({}, {T0: PartitionLog(0, 10)}, now=NOW, start={T0: First(11, "group")}).partitions
        assert (one.lag, one.flags) == (None, ("no position", "beyond the end"))
        assert one.error == "t[0]: start 11 is beyond the end offset 10: the log was truncated"

    def test_a_position_at_the_end_is_not_flagged(self) -> None:
        assert measured(at(10), PartitionLog(0, 10)).flags == ()

    def test_headroom_is_how_far_the_beginning_is_behind_the_position(self) -> None:
        assert measured(at(50), PartitionLog(20, 100)).headroom == 30


class TestTime:
    def test_L16_without_lag_there_is_no_time_lag_however_old_the_last_record_is(self) -> None:
        assert measured(at(10, NOW - 1000 * HOUR), PartitionLog(0, 10)).time_lag == timedelta(0)

    def test_the_time_lag_is_the_age_of_the_newest_committed_record(self) -> None:
        assert measured(at(10, NOW - HOUR), PartitionLog(0, 11)).time_lag == HOUR

    def test_a_record_from_the_future_has_no_age(self) -> None:
        assert measured(at(10, NOW + HOUR), PartitionLog(0, 11)).time_lag == timedelta(0)

    def test_the_time_lag_is_unknown_where_nothing_was_committed(self) -> None:
        assert measured(at(10), PartitionLog(0, 11)).time_lag is None

    def test_no_lag_without_commits_is_no_delay(self) -> None:
        assert measured(at(10), PartitionLog(0, 10)).time_lag == timedelta(0)

    @pytest.mark.parametrize(
        ("position", "waiting", "left"),
        [
            (50, NOW - 4 * HOUR, HOUR),
            (50, NOW - 6 * HOUR, timedelta(0)),
            (50, None, None),
            (100, NOW - 4 * HOUR, None),
            (10, NOW - 4 * HOUR, timedelta(0)),
            (10, None, timedelta(0)),
            (50, LAST, LAST - NOW + 5 * HOUR),
        ],
        ids=["in an hour", "overdue", "unknown", "nothing waits", "lost", "lost and unknown", "the last of dates"],
    )
    def test_headroom_in_time(self, position: int, waiting: datetime | None, left: timedelta | None) -> None:
        found = {T0: waiting} if waiting is not None else {}
        assert measured(at(position), PartitionLog(20, 100), found, 5 * HOUR).headroom_time == left

    def test_headroom_in_time_is_unknown_without_a_limit_of_time(self) -> None:
        assert measured(at(50), PartitionLog(20, 100), {T0: NOW - HOUR}).headroom_time is None

    def test_the_delay_is_the_age_of_the_oldest_record_that_waits(self) -> None:
        assert measured(at(50, NOW - 9 * HOUR), PartitionLog(20, 100), {T0: NOW - HOUR}).delay == HOUR

    def test_without_lag_nothing_is_delayed(self) -> None:
        assert measured(at(100, NOW - 9 * HOUR), PartitionLog(20, 100), {}).delay == timedelta(0)

    def test_a_record_from_the_future_has_not_waited(self) -> None:
        assert measured(at(50), PartitionLog(20, 100), {T0: NOW + HOUR}).delay == timedelta(0)

    def test_where_no_record_is_known_the_delay_is_how_long_the_position_has_not_moved(self) -> None:
        stored = Committed(Position(50), None, NOW - HOUR)
        assert measured(stored, PartitionLog(20, 100), {}).delay == HOUR

    def test_delay_is_unknown_unless_measured(self) -> None:
        assert measured(Committed(Position(50), NOW - HOUR, NOW - HOUR), PartitionLog(20, 100)).delay is None


class TestErrors:
    def test_L08_a_partition_with_an_error_leaves_the_others_counted_and_the_total_incomplete(self) -> None:
        report = evaluate({T0: at(5), T1: at(5)}, {T0: PartitionLog(0, 9)}, now=NOW, errors={T1: "t[1] has no leader"})
        assert (report.lag, report.complete) == (4, False)
        (failed,) = report.errors
        assert failed == PartitionLag("t", 1, position=5, error="t[1] has no leader")

    def test_an_error_of_a_partition_that_is_not_stored_counts_too(self) -> None:
        report = evaluate({}, {T0: PartitionLog(0, 9)}, now=NOW, errors={T1: "t[1] has no leader"})
        assert (report.lag, report.complete) == (9, False)

    def test_another_topic_of_the_same_name_is_an_error(self) -> None:
        report = evaluate({T0: at(5, topic_id=ID)}, {T0: PartitionLog(0, 9, OTHER_ID)}, now=NOW)
        assert (report.lag, report.lost, report.complete) == (None, None, False)
        assert (report.summary()["lag"], str(report).partition(";")[0]) == (None, "lag unknown in 1 partition")
        assert f"belongs to topic id {ID}" in str(report.errors[0].error)

    def test_topics_without_ids_are_taken_for_the_same(self) -> None:
        assert evaluate({T0: at(5, topic_id=ID)}, {T0: PartitionLog(0, 9)}, now=NOW).complete

    def test_a_partition_that_is_gone_is_an_error(self) -> None:
        report = evaluate({T0: at(5), T1: at(5)}, {T0: PartitionLog(0, 9)}, now=NOW)
        assert [(one.topic_partition, one.position) for one in report.errors] == [(T1, 5)]


class TestTotal:
    def test_the_total_of_nothing(self) -> None:
        report = LagReport(())
        assert (report.lag, report.lost, report.complete) == (None, None, True)
        assert (report.time_lag, report.delay, report.headroom, report.headroom_time) == (None, None, None, None)

    def test_times_and_headroom_are_those_of_the_partition_that_is_worst_off(self) -> None:
        report = evaluate(
            {T0: at(5, NOW - HOUR), T1: at(6, NOW - 2 * HOUR), T2: at(7)},
            dict.fromkeys((T0, T1, T2), PartitionLog(1, 9)),
            now=NOW,
            waiting={T0: NOW - 2 * HOUR, T1: NOW - HOUR},
            retention={"t": 5 * HOUR},
        )
        assert (report.time_lag, report.delay) == (2 * HOUR, 2 * HOUR)
        assert (report.headroom, report.headroom_time) == (4, 3 * HOUR)

    def test_every_topic_has_a_total_of_its_own(self) -> None:
        report = evaluate(
            {T0: at(5), T1: at(5), U0: at(5)},
            {T0: PartitionLog(0, 9), T1: PartitionLog(6, 9), U0: PartitionLog(0, 6)},
            now=NOW,
        )
        assert {topic: (one.lag, one.lost) for topic, one in report.by_topic().items()} == {"t": (7, 1), "u": (1, 0)}


offsets = st.integers(min_value=0, max_value=1000)
logs = st.tuples(offsets, offsets).map(lambda pair: PartitionLog(min(pair), max(pair)))
partitions = st.sampled_from([TopicPartition(topic, number) for topic in "tu" for number in range(3)])
stored = st.dictionaries(partitions, st.builds(at, offsets, st.none() | st.just(NOW - HOUR)))


@given(stored, st.dictionaries(partitions, logs), st.sampled_from(["earliest", "latest"]))
def test_every_offset_of_a_log_is_before_the_position_or_lag(
    committed: dict[TopicPartition, Committed], ends: dict[TopicPartition, PartitionLog], start: Start
) -> None:
    report = evaluate(committed, ends, now=NOW, start=start)
    assert [one.topic_partition for one in report.partitions] == sorted({*committed, *ends})
    for one in report.partitions:
        log = ends.get(one.topic_partition)
        if log is None:
            assert one.error is not None
            continue
        # By counting, not by the formula.
        readable, position = range(log.beginning, log.end), one.position
        if position is not None and position > log.end:
            assert (one.lag, one.flags, one.error is None) == (None, ("beyond the end",), False)
            continue
        assert one.lag is not None
        assert one.lost is not None
        if position is not None:
            assert one.lag == sum(1 for offset in readable if offset >= position)
            assert one.lost == sum(1 for offset in range(position, log.beginning))
            assert one.headroom == position - log.beginning
        assert (one.time_lag == timedelta(0)) or one.lag > 0
    loadable = {tp for tp, each in committed.items() if tp in ends and each.position.offset <= ends[tp].end}
    assert report.complete == (set(committed) == loadable)
    assert (report.lag or 0) == sum(one.lag or 0 for one in report.partitions) >= 0


@given(stored, st.dictionaries(partitions, logs), st.sets(partitions))
def test_partitions_with_errors_change_nothing_for_the_others(
    committed: dict[TopicPartition, Committed], ends: dict[TopicPartition, PartitionLog], failed: set[TopicPartition]
) -> None:
    every = evaluate(committed, ends, now=NOW)
    some = evaluate(committed, ends, now=NOW, errors=dict.fromkeys(failed, "no leader"))
    assert [one for one in some.partitions if one.topic_partition not in failed] == [
        one for one in every.partitions if one.topic_partition not in failed
    ]
    assert {one.topic_partition for one in some.errors} >= failed


@given(stored, st.dictionaries(partitions, logs), st.sampled_from(["earliest", "latest"]), st.booleans())
def test_the_lag_is_what_a_load_plans(
    committed: dict[TopicPartition, Committed], ends: dict[TopicPartition, PartitionLog], word: Any, by_time: bool
) -> None:
    """Loads and lag share the rule for where a partition without a position begins."""
    start: Start = (
        {tp: First((log.beginning + log.end) // 2, "timestamp") for tp, log in ends.items()} if by_time else word
    )
    # A load refuses positions that do not belong to the log.
    known = {tp: one for tp, one in committed.items() if tp in ends and one.position.offset <= ends[tp].end}
    positions = {tp: one.position for tp, one in known.items()}
    plan = decide(positions, ends, start=start, on_data_loss="skip")
    assert (evaluate(known, ends, now=NOW, start=start).lag or 0) == sum(map(len, plan.ranges))
