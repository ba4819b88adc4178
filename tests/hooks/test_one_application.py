"""All batches of a load are staged by one Spark application, which `spark-submit` starts. Without Spark:
`test_spark_application`.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import sqlalchemy as sa

from airflow_kafka_offsets import DeadLetters, Limits
from airflow_kafka_offsets.exceptions import KafkaOffsetsError
from airflow_kafka_offsets.hooks.spark import SparkSubmitLauncher
from airflow_kafka_offsets.loading.load import load
from airflow_kafka_offsets.loading.pipeline import LoadOptions
from benchmarks.mailbox import MailboxLauncher
from devstack.kafka import KafkaBroker
from tests.support.clients import produce
from tests.support.loads import Loader, TopicFactory, assert_exactly_once, names

pytestmark = pytest.mark.server


class Applications:
    """Spark's event logs: of each application a file, in which are its jobs."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.conf = {
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": directory.as_uri(),
            "spark.eventLog.compress": "false",
            "spark.eventLog.rolling.enabled": "false",
        }

    def jobs(self) -> list[int]:
        """How many jobs each application has run, in their order."""
        files = sorted(self._directory.iterdir(), key=lambda file: file.name)
        return [file.read_text().count('"SparkListenerJobStart"') for file in files]


@pytest.fixture
def applications(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kafka: KafkaBroker, postgres_engine: sa.Engine
) -> Iterator[Applications]:
    """Their processes end with the load."""
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[2]"}))
    servers = psutil.Process().children()
    yield Applications(tmp_path)
    assert psutil.Process().children() == servers


@pytest.mark.parametrize(
    ("transform", "launcher_class"),
    [
        (None, SparkSubmitLauncher),
        (None, MailboxLauncher),
        pytest.param("tests.loading.test_transforms.twice", SparkSubmitLauncher, marks=pytest.mark.long),
        pytest.param("tests.loading.test_transforms.twice", MailboxLauncher, marks=pytest.mark.long),
    ],
)
def test_three_batches(
    applications: Applications,
    kafka: KafkaBroker,
    postgres_engine: sa.Engine,
    topic: TopicFactory,
    transform: str | None,
    launcher_class: type[SparkSubmitLauncher],
    caplog: pytest.LogCaptureFixture,
) -> None:
    name = topic()
    produce(kafka, name, names(0, 30))
    loader = Loader(kafka, postgres_engine, launcher_class("spark_default", conf=applications.conf))

    with caplog.at_level("INFO"):
        result = loader(name, limits=Limits(max_records=10), transform=transform)

    assert result.records == 30
    assert [line for line in caplog.messages if line.startswith("Batch") and "read 10 records of 10 planned" in line]
    assert applications.jobs() == [3]
    if transform is None:
        assert_exactly_once(postgres_engine)


@pytest.mark.long
def test_an_error_in_the_second_batch(
    applications: Applications, kafka: KafkaBroker, postgres_engine: sa.Engine, topic: TopicFactory
) -> None:
    name = topic()
    produce(kafka, name, [*names(0, 10), b"{", *names(10, 10)])
    loader = Loader(kafka, postgres_engine, SparkSubmitLauncher("spark_default", conf=applications.conf))

    with pytest.raises(KafkaOffsetsError, match=rf"'{name}' partition 0 offset 10 cannot be loaded"):
        loader(name, limits=Limits(max_records=10))
    result = loader(name, limits=Limits(max_records=10), on_bad_record=DeadLetters())

    assert (result.records, result.dead_letters) == (11, 1)
    assert [count > 0 for count in applications.jobs()] == [True, True]


@pytest.mark.long
def test_the_jvm_is_killed_between_batches(
    applications: Applications, kafka: KafkaBroker, postgres_engine: sa.Engine, topic: TopicFactory
) -> None:
    name = topic()
    produce(kafka, name, names(0, 30))
    launcher = SparkSubmitLauncher("spark_default", conf=applications.conf, name=f"killed-{uuid.uuid4().hex}")
    loader = Loader(kafka, postgres_engine, launcher)
    killed: list[int] = []

    def kill(*_: Any, **__: Any) -> None:
        if not killed:
            for process in psutil.Process().children(recursive=True):
                if launcher.name in process.cmdline():
                    process.kill()
                    killed.append(process.pid)

    result = load(
        loader.pipeline([name]),
        LoadOptions(limits=Limits(max_records=10)),
        kafka_config=loader.config,
        engine=postgres_engine,
        launcher=launcher,
        on_commit=kill,
    )

    assert (result.records, len(killed)) == (30, 1)
    assert applications.jobs() == [1, 2]
    assert_exactly_once(postgres_engine)
