"""Launching Spark through the official provider's hook."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import sys
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import sqlalchemy as sa
from airflow.providers.apache.spark.hooks import spark_submit
from pyspark.sql import DataFrame

from airflow_kafka_offsets import Staging
from airflow_kafka_offsets.exceptions import ConfigurationError, StagingError
from airflow_kafka_offsets.hooks.spark import SparkSubmitLauncher
from airflow_kafka_offsets.hooks.spark_hook import SubmitRun
from airflow_kafka_offsets.hooks.spark_log import CollapsedLog
from airflow_kafka_offsets.loading.load import load
from airflow_kafka_offsets.spark.job import StageJob
from devstack.kafka import KafkaBroker
from devstack.postgres import PostgresServer
from devstack.process import wait_until
from devstack.topics import create_topic
from tests.spark.test_job import JOB
from tests.support.clients import produce
from tests.support.loads import Loader, TopicFactory, names, positions, rows
from tests.support.submitted import SECONDS, timed_out_when

pytestmark = pytest.mark.server


def connect(monkeypatch: pytest.MonkeyPatch, **connection: object) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", **connection}))


class FrozenBroker(SparkSubmitLauncher):
    """Starts Spark when the batch is planned and the broker answers nobody, so that Spark hangs in its read."""

    def __init__(self, broker: KafkaBroker) -> None:
        super().__init__("spark_default", name=f"stopped-{uuid.uuid4().hex}")
        self._broker = broker

    def __call__(self, job: StageJob) -> None:
        self._broker.pause()
        super().__call__(job)


@pytest.mark.parametrize("stopped_by", ["cancel", pytest.param("time-out", marks=pytest.mark.long)])
def test_a_task_that_is_stopped_leaves_no_process_and_no_secret(
    monkeypatch: pytest.MonkeyPatch, postgres_loader: Loader, tmp_path: Path, stopped_by: str
) -> None:
    connect(monkeypatch, host="local[2]")
    seen: list[str] = []

    def reads() -> bool:
        return any(tmp_path.glob("*/progress-*.json"))

    def look() -> bool:
        # Spark's JVM knows its name; the driver's Python, which outlives it for a moment, only the application's path.
        (java,) = processes_with(launcher.name)
        (application,) = (argument for argument in java.cmdline() if argument.endswith("/application.py"))
        assert len(processes_with(application)) > 1
        assert not [name for name in java.environ() if name.startswith("AIRFLOW_CONN_")]
        assert not list(Path(application).parent.glob("*.json"))
        seen.append(application)
        return True

    def cancel() -> None:
        try:
            wait_until(reads, SECONDS, "Spark to read")
            look()
        finally:
            launcher.cancel()

    with KafkaBroker() as broker:
        launcher = FrozenBroker(broker)
        create_topic(broker.bootstrap_servers, "orders", 1, {})
        produce(broker, "orders", names(0, 1000))
        with ThreadPoolExecutor(1) as threads:
            if stopped_by == "cancel":
                stopped: AbstractContextManager[object] = pytest.raises(StagingError)
                threads.submit(cancel)
            else:
                stopped = timed_out_when(lambda: reads() and look())
            with stopped:
                load(
                    postgres_loader.pipeline(["orders"], staging=Staging(dir=str(tmp_path))),
                    kafka_config={"bootstrap.servers": broker.bootstrap_servers},
                    engine=postgres_loader.engine,
                    launcher=launcher,
                )
        broker.resume()
    wait_until(lambda: processes_with(seen[0]) == [], SECONDS, "Spark's driver to end")
    assert positions(postgres_loader.engine) == {}


def all_that_the_driver_sees(rows: DataFrame) -> DataFrame:
    """One row with what the driver inherited, the compilers of its JVM, and where the values of two properties are.

    A transform may import Airflow.
    """
    from airflow.configuration import AIRFLOW_HOME
    from pyspark.sql.functions import lit

    assert os.environ["AIRFLOW_HOME"] == AIRFLOW_HOME
    context = rows.sparkSession.sparkContext
    properties = [context.getConf().get(name) for name in SECRET_PROPERTIES]
    assert all(properties)
    hadoop = context._jsc.hadoopConfiguration()
    assert hadoop.get("fs.s3a.secret.key") == properties[1]
    seen = []
    for process in psutil.process_iter(["cmdline", "environ"]):
        texts = [*(process.info["cmdline"] or []), *(process.info["environ"] or {}).values()]
        seen += [text for text in texts for secret in properties if str(secret) in text]
    java = psutil.Process().parent()
    assert java is not None
    found = {
        "environment": dict(os.environ),
        "compilers": [option for option in java.cmdline() if option.startswith("-XX:TieredStopAtLevel")],
        # Not the values: they would be in the query, and that is in the event log.
        "properties": list(map(digest, properties)),
        "seen": list(map(digest, seen)),
    }
    return rows.withColumn("name", lit(json.dumps(found)))


def digest(text: str | None) -> str:
    return hashlib.sha256((text or "").encode()).hexdigest()


SECRET_PROPERTIES = (
    "spark.hadoop.fs.azure.account.key.lake.dfs.core.windows.net",
    "spark.hadoop.fs.s3a.secret.key",
)


@dataclass(frozen=True)
class Application:
    """What is known of an application that `spark-submit` started.

    :param secrets: values of `SECRET_PROPERTIES`
    :param found: what its driver saw, see :func:`all_that_the_driver_sees`; empty without this transform
    :param logs: the texts of its event log
    """

    secrets: list[str]
    found: dict[str, Any]
    logs: list[str]

    def assert_no_secret_is_in_its_event_log(self) -> None:
        # Both properties are in the event log, and their values are not.
        assert [name for name in SECRET_PROPERTIES if not any(name in text for text in self.logs)] == []
        assert [secret for secret in self.secrets if any(secret in text for text in self.logs)] == []


Submit = Callable[[str | None], Application]


@pytest.fixture(scope="module")
def submit(
    broker: KafkaBroker,
    postgres: PostgresServer,
    _unique_name: Callable[[str], str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Submit:
    """Has one record loaded by an application whose properties and whose task's environment hold secrets."""

    def submitted(transform: str | None) -> Application:
        logs = tmp_path_factory.mktemp("event-log")
        secrets = [uuid.uuid4().hex for _ in SECRET_PROPERTIES]
        conf = {
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": logs.as_uri(),
            "spark.eventLog.compress": "false",
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=2",
            **dict(zip(SECRET_PROPERTIES, secrets, strict=True)),
        }
        name, database = _unique_name("topic"), postgres.borrow_database(_unique_name("database"))
        create_topic(broker.bootstrap_servers, name, 1, {})
        produce(broker, name, names(0, 1))
        engine = sa.create_engine(postgres.url(database), hide_parameters=True)
        with pytest.MonkeyPatch.context() as task:
            connect(task, host="local[1]")
            for variable, value in VARIABLES.items():
                task.setenv(variable, value)
            loader = Loader(broker, engine, SparkSubmitLauncher("spark_default", conf=conf))
            assert loader(name, transform=transform).rows == 1
        ((row,),) = rows(engine, "SELECT name FROM target")
        engine.dispose()
        postgres.give_back_database(database)
        texts = [file.read_text() for file in logs.rglob("*") if file.is_file()]
        return Application(secrets, json.loads(row) if transform is not None else {}, texts)

    return submitted


