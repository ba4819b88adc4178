"""A replay of dead letters that dies: see `dying_load` and `dying_rewind`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import sqlalchemy as sa

from airflow_kafka_offsets import Staging
from airflow_kafka_offsets.dead_letters.replay import replay_dead_letters
from airflow_kafka_offsets.dead_letters.selection import DeadLetterFilter
from airflow_kafka_offsets.formats.simple_formats import Json
from airflow_kafka_offsets.ledger.dead_letter_batches import DeadLetterClaim, Replayed
from airflow_kafka_offsets.ledger.publications import Publication
from airflow_kafka_offsets.loading.pipeline import Pipeline
from airflow_kafka_offsets.sinks.sink import Sink
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from airflow_kafka_offsets.staging.directory import StagingDirectory
from airflow_kafka_offsets.staging.rows import Record
from tests.support.dying_load import _after, _before, stage_module
from tests.support.dying_rewind import Stop

replay_module = import_module("airflow_kafka_offsets.dead_letters.replay")
driver = import_module("airflow_kafka_offsets.spark.driver")

# Beside the statements.
_STEPS = (
    (replay_module, "stage"),
    (driver, "write_manifest"),
    (stage_module, "mark_staged"),
    (StagingDirectory, "remove"),
)


@dataclass(frozen=True)
class DeadLetterReplay:
    """What to replay, as plain data: dead letters of group `loader`.

    :param corrected: values to replay instead, by batch; None replays all dead letters
    """

    url: str
    topic: str
    staging_dir: str
    sink: Sink = field(default_factory=lambda: SqlTable("target"))
    corrected: dict[int, dict[Record, bytes | None]] | None = None

    def __call__(self) -> list[Replayed]:
        engine = sa.create_engine(self.url, hide_parameters=True)
        pipeline = Pipeline(
            group_id="loader",
            topics=(self.topic,),
            value_format=Json("id BIGINT NOT NULL, name STRING"),
            sink=self.sink,
            staging=Staging(dir=self.staging_dir),
        )
        try:
            return replay_dead_letters(DeadLetterFilter("loader"), pipeline, engine=engine, corrected=self.corrected)
        finally:
            engine.dispose()


@dataclass(frozen=True)
class ListedSteps:
    """The same replay, which tells the names of its steps instead of stopping at one."""

    replay: DeadLetterReplay

    def __call__(self) -> list[str]:
        self.replay()
        return _seen


_seen: list[str] = []


def note_steps(_: Stop) -> None:
    """Have the steps of `ListedSteps` be noted."""

    def note(step: str) -> None:
        _seen.append(step)

    sa.event.listen(sa.Engine, "before_cursor_execute", lambda *args: note(args[2]))

    def before_commit(conn: sa.Connection) -> None:
        if conn.dialect.name != "sqlite":
            note("COMMIT")

    sa.event.listen(sa.Engine, "commit", before_commit)
    stop_at_steps(note)


def stop_at_steps(stop: Stop) -> None:
    """Have the steps stop that are no statements."""
    for owner, name in _STEPS:
        setattr(owner, name, _stopping(stop, name, getattr(owner, name)))


def _stopping(stop: Stop, name: str, step: Callable[..., Any]) -> Callable[..., Any]:
    def stopped(*args: Any, **options: Any) -> Any:
        stop(name)
        return step(*args, **options)

    return stopped


POINTS: dict[str, Callable[[Callable[[], None]], None]] = {
    "after the batch is planned": _after(replay_module, "record_dead_letter_batch"),
    "after the manifest": _before(stage_module, "mark_staged"),
    "after it is staged": _after(replay_module, "stage"),
    "before it begins to be published": _before(Publication, "begin"),
    "after it began to be published": _after(Publication, "begin"),
    "inside the transaction": _before(DeadLetterClaim, "finish_commit"),
    "after COMMIT": _after(replay_module, "stage_and_commit"),
}
"""Where a replay is killed; `inside the transaction` is between the two commits where there are two."""


@dataclass(frozen=True)
class StopsAt:
    """Has a replay stop at a point, as plain data."""

    point: str

    def __call__(self, stop: Stop) -> None:
        POINTS[self.point](lambda: stop(self.point))
