"""Loads on services that run Spark, through the hooks of their providers: a real Livy, and stand-ins for the others.

`make services` has the providers.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_kafka_offsets import Limits, Staging
from airflow_kafka_offsets.exceptions import ConfigurationError, StagingError
from airflow_kafka_offsets.hooks.connections import LAUNCHERS, make_launcher
from airflow_kafka_offsets.hooks.service_run import ServiceLauncher
from devstack.kafka import KafkaBroker
from devstack.paths import REPOSITORY
from devstack.process import wait_until
from devstack.spark_services import SERVICE_EXTRAS
from tests.spark.test_package import JOB
from tests.support.clients import produce
from tests.support.loads import Loader, TopicFactory, assert_exactly_once, names

SECRET = "5ecret-of-the-store"
PASSWORD = "5ecret-of-kafka"

# By extra: the type of a connection, the class of a server, and options.
SERVICES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "livy": ("livy", "devstack.livy:LivyServer", {"driver_cores": 1}),
    "databricks": (
        "databricks",
        "devstack.spark_services:DatabricksService",
        {"new_cluster": {"spark_version": "18.1.x-scala2.13", "node_type_id": "i3.xlarge", "num_workers": 2}},
    ),
    "emr": (
        "aws",
        "devstack.spark_services:EmrServerlessService",
        {"application_id": "00fabc", "execution_role_arn": "arn:aws:iam::123456789012:role/load"},
    ),
    "dataproc": ("google_cloud_platform", "devstack.dataproc:DataprocService", {"region": "europe-west1"}),
}


def test_every_service_is_named_wherever_its_provider_is_installed() -> None:
    (in_makefile,) = re.findall(r"^SERVICES := (.*)", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)
    assert tuple(SERVICES) == SERVICE_EXTRAS == tuple(in_makefile.replace("--extra", "").split())


def has_provider(name: str) -> bool:
    try:
        return find_spec(launcher_class(name).hook.partition(":")[0]) is not None
    except ModuleNotFoundError:
        return False


def launcher_class(name: str) -> type[ServiceLauncher]:
    module, _, class_name = LAUNCHERS[SERVICES[name][0]].partition(":")
    found: type[ServiceLauncher] = getattr(import_module(module), class_name)
    return found


PRESENT = [name for name in SERVICE_EXTRAS if has_provider(name)]


def on_services(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a test that runs on each service whose provider is installed."""
    has_any = pytest.mark.skipif(not PRESENT, reason="`make services` has the providers")
    marked: Callable[..., None] = pytest.mark.server(pytest.mark.long(has_any(test)))
    return marked


@dataclass(frozen=True)
class Place:
    """A service that runs, and launchers for it."""

    name: str
    server: Any
    conf: Mapping[str, str]

    def launcher(self, **conf: str) -> ServiceLauncher:
        options = SERVICES[self.name][2]
        launcher = make_launcher("spark_service", conf={**self.conf, **conf}, name="dag.load_orders", options=options)
        assert isinstance(launcher, ServiceLauncher)
        return launcher


@pytest.fixture(scope="module", params=PRESENT or ["none"])
def server(request: pytest.FixtureRequest) -> Iterator[tuple[str, Any]]:
    module, _, class_name = SERVICES[request.param][1].partition(":")
    with getattr(import_module(module), class_name)() as server:
        yield request.param, server


