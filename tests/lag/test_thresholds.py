"""When a lag is enough: every threshold at, just below and just above it, alone and together."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.lag.report import LagReport, PartitionLag
from airflow_kafka_offsets.lag.thresholds import LagWatch

MINUTE = timedelta(minutes=1)


def report(*lags: int, **values: Any) -> LagReport:
    return LagReport(tuple(PartitionLag("t", number, lag=lag, lost=0, **values) for number, lag in enumerate(lags)))


def watch(**thresholds: Any) -> LagWatch:
    return LagWatch(group_id="loader", conn_id="warehouse", **thresholds)


FAILED = PartitionLag("t", 9, error="t[9] has no leader")


class TestEach:
    @pytest.mark.parametrize(("lag", "met"), [(99, False), (100, True), (101, True)])
    def test_min_lag_is_enough_to_load(self, lag: int, met: bool) -> None:
        assert watch(min_lag=100).judge(report(lag - 40, 40)).met is met

    @pytest.mark.parametrize(("lag", "met"), [(99, True), (100, True), (101, False)])
    def test_max_lag_is_caught_up(self, lag: int, met: bool) -> None:
        assert watch(max_lag=100).judge(report(lag - 40, 40)).met is met

    def test_max_lag_0_is_met_by_nothing_that_waits(self) -> None:
        assert watch(max_lag=0).judge(report(0, 0)).met is True
        assert watch(max_lag=0).judge(report(0, 1)).met is False

    @pytest.mark.parametrize(("delay", "met"), [(MINUTE / 2, False), (MINUTE, True), (2 * MINUTE, True), (None, False)])
    def test_max_delay_is_waited_long_enough(self, delay: timedelta | None, met: bool) -> None:
        assert watch(max_delay=MINUTE).judge(report(5, delay=delay)).met is met

    @pytest.mark.parametrize(("left", "met"), [(MINUTE / 2, True), (MINUTE, True), (2 * MINUTE, False), (None, False)])
    def test_min_headroom_in_time_is_about_to_lose(self, left: timedelta | None, met: bool) -> None:
        assert watch(min_headroom=MINUTE).judge(report(5, headroom_time=left)).met is met

    @pytest.mark.parametrize(("headroom", "met"), [(9, True), (10, True), (11, False), (-3, True)])
    def test_min_headroom_in_offsets(self, headroom: int, met: bool) -> None:
        assert watch(min_headroom=10).judge(report(5, headroom=headroom)).met is met

    def test_a_log_that_is_read_to_its_end_loses_nothing_however_short_it_is(self) -> None:
        assert watch(min_headroom=10).judge(report(0, headroom=0)).met is False

    def test_lost_offsets_of_an_empty_log_meet_min_headroom(self) -> None:
        lost = LagReport((PartitionLag("t", 0, lag=0, lost=4, headroom=-4),))
        assert watch(min_headroom=0).judge(lost).met is True

    def test_unreadable_partitions_meet_no_threshold(self) -> None:
        assert watch(max_lag=5).judge(LagReport(())).met is False


class TestMissingRights:
    """What will not be known, however long somebody waits, is an error; what else is known of it changes nothing."""

    UNKNOWN = LagReport(report(5, delay=MINUTE).partitions, unknown_headroom="no ACL DescribeConfigs")
    DENIED = LagReport((*report(5).partitions, FAILED), denied="no ACL Describe")

    @pytest.mark.parametrize("others", [{}, {"min_lag": 1}, {"allow_incomplete": True}], ids=str)
    def test_a_headroom_in_time_that_is_never_known_is_an_error(self, others: dict[str, Any]) -> None:
        with pytest.raises(ConfigurationError, match=r"min_headroom=.*seconds=60.* can never be met.*DescribeConfigs"):
            watch(min_headroom=MINUTE, **others).judge(self.UNKNOWN)

    @pytest.mark.parametrize("thresholds", [{"max_delay": MINUTE}, {"min_lag": 5}, {"min_headroom": 3}], ids=str)
    def test_other_thresholds_do_without_it(self, thresholds: dict[str, Any]) -> None:
        assert watch(**thresholds).judge(self.UNKNOWN).met is not None

    def test_a_topic_that_may_not_be_described_leaves_a_threshold_open_for_ever(self) -> None:
        with pytest.raises(ConfigurationError, match=r"^no ACL Describe$"):
            watch(min_lag=1).judge(self.DENIED)
        assert watch(min_lag=1, allow_incomplete=True).judge(self.DENIED).met is True


class TestTogether:
    def test_any_is_enough_unless_all_are_wanted(self) -> None:
        found = report(100, delay=MINUTE)
        assert watch(min_lag=100, max_delay=2 * MINUTE).judge(found).met is True
        assert watch(min_lag=100, max_delay=2 * MINUTE, require="all").judge(found).met is False
        assert watch(min_lag=100, max_delay=MINUTE, require="all").judge(found).met is True

    @pytest.mark.parametrize(("lags", "met"), [((99, 99), False), ((0, 100), True)], ids=["none", "one"])
    def test_one_partition_with_min_lag_is_enough(self, lags: tuple[int, int], met: bool) -> None:
        assert watch(min_lag=100, per_partition=True).judge(report(*lags)).met is met

    @pytest.mark.parametrize(("lags", "met"), [((100, 100), True), ((0, 101), False)], ids=["all", "one not"])
    def test_every_partition_has_to_keep_max_lag(self, lags: tuple[int, int], met: bool) -> None:
        assert watch(max_lag=100, per_partition=True).judge(report(*lags)).met is met

    @pytest.mark.parametrize("thresholds", [{"min_lag": 1}, {"max_lag": 10}], ids=["min_lag", "max_lag"])
    def test_L08_an_incomplete_total_meets_nothing_unless_told_to(self, thresholds: dict[str, Any]) -> None:
        incomplete = LagReport((*report(5).partitions, FAILED))
        assert watch(**thresholds).judge(incomplete).met is None
        assert watch(**thresholds, allow_incomplete=True).judge(incomplete).met is True

    @pytest.mark.parametrize("per_partition", [False, True], ids=["in total", "per partition"])
    def test_L09_a_position_beyond_the_end_never_meets_max_lag(self, per_partition: bool) -> None:
        beyond = PartitionLag("t", 9, 11, 0, 10, flags=("beyond the end",), error="t[9]: position 11 is beyond the end")
        truncated = LagReport((*report(0).partitions, beyond))
        assert watch(max_lag=0, per_partition=per_partition).judge(truncated).met is None
        found = watch(max_lag=0, per_partition=per_partition, allow_incomplete=True).judge(truncated)
        assert found.met is False
        assert found.text.endswith("; max_lag 0 not met by unknown")
        assert watch(min_lag=1, allow_incomplete=True).judge(LagReport((*report(1).partitions, beyond))).met is True

    @pytest.mark.parametrize("per_partition", [False, True], ids=["in total", "per partition"])
    def test_where_all_partitions_have_an_error_nobody_knows(self, per_partition: bool) -> None:
        found = watch(max_lag=0, allow_incomplete=True, per_partition=per_partition).judge(LagReport((FAILED,)))
        assert found.met is None
        assert found.text.endswith("; max_lag 0 not met by unknown")

    def test_the_conditions_say_what_was_compared(self) -> None:
        told = watch(min_lag=1000, max_delay=MINUTE).judge(report(5)).text
        assert told.endswith("; min_lag 1,000 not met by 5; max_delay 0:01:00 not met by unknown")


class TestRefused:
    @pytest.mark.parametrize(
        ("thresholds", "told"),
        [
            ({}, "at least one of min_lag, max_lag, max_delay and min_headroom; got none"),
            ({"min_lag": -1}, "min_lag must be a whole number of offsets of at least 1 .*got min_lag=-1"),
            ({"min_lag": 0}, r"of at least 1 \(0 would always be met\), or None; got min_lag=0"),
            ({"min_lag": True}, "a whole number of offsets .*; got min_lag=True"),
            ({"min_lag": "5"}, "got min_lag='5'"),
            ({"min_lag": 5.0}, "got min_lag=5.0"),
            ({"max_lag": -1}, "max_lag must be a whole number of offsets, or None; got max_lag=-1"),
            ({"max_delay": timedelta(0)}, "max_delay must be a positive timedelta, or None; got max_delay=datetime"),
            ({"max_delay": 900}, "max_delay must be a positive timedelta, or None; got max_delay=900"),
            ({"min_headroom": -MINUTE}, "or a positive timedelta, or None; got min_headroom=datetime"),
            (
                {"min_headroom": -1},
                "min_headroom must be a whole number of offsets, or a positive .*; got min_headroom=-1",
            ),
            (
                {"min_headroom": "PT1H"},
                "a whole number of offsets, or a positive timedelta, or None; got min_headroom='PT1H'",
            ),
            ({"min_lag": 1, "require": "both"}, "require must be one of any, all; got require='both'"),
            ({"min_lag": 101, "max_lag": 100, "require": "all"}, "can never be met together"),
            ({"min_lag": 100, "max_lag": 100}, "one is met by every lag"),
            ({"min_lag": 101, "max_lag": 100}, "one is met by every lag"),
        ],
        ids=repr,
    )
    def test_thresholds_that_cannot_work_are_refused(self, thresholds: dict[str, Any], told: str) -> None:
        with pytest.raises(ConfigurationError, match=told):
            watch(**thresholds)

    def test_thresholds_that_can_work_are_accepted(self) -> None:
        watch(min_lag=102, max_lag=100)
        watch(min_lag=100, max_lag=100, require="all")
        watch(max_lag=0)
        watch(min_headroom=0)


numbers = st.integers(min_value=0, max_value=30)


@given(st.lists(numbers, max_size=5), numbers, numbers)
def test_thresholds_that_are_accepted_can_be_met_and_missed(lags: list[int], least: int, most: int) -> None:
    """What is refused is what no lag, or every lag, would meet."""
    for require in ("any", "all"):
        found = {
            (lag >= least or lag <= most) if require == "any" else (lag >= least and lag <= most) for lag in range(70)
        }
        try:
            thresholds = watch(min_lag=least, max_lag=most, require=require)
        except ConfigurationError:
            assert least == 0 or len(found) == 1
            continue
        assert found == {True, False}
        total = sum(lags)
        expected = (total >= least or total <= most) if require == "any" else (least <= total <= most)
        assert thresholds.judge(report(*lags)).met is (expected and bool(lags))
    if least:
        many = watch(min_lag=least, per_partition=True).judge(report(*lags)).met
        assert many is any(lag >= least for lag in lags)
