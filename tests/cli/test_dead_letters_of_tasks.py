"""`dead-letters replay --dag-id --task-id`: the pipeline is that of a DAG's task, as its file says now."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_kafka_offsets.formats.avro_format import Avro
from tests.support.avro import encode, wire
from tests.support.clients import Kafka, produce
from tests.support.command_line import DB, CommandLine, failed
from tests.support.loads import Loader, TopicFactory, rows
from tests.support.registry import FakeRegistry, fake_registry
from tests.support.verifying import LEFT_OUT

pytestmark = pytest.mark.server

REPLAY = ("dead-letters", "replay", "loader", *DB)
TASK = ("--dag-id", "shop", "--task-id", "load")
ORDER = {"type": "record", "name": "order", "fields": [{"name": "id", "type": "long"}]}

DAG = """
from airflow.sdk import DAG
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow_kafka_offsets import Avro, KafkaBatchOperator, SqlTable, Staging

with DAG("shop", params={{"topic": "{topic}"}}):
    KafkaBatchOperator(
        task_id="load",
        group_id="{group}",
        topics=["{{{{ params.topic }}}}"],
        value_format=Avro("id BIGINT", registry_conn_id="registry"),
        sink=SqlTable("target", conn_id="warehouse"),
        until="{{{{ data_interval_end }}}}",
        staging=Staging(dir="{staging_dir}"),
    )
    EmptyOperator(task_id="other")
"""


@pytest.fixture
def kafka(log: Kafka) -> Kafka:
    return log


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with fake_registry() as registry:
        yield registry


@pytest.fixture
def orders(
    inline_loader: Loader,
    topic: TopicFactory,
    registry: FakeRegistry,
    cli: CommandLine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> str:
    """A topic with a dead letter, whose column is declared with a type that its field does not have."""
    name = topic()
    number = registry.register(f"{name}-value", ORDER)
    produce(inline_loader.kafka, name, [wire(number, encode(ORDER, {"id": 7}))])
    cli.connect("registry", json.dumps({"conn_type": "http", "host": registry.url}))
    loader = Loader(
        inline_loader.kafka, inline_loader.engine, inline_loader.launcher, connections={"registry": registry.config}
    )
    loader(name, value_format=Avro("id BOOLEAN", registry_conn_id="registry"), **LEFT_OUT)
    with inline_loader.engine.begin() as conn:
        conn.exec_driver_sql("DROP TABLE target")
    bundle = {
        "name": "shop",
        "classpath": "airflow.dag_processing.bundles.local.LocalDagBundle",
        "kwargs": {"path": str(tmp_path / "dags")},
    }
    monkeypatch.setenv("AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST", json.dumps([bundle]))
    (tmp_path / "dags").mkdir()
    write(tmp_path, name)
    return name


def write(tmp_path: Path, topic: str, group: str = "loader", staging_dir: str = "") -> None:
    (tmp_path / "dags" / "shop.py").write_text(DAG.format(topic=topic, group=group, staging_dir=staging_dir))


def test_dead_letters_go_through_the_pipeline_of_the_task(cli: CommandLine, orders: str, inline_loader: Loader) -> None:
    done = cli(*REPLAY, *TASK, "--output", "json")

    assert done.json == [{"batch": 1, "records": 1, "rows": 1, "still_bad": 0, "replayed_by": 2}], done.stderr
    assert rows(inline_loader.engine, "SELECT id FROM target") == [(7,)]


@pytest.mark.parametrize(
    ("task", "why"),
    [
        (("--dag-id", "shop", "--task-id", "lod"), "DAG 'shop' has no task 'lod'; it has load, other"),
        (
            ("--dag-id", "shop", "--task-id", "other"),
            "Task 'other' of DAG 'shop' is a EmptyOperator: name a task that loads",
        ),
        (("--dag-id", "shp", "--task-id", "load"), "No DAG file has a DAG 'shp'"),
    ],
)
def test_a_task_that_is_none_is_named(cli: CommandLine, orders: str, task: tuple[str, ...], why: str) -> None:
    assert why in failed(cli(*REPLAY, *task), "dead-letters replay")


def test_a_task_of_another_group_is_refused(cli: CommandLine, orders: str, tmp_path: Path) -> None:
    write(tmp_path, orders, group="elsewhere")

    line = failed(cli(*REPLAY, *TASK), "dead-letters replay")

    assert "Task 'load' of DAG 'shop' loads group 'elsewhere', not 'loader'" in line


def test_a_template_that_needs_a_run_is_named(cli: CommandLine, orders: str, tmp_path: Path) -> None:
    write(tmp_path, orders, staging_dir="/staging/{{ ds }}")

    line = failed(cli(*REPLAY, *TASK), "dead-letters replay")

    assert "staging of task 'load' of DAG 'shop' has a template that only a run can render ('ds' is undefined)" in line


def test_a_file_with_errors_is_named(cli: CommandLine, orders: str, tmp_path: Path) -> None:
    (tmp_path / "dags" / "shop.py").write_text("from airflow.sdk import DAG\nraise ValueError\n")

    assert "these files have errors: shop.py" in failed(cli(*REPLAY, *TASK), "dead-letters replay")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ((), "needs --dag-id and --task-id of the load, or --table"),
        (("--dag-id", "shop"), "--dag-id and --task-id belong together"),
        ((*TASK, "--columns", "id BIGINT"), "The task of --task-id defines --columns"),
    ],
)
def test_one_pipeline_is_named(cli: CommandLine, orders: str, options: tuple[str, ...], why: str) -> None:
    done = cli(*REPLAY, *options)

    assert (done.status, why in done.stderr) == (2, True)
