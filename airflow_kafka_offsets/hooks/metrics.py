"""Metrics with the names and tags of `docs/operate.md`. Sensors, triggers and operators pass the `Stats` that
Airflow has for them.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_kafka_offsets.escaping import printable
from airflow_kafka_offsets.lag.report import LagReport, numbers

if TYPE_CHECKING:
    from airflow_kafka_offsets.loading.context import Commit


def emit_lag(stats: Any, group_id: str, report: LagReport) -> None:
    """Emit the lag of a group by topic, without the measures that are not known."""
    for topic, lag in report.by_topic().items():
        tags = {"group_id": group_id, "topic": printable(topic)}
        for name, value in {**numbers(lag), "partition_errors": len(lag.errors)}.items():
            if value is not None:
                stats.gauge(f"kafka_offsets.{name}", float(value), tags=tags)


def emit_poll(stats: Any, kafka_conn_id: str, watchers: int, seconds: float) -> None:
    """Emit the number of watchers that shared a poll, and its duration."""
    tags = {"kafka_conn_id": kafka_conn_id}
    stats.gauge("kafka_offsets.poll.watchers", watchers, tags=tags)
    stats.timing("kafka_offsets.poll.duration", timedelta(seconds=seconds), tags=tags)


def emit_commit(stats: Any, commit: Commit) -> None:
    """Emit the records, dead letters, rows and duration of a batch."""
    tags = {"group_id": commit.group_id, "kind": commit.kind}
    for topic, count in commit.records.items():
        stats.incr("kafka_offsets.commit.records", count, tags=tags | {"topic": topic})
    for topic, count in commit.dead_letters.items():
        stats.incr("kafka_offsets.commit.dead_letters", count, tags=tags | {"topic": topic})
    stats.incr("kafka_offsets.commit.rows", commit.rows, tags=tags)
    stats.timing("kafka_offsets.commit.duration", commit.duration, tags=tags)
