"""A rewind, or other work, in a process of its own that stops before a statement, so that a test can kill it there with
SIGKILL.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Protocol

import sqlalchemy as sa
from sqlalchemy.engine import Engine

from airflow_kafka_offsets.ledger.batch_rows import TaskRun
from airflow_kafka_offsets.rewinding.execution import RewindResult, execute_rewind
from airflow_kafka_offsets.rewinding.preview import RewindPreview
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from tests.support import dying_load


@dataclass(frozen=True)
class Rewind:
    """What to execute, as plain data: a saved preview, which replaces rows of the table `target`."""

    url: str
    preview: Mapping[str, Any]
    run: TaskRun
    abandon: int | None = None

    def __call__(self) -> RewindResult:
        engine = sa.create_engine(self.url, hide_parameters=True)
        try:
            return execute_rewind(
                RewindPreview.from_dict(self.preview),
                engine=engine,
                run=self.run,
                who="somebody",
                abandon=self.abandon,
                replace=SqlTable("target"),
            )
        finally:
            engine.dispose()


Stop = Callable[[str], None]


class Work(Protocol):
    """What dies, as plain data."""

    def __call__(self) -> Any:
        """Do it."""


class DyingRewind(dying_load.DyingLoad):
    """Work in a child process, as a context manager that leaves no process behind.

    It tells the statement that it stops before, then its result, or the error that ended it.

    :param stop_at: the number of that statement, from 1 on; COMMIT is one, too. None is the first one after a COMMIT
    :param install: has other steps than statements stop, too
    :param statements: whether it stops at statements at all
    """

    def __init__(
        self,
        work: Work,
        stop_at: int | None,
        install: Callable[[Stop], None] | None = None,
        *,
        statements: bool = True,
    ) -> None:
        self._pipe, theirs = dying_load._CONTEXT.Pipe()
        self.process = dying_load._CONTEXT.Process(
            target=_main, args=(work, stop_at, install, statements, theirs), daemon=True
        )
        self.process.start()
        theirs.close()


def _main(
    work: Work, stop_at: int | None, install: Callable[[Stop], None] | None, statements: bool, pipe: Connection
) -> None:
    count, committed = 0, False

    def stop(statement: str) -> None:
        nonlocal count, committed
        count += 1
        if count == stop_at or (committed and stop_at is None):
            pipe.send(statement)
            pipe.recv()
        committed = committed or statement == "COMMIT"

    def before_statement(conn: object, cursor: object, statement: str, *_: object) -> None:
        stop(statement)

    def before_commit(conn: sa.Connection) -> None:
        # SQLite's is a statement like others.
        if conn.dialect.name != "sqlite":
            stop("COMMIT")

    if statements:
        sa.event.listen(Engine, "before_cursor_execute", before_statement)
        sa.event.listen(Engine, "commit", before_commit)
    if install is not None:
        install(stop)
    try:
        pipe.send(work())
    except Exception as error:  # told to whoever waits at the other end
        pipe.send(error)
