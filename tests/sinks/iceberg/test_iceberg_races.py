"""The race of a zombie: a stale attempt and its successor meet in the commit to a catalog elsewhere. Each row is there
once.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from sqlalchemy.engine import Connection, Engine

from airflow_kafka_offsets.exceptions import CommitUnknownError, DatabaseBusyError
from airflow_kafka_offsets.sinks.iceberg.sink import IcebergSink
from airflow_kafka_offsets.sinks.iceberg.table import IcebergTable
from airflow_kafka_offsets.sinks.table import Output
from airflow_kafka_offsets.staging.directory import StagingDirectory
from airflow_kafka_offsets.staging.manifest import Manifest
from airflow_kafka_offsets.staging.rows import StagedRows
from airflow_kafka_offsets.writers.refused_rows import RefusedRows
from tests.support.iceberg import open_table, scanned

pytestmark = pytest.mark.server

SEED = 20261122

COLUMNS = pa.schema([("id", pa.int64())])
STAGING = StagingDirectory("/nowhere")


@pytest.fixture
def sink(database: str, tmp_path: Path) -> IcebergSink:
    return IcebergTable("shop.orders", {"type": "sql", "uri": database, "warehouse": f"file://{tmp_path}/lake"})


def output(batch_id: int, attempt: str) -> Output:
    return Output(batch_id, "loader", (), "installation.loader", f"batch-{batch_id}-{attempt}")


def stage(sink: IcebergSink, engine: Engine, batch_id: int, attempt: str) -> StagedRows:
    writer = sink.writer(engine, COLUMNS, output(batch_id, attempt))
    rows = pa.RecordBatch.from_pydict({"id": [batch_id * 10, batch_id * 10 + 1]}, COLUMNS)
    files = tuple(writer.write([rows], STAGING, sink.storage_options(), RefusedRows(STAGING)))
    return StagedRows(STAGING, Manifest(batch_id, "", files, (), (), writer.columns))


class Attempt(threading.Thread):
    """An attempt that looked before the other one committed, and then commits."""

    def __init__(self, sink: IcebergSink, conn: Connection, rows: StagedRows, to: Output, pause: float) -> None:
        super().__init__()
        self.work = (sink, conn, rows, to, pause)
        self.looked = threading.Event()
        self.go_on = threading.Event()
        self.result: Any = None

    def run(self) -> None:
        sink, conn, rows, to, pause = self.work
        try:
            with sink.open(conn, to) as target:
                self.result = target.write(rows)
                self.looked.set()
                self.go_on.wait(30)
                threading.Event().wait(pause)
        except Exception as error:  # the test looks at it
            self.result = error
        finally:
            self.looked.set()


def race(sink: IcebergSink, engine: Engine, batch_id: int, chance: random.Random) -> None:
    with engine.connect() as one, engine.connect() as other:
        attempts = [
            Attempt(sink, conn, stage(sink, engine, batch_id, name), output(batch_id, name), chance.uniform(0, 0.02))
            for conn, name in ((one, "stale"), (other, "successor"))
        ]
        for attempt in attempts:
            attempt.start()
        for attempt in attempts:
            assert attempt.looked.wait(30)
        for attempt in chance.sample(attempts, 2):
            attempt.go_on.set()
        for attempt in attempts:
            attempt.join(60)
    results = [attempt.result for attempt in attempts]
    assert all(result == 2 or isinstance(result, (CommitUnknownError, DatabaseBusyError)) for result in results), (
        results
    )
    assert 2 in results, results


@pytest.mark.parametrize("races", [5, pytest.param(200, marks=pytest.mark.long)])
def test_a_stale_attempt_and_its_successor_load_each_row_once(
    sink: IcebergSink, postgres_engine: Engine, races: int
) -> None:
    chance = random.Random(SEED)
    sink.prepare(postgres_engine, COLUMNS)

    for batch_id in range(1, races + 1):
        race(sink, postgres_engine, batch_id, chance)

    table = open_table(sink, postgres_engine)
    found = Counter(scanned(table, "_batch_id", "id"))
    assert found == Counter((batch, batch * 10 + row) for batch in range(1, races + 1) for row in (0, 1))
    assert len(table.snapshots()) == races
