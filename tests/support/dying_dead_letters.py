"""A replay of dead letters that dies: see `dying_rewind`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import sqlalchemy as sa

from airflow_kafka_offsets import Staging
from airflow_kafka_offsets.dead_letters.replay import Replayed, replay_dead_letters
from airflow_kafka_offsets.dead_letters.selection import DeadLetterFilter
from airflow_kafka_offsets.formats.json_format import Json
from airflow_kafka_offsets.loading.pipeline import Pipeline
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from airflow_kafka_offsets.staging.directory import StagingDirectory
from tests.support.dying_rewind import Stop

replay_module = import_module("airflow_kafka_offsets.dead_letters.replay")
driver = import_module("airflow_kafka_offsets.spark.driver")

# Beside the statements.
_STEPS = (
    (replay_module, "_write"),
    (replay_module, "_stage"),
    (driver, "write_manifest"),
    (StagingDirectory, "remove"),
)


@dataclass(frozen=True)
class DeadLetterReplay:
    """What to replay, as plain data: all dead letters of group `loader`, into the table `target`."""

    url: str
    topic: str
    staging_dir: str

    def __call__(self) -> list[Replayed]:
        engine = sa.create_engine(self.url, hide_parameters=True)
        pipeline = Pipeline(
            group_id="loader",
            topics=(self.topic,),
            value_format=Json("id BIGINT NOT NULL, name STRING"),
            sink=SqlTable("target"),
            staging=Staging(dir=self.staging_dir),
        )
        try:
            return replay_dead_letters(DeadLetterFilter("loader"), pipeline, engine=engine)
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
        setattr(owner, name, _before(stop, name, getattr(owner, name)))


def _before(stop: Stop, name: str, step: Callable[..., Any]) -> Callable[..., Any]:
    def stopped(*args: Any, **options: Any) -> Any:
        stop(name)
        return step(*args, **options)

    return stopped
