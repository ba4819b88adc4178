"""Launching Spark through the official provider's hook."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import threading
import uuid
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import sqlalchemy as sa
from pyspark.sql import DataFrame

from airflow_kafka_offsets.exceptions import ConfigurationError, StagingError
from airflow_kafka_offsets.hooks.spark import SparkSubmitLauncher
from airflow_kafka_offsets.loading.load import load
from devstack.kafka import KafkaBroker
from devstack.process import wait_until
from devstack.topics import create_topic
from tests.support.clients import produce
from tests.support.loads import Loader, TopicFactory, names, positions, rows

pytestmark = pytest.mark.server


def connect(monkeypatch: pytest.MonkeyPatch, **connection: object) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", **connection}))


class TimedOut(BaseException):
    """As Airflow's AirflowTaskTimeout, which is raised in the middle of a task by a signal."""


@pytest.mark.parametrize("stopped_by", ["cancel", pytest.param("time-out", marks=pytest.mark.long)])
def test_a_task_that_is_stopped_leaves_no_process_and_no_secret(
    monkeypatch: pytest.MonkeyPatch, postgres_loader: Loader, tmp_path: Path, stopped_by: str
) -> None:
    connect(monkeypatch, host="local[2]")
    launcher = SparkSubmitLauncher("spark_default", name=f"stopped-{uuid.uuid4().hex}")
    seen: list[str] = []

    def time_out(*_: object) -> None:
        raise TimedOut

    def stop_while_spark_reads() -> None:
        wait_until(lambda: any(tmp_path.iterdir()), 60, "the plan")
        broker.pause()  # Spark hangs in the middle of its read
        wait_until(lambda: any(tmp_path.glob("*/progress-*.json")), 60, "Spark to read")
        # Spark's JVM knows its name; the driver's Python, which outlives it for a moment, only the application's path.
        (java,) = processes_with(launcher.name)
        (application,) = (argument for argument in java.cmdline() if argument.endswith("/application.py"))
        assert len(processes_with(application)) > 1
        assert not [name for name in java.environ() if name.startswith("AIRFLOW_CONN_")]
        assert not list(Path(application).parent.glob("*.json"))
        seen.append(application)
        if stopped_by == "cancel":
            launcher.cancel()
        else:
            os.kill(os.getpid(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, time_out)
    try:
        with KafkaBroker() as broker:
            create_topic(broker.bootstrap_servers, "orders", 1, {})
            produce(broker, "orders", names(0, 1000))
            stopper = threading.Thread(target=stop_while_spark_reads)
            stopper.start()
            with pytest.raises(StagingError if stopped_by == "cancel" else TimedOut):
                load(
                    postgres_loader.pipeline(["orders"], staging_dir=str(tmp_path)),
                    kafka_config={"bootstrap.servers": broker.bootstrap_servers},
                    engine=postgres_loader.engine,
                    launcher=launcher,
                )
            stopper.join()
            broker.resume()
            wait_until(lambda: processes_with(seen[0]) == [], 60, "Spark's driver to end")
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert positions(postgres_loader.engine) == {}


def environment_of_the_driver(rows: DataFrame) -> DataFrame:
    """What the driver inherited, as names and values; a transform may import Airflow."""
    from airflow.configuration import AIRFLOW_HOME
    from pyspark.sql.functions import lit

    assert os.environ["AIRFLOW_HOME"] == AIRFLOW_HOME
    return rows.withColumn("name", lit(json.dumps(dict(os.environ))))


def test_spark_inherits_nothing_of_airflows_that_may_hold_secrets(
    monkeypatch: pytest.MonkeyPatch, kafka: KafkaBroker, postgres_engine: sa.Engine, topic: TopicFactory
) -> None:
    connect(monkeypatch, host="local[1]")
    for name in (
        "AIRFLOW_VAR_TOKEN",
        "AIRFLOW__CELERY_BROKER_TRANSPORT_OPTIONS__SENTINEL_KWARGS",
        "AIRFLOW__CORE__FERNET_KEY",
        "AIRFLOW__LOGGING__REMOTE_TASK_HANDLER_KWARGS",
        "AIRFLOW__OPENSEARCH__PASSWORD",
        "AIRFLOW__SENTRY__SENTRY_DSN",
        "AIRFLOW__SMTP__SMTP_PASSWORD",
        "AIRFLOW__WEBSERVER__SECRET_KEY",
        "AIRFLOW__WORKERS__SECRETS_BACKEND_KWARGS",
        "_AIRFLOW_WWW_USER_PASSWORD",
        "__AIRFLOW_SUPERVISOR_FD",
    ):
        monkeypatch.setenv(name, '{"canary-5e": 1}')
    for name in ("DATABASE_URL", "OUR_TOKEN", "SLACK_WEBHOOK"):
        monkeypatch.setenv(name, "canary-5e of somebody else")
    monkeypatch.setenv("AIRFLOW_CTX_DAG_ID", "orders")
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    monkeypatch.setenv("OUR_REGION", "north")
    monkeypatch.setenv("AIRFLOW__KAFKA_OFFSETS__SPARK_ENVIRONMENT", "OUR_R*")
    name = topic()
    produce(kafka, name, names(0, 1))

    transform = f"{__name__}.{environment_of_the_driver.__name__}"
    Loader(kafka, postgres_engine, SparkSubmitLauncher("spark_default"))(name, transform=transform)

    ((inherited,),) = rows(postgres_engine, "SELECT name FROM target")
    found = json.loads(inherited)
    assert {name for name in found if "AIRFLOW" in name} == {"AIRFLOW_HOME", "AIRFLOW_CTX_DAG_ID"}
    assert {name: found.get(name) for name in ("AWS_REGION", "OUR_REGION")} == {
        "AWS_REGION": "eu-central-1",
        "OUR_REGION": "north",
    }
    assert [name for name, value in found.items() if "canary-5e" in value] == []


def all_that_is_seen_of_processes(rows: DataFrame) -> DataFrame:
    """Digests of what the driver knows of two properties, and every argument and variable of a process that holds one."""
    from pyspark.sql.functions import lit

    context = rows.sparkSession.sparkContext
    properties = [context.getConf().get(name) for name in SECRET_PROPERTIES]
    assert all(properties)
    hadoop = context._jsc.hadoopConfiguration()
    assert hadoop.get("fs.s3a.secret.key") == properties[1]
    seen = []
    for process in psutil.process_iter(["cmdline", "environ"]):
        texts = [*(process.info["cmdline"] or []), *(process.info["environ"] or {}).values()]
        seen += [text for text in texts for secret in properties if str(secret) in text]
    # Not the values: they would be in the query, and that is in the event log.
    return rows.withColumn("name", lit(json.dumps([list(map(digest, properties)), list(map(digest, seen))])))


def digest(text: str | None) -> str:
    return hashlib.sha256((text or "").encode()).hexdigest()


SECRET_PROPERTIES = (
    "spark.hadoop.fs.azure.account.key.lake.dfs.core.windows.net",
    "spark.hadoop.fs.s3a.secret.key",
)


@pytest.mark.parametrize("transform", [all_that_is_seen_of_processes, pytest.param(None, marks=pytest.mark.long)])
def test_properties_with_secrets_are_in_no_argument_variable_or_event_log(
    monkeypatch: pytest.MonkeyPatch,
    kafka: KafkaBroker,
    postgres_engine: sa.Engine,
    topic: TopicFactory,
    tmp_path: Path,
    transform: Callable[[DataFrame], DataFrame] | None,
) -> None:
    connect(monkeypatch, host="local[1]")
    secrets = [uuid.uuid4().hex for _ in SECRET_PROPERTIES]
    conf = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": tmp_path.as_uri(),
        "spark.eventLog.compress": "false",
    }
    launcher = SparkSubmitLauncher("spark_default", conf={**conf, **dict(zip(SECRET_PROPERTIES, secrets, strict=True))})
    name = topic()
    produce(kafka, name, names(0, 1))

    path = f"{__name__}.{transform.__name__}" if transform is not None else None
    Loader(kafka, postgres_engine, launcher)(name, transform=path)

    if transform is not None:
        ((found,),) = rows(postgres_engine, "SELECT name FROM target")
        assert json.loads(found) == [list(map(digest, secrets)), []]
    logs = [file.read_text() for file in tmp_path.rglob("*") if file.is_file()]
    # Both properties are in the event log, and their values are not.
    assert [name for name in SECRET_PROPERTIES if not any(name in text for text in logs)] == []
    assert [secret for secret in secrets if any(secret in text for text in logs)] == []


