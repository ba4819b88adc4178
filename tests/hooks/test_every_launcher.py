"""What holds of a load whichever way its jobs reach Spark: over a socket, through a mailbox, by Spark Connect, and in a
session of the worker's own process. With real Spark, and a process of its own for each load that is killed.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import pytest
import sqlalchemy as sa
from pyspark.sql import DataFrame, SparkSession

from airflow_kafka_offsets import Limits, Staging
from airflow_kafka_offsets.exceptions import RecordError, StagingError
from airflow_kafka_offsets.hooks.spark import SparkSubmitLauncher
from airflow_kafka_offsets.hooks.spark_connect import SparkConnectLauncher
from airflow_kafka_offsets.ledger.batch_rows import TaskRun
from airflow_kafka_offsets.spark.job import Launcher
from airflow_kafka_offsets.spark.launchers import SessionLauncher
from benchmarks.mailbox import MailboxLauncher
from devstack.kafka import KafkaBroker
from devstack.process import wait_until
from devstack.spark_connect import SparkConnectServer
from tests.support.clients import produce
from tests.support.dying_load import DyingLoad, Load
from tests.support.loads import Loader, TopicFactory, assert_exactly_once, names, positions, rows

pytestmark = pytest.mark.server

RUN = TaskRun("run", "dag", "task", -1, 1)
BATCHES = Limits(max_records=100)

KILLED = (
    "before planning",
    "after the ranges are stored",
    "after a batch is planned ahead",
    "before Spark stages it",
    "after Spark staged it",
    "after the manifest",
    "after it is marked as staged",
    "inside the transaction",
    "after COMMIT",
    "before clean-up",
    "during clean-up",
)
"""Points of the worker. Those of Spark's processes are in `test_a_load_whose_worker_is_killed_while_spark_reads`."""

# A driver whose worker is silent for two minutes ends.
ENDED_SECONDS = 300


def in_a_session() -> Launcher:
    """A launcher with a session of this process, which a process has once."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    return SessionLauncher(session)


LAUNCHERS: dict[str, Callable[[], Launcher]] = {
    "socket": lambda: SparkSubmitLauncher("spark_default"),
    "mailbox": lambda: MailboxLauncher("spark_default"),
    "connect": lambda: SparkConnectLauncher("spark_remote"),
    "session": in_a_session,
}


@pytest.fixture(params=LAUNCHERS)
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The kind of a launcher, whose connection there is."""
    kind = str(request.param)
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[2]"}))
    if kind == "connect":
        server: SparkConnectServer = request.getfixturevalue("spark_connect")
        monkeypatch.setenv("AIRFLOW_CONN_SPARK_REMOTE", json.dumps(server.connection))
    if kind == "session":
        request.getfixturevalue("spark")
    return kind


@pytest.fixture
def loader(kafka: KafkaBroker, postgres_engine: sa.Engine, kind: str) -> Loader:
    return Loader(kafka, postgres_engine, LAUNCHERS[kind]())


@pytest.fixture
def orders(kafka: KafkaBroker, topic: TopicFactory) -> str:
    """300 records in two partitions: three batches."""
    name = topic(partitions=2)
    for partition in range(2):
        produce(kafka, name, names(partition * 150, 150), partition)
    return name


@pytest.fixture
def block(kafka: KafkaBroker, orders: str, tmp_path: Path) -> Path:
    """A file that another record names: as long as there is one, Spark waits in the transform `blocked`, and writes the
    id of its process into it.
    """
    file = tmp_path / "blocked"
    file.touch()
    produce(kafka, orders, [json.dumps({"id": 300, "name": str(file)}).encode()], 0)
    return file


@dataclass(frozen=True)
class LaunchedLoad(Load):
    """A load through a launcher, in a process of its own."""

    kind: str = "socket"
    environment: tuple[tuple[str, str], ...] = ()

    def _launcher(self) -> Launcher:
        os.environ.update(self.environment)
        return LAUNCHERS[self.kind]()


@pytest.fixture
def load(loader: Loader, orders: str, kind: str, tmp_path: Path) -> LaunchedLoad:
    options = {"limits": BATCHES, "staging": Staging(dir=str(tmp_path / "staging"))}
    environment = tuple((name, os.environ[name]) for name in os.environ if name.startswith("AIRFLOW_CONN_SPARK_"))
    url = loader.engine.url.render_as_string(hide_password=False)
    return LaunchedLoad(url, loader.kafka.bootstrap_servers, (orders,), RUN, options, kind, environment)


