"""Which groups need attention, and in which order. No server."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from airflow_kafka_offsets.dead_letters.selection import Excerpt
from airflow_kafka_offsets.lag.report import LagReport, PartitionLag
from airflow_kafka_offsets.ledger.overview import BatchSummary, GroupSummary
from airflow_kafka_offsets.plugin.group_rows import Level, group_row, headroom_share
from airflow_kafka_offsets.plugin.problems import Problem
from airflow_kafka_offsets.plugin.rendering import duration, text_of
from airflow_kafka_offsets.plugin.sources import Source

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

    assert (row.level, row.reasons) == (Level.WARNING, ("lag unknown",))


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


def test_durations_have_two_units() -> None:
    seconds = {0: "0s", 59: "59s", 3_700: "1h 1m", 90_061: "1d 1h"}

    assert {number: duration(timedelta(seconds=number)) for number in seconds} == seconds


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