VARIABLES = {
    **dict.fromkeys(
        (
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
        ),
        '{"canary-5e": 1}',
    ),
    **dict.fromkeys(("DATABASE_URL", "OUR_TOKEN", "SLACK_WEBHOOK"), "canary-5e of somebody else"),
    "AIRFLOW_CTX_DAG_ID": "orders",
    "AWS_REGION": "eu-central-1",
    "OUR_REGION": "north",
    "AIRFLOW__KAFKA_OFFSETS__SPARK_ENVIRONMENT": "OUR_R*",
    "SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=3",
}


@pytest.fixture(scope="module")
def application(submit: Submit) -> Application:
    """One for all that can be asked of the same."""
    return submit(f"{__name__}.{all_that_the_driver_sees.__name__}")


def test_spark_inherits_nothing_of_airflows_that_may_hold_secrets(application: Application) -> None:
    inherited = application.found["environment"]
    assert {name for name in inherited if "AIRFLOW" in name} == {"AIRFLOW_HOME", "AIRFLOW_CTX_DAG_ID"}
    assert {name: inherited.get(name) for name in ("AWS_REGION", "OUR_REGION")} == {
        "AWS_REGION": "eu-central-1",
        "OUR_REGION": "north",
    }
    assert [name for name, value in inherited.items() if "canary-5e" in value] == []


def test_properties_with_secrets_are_in_no_argument_variable_or_event_log(application: Application) -> None:
    assert application.found["properties"] == list(map(digest, application.secrets))
    assert application.found["seen"] == []
    application.assert_no_secret_is_in_its_event_log()


@pytest.mark.long
def test_properties_with_secrets_are_in_no_event_log_without_a_transform(submit: Submit) -> None:
    submit(None).assert_no_secret_is_in_its_event_log()


