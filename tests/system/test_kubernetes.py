"""Loads with the master `k8s://…`: what spark-submit and the driver ask of an API server, which is a stand-in, and
whose pods are processes of this machine. `make services` has Airflow's provider.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import pytest
from sqlalchemy.engine import Engine

from airflow_kafka_offsets import Staging
from airflow_kafka_offsets.exceptions import StagingError
from airflow_kafka_offsets.hooks.spark import SparkSubmitLauncher
from devstack.kafka import KafkaBroker
from devstack.kubernetes import KubernetesStandIn
from devstack.process import wait_until
from tests.support.clients import produce
from tests.support.loads import Loader, TopicFactory, assert_exactly_once, names

has_provider = find_spec("kubernetes") is not None

pytestmark = [
    pytest.mark.server,
    pytest.mark.long,
    pytest.mark.skipif(not has_provider, reason="`make services` has the provider"),
]

SECRET = "5ecret-of-the-store"


@pytest.fixture(scope="module")
def kubernetes() -> Iterator[KubernetesStandIn]:
    with KubernetesStandIn() as api:
        yield api


@pytest.fixture
def api(kubernetes: KubernetesStandIn, monkeypatch: pytest.MonkeyPatch) -> Iterator[KubernetesStandIn]:
    connection = {"conn_type": "spark", "host": kubernetes.master}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(connection))
    monkeypatch.setenv("KUBECONFIG", str(kubernetes.kube_config))
    kubernetes.requests.clear()
    yield kubernetes
    wait_until(lambda: not kubernetes.running(), 60, "all pods to end")


def loader(api: KubernetesStandIn, kafka: KafkaBroker, engine: Engine, deploy_mode: str) -> Loader:
    conf = {**api.properties, "spark.submit.deployMode": deploy_mode, "spark.hadoop.fs.s3a.secret.key": SECRET}
    if deploy_mode == "client":
        conf["spark.driver.host"] = "127.0.0.1"
    return Loader(kafka, engine, SparkSubmitLauncher("spark_default", conf=conf, name="orders"))


@pytest.mark.parametrize("deploy_mode", ["client", "cluster"])
def test_a_load_is_exact_and_hands_the_api_server_no_secret(
    api: KubernetesStandIn,
    kafka: KafkaBroker,
    postgres_engine: Engine,
    topic: TopicFactory,
    tmp_path: Path,
    deploy_mode: str,
) -> None:
    name = topic()
    produce(kafka, name, names(0, 1000))
    loads = loader(api, kafka, postgres_engine, deploy_mode)

    loads.launcher.check(str(tmp_path))
    loads(name, staging=Staging(dir=str(tmp_path), slice_offsets=300))

    assert_exactly_once(postgres_engine)
    assert list(tmp_path.iterdir()) == []
    pods = [json.loads(body) for method, path, body in api.requests if method == "POST" and "/pods/" in path]
    roles = [pod["metadata"]["labels"]["spark-role"] for pod in pods]
    assert roles == ([] if deploy_mode == "client" else ["driver"]) + ["executor"]
    assert not [body for *_, body in api.requests if SECRET in body]
    if deploy_mode == "cluster":
        *_, application, mailbox, token = pods[0]["spec"]["containers"][0]["args"]
        assert application.startswith(api.uploads.as_uri())
        assert mailbox.startswith(f"{tmp_path}/mailbox-")
        # The token is in the driver's pod alone.
        assert len([body for *_, body in api.requests if token in body]) == 1
        assert sorted(file.name for file in api.uploads.rglob("*.*")) == ["airflow_kafka_offsets.zip", "application.py"]


def test_a_task_that_is_stopped_leaves_no_pod(
    api: KubernetesStandIn, kafka: KafkaBroker, postgres_engine: Engine, topic: TopicFactory, tmp_path: Path
) -> None:
    name = topic()
    produce(kafka, name, names(0, 1000))
    loads = loader(api, kafka, postgres_engine, "cluster")

    def stop() -> None:
        wait_until(lambda: len(api.running()) > 1, 120, "an executor")
        loads.launcher.cancel()

    with ThreadPoolExecutor() as pool:
        stopped = pool.submit(stop)
        with pytest.raises(StagingError):
            loads(name, staging=Staging(dir=str(tmp_path)))
        stopped.result()
