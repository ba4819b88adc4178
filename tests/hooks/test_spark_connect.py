"""Loads through a real server of Spark Connect."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
import sqlalchemy as sa
from pyspark.sql import DataFrame

from airflow_kafka_offsets import Limits
from airflow_kafka_offsets.exceptions import ConfigurationError, RecordError, StagingError
from airflow_kafka_offsets.hooks.spark_connect import SparkConnectLauncher
from airflow_kafka_offsets.spark.job import StageJob
from devstack.kafka import KafkaBroker
from devstack.process import free_port, wait_until
from devstack.spark_connect import SparkConnectServer
from tests.support.clients import produce
from tests.support.loads import Loader, TopicFactory, assert_exactly_once, names, positions, rows

pytestmark = pytest.mark.server


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch, spark_connect: SparkConnectServer) -> Callable[..., SparkConnectLauncher]:
    """Return a launcher; a connection leads to the server, but for the fields that are given."""

    def launcher(conf: dict[str, Any] | None = None, **other: Any) -> SparkConnectLauncher:
        monkeypatch.setenv("AIRFLOW_CONN_SPARK_REMOTE", json.dumps(spark_connect.connection | other))
        return SparkConnectLauncher("spark_remote", conf=conf)

    return launcher


@pytest.fixture
def remote_loader(
    kafka: KafkaBroker, postgres_engine: sa.Engine, connect: Callable[..., SparkConnectLauncher]
) -> Loader:
    return Loader(kafka, postgres_engine, connect())


def where_the_package_is(rows: DataFrame) -> DataFrame:
    """A transform with functions of Spark's, and one of the user's that runs where the records are read."""
    from pyspark.sql.functions import col, concat, lit, udf

    def package() -> str:
        import airflow_kafka_offsets

        return airflow_kafka_offsets.__file__

    return rows.withColumn("name", concat(lit("in "), udf(lambda _: package(), "string")(col("id"))))


class Watching(SparkConnectLauncher):
    """A launcher that notes the session of each job, and what was sent into it."""

    def __init__(self, server: SparkConnectServer) -> None:
        super().__init__("spark_remote")
        self._server = server
        self.seen: list[tuple[str, int]] = []

    def __call__(self, job: StageJob) -> None:
        super().__call__(job)
        assert self._session is not None
        self.seen.append((self._session.session_id, len(artifacts(self._server))))


def artifacts(server: SparkConnectServer) -> list[Path]:
    """Return what the server keeps for its sessions. Executors keep what they have fetched for later sessions."""
    return [file for file in server.directory.rglob("*.zip") if "userFiles-" not in str(file)]


def test_batches_of_a_load_share_a_session_that_leaves_nothing(
    remote_loader: Loader, topic: TopicFactory, spark_connect: SparkConnectServer, caplog: pytest.LogCaptureFixture
) -> None:
    name = topic(partitions=2)
    produce(remote_loader.kafka, name, names(0, 200))
    remote_loader.launcher = launcher = Watching(spark_connect)

    result = remote_loader(name, limits=Limits(max_records=100))

    assert result.rows == 200
    assert_exactly_once(remote_loader.engine)
    first, second = launcher.seen
    assert first == second
    assert first[1] == 1
    wait_until(lambda: artifacts(spark_connect) == [], 30, "the server to remove what the session had")
    assert "SPARK_CONNECT_MODE_ENABLED" not in os.environ
    assert str(spark_connect.token) not in caplog.text


class Closed(Watching):
    """A launcher whose session the server closes before the second job, as it closes idle ones after an hour."""

    def __call__(self, job: StageJob) -> None:
        if self.seen:
            assert self._session is not None
            self._session.client.release_session()
        super().__call__(job)


@pytest.mark.parametrize(
    "transform", [pytest.param(None, marks=pytest.mark.long), f"{__name__}.{where_the_package_is.__name__}"]
)
def test_a_batch_whose_session_the_server_has_closed_is_staged_in_another(
    remote_loader: Loader,
    topic: TopicFactory,
    spark_connect: SparkConnectServer,
    caplog: pytest.LogCaptureFixture,
    transform: str | None,
) -> None:
    name = topic()
    produce(remote_loader.kafka, name, names(0, 20))
    remote_loader.launcher = launcher = Closed(spark_connect)

    assert remote_loader(name, limits=Limits(max_records=10), transform=transform).rows == 20

    assert_exactly_once(remote_loader.engine)
    first, second = launcher.seen
    assert first[0] != second[0]
    assert "Batch 2 is staged in another session: " in caplog.text
    assert "INVALID_HANDLE.SESSION_CLOSED" in caplog.text


def test_no_session_is_open_while_a_load_waits_for_its_group(connect: Callable[..., SparkConnectLauncher]) -> None:
    launcher = connect()
    launcher.check(None)
    assert launcher._session is None


def test_a_transform_of_dataframes_and_the_package_travel_to_the_server(
    remote_loader: Loader, topic: TopicFactory, spark_connect: SparkConnectServer
) -> None:
    name = topic()
    produce(remote_loader.kafka, name, names(0, 10))

    remote_loader(name, transform=f"{__name__}.{where_the_package_is.__name__}")

    ((found,),) = rows(remote_loader.engine, "SELECT DISTINCT name FROM target")
    assert found.startswith(f"in {spark_connect.directory}/")
    assert "/airflow_kafka_offsets.zip/" in found


def test_an_error_in_a_record_names_it(remote_loader: Loader, topic: TopicFactory) -> None:
    name = topic()
    produce(remote_loader.kafka, name, [*names(0, 5), b"no JSON", *names(6, 5)])

    with pytest.raises(RecordError, match=f"topic '{name}' partition 0 offset 5"):
        remote_loader(name)

    assert positions(remote_loader.engine) == {}


@pytest.mark.parametrize(
    ("connection", "conf", "error", "message"),
    [
        ({"host": None}, None, ConfigurationError, "'spark_remote' has no host"),
        ({"host": "sc://localhost/path"}, None, ConfigurationError, "'spark_remote' is not a valid URL"),
        (
            {"host": "spark.invalid"},
            None,
            ConfigurationError,
            r"leads to the Spark Connect server spark\.invalid:\d+: set Staging",
        ),
        (
            {"port": free_port()},
            None,
            StagingError,
            r"localhost:\d+ of connection 'spark_remote' does not answer: .*refused",
        ),
        ({"extra": {"use_ssl": True}}, None, StagingError, "listens there, and does not speak gRPC with TLS"),
        (
            {"password": "canary/5f"},
            None,
            ConfigurationError,
            "refused a session to connection 'spark_remote': Invalid authentication token. Correct user id, token",
        ),
        (
            {},
            {"spark.executor.memory": "2g"},
            ConfigurationError,
            r"Spark.conf\['spark.executor.memory'\] is not a property of",
        ),
    ],
)
def test_a_connection_that_cannot_work_is_refused_before_anything_is_planned(
    connect: Callable[..., SparkConnectLauncher],
    connection: dict[str, Any],
    conf: dict[str, Any] | None,
    error: type[Exception],
    message: str,
) -> None:
    launcher = connect(conf, **connection)
    with pytest.raises(error, match=message) as refused:
        launcher.check(None)
    assert "canary" not in str(refused.value)
    launcher.close()


def test_plain_text_to_another_machine_is_a_weakness(connect: Callable[..., SparkConnectLauncher]) -> None:
    assert connect().weakness() is None
    assert connect(host="spark.invalid", extra={"use_ssl": True}, password=None).weakness() is None
    weakness = connect(host="spark.invalid", password=None).weakness()
    assert weakness is not None
    assert "is unprotected" in weakness


class Requests(grpc.GenericRpcHandler):  # type: ignore[misc]  # gRPC declares no types
    """A server of gRPC that implements nothing, and keeps the headers of what it is asked."""

    def __init__(self) -> None:
        self.headers: list[dict[str, Any]] = []

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> None:
        self.headers.append(dict(handler_call_details.invocation_metadata))


def test_headers_of_the_connection_are_sent_with_each_request(connect: Callable[..., SparkConnectLauncher]) -> None:
    requests = Requests()
    server = grpc.server(ThreadPoolExecutor(1), handlers=[requests])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    extra = {"headers": {"X-Databricks-Cluster-Id": "0521-131856-htxvzvzz"}}
    try:
        with pytest.raises(StagingError):
            connect(port=port, password=None, extra=extra).check(None)
    finally:
        server.stop(None).wait()
    assert {headers["x-databricks-cluster-id"] for headers in requests.headers} == {"0521-131856-htxvzvzz"}