def test_java_options_of_the_users_own_come_last_and_win(
    monkeypatch: pytest.MonkeyPatch, kafka: KafkaBroker, postgres_engine: sa.Engine, topic: TopicFactory
) -> None:
    connect(monkeypatch, host="local[1]")
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=3")
    conf = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=4"}
    launcher = SparkSubmitLauncher("spark_default", conf=conf, name=f"options-{uuid.uuid4().hex}")
    name = topic()
    produce(kafka, name, names(0, 10))
    found: list[str] = []

    def look() -> None:
        wait_until(lambda: options_of(launcher.name), 60, "Spark's JVM")
        found.extend(options_of(launcher.name))

    looker = threading.Thread(target=look)
    looker.start()
    result = Loader(kafka, postgres_engine, launcher)(name)
    looker.join()

    assert result.rows == 10
    # The `java` of the tests adds an option of its own, before these.
    assert found[-3:] == [f"-XX:TieredStopAtLevel={level}" for level in (1, 3, 4)]


def options_of(name: str) -> list[str]:
    """All that the driver's JVM is told of its compilers. The JVM that makes its command line, before it, has another class."""
    return [
        option
        for process in processes_with(name)
        if "org.apache.spark.launcher.Main" not in process.info["cmdline"]
        for option in process.info["cmdline"]
        if option.startswith("-XX:TieredStopAtLevel")
    ]


def processes_with(argument: str) -> list[psutil.Process]:
    """All processes that were given an argument."""
    return [process for process in psutil.process_iter(["cmdline"]) if argument in (process.info["cmdline"] or [])]


def test_executors_whose_python_lacks_a_module_are_told_of(
    monkeypatch: pytest.MonkeyPatch, kafka: KafkaBroker, postgres_engine: sa.Engine, topic: TopicFactory, tmp_path: Path
) -> None:
    connect(monkeypatch, host="local[1]")
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    launcher = SparkSubmitLauncher("spark_default", conf={"spark.pyspark.python": str(bare)})
    name = topic()
    produce(kafka, name, names(0, 10))

    with pytest.raises(
        ConfigurationError, match=r"Spark's Python has no module 'pyarrow': install pyarrow, confluent-kafka"
    ):
        Loader(kafka, postgres_engine, launcher)(name)


def test_why_spark_failed_is_in_the_error(
    monkeypatch: pytest.MonkeyPatch, kafka: KafkaBroker, postgres_engine: sa.Engine, topic: TopicFactory
) -> None:
    connect(monkeypatch, host="local[1]")
    launcher = SparkSubmitLauncher("spark_default", conf={"spark.serializer": "no.such.Serializer"})
    name = topic()
    produce(kafka, name, names(0, 10))

    with pytest.raises(
        StagingError, match=r"Spark did not stage batch 1: .*ClassNotFoundException: no\.such\.Serializer$"
    ):
        Loader(kafka, postgres_engine, launcher)(name)


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
