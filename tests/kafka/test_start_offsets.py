"""Starts and ends that are given as words, instants or durations: what is accepted, and what it is in milliseconds."""

import re
from datetime import UTC, datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_kafka_offsets.core.instants import (
    CommittedBy,
    check_start,
    check_until,
    from_milliseconds,
    instant,
    milliseconds,
)
from airflow_kafka_offsets.core.offsets import PartitionLog, TopicPartition
from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.kafka.cluster import TimedOffset
from airflow_kafka_offsets.kafka.start_offsets import targets_until


@pytest.mark.parametrize(
    "start",
    [
        "earliest",
        "latest",
        "none",
        "2026-02-28",
        "2026-02-28T23:00:00+05:30",
        datetime(2026, 2, 28),
        timedelta(hours=3),
        CommittedBy("old"),
    ],
)
def test_documented_starts_pass(start: Any) -> None:
    check_start(start)


@pytest.mark.parametrize(
    ("start", "told"),
    [
        (
            "beginning",
            "one of earliest, latest, none, a timestamp (ISO 8601), a timedelta or CommittedBy(…); got "
            "start='beginning'",
        ),
        ("2026-02-30", "got start='2026-02-30'"),
        ("1969-12-31", "must not lie before 1970, where Kafka's timestamps begin; got start='1969-12-31'"),
        (12, "got start=12"),
        (None, "got start=None"),
        (timedelta(0), "must be positive"),
        (timedelta(seconds=-1), "must be positive"),
        (timedelta(days=30_000), "must not begin before 1970"),
        (timedelta(days=800_000), "must not begin before 1970"),
        (CommittedBy(""), "got an empty one"),
    ],
)
def test_other_starts_are_refused_with_their_value(start: Any, told: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(told)):
        check_start(start)


@pytest.mark.parametrize(
    ("until", "told"),
    [("None", "until must be a timestamp (ISO 8601); got until='None'"), ("", "got until=''")],
)
def test_ends_that_mean_nothing_are_refused(until: str, told: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(told)):
        check_until(until)


def test_no_zone_means_utc() -> None:
    assert instant("until", "2026-01-01T12:00:00") == datetime(2026, 1, 1, 12, tzinfo=UTC)
    assert instant("until", datetime(2026, 1, 1, 12)) == datetime(2026, 1, 1, 12, tzinfo=UTC)
    zoned = datetime(2026, 1, 1, 12, tzinfo=timezone(timedelta(hours=5, minutes=30)))
    assert (
        instant("until", "2026-01-01T12:00:00+05:30")
        == instant("until", zoned)
        == datetime(2026, 1, 1, 6, 30, tzinfo=UTC)
    )


@given(st.datetimes(datetime(1970, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC)))
def test_milliseconds_are_the_first_that_are_not_before_the_instant(value: datetime) -> None:
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    found = milliseconds(value)
    assert epoch + timedelta(milliseconds=found - 1) < value <= epoch + timedelta(milliseconds=found)
    assert from_milliseconds(found) == epoch + timedelta(milliseconds=found)


@pytest.mark.parametrize("value", [1_772_366_400_000_000, 2**63 - 1], ids=["microseconds", "the largest"])
def test_a_timestamp_behind_all_dates_is_the_last_date(value: int) -> None:
    assert from_milliseconds(value) == datetime.max.replace(tzinfo=UTC)


def test_a_record_of_the_future_that_stops_loads_with_until_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    now = datetime(2026, 3, 1, tzinfo=UTC)
    usual, ahead = TopicPartition("orders", 0), TopicPartition("orders", 1)
    found = {
        usual: TimedOffset(5, milliseconds(now - timedelta(minutes=1))),
        ahead: TimedOffset(3, milliseconds(datetime(2100, 1, 1, tzinfo=UTC))),
    }
    search: Any = SimpleNamespace(first_records=lambda *_: found)
    logs = {tp: PartitionLog(0, 10) for tp in found}

    targets = targets_until(search, now - timedelta(hours=1), lambda: now, logs, {})

    assert targets == {usual: 5, ahead: 3}
    (warning,) = caplog.messages
    assert "orders[1]: the first record at or after 2026-02-28 23:00:00 UTC is at offset 3" in warning
    assert "2100-01-01 00:00:00 UTC is in the future. Each load with until stops before it" in warning
