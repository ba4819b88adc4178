"""Loads on YARN: staging on its HDFS or in a directory that all machines share, and the driver on the worker or in a
container, which does not see the worker's files.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyarrow import fs
from sqlalchemy.engine import Engine

from airflow_kafka_offsets import Staging
from airflow_kafka_offsets.exceptions import StagingError
from airflow_kafka_offsets.hooks.spark import SparkSubmitLauncher
from airflow_kafka_offsets.staging.directory import StagingDirectory
from devstack.kafka import KafkaBroker
from devstack.orders import produce_orders
from devstack.paths import REPOSITORY
from devstack.process import wait_until
from devstack.yarn import HadoopCluster, Node
from tests.support.airflow_runs import DAGS, Run, Runs, airflow_runs, airflow_uri
from tests.support.clients import produce
from tests.support.loads import Loader, TopicFactory, assert_exactly_once, names, rows

pytestmark = [
    pytest.mark.server,
    pytest.mark.long,
    pytest.mark.skipif(sys.platform != "linux", reason="containers are found in /proc"),
]

COLUMNS = "id BIGINT NOT NULL, customer STRING, amount DECIMAL(10,2), created TIMESTAMP"

RUNS = int(os.environ.get("RUNS", "5"))
SEED = int(os.environ.get("SEED", "1"))
RECORDS = int(os.environ.get("RECORDS", "100000"))
"""Of all runs of the sweep together."""


@pytest.fixture(scope="module")
def worker() -> Iterator[Path]:
    """The directory of all that only the worker has."""
    directory = Path(tempfile.mkdtemp(prefix="w-"))
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="module")
def hadoop(worker: Path) -> Iterator[HadoopCluster]:
    with HadoopCluster(nodes=2, hidden=[worker, DAGS, REPOSITORY / "airflow_kafka_offsets"]) as cluster:
        yield cluster


@pytest.fixture
def runs(
    hadoop: HadoopCluster, worker: Path, kafka: KafkaBroker, postgres_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Runs]:
    monkeypatch.setattr(tempfile, "tempdir", str(worker))
    with airflow_runs(kafka, airflow_uri(postgres_engine), spark="yarn") as runs:
        runs.home.env |= {"HADOOP_CONF_DIR": str(hadoop.conf_dir), "TMPDIR": str(worker)}
        yield runs
    wait_until(lambda: not containers(hadoop), 300, "all containers to end")


def left_in(directory: str) -> list[str]:
    """Return the names in a directory."""
    staging = StagingDirectory(directory)
    return [info.base_name for info in staging.filesystem.get_file_info(fs.FileSelector(staging.path))]


def containers(hadoop: HadoopCluster) -> dict[str, Node]:
    """The containers that run, with their nodes."""
    return {container: node for node in hadoop.nodes for container in node.containers()}


@pytest.mark.parametrize(
    ("deploy_mode", "where"), [("client", "hdfs"), ("client", "shared directory"), ("cluster", "hdfs")]
)
def test_a_load_on_yarn_is_exact(
    hadoop: HadoopCluster,
    runs: Runs,
    kafka: KafkaBroker,
    topic: TopicFactory,
    postgres_engine: Engine,
    tmp_path: Path,
    deploy_mode: str,
    where: str,
) -> None:
    name = topic(partitions=4)
    produce_orders(kafka.bootstrap_servers, name, RECORDS)
    directory = f"{hadoop.hdfs}/staging" if where == "hdfs" else f"file://{tmp_path}/staging"
    before = len(hadoop.applications())

    run = runs.begin(
        topics=[name],
        columns=COLUMNS,
        staging={"dir": directory, "slice_offsets": RECORDS // 10},
        spark={"conf": hadoop.spark(deploy_mode)},
    )
    status, output = run.end()

    assert status == 0, output[-8000:]
    assert f"read {RECORDS:,} records of {RECORDS:,} planned (100%)" in output
    assert rows(postgres_engine, "SELECT count(*), count(DISTINCT id) FROM target") == [(RECORDS, RECORDS)]
    assert_exactly_once(postgres_engine)
    wait_until(lambda: not containers(hadoop), 60, "the containers to end")
    (application,) = hadoop.applications()[before:]
    assert application["finalStatus"] == "SUCCEEDED"


@pytest.fixture
def loader(
    hadoop: HadoopCluster, kafka: KafkaBroker, postgres_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Loader]:
    """Loads in this process, whose drivers are in containers."""
    monkeypatch.setenv("HADOOP_CONF_DIR", str(hadoop.conf_dir))
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "yarn"}))
    yield Loader(kafka, postgres_engine, SparkSubmitLauncher("spark_default", conf=hadoop.spark("cluster")))
    wait_until(lambda: not containers(hadoop), 60, "the driver to end")


@pytest.mark.parametrize("is_cancelled", [True, False], ids=["Airflow stops the task", "the driver is killed"])
def test_a_driver_that_ends_early(
    hadoop: HadoopCluster, loader: Loader, kafka: KafkaBroker, topic: TopicFactory, is_cancelled: bool
) -> None:
    name = topic()
    produce(kafka, name, names(0, 1000))
    staging = Staging(dir=f"{hadoop.hdfs}/staging")

    def end() -> None:
        wait_until(lambda: any(name.endswith("_000002") for name in containers(hadoop)), 120, "an executor")
        if is_cancelled:
            loader.launcher.cancel()
        else:
            ((container, node),) = (
                (name, node) for name, node in containers(hadoop).items() if name.endswith("_000001")
            )
            node.kill_container(container)

    with ThreadPoolExecutor() as pool:
        ended = pool.submit(end)
        with pytest.raises(StagingError) as raised:
            loader(name, staging=staging)
        ended.result()
    if not is_cancelled:
        assert f"Application {hadoop.applications()[-1]['id']} finished with failed status" in str(raised.value)
    wait_until(lambda: not containers(hadoop), 30, "the driver to end")
    loader(name, staging=staging)
    assert_exactly_once(loader.engine)
    assert left_in(f"{hadoop.hdfs}/staging") == []


VICTIMS = ("worker", "node", "driver", "executor")
"""In turn: the worker, a NodeManager with all of its containers, the driver's container, an executor's."""


def test_kills_at_random_moments_leave_every_record_once(
    hadoop: HadoopCluster, runs: Runs, kafka: KafkaBroker, topic: TopicFactory, postgres_engine: Engine
) -> None:
    name = topic(partitions=4)
    chance = random.Random(SEED)
    options = {
        "topics": [name],
        "columns": COLUMNS,
        "staging": {"dir": f"{hadoop.hdfs}/staging", "slice_offsets": max(RECORDS // RUNS // 10, 1)},
        "spark": {"conf": hadoop.spark("cluster")},
        "coordination": {"on_busy": "wait"},
    }
    count, kills, longest = 0, 0, 40.0
    for number in range(RUNS):
        count += produce_orders(kafka.bootstrap_servers, name, RECORDS // RUNS, start_id=count)
        date = f"2026-{number // 28 + 1:02}-{number % 28 + 1:02}"
        victim, moment = VICTIMS[number % len(VICTIMS)], chance.uniform(0, longest)
        story = f"seed {SEED}, run {number}: {victim} after {moment:.1f} s"
        began = time.monotonic()
        run, tries = runs.begin(date, **options), 1
        killed = kill_after(moment, run, hadoop, victim, chance)
        kills += killed
        while run.process.wait() != 0:
            story += f"\n  try {tries}: {reason(run.output())}"
            assert tries < 4, f"{story}\n{run.output()[-8000:]}"
            run, tries = runs.begin(date, **options), tries + 1
        lasted = time.monotonic() - began
        longest = longest if killed else lasted
        sys.stdout.write(f"{story}{'' if killed else ', too late'}, {tries} tries, {lasted:.0f} s\n")
        sys.stdout.flush()
        found = rows(postgres_engine, "SELECT count(*), count(DISTINCT id) FROM target")
        assert found == [(count, count)], story
    assert_exactly_once(postgres_engine)
    assert kills > 0, "nothing was ever killed"


def kill_after(seconds: float, run: Run, hadoop: HadoopCluster, victim: str, chance: random.Random) -> bool:
    """Kill something; return False where the run has ended before."""
    deadline = time.monotonic() + seconds
    while run.process.poll() is None:
        time.sleep(0.1)
        if time.monotonic() > deadline and kill(run, hadoop, victim, chance):
            return True
    return False


def kill(run: Run, hadoop: HadoopCluster, victim: str, chance: random.Random) -> bool:
    """Kill something; return False where there is none."""
    if victim == "worker":
        run.kill()
        return True
    if victim == "node":
        node = chance.choice(hadoop.nodes)
        node.kill()
        node.start()
        return True
    # Of the newest application: those whose worker was killed end by themselves.
    found = [each for each in containers(hadoop).items() if each[0].endswith("_000001") == (victim == "driver")]
    return any(node.kill_container(container) for container, node in sorted(found, key=lambda each: each[0])[-1:])


def reason(output: str) -> str:
    """Return the line of a task's log that says why it failed."""
    lines = [line for line in output.splitlines() if re.search(r"\b\w+Error: ", line) and "Retry policy" not in line]
    return lines[-1].strip()[:300] if lines else "killed"
