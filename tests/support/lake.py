"""Loads into tables of files: what is in them, read by somebody else, and a process that dies between the two
commits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from airflow_kafka_offsets import DeadLetters, replay
from airflow_kafka_offsets.core.origin import BATCH_ID, OFFSET
from airflow_kafka_offsets.ledger.batch_rows import TaskRun
from airflow_kafka_offsets.loading.context import LoadResult
from airflow_kafka_offsets.sinks.sink import Sink
from airflow_kafka_offsets.sinks.table import Output, Table
from airflow_kafka_offsets.staging.directory import StagingDirectory
from airflow_kafka_offsets.staging.manifest import Manifest
from airflow_kafka_offsets.staging.rows import StagedRows
from airflow_kafka_offsets.verification.verify import verify
from airflow_kafka_offsets.writers.table_rows import RefusedRows
from tests.support.loads import Loader, positions, rows

RUN = TaskRun("run", "dag", "task", -1, 1)
AGAIN = replace(RUN, try_number=2)
NEXT = replace(RUN, run_id="next")


class ProcessDiedError(BaseException):
    """The process is gone: nothing catches it."""


@contextmanager
def dying(target: type, moment: str) -> Iterator[None]:
    """Have the process die with the commit of a target.

    :param target: a class with a method `commit`
    :param moment: `before` or `after` the commit
    """
    commit = target.commit  # type: ignore[attr-defined]

    def dies(self: Any) -> None:
        if moment == "after":
            commit(self)
        raise ProcessDiedError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target, "commit", dies)
        try:
            yield
        except ProcessDiedError:
            return
    pytest.fail("nothing was committed")


@dataclass
class LakeGroup:
    """Group `loader`, which loads a topic into a table of files.

    :param read: returns all rows, by another reader than the sink's
    """

    loader: Loader
    topic: str
    sink: Sink
    read: Callable[[], pa.Table]

    def load(self, run: TaskRun = AGAIN, **options: Any) -> LoadResult:
        return self.loader(self.topic, run=run, **{"sink": self.sink, "on_bad_record": DeadLetters(), **options})

    def replay(self, bounds: Any, run: TaskRun | None = AGAIN, **options: Any) -> LoadResult:
        return replay(
            self.loader.pipeline([self.topic], sink=self.sink, on_bad_record=DeadLetters()),
            bounds,
            kafka_config=self.loader.config,
            engine=self.loader.engine,
            launcher=self.loader.launcher,
            run=run,
            connections=self.loader.connections,
            **options,
        )

    def places(self) -> list[tuple[int, int]]:
        """Return batch and offset of every row that says them, in order."""
        table = self.read()
        places = zip(table[BATCH_ID].to_pylist(), table[OFFSET].to_pylist(), strict=True)
        return sorted(place for place in places if None not in place)

    def offsets(self) -> list[int]:
        return sorted(offset for _, offset in self.places())

    def proved(self) -> tuple[int, int]:
        """Return the numbers of rows and dead letters, once `verify` proved them."""
        coverage = verify("loader", sink=self.sink, engine=self.loader.engine, kafka_config=self.loader.config)
        publishing = "SELECT count(*) FROM offset_batches WHERE publish_started_at IS NOT NULL"
        assert rows(self.loader.engine, publishing) == [(0,)]
        return coverage.rows, coverage.dead_letters

    def position(self) -> int | None:
        return positions(self.loader.engine).get((self.topic, 0))


# `ParquetFiles` asks nothing else of the database when it publishes.
LIVING_SESSION: Any = SimpleNamespace(execute=lambda statement: None)


def publish_rows(sink: Sink | Table, rows: pa.RecordBatch, tmp_path: Path, batch_id: int = 1, **options: Any) -> None:
    """Publish rows as a batch, without a load.

    :param options: of `prepare`
    """
    conn = LIVING_SESSION
    table = sink if isinstance(sink, Table) else sink.connect(conn)
    output = Output(batch_id, "g", (), "series", f"batch-{batch_id}-x")
    table.prepare(rows.schema, **options)
    writer: Any = table.writer(rows.schema, output)
    directory = StagingDirectory(str(tmp_path))
    files = tuple(writer.write([rows], directory, {}, RefusedRows(directory)))
    staged = StagedRows(directory, Manifest(batch_id, "", files, (), (), writer.columns))
    with table.publish(conn, output) as target:
        target.add_columns(rows.schema)
        target.write(staged)