def test_java_options_of_the_users_own_come_last_and_win(application: Application) -> None:
    # The `java` of the tests adds an option of its own, before these.
    assert application.found["compilers"][-3:] == [f"-XX:TieredStopAtLevel={level}" for level in (1, 3, 2)]


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
        ConfigurationError, match=r"Spark's Python has no module 'pyarrow': where the executors run, install pyarrow"
    ):
        Loader(kafka, postgres_engine, launcher)(name)


# Every day, the test before it has a failure of Spark's executors, and `tests/spark/test_failure.py` the texts.
@pytest.mark.long
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
        ({"host": "lokal[2]"}, None, r"leads to 'lokal\[2\]', which is no master of Spark: its host is local"),
        ({"host": "spark://127.0.0.1:1"}, None, "leads to the cluster spark://127.0.0.1:1: set Staging.dir"),
        (
            {"host": "spark://127.0.0.1:1", "extra": {"deploy-mode": "cluster"}},
            "/shared",
            "'cluster' cannot be used with spark://.*Remove 'deploy-mode' from the extra of connection 'spark_default'",
        ),
        (
            {"host": "yarn", "extra": {"deploy-mode": "clusters"}},
            "/shared",
            "'clusters' from 'deploy-mode' from the extra of .* is no deploy mode of Spark: it is client or cluster",
        ),
        ({"host": "yarn", "extra": {"deploy-mode": "cluster"}}, None, "leads to the cluster yarn: set Staging.dir"),
        ({"host": "local[*]", "extra": {"spark-binary": "spark2-submit"}}, None, "spark2-submit is not on the PATH"),
    ],
)
def test_a_connection_that_cannot_work_is_refused(
    monkeypatch: pytest.MonkeyPatch, connection: dict[str, object], staging_dir: str | None, message: str
) -> None:
    connect(monkeypatch, **connection)

    with pytest.raises(ConfigurationError, match=message):
        SparkSubmitLauncher("spark_default").check(staging_dir)


def test_a_master_of_kubernetes_without_its_provider_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(spark_submit, "kube_client", raising=False)
    connect(monkeypatch, host="k8s://https://127.0.0.1", port=6443)
    with pytest.raises(ConfigurationError, match="install apache-airflow-providers-cncf-kubernetes on the worker"):
        SparkSubmitLauncher("spark_default").check("/shared")


def test_an_application_whose_end_would_not_be_known_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    connect(monkeypatch, host="yarn", extra={"deploy-mode": "cluster"})
    waits = "spark.yarn.submit.waitAppCompletion"
    with pytest.raises(ConfigurationError, match=f"{waits} is not true"):
        SparkSubmitLauncher("spark_default", conf={waits: "false"}).check("/shared")


def test_a_driver_in_a_cluster_gets_nothing_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither its Python nor another chance, and the user's archives beside that of this package."""
    connect(monkeypatch, host="yarn", extra={"deploy-mode": "cluster"})
    launcher = SparkSubmitLauncher("spark_default", conf={"spark.submit.pyFiles": "hdfs:///shop.zip"})
    folded = CollapsedLog(logging.getLogger(__name__))
    with ExitStack() as stack:
        run, channel = launcher._open(replace(JOB, staging_uri=str(tmp_path / "batch-1")), folded, stack)
        assert isinstance(run, SubmitRun)
        command = run._hook._build_spark_submit_command("application.py")
        assert command[-2:] == list(channel.arguments)
        assert re.fullmatch(
            r".*/airflow_kafka_offsets\.zip,hdfs:///shop\.zip", command[command.index("--py-files") + 1]
        )
        assert "spark.yarn.maxAppAttempts=1" in command
        assert "spark.yarn.submit.waitAppCompletion=true" in command
        assert [argument for argument in command if sys.executable in argument] == []


def test_properties_of_spark_that_ask_for_cluster_mode_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mode = "spark.submit.deployMode"
    connect(monkeypatch, host="local[*]")
    with pytest.raises(ConfigurationError, match=f"Remove {mode} from Spark.conf"):
        SparkSubmitLauncher("spark_default", conf={mode: "cluster"}).check(None)

    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    (tmp_path / "spark-defaults.conf").write_text(f"{mode} cluster\n")
    with pytest.raises(ConfigurationError, match=f"Remove {mode} from spark-defaults.conf"):
        SparkSubmitLauncher("spark_default").check(None)
    SparkSubmitLauncher("spark_default", conf={mode: "client"}).check(None)
