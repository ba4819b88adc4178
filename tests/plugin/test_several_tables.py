"""Pages of groups that load into several tables, and of groups whose positions are in SQLite."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from airflow_kafka_offsets import Branch, Sql
from airflow_kafka_offsets.ledger.batch_rows import TaskRun
from airflow_kafka_offsets.sinks.fan_out import as_sink
from airflow_kafka_offsets.sinks.sink import DatabaseTable
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from devstack.airflow import AirflowHome
from devstack.process import wait_until
from tests.support.clients import Kafka, produce
from tests.support.inline import InlineLauncher
from tests.support.loads import Loader, TopicFactory, names, positions, rows
from tests.support.web import of_group, ticket_of

if TYPE_CHECKING:
    from tests.support.web import Web

pytestmark = [pytest.mark.usefixtures("of_shop")]

GROUP = of_group("loader")
SINK = as_sink([SqlTable("target"), Branch(SqlTable("small"), transform=Sql("SELECT id FROM records WHERE id < 3"))])


@pytest.fixture
def postgres_engine(tmp_path: Path) -> Iterator[Engine]:
    """The positions are in SQLite."""
    engine = sa.create_engine(f"sqlite:///{tmp_path}/warehouse.db")
    yield engine
    engine.dispose()


@pytest.fixture
def orders(kafka: Kafka, topic: TopicFactory, postgres_engine: Engine) -> str:
    name = topic()
    produce(kafka, name, names(0, 6))
    run = TaskRun("run-1", "shop", "load_orders", -1, 1)
    Loader(kafka, postgres_engine, InlineLauncher())(name, run=run, sink=SINK)
    produce(kafka, name, names(6, 2))
    return name


@pytest.fixture
def web(airflow_home: AirflowHome, postgres_engine: Engine, kafka: Kafka) -> Web:
    from airflow_kafka_offsets.plugin.sources import RegisteredTask, Source
    from tests.support.web import Web, readings

    source = Source("warehouse")
    tables = (DatabaseTable("small"), DatabaseTable("target"))
    task = RegisteredTask("load", "loader", source, "kafka_default", tables)
    found = readings({"warehouse": postgres_engine}, kafka, lambda: {"shop": [task]})
    web = Web(found)
    found.dags(time.monotonic() + 60.0)
    return web


def test_positions_in_sqlite_are_shown(web: Web, orders: str) -> None:
    assert '<td class="num" data-label="Lag">2</td>' in web.get("/", "viewer").text
    page = web.get("/group", "viewer", **GROUP).text
    assert '<td class="num" data-label="Position">6</td><td class="num" data-label="End">8</td>' in page
    assert web.get("/group/history", "viewer", **GROUP).json()["points"][0]["rows"] == 9
    assert "<dt>Target</dt><dd>small, target</dd>" in page
    assert "<dt>Target</dt><dd>small, target</dd>" in web.get("/batch", "viewer", **of_group("loader", batch=1)).text


def test_a_rewind_removes_rows_of_all_tables(web: Web, orders: str, postgres_engine: Engine) -> None:
    form = web.get("/rewind", "editor", **GROUP)
    assert "from <b>small, target</b>" in form.text
    typed = {"scenario": "to-offset", "value-to-offset": "1", "replace": "1"}

    page = web.post("/rewind/preview", "editor", GROUP, ticket=ticket_of(form), **typed)

    assert "Rows deleted from small, target</dt><dd>7</dd>" in page.text
    answer = web.post("/rewind/execute", "editor", GROUP, ticket=ticket_of(page), reason="wrong")
    assert answer.status_code == 303
    assert positions(postgres_engine) == {(orders, 0): 1}
    left = "SELECT (SELECT count(*) FROM small), (SELECT count(*) FROM target)"
    assert rows(postgres_engine, left) == [(1, 1)]


def test_a_click_verifies_all_tables(web: Web, orders: str) -> None:
    from airflow_kafka_offsets.plugin.sources import Source

    web.post("/verification", "editor", GROUP, ticket=ticket_of(web.get("/group", "editor", **GROUP)))

    verifications = web.app.state.verifications
    wait_until(
        lambda: not verifications.latest(Source("warehouse"), "loader")[0].is_running, 60, "the verification to end"
    )
    assert verifications.latest(Source("warehouse"), "loader")[0].outcome == "proved"
