"""Which groups need attention, and in which order. No server."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from airflow_kafka_offsets.database.errors import translated_errors
from airflow_kafka_offsets.dead_letters.selection import Excerpt
from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.lag.report import LagReport, PartitionLag
from airflow_kafka_offsets.ledger.overview import BatchSummary, GroupSummary
from airflow_kafka_offsets.plugin import rendering, rewinds
from airflow_kafka_offsets.plugin.group_rows import Level, group_row, headroom_share
from airflow_kafka_offsets.plugin.pages import Listed, Overview, View
from airflow_kafka_offsets.plugin.problems import Problem
from airflow_kafka_offsets.plugin.rendering import ago, duration, size, text_of
from airflow_kafka_offsets.plugin.sources import Schedule, Source

WAREHOUSE = Source("warehouse")
NOW = datetime(2026, 5, 6, tzinfo=UTC)
LOAD = BatchSummary(7, "staged", 1, None, None, NOW, None, "shop", "load")
GROUP = GroupSummary("orders", "cluster", 0, 1, None, None, None, None, None, 0, ())


def lag(hours_old: int, hours_left: int, lost: int = 0) -> LagReport:
    of_partition = PartitionLag(
        "orders", 0, 5, 0, 9, 4, lost, delay=timedelta(hours=hours_old), headroom_time=timedelta(hours=hours_left)
    )
    return LagReport((of_partition,))


@pytest.mark.parametrize(
    ("report", "share", "level"),
    [
        (lag(0, 24), 1.0, Level.OK),
        (lag(12, 12), 0.5, Level.OK),
        (lag(20, 4), 1 / 6, Level.WARNING),
        (lag(23, 1), 1 / 24, Level.CRITICAL),
        (lag(1, 23, lost=3), 0.0, Level.CRITICAL),
        (LagReport((PartitionLag("orders", 0, 9, 0, 9, 0, 0),)), 1.0, Level.OK),
        (LagReport((PartitionLag("orders", 0, 5, 0, 9, 4, 0),)), None, Level.OK),
        # A partition without unread records does not stand for one whose times are not known.
        (
            LagReport((PartitionLag("orders", 0, 9, 0, 9, 0, 0), PartitionLag("orders", 1, 5, 0, 9, 4, 0))),
            None,
            Level.OK,
        ),
        (LagReport((PartitionLag("orders", 0, error="gone"),)), None, Level.CRITICAL),
    ],
)
def test_headroom_is_the_share_of_the_retention_that_is_left(
    report: LagReport, share: float | None, level: Level
) -> None:
    assert headroom_share(report.partitions) == share
    assert group_row(WAREHOUSE, GROUP, report).level is level


def test_an_open_batch_needs_attention_while_nobody_holds_the_group() -> None:
    left = replace(GROUP, open=LOAD)

    assert group_row(WAREHOUSE, left, lag(0, 24)).level is Level.WARNING
    assert group_row(WAREHOUSE, replace(left, held_by="dag 'shop'"), lag(0, 24)).level is Level.OK


def test_an_unknown_lag_needs_attention() -> None:
    row = group_row(WAREHOUSE, GROUP, Problem("does not answer"))

    assert (row.level, row.state, row.reasons) == (Level.WARNING, "unknown", ("lag unknown",))
    assert row.lag is None
    assert not row.is_loaded


GONE = PartitionLag("orders", 0, error="Kafka at 10.1.2.3:9092 has no topic 'orders', or this user may not describe it")
TRUNCATED = PartitionLag("orders", 1, error="orders[1]: position 9 is beyond the end offset 4: the log was truncated")


def test_a_lag_that_is_known_of_no_partition_is_not_zero() -> None:
    row = group_row(WAREHOUSE, GROUP, LagReport((GONE,)), kafka="kafka_eu")

    assert (row.lag, row.state, row.is_loaded, row.is_complete) == (None, "error", False, False)


def test_an_error_of_some_partitions_leaves_a_lower_bound() -> None:
    of_another = PartitionLag("orders", 2, 9, 0, 9, 0, 0)

    row = group_row(WAREHOUSE, GROUP, LagReport((GONE, of_another)))

    assert (row.lag, row.is_complete, row.is_loaded) == (0, False, False)


def test_errors_are_in_words_and_hosts_in_their_details() -> None:
    gone, truncated = group_row(WAREHOUSE, GROUP, LagReport((GONE, TRUNCATED)), kafka="kafka_eu").errors

    assert "kafka_eu" in gone.summary
    assert "'orders'" in gone.summary
    assert "10.1.2.3" not in gone.summary
    assert (gone.detail, gone.conn_id) == (GONE.error, "kafka_eu")
    assert truncated == Problem(str(TRUNCATED.error))


HOURLY = Schedule("shop", "@hourly", timedelta(hours=1))
DAY = timedelta(days=1)


@pytest.mark.parametrize(
    ("schedules", "idle", "waiting", "state", "level"),
    [
        ((HOURLY,), timedelta(minutes=50), timedelta(minutes=50), "ok", Level.OK),
        ((HOURLY,), timedelta(hours=3), timedelta(hours=3), "stopped", Level.WARNING),
        # Runs that found nothing commit nothing: the record that waits has just arrived.
        ((HOURLY,), timedelta(hours=3), timedelta(minutes=2), "ok", Level.OK),
        ((HOURLY,), timedelta(minutes=10), timedelta(hours=3), "lagging", Level.NOTICE),
        ((replace(HOURLY, is_paused=True),), timedelta(minutes=1), timedelta(minutes=1), "stopped", Level.WARNING),
        # Another DAG loads the group, too.
        ((replace(HOURLY, is_paused=True), HOURLY), timedelta(minutes=9), timedelta(minutes=9), "ok", Level.OK),
        ((Schedule("shop"),), timedelta(hours=9), timedelta(hours=9), "ok", Level.OK),
        ((), 2 * DAY, 2 * DAY, "stopped", Level.WARNING),
    ],
)
def test_a_group_with_unread_records_that_no_run_loads_is_stopped(
    schedules: tuple[Schedule, ...], idle: timedelta, waiting: timedelta, state: str, level: Level
) -> None:
    loaded = replace(GROUP, last_commit=replace(LOAD, state="committed", committed_at=NOW - idle))
    unread = LagReport((PartitionLag("orders", 0, 5, 0, 9, 4, 0, delay=waiting, headroom_time=9 * DAY),))
    nothing = LagReport((PartitionLag("orders", 0, 9, 0, 9, 0, 0, delay=timedelta(0)),))

    row = group_row(WAREHOUSE, loaded, unread, schedules, now=NOW)

    assert (row.state, row.level) == (state, level)
    assert state != "lagging" or row.reasons[0].endswith("two intervals of the schedule (2h 0m)")
    assert group_row(WAREHOUSE, loaded, nothing, schedules, now=NOW).state == "ok"
    assert group_row(WAREHOUSE, replace(loaded, held_by="a run"), unread, schedules, now=NOW).level is Level.OK


def test_an_open_batch_without_a_run_is_stalled() -> None:
    assert group_row(WAREHOUSE, replace(GROUP, open=LOAD), lag(0, 24)).state == "stalled"


def test_a_group_without_positions_is_empty_and_not_green() -> None:
    assert group_row(WAREHOUSE, replace(GROUP, partitions=0), None).state == "empty"


@pytest.mark.parametrize(
    ("kind", "scenario", "reason"),
    [
        ("renamed", "renamed to 'shop'", "renamed to 'shop' by batch 7: give the DAG the new name"),
        ("delete", "delete", "deleted by batch 7: the next run of the DAG begins a new group"),
    ],
)
def test_a_dag_that_names_a_group_that_is_gone_needs_attention(kind: str, scenario: str, reason: str) -> None:
    gone = replace(GROUP, partitions=0, last_commit=replace(LOAD, state="committed", kind=kind, scenario=scenario))

    named = group_row(WAREHOUSE, gone, None, [HOURLY])
    unnamed = group_row(WAREHOUSE, gone, None)

    assert (named.state, named.needs_attention, named.reasons) == ("stopped", True, (reason,))
    assert (unnamed.state, unnamed.needs_attention, unnamed.reasons) == ("empty", False, (reason.partition(":")[0],))


def test_a_state_has_the_colour_and_the_place_of_its_most_urgent_group() -> None:
    stalled = group_row(WAREHOUSE, replace(GROUP, open=LOAD), lag(0, 24))
    rows = [group_row(WAREHOUSE, replace(GROUP, group_id=str(left)), lag(24 - left, left)) for left in (4, 1)]
    overview = Overview(
        View(q="", db="", dag="", state="", sort="", number=1), [Listed(row, ()) for row in (stalled, *rows)]
    )

    assert list(overview.states) == ["lagging", "stalled"]
    assert ({row.state for row in rows}, overview.level("lagging")) == ({"lagging"}, Level.CRITICAL)
    macros: Any = rendering._ENVIRONMENT.get_template("macros.html").module
    assert macros.state_class("lagging", Level.CRITICAL) == "critical"
    # Green is what is known to be well.
    assert macros.state_class("unknown", Level.OK) == "unknown"


def test_groups_that_need_attention_come_first() -> None:
    rows = [
        group_row(WAREHOUSE, replace(GROUP, group_id=name), report)
        for name, report in {
            "b": lag(0, 24),
            "a": lag(0, 24),
            "late": lag(12, 36),
            "lost": lag(0, 24, 1),
            "tight": lag(23, 1),
        }.items()
    ]

    assert [row.group.group_id for row in sorted(rows, key=lambda row: row.order)] == [
        "lost",
        "tight",
        "late",
        "a",
        "b",
    ]


def test_what_was_long_ago_has_no_seconds() -> None:
    seconds = {5: "5s ago", 1_483: "24m ago", 16_500: "4h 35m ago", 200_000: "2d 7h ago"}

    assert {number: ago(NOW - timedelta(seconds=number), NOW) for number in seconds} == seconds


def test_durations_have_two_units() -> None:
    seconds = {0: "0s", 59: "59s", 3_700: "1h 1m", 90_061: "1d 1h"}

    assert {number: duration(timedelta(seconds=number)) for number in seconds} == seconds


def test_sizes_have_a_unit() -> None:
    sizes = {0: "0 B", 999: "999 B", 1_000: "1.0 kB", 9_960: "10 kB", 999_600: "1.0 MB", 12_345_678: "12 MB"}

    assert {number: size(number) for number in sizes} == sizes
    assert (size(None), size(5 * 10**15)) == ("–", "5000 TB")


DEEP = "[" * 850 + ",".join("1" * 1_100) + "]" * 850


@pytest.mark.parametrize(
    ("excerpt", "text"),
    [
        (None, ("", "null")),
        (Excerpt(b"", 0), ("", "text")),
        (Excerpt(b'{"a":1}', 7), ('{\n  "a": 1\n}', "JSON")),
        (Excerpt(b"{", 1), ("{", "text")),
        (Excerpt(b"\xff", 1), ("/w==", "Base64")),
        (Excerpt("ü".encode()[:1], 2), ("", "text")),
        (Excerpt(b"a" + "ü".encode()[:1], 3), ("a", "text")),
        (Excerpt("aü".encode(), 9), ("aü", "text")),
        (Excerpt(b"[" * 4_000, 4_000), ("[" * 4_000, "text")),
        # On lines of their own, they would be 3 MB.
        (Excerpt(DEEP.encode(), len(DEEP)), (DEEP, "text")),
    ],
)
def test_bytes_are_written_as_what_they_are(excerpt: Excerpt | None, text: tuple[str, str]) -> None:
    assert text_of(excerpt) == text


def test_what_a_database_says_of_a_login_is_for_who_may_read_the_connection() -> None:
    text = 'connection to server at "db.internal" (10.1.2.3) failed: password authentication failed for user "loader"'
    raised = sa.exc.OperationalError(None, None, psycopg.OperationalError(text))
    caller = SimpleNamespace(text=lambda shown: shown.summary)  # may not read it
    request: Any = SimpleNamespace(source=WAREHOUSE, caller=caller)
    with pytest.raises(ConfigurationError, match=r"db\.internal") as translated, translated_errors("It failed"):
        raise raised
    for error in (raised, translated.value):
        assert rewinds._refusal(error, request).text == "The database of connection 'warehouse' refuses the login"


@pytest.mark.parametrize(
    ("kind", "scenario", "words"),
    [
        ("dead_letters", "dead letters of batch 10", ("replay of dead letters", "of batch 10")),
        ("rename", "renamed from 'old'", ("group renamed", "from 'old'")),
        ("undo", "undo", ("undo", "")),
    ],
)
def test_what_a_batch_did_is_said_once(kind: str, scenario: str, words: tuple[str, str]) -> None:
    assert rendering.kind({"kind": kind, "scenario": scenario}) == words
