"""Launching Spark through the official provider's hook."""

from __future__ import annotations

import json
import threading
import uuid
from pathlib import Path

import psutil
import pytest

from airflow_kafka_offsets.batch import load
from airflow_kafka_offsets.exceptions import ConfigurationError, StagingError
from airflow_kafka_offsets.hooks.spark import SparkSubmitLauncher
from devstack.kafka import KafkaBroker
from devstack.process import wait_until
from devstack.topics import create_topic
from tests.integration.conftest import Loader, names, positions, produce


def connect(monkeypatch: pytest.MonkeyPatch, **connection: object) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", **connection}))


def test_on_kill_leaves_no_process(monkeypatch: pytest.MonkeyPatch, postgres_loader: Loader, tmp_path: Path) -> None:
    connect(monkeypatch, host="local[2]")
    launcher = SparkSubmitLauncher("spark_default", name=f"killed-{uuid.uuid4().hex}")
    errors: list[StagingError] = []

    def run() -> None:
        try:
            load(
                postgres_loader.pipeline(["orders"], staging_dir=str(tmp_path)),
                kafka_config={"bootstrap.servers": broker.bootstrap_servers},
                engine=postgres_loader.engine,
                launcher=launcher,
            )
        except StagingError as error:
            errors.append(error)

    with KafkaBroker() as broker:
        create_topic(broker.bootstrap_servers, "orders", 1, {})
        produce(broker, "orders", names(0, 1000))
        task = threading.Thread(target=run)
        task.start()
        wait_until(lambda: any(tmp_path.iterdir()), 60, "the plan")
        broker.pause()  # Spark hangs in the middle of its read
        wait_until(lambda: any(tmp_path.glob("*/progress-*.json")), 60, "Spark to read")
        # Spark's JVM knows its name; the driver's Python, which outlives it for a moment, only the application's path.
        (java,) = processes_with(launcher.name)
        (application,) = (argument for argument in java if argument.endswith("/application.py"))
        assert len(processes_with(application)) > 1

        launcher.on_kill()

        task.join(60)
        broker.resume()
        wait_until(lambda: processes_with(application) == [], 60, "Spark's driver to end")
    assert not task.is_alive()
    assert len(errors) == 1
    assert positions(postgres_loader.engine) == {}


def processes_with(argument: str) -> list[list[str]]:
    """The command lines of all processes that were given an argument."""
    found = (process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"]))
    return [command for command in found if argument in command]


@pytest.mark.parametrize(
    ("connection", "staging_dir", "message"),
    [
        ({"host": "spark://127.0.0.1:1"}, None, "leads to the cluster spark://127.0.0.1:1: set staging_dir"),
        ({"host": "yarn", "extra": {"deploy-mode": "cluster"}}, "/shared", "has deploy-mode 'cluster'"),
        ({"host": "local[*]", "extra": {"spark-binary": "spark2-submit"}}, None, "spark2-submit is not on the PATH"),
    ],
)
def test_a_connection_that_cannot_work_is_refused(
    monkeypatch: pytest.MonkeyPatch, connection: dict[str, object], staging_dir: str | None, message: str
) -> None:
    connect(monkeypatch, **connection)

    with pytest.raises(ConfigurationError, match=message):
        SparkSubmitLauncher("spark_default").check(staging_dir)
