"""A group that is loaded and replayed, for the tests of replays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from airflow_kafka_offsets import replay
from airflow_kafka_offsets.core.options import Limits
from airflow_kafka_offsets.core.planning import OnDataLoss
from airflow_kafka_offsets.ledger.batch_rows import TaskRun
from airflow_kafka_offsets.loading.context import LoadResult
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from airflow_kafka_offsets.spark.job import StageJob
from airflow_kafka_offsets.verification.verify import verify
from tests.support.inline import InlineLauncher
from tests.support.loads import Loader, rows

RUN = TaskRun("run-1", "dag", "task", -1, 1)


ELSEWHERE = SqlTable("elsewhere")


@dataclass
class Replayer:
    """Replays into the table `elsewhere`, unless told otherwise, what a loader loads into `target`."""

    loader: Loader

    def __call__(
        self,
        topic: str,
        bounds: Any,
        *,
        run: TaskRun | None = None,
        replace: bool = False,
        reason: str | None = None,
        limits: Limits = Limits(),
        on_data_loss: OnDataLoss = "fail",
        launcher: InlineLauncher | None = None,
        **options: Any,
    ) -> LoadResult:
        return replay(
            self.loader.pipeline([topic], **({"sink": ELSEWHERE} | options)),
            bounds,
            kafka_config=self.loader.config,
            engine=self.loader.engine,
            launcher=launcher or self.loader.launcher,
            connections=self.loader.connections,
            limits=limits,
            on_data_loss=on_data_loss,
            replace=replace,
            reason=reason,
            run=run,
        )


def offsets(loader: Loader, table: str = "target") -> dict[int, list[int]]:
    """The offsets that a table holds, by partition."""
    found: dict[int, list[int]] = {}
    for partition, offset in rows(loader.engine, f"SELECT _kafka_partition, _kafka_offset FROM {table} ORDER BY 1, 2"):
        found.setdefault(partition, []).append(offset)
    return found


def group_row(loader: Loader) -> list[tuple[Any, ...]]:
    return rows(loader.engine, "SELECT generation, epoch, lease_owner, lease_expires_at FROM consumer_groups")


def states(loader: Loader) -> list[tuple[Any, ...]]:
    return rows(loader.engine, "SELECT kind, state FROM offset_batches ORDER BY batch_id")


def proved(loader: Loader) -> None:
    verify("loader", sink=SqlTable("target"), engine=loader.engine, kafka_config=loader.config)


def url(loader: Loader) -> str:
    return loader.engine.url.render_as_string(hide_password=False)


class Interrupted(InlineLauncher):
    """Something happens right before the records are read."""

    def __init__(self, what: Callable[[], object]) -> None:
        super().__init__()
        self.what = what

    def __call__(self, job: StageJob) -> None:
        self.what()
        super().__call__(job)


def die() -> None:
    raise RuntimeError("no executor left")
