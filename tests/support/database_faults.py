"""Things that happen to a database, and to a target, at chosen moments of a load."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from airflow_kafka_offsets.ledger.batch_rows import TaskRun
from airflow_kafka_offsets.sinks.sink import Connections
from airflow_kafka_offsets.sinks.sql.connected_table import ConnectedSqlTable, SqlTarget
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from airflow_kafka_offsets.sinks.table import Output
from airflow_kafka_offsets.spark.job import StageJob
from airflow_kafka_offsets.staging.rows import StagedRows, TargetColumns
from tests.support.loads import CountingLauncher, Loader, assert_exactly_once, positions, rows

RUN = TaskRun("run-1", dag_id="dag", task_id="task", map_index=-1, try_number=1)
TIMEOUT = 120.0
# What a created target has beside the declared columns.
ADDED = "_kafka_topic TEXT, _kafka_partition INTEGER, _kafka_offset BIGINT, _batch_id BIGINT"


@dataclass(frozen=True)
class Meddled(SqlTable):
    """A target to which something happens at a moment of the commit.

    :param after_check: called when the table was found to fit, before the transaction
    :param before_write: called in the transaction, before the rows are written; and `after_write`, after that
    """

    after_check: Callable[[], object] = lambda: None
    before_write: Callable[[Connection], object] = lambda _: None
    after_write: Callable[[], object] = lambda: None

    def connect(self, engine: Engine, connections: Connections | None = None) -> ConnectedSqlTable:
        return MeddledTable(self, engine)


class MeddledTable(ConnectedSqlTable):
    """The table of `Meddled`."""

    __slots__ = ()

    def prepare(self, columns: pa.Schema | None, *, may_grow: bool = False) -> TargetColumns:
        checked = super().prepare(columns, may_grow=may_grow)
        assert isinstance(self.sink, Meddled)
        self.sink.after_check()
        return checked

    def publish(self, conn: Connection, output: Output) -> AbstractContextManager[MeddledTarget]:
        return nullcontext(MeddledTarget(conn, self))


class MeddledTarget(SqlTarget):
    """The target of `Meddled` in a transaction."""

    def write(self, rows: StagedRows) -> int:
        sink = self.table.sink
        assert isinstance(sink, Meddled)
        sink.before_write(self.conn)
        count = super().write(rows)
        sink.after_write()
        return count


class Then(CountingLauncher):
    """Something happens when the rows are staged."""

    def __init__(self, launcher: CountingLauncher, happens: Callable[[], object]) -> None:
        super().__init__(launcher._spark)
        self._happens = happens

    def __call__(self, job: StageJob) -> None:
        super().__call__(job)
        self._happens()


def once(happens: Callable[[], object]) -> Callable[..., None]:
    """Something that happens to the first attempt alone."""
    left = [happens]

    def first(*_: object) -> None:
        if left:
            left.pop()()

    return first


@contextmanager
def over(engine: Engine, loader: Loader) -> Iterator[Loader]:
    """The same loads over another engine."""
    yield Loader(loader.kafka, engine, loader.launcher)
    engine.dispose()


def change(engine: Engine, *statements: str) -> None:
    """What another program does."""
    with engine.begin() as conn:
        conn.execute(sa.text("SET LOCAL lock_timeout = '10s'"))
        for statement in statements:
            conn.execute(sa.text(statement))


def assert_nothing_written(engine: Engine) -> None:
    assert rows(engine, "SELECT count(*) FROM target") == [(0,)]
    assert positions(engine) == {}


def assert_staged_rows_are_committed(loader: Loader, topic: str, count: int) -> None:
    """The next load needs no Spark."""
    launched = len(loader.launcher.jobs)
    assert loader(topic).rows == count
    assert len(loader.launcher.jobs) == launched, "the staged files were not used"
    assert_exactly_once(loader.engine)


def raise_for_each_row(engine: Engine, where: str, errcode: str) -> None:
    """Let Postgres raise an error for rows of the target."""
    change(
        engine,
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        f"RAISE 'not this one' USING ERRCODE = '{errcode}'; END $$",
        f"CREATE TRIGGER refuse BEFORE INSERT ON target FOR EACH ROW WHEN ({where}) EXECUTE FUNCTION refuse()",
    )
