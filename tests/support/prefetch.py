"""Launchers and questions for loads whose next batch is staged while one is committed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from importlib import import_module
from itertools import pairwise
from typing import Any

import pytest
from sqlalchemy.engine import Engine

from airflow_kafka_offsets.spark.job import StageJob
from tests.support.inline import InlineLauncher
from tests.support.loads import rows

TIMEOUT = 60.0

commit_module = import_module("airflow_kafka_offsets.loading.commit")


class Steps(InlineLauncher):
    """Remembers what happened in which thread, and does something before a job is staged.

    :param before: called with the number of the job, from 1 on, in the thread that stages it
    """

    def __init__(self, before: Callable[[int], None] | None = None) -> None:
        super().__init__()
        self.before = before or nothing
        self.threads: list[str] = []
        self.cancelled = threading.Event()

    def __call__(self, job: StageJob) -> None:
        self.threads.append(threading.current_thread().name)
        self.before(len(self.threads))
        super().__call__(job)

    def cancel(self) -> None:
        self.cancelled.set()

    @property
    def batches(self) -> list[int]:
        """The batches that were staged, in order."""
        return [job.batch_id for job in self.jobs]

    @property
    def ahead(self) -> list[bool]:
        """Of each job, whether it was staged beside a commit."""
        return [name.startswith("prefetch") for name in self.threads]


def nothing(batch_id: int) -> None:
    """Do nothing."""


def around_commits(
    monkeypatch: pytest.MonkeyPatch, before: Callable[[int], None], after: Callable[[int], None] = nothing
) -> None:
    """Have something done before and after the transaction of a commit; both are called with the id of the batch."""
    original: Any = commit_module.commit_batch

    def commit_batch(claim: Any, batch: Any, write: Any) -> int:
        before(batch.batch_id)
        rows: int = original(claim, batch, write)
        after(batch.batch_id)
        return rows

    monkeypatch.setattr(commit_module, "commit_batch", commit_batch)


def states(engine: Engine) -> list[str]:
    """The states of all batches, in order."""
    return [state for (state,) in rows(engine, "SELECT state FROM offset_batches ORDER BY batch_id")]


def planned_ahead(engine: Engine, group_id: str = "loader") -> int:
    """How many committed loads were planned before the one before them was committed."""
    loads = rows(
        engine,
        "SELECT planned_at, committed_at FROM offset_batches"
        " WHERE kind = 'load' AND state = 'committed' AND consumer_group = :group ORDER BY batch_id",
        group=group_id,
    )
    return sum(after[0] < before[1] for before, after in pairwise(loads))
