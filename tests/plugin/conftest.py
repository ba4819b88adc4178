"""Pages over real Postgres data, with a log in memory for Kafka."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy.engine import Engine

from airflow_kafka_offsets.ledger.batch_rows import TaskRun
from airflow_kafka_offsets.sinks.sink import DatabaseTable
from devstack.airflow import AirflowHome
from tests.support.clients import Kafka, produce
from tests.support.inline import InlineLauncher
from tests.support.loads import Loader, TopicFactory, names
from tests.support.verifying import LEFT_OUT

if TYPE_CHECKING:
    from tests.support.web import Web

RUN = TaskRun("run-1", "shop", "load_orders", -1, 1)
DIED = b"\xff\xfe"


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown() -> None:
    """Wait for readings that a page did not wait for, before the databases of the test are closed."""
    for thread in threading.enumerate():
        if thread.name == "kafka-offsets-page":
            thread.join(60)
            assert not thread.is_alive()


@pytest.fixture(autouse=True)
def _database(airflow_home: AirflowHome) -> None:
    """Before the first request, which would open the database of Airflow without its tables."""


@pytest.fixture
def kafka(log: Kafka) -> Kafka:
    return log


@pytest.fixture
def loader(kafka: Kafka, postgres_engine: Engine) -> Loader:
    return Loader(kafka, postgres_engine, InlineLauncher())


@pytest.fixture
def orders(loader: Loader, kafka: Kafka, topic: TopicFactory) -> str:
    """A topic that group `loader` has loaded, with three dead letters, and of which two records wait."""
    name = topic()
    produce(kafka, name, [*names(0, 3), b'{"id": "<script>one"}', DIED, b"[]"])
    loader(name, run=RUN, **LEFT_OUT)
    produce(kafka, name, names(6, 2))
    return name


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers wait for what is read, however slow the machine is."""
    from airflow_kafka_offsets.plugin import background, group_pages, group_request, pages, rewinds

    for module, name in (
        (background, "PATIENCE_SECONDS"),
        (pages, "_SOURCES_SECONDS"),
        (pages, "_GROUPS_SECONDS"),
        (group_pages, "_LAG_SECONDS"),
        (group_request, "_SECONDS"),
        (rewinds, "_PREVIEW_SECONDS"),
        (rewinds, "_EXECUTE_SECONDS"),
    ):
        monkeypatch.setattr(module, name, 60.0)


@pytest.fixture
def of_shop(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    """The DAG of group `loader` is one that everybody may read, and the editor may edit."""
    monkeypatch.setattr(web.auth_manager, "get_authorized_dag_ids", lambda **_: {"shop"})


@pytest.fixture
def users() -> Callable[..., Any]:
    """Return users with roles. The access tests have those of another auth manager, too."""
    from tests.support.web import simple_user

    return simple_user


@pytest.fixture
def web(airflow_home: AirflowHome, postgres_engine: Engine, kafka: Kafka, users: Callable[..., Any]) -> Web:
    # It imports Airflow, which this file may not: pytest reads it before the session has its AIRFLOW_HOME.
    from airflow_kafka_offsets.plugin.sources import RegisteredTask, Source
    from tests.support.web import Web, readings

    source = Source("warehouse")
    task = RegisteredTask("load_orders", "loader", source, "kafka_default", (DatabaseTable("target"),))
    found = readings({"warehouse": postgres_engine}, kafka, lambda: {"shop": [task]})
    web = Web(found, users)
    # Before the first page, as in a server that runs for a while.
    found.dags(time.monotonic() + 60.0)
    return web
