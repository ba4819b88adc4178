"""What Airflow's metrics are told: names and tags, documented in `docs/metrics.md`."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any, NamedTuple, Protocol

from airflow_kafka_offsets.lag import LagReport


class Stats(Protocol):
    """Airflow's own module for metrics, as far as it is used here."""

    def gauge(self, stat: str, value: float, *, tags: dict[str, Any] | None = None) -> None: ...

    def incr(self, stat: str, count: int | None = None, *, tags: dict[str, Any] | None = None) -> None: ...

    def timing(self, stat: str, dt: timedelta, *, tags: dict[str, Any] | None = None) -> None: ...


class Gauge(NamedTuple):
    """One value of one topic."""

    name: str
    value: float
    tags: dict[str, Any]


def lag_gauges(group_id: str, report: LagReport) -> Iterator[Gauge]:
    """What a poll found, by topic. What is not known is left out."""
    for topic, one in report.by_topic().items():
        tags = {"group_id": group_id, "topic": topic}
        values: dict[str, float | timedelta | None] = {
            "lag": one.lag,
            "lost": one.lost,
            "time_lag_seconds": one.time_lag,
            "delay_seconds": one.delay,
            "headroom": one.headroom,
            "headroom_time_seconds": one.headroom_time,
            "partition_errors": len(one.errors),
        }
        for name, value in values.items():
            if value is not None:
                number = value.total_seconds() if isinstance(value, timedelta) else float(value)
                yield Gauge(f"kafka_offsets.{name}", number, tags)


def emit_lag(stats: Stats, group_id: str, report: LagReport) -> None:
    """Tell what a poll found."""
    for one in lag_gauges(group_id, report):
        stats.gauge(one.name, one.value, tags=one.tags)
