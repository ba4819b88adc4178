"""Metrics for Airflow's `stats`, with the names and tags of `docs/operate.md`. Sensors, triggers and operators emit
them.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

from airflow_kafka_offsets.lag.report import LagReport, numbers

if TYPE_CHECKING:
    from airflow_kafka_offsets.loading.context import Commit


class Stats(Protocol):
    """The part of Airflow's `stats` modules that is used here."""

    def gauge(self, stat: str, value: float, *, tags: dict[str, Any] | None = None) -> None: ...

    def incr(self, stat: str, count: int | None = None, *, tags: dict[str, Any] | None = None) -> None: ...

    def timing(self, stat: str, dt: timedelta, *, tags: dict[str, Any] | None = None) -> None: ...


def emit_lag(stats: Stats, group_id: str, report: LagReport) -> None:
    """Emit the lag of a group by topic, without the measures that are not known."""
    for topic, lag in report.by_topic().items():
        tags = {"group_id": group_id, "topic": topic}
        for name, value in {**numbers(lag), "partition_errors": len(lag.errors)}.items():
            if value is not None:
                stats.gauge(f"kafka_offsets.{name}", float(value), tags=tags)


def emit_poll(stats: Stats, kafka_conn_id: str, watchers: int, seconds: float) -> None:
    """Emit the number of watchers that shared a poll, and its duration."""
    tags = {"kafka_conn_id": kafka_conn_id}
    stats.gauge("kafka_offsets.poll.watchers", watchers, tags=tags)
    stats.timing("kafka_offsets.poll.duration", timedelta(seconds=seconds), tags=tags)


def emit_commit(stats: Stats, commit: Commit) -> None:
    """Emit the records, dead letters, rows and duration of a batch."""
    tags = {"group_id": commit.group_id, "kind": commit.kind}
    for topic, count in commit.records.items():
        stats.incr("kafka_offsets.commit.records", count, tags=tags | {"topic": topic})
    for topic, count in commit.dead_letters.items():
        stats.incr("kafka_offsets.commit.dead_letters", count, tags=tags | {"topic": topic})
    stats.incr("kafka_offsets.commit.rows", commit.rows, tags=tags)
    stats.timing("kafka_offsets.commit.duration", commit.duration, tags=tags)