def blocked(records: DataFrame) -> DataFrame:
    """A transform that waits as long as there is a file of a record's name."""
    from pyspark.sql.functions import col, udf

    def wait(name: str) -> str:
        import os
        import time

        if os.path.exists(name):  # noqa: PTH110
            with open(name, "w") as pid:  # noqa: PTH123
                pid.write(str(os.getpid()))
        while os.path.exists(name):  # noqa: PTH110
            time.sleep(0.05)
        return name

    return records.withColumn("name", udf(lambda name: wait(name), "string")(col("name")))


def waiting(block: Path) -> psutil.Process:
    """Return the process of Spark's that waits in the transform."""
    return psutil.Process(int(wait_until(block.read_text, 120, "the transform to be called")))


def children(dying: DyingLoad) -> list[psutil.Process]:
    """Return the processes that a load has started."""
    started: list[psutil.Process] = psutil.Process(dying.process.pid).children(recursive=True)
    return started


def left_in(load: LaunchedLoad) -> list[str]:
    """Return what is left in the staging location, but for mailboxes of killed workers: a load removes old ones."""
    names = (each.name for each in Path(load.options["staging"].dir).iterdir())
    return [name for name in names if not name.startswith("mailbox-")]


def assert_ended(processes: list[psutil.Process]) -> None:
    wait_until(lambda: not any(one.is_running() for one in processes), ENDED_SECONDS, f"{processes} to end")


def finish(loader: Loader, load: LaunchedLoad, records: int) -> None:
    """The try after the kill; then everything is as if nothing had happened."""
    loader(*load.topics, run=replace(RUN, try_number=2), **load.options)
    assert sum(positions(loader.engine).values()) == records
    assert_exactly_once(loader.engine)
    assert set(rows(loader.engine, "SELECT state FROM offset_batches")) == {("committed",)}
    assert left_in(load) == []


@pytest.mark.long
def test_a_load_in_batches_is_exact_and_leaves_nothing(loader: Loader, load: LaunchedLoad) -> None:
    finish(loader, load, 300)
    assert list(Path(load.options["staging"].dir).iterdir()) == []
    assert rows(loader.engine, "SELECT count(*) FROM offset_batches") == [(3,)]


@pytest.mark.long
def test_a_bad_record_is_named(loader: Loader, load: LaunchedLoad, orders: str) -> None:
    produce(loader.kafka, orders, [b"{"], 1)
    with pytest.raises(RecordError, match=f"'{orders}' partition 1 offset 150"):
        loader(orders, **load.options)


@pytest.mark.long  # tests/hooks/test_spark_submit.py has it for one launcher every day
def test_a_load_that_airflow_stops_ends_spark(loader: Loader, load: LaunchedLoad, block: Path, orders: str) -> None:
    seen: list[psutil.Process] = []

    def stop() -> None:
        seen.append(waiting(block))
        loader.launcher.cancel()

    stopper = threading.Thread(target=stop)
    stopper.start()
    with pytest.raises(StagingError):
        loader(orders, transform=f"{__name__}.{blocked.__name__}", **load.options)
    stopper.join()

    assert_ended(seen)
    # The batch of the record that waited is the fourth.
    assert sum(positions(loader.engine).values()) == 300
    block.unlink()
    finish(loader, load, 301)


@pytest.mark.long
def test_a_load_whose_worker_is_killed_while_spark_reads(loader: Loader, load: LaunchedLoad, block: Path) -> None:
    options = load.options | {"transform": f"{__name__}.{blocked.__name__}"}
    killed = replace(load, options=options)
    with DyingLoad(killed) as dying:
        orphan = waiting(block)
        left = children(dying)
    assert orphan.is_running()
    # Nobody has told Spark yet that nobody waits for its rows.
    block.unlink()
    finish(loader, killed, 301)
    assert_ended(left)


@pytest.mark.long
def test_a_load_whose_worker_is_killed_at_each_step(loader: Loader, load: LaunchedLoad, orders: str) -> None:
    left: list[psutil.Process] = []
    for number, point in enumerate(KILLED):
        for partition in range(2):
            if number:
                produce(loader.kafka, orders, names(number * 300 + partition * 150, 150), partition)
        run = replace(RUN, run_id=f"run-{number}")
        with DyingLoad(replace(load, run=run), point) as dying:
            dying.reach(point)
            left += children(dying)
            dying.kill()
        loader(orders, run=replace(run, try_number=2), **load.options)
        assert sum(positions(loader.engine).values()) == 300 * (number + 1), point
        assert_exactly_once(loader.engine)
        assert set(rows(loader.engine, "SELECT state FROM offset_batches")) == {("committed",)}, point
        assert left_in(load) == [], point
    assert_ended(left)