@pytest.fixture
def place(server: tuple[str, Any], monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    name, service = server
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_SERVICE", json.dumps(service.connection))
    if name == "dataproc":
        hook = launcher_class(name).hook.replace(":", ".")
        monkeypatch.setattr(f"{hook}.get_batch_client", lambda self, region=None: service.client())
    # Databricks starts Spark before the application, and has secrets of its own.
    conf = {} if name == "databricks" else {"spark.hadoop.fs.s3a.secret.key": SECRET}
    service.requests.clear()
    yield Place(name, service, conf)
    assert service.running() == 0


@on_services
def test_a_load_on_a_service_is_exact_and_sends_it_no_secret(
    place: Place,
    kafka: KafkaBroker,
    postgres_engine: sa.Engine,
    topic: TopicFactory,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    name = topic(partitions=2)
    produce(kafka, name, names(0, 200))
    own = tmp_path / "own.zip"
    with zipfile.ZipFile(own, "w") as archive:
        archive.writestr("own.py", "")
    staging = tmp_path / "staging"
    staging.mkdir()
    loader = SecretLoader(kafka, postgres_engine, place.launcher(**{"spark.submit.pyFiles": str(own)}))

    with caplog.at_level(logging.INFO):
        result = loader(name, staging=Staging(dir=str(staging)), limits=Limits(max_records=100))

    assert (result.rows, len(result.batches)) == (200, 2)
    assert_exactly_once(postgres_engine)
    assert "Submitted run " in caplog.text
    assert caplog.text.count("100 offsets in 1 slice for Spark") == 2
    assert list(staging.iterdir()) == []
    submissions = [request for request in place.server.requests if "application.py" in request]
    assert len(submissions) == 1
    assert str(own) in submissions[0]
    assert "dag.load_orders" in submissions[0] or place.name == "dataproc"
    assert [request for request in place.server.requests if SECRET in request or PASSWORD in request] == []
    (token,) = set(re.findall(r'"([0-9a-f]{64})"', submissions[0]))
    assert token not in caplog.text
    assert token not in "".join(capfd.readouterr())


class SecretLoader(Loader):
    """Reads with a password, which the broker does not ask for."""

    @property
    def config(self) -> dict[str, Any]:
        return {**super().config, "sasl.password": PASSWORD}


@on_services
def test_why_a_service_failed_an_application_is_in_the_error(place: Place, tmp_path: Path) -> None:
    launcher = place.launcher(**{"spark.driver.memory": "much"})
    with pytest.raises(StagingError, match=rf"^Run \S+ of {launcher.title} failed: .*fatal exception has occurred"):
        launcher(replace(JOB, staging_uri=str(tmp_path / "attempt")))
    launcher.close()
    assert list(tmp_path.iterdir()) == []


@on_services
def test_a_load_that_is_cancelled_cancels_the_run(place: Place, tmp_path: Path) -> None:
    launcher = place.launcher()

    def cancel() -> None:
        wait_until(place.server.running, 60, "the service to run the application")
        launcher.cancel()

    stopper = threading.Thread(target=cancel)
    stopper.start()
    with pytest.raises(StagingError, match=rf"^Run \S+ of {launcher.title} was cancelled$"):
        launcher(replace(JOB, staging_uri=str(tmp_path / "attempt")))
    stopper.join()
    launcher.close()
    wait_until(lambda: not place.server.running(), 30, "the application to end")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
@pytest.mark.skipif("livy" not in PRESENT, reason="`make services` has the provider of Livy")
def test_plain_text_to_a_livy_on_another_machine_is_a_weakness(monkeypatch: pytest.MonkeyPatch) -> None:
    for host, is_weak in (
        ("livy.example.com", True),
        ("https://livy.example.com/gateway", False),
        ("localhost", False),
    ):
        monkeypatch.setenv("AIRFLOW_CONN_SPARK_SERVICE", json.dumps({"conn_type": "livy", "host": host, "port": 8998}))
        launcher = make_launcher("spark_service", name="load")
        assert isinstance(launcher, ServiceLauncher)
        weakness = launcher.weakness()
        assert (weakness is not None) == is_weak, host
        assert weakness is None or "Livy at livy.example.com:8998 is unprotected" in weakness


Refused = Callable[..., str]


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> Refused:
    """Return why a launcher is refused before anything is planned; before its provider is asked for."""

    def message(name: str, staging_dir: str | None = "/shared", **changes: Any) -> str:
        conn_type, _, options = SERVICES[name]
        monkeypatch.setenv("AIRFLOW_CONN_SPARK_SERVICE", json.dumps({"conn_type": conn_type}))
        given = {key: value for key, value in {**options, **changes.pop("options", {})}.items() if value is not None}
        launcher = make_launcher("spark_service", name="load", options=given, **changes)
        with pytest.raises(ConfigurationError) as error:
            launcher.check(staging_dir)
        return str(error.value)

    return message


@pytest.mark.parametrize("name", SERVICE_EXTRAS)
def test_a_service_without_its_provider_is_refused(
    refused: Refused, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setitem(sys.modules, launcher_class(name).hook.partition(":")[0], None)
    assert refused(name).endswith(f"pip install 'airflow-kafka-offsets[{name}]'")


@pytest.mark.parametrize("name", SERVICE_EXTRAS)
def test_a_service_without_a_place_for_staged_files_is_refused(
    refused: Refused, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(launcher_class(name), "service", lambda self: None)
    assert "set Staging.dir to a location that this worker, Spark's driver" in refused(name, None)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("livy", {"options": {"file": "/other.py"}}, "Spark.options has 'file', which Livy does not take; it may have"),
        ("databricks", {"options": {"new_cluster": None}}, "leads to Databricks: set new_cluster in Spark.options"),
        (
            "databricks",
            {"options": {"existing_cluster_id": "1"}},
            "has 'existing_cluster_id', which Databricks does not",
        ),
        (
            "databricks",
            {"conf": {"spark.hadoop.fs.s3a.secret.key": SECRET}},
            "Spark.conf['spark.hadoop.fs.s3a.secret.key'] holds a secret, and Databricks starts Spark before",
        ),
        ("emr", {"options": {"application_id": ""}}, "leads to EMR Serverless: set application_id in Spark.options"),
        (
            "dataproc",
            {"options": {"region": None, "project_id": "p"}},
            "leads to Dataproc: set region in Spark.options",
        ),
    ],
)
def test_options_that_a_service_cannot_take_are_refused(
    refused: Refused, name: str, changes: dict[str, Any], message: str
) -> None:
    assert message in refused(name, **changes)
