"""`--dag-id --task-id` of a mapped task: which of its task instances is meant."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

import pytest

from airflow_kafka_offsets import DeadLetters, SqlTable
from airflow_kafka_offsets.cli.load_target import _find_task
from airflow_kafka_offsets.hooks import connections
from tests.support import fixtures
from tests.support.clients import Kafka, produce
from tests.support.command_line import DB, CommandLine, data, failed, kafka_connection, ok
from tests.support.loads import Loader, TopicFactory, names, positions, rows

pytestmark = pytest.mark.server

engine = fixtures.sqlite_engine

DAG = """
from airflow.sdk import DAG, task
from airflow_kafka_offsets import DeadLetters, Json, KafkaBatchOperator, SqlTable

LOAD = {{
    "value_format": Json("id BIGINT NOT NULL, name STRING"),
    "sink": SqlTable("{{{{ task.group_id }}}}_orders", conn_id="warehouse"),
    "on_bad_record": DeadLetters(),
}}

with DAG("shop", params={{"country": "fi"}}):
    KafkaBatchOperator.partial(task_id="load", **LOAD).expand_kwargs(
        [{{"group_id": "asia", "topics": ["{topic}"]}}, {{"group_id": "europe", "topics": ["{topic}"]}}]
    )
    KafkaBatchOperator.partial(task_id="by_name", topics="{topic}", **LOAD).expand(group_id=["asia", "europe"])

    @task
    def groups():
        return ["asia", "europe"]

    KafkaBatchOperator.partial(task_id="in_a_run", topics="{topic}", **LOAD).expand(group_id=groups())

    @task.kafka_batch(group_id="europe", topics="{topic}", **LOAD)
    def cleaned(rows, country, kind):
        return rows

    cleaned.partial(country="{{{{ params.country }}}}").expand(kind=groups())
"""


@pytest.fixture(autouse=True)
def orders(
    inline_loader: Loader, kafka: Kafka, topic: TopicFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> str:
    """A topic of which group `europe` has loaded five rows and a dead letter into its own table."""
    name = topic()
    produce(kafka, name, [*names(0, 5), b"nothing"])
    inline_loader(name, group_id="europe", sink=SqlTable("europe_orders"), on_bad_record=DeadLetters())
    monkeypatch.setattr(connections, "make_launcher", lambda conn_id, *, conf, name: inline_loader.launcher)
    (tmp_path / "dags").mkdir()
    (tmp_path / "dags" / "shop.py").write_text(DAG.format(topic=name))
    bundle = {
        "name": "shop",
        "classpath": "airflow.dag_processing.bundles.local.LocalDagBundle",
        "kwargs": {"path": str(tmp_path / "dags")},
    }
    monkeypatch.setenv("AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST", json.dumps([bundle]))
    return name


def of(task_id: str, *arguments: str) -> tuple[str, ...]:
    return "--dag-id", "shop", "--task-id", task_id, *arguments


EUROPE = [
    pytest.param(of("load"), id="the one that loads the group"),
    pytest.param(of("load", "--map-index", "1"), id="of an index"),
    pytest.param(of("by_name"), id="expanded by name"),
    pytest.param(of("in_a_run", "--map-values", '{"group_id": "europe"}'), id="of the values of a run"),
]


@pytest.mark.parametrize("task", EUROPE)
def test_its_table_is_verified(cli: CommandLine, task: tuple[str, ...]) -> None:
    (proved,) = data(cli, "verify", "europe", *task)
    assert (proved["rows"], proved["dead_letters"], proved["output_checked"]) == (5, 1, True)


def test_what_another_task_returned_is_no_template(cli: CommandLine, orders: str) -> None:
    """As in a run: whoever returns it would see what connections hold."""
    cli.connect("secret", "postgres://user:hunter2@host/name")
    group = "eu{{ conn.secret.password }}"

    done = cli("verify", group, *DB, *of("in_a_run", "--map-values", json.dumps({"group_id": group})))

    assert "hunter2" not in done.stdout + done.stderr
    assert f"have no group {group!r}" in done.stderr


def test_other_arguments_of_a_function_are_templates(orders: str) -> None:
    values = {"op_kwargs": {"kind": "{{ params.country }}"}}
    task = _find_task(Namespace(dag_id="shop", task_id="cleaned", group="europe", map_values=values, map_index=None))

    assert vars(task)["op_kwargs"] == {"country": "fi", "kind": "{{ params.country }}"}


def test_rewind_replay_and_dead_letters_take_it_too(
    cli: CommandLine, kafka: Kafka, inline_loader: Loader, orders: str
) -> None:
    cli.connect("kafka_default", kafka_connection(kafka))
    why = ("--reason", "a test")
    ok(cli("replay", "europe", *DB, *of("load"), "--batch", "1", "--replace", *why, "--output", "json"))
    replayed = cli("dead-letters", "replay", "europe", *of("load"), *DB, "--output", "json")
    moved = cli("rewind", "europe", *DB, "--to-offset", "2", "--replace", *of("load"), "--execute", *why)

    assert (replayed.status, replayed.json[0]["still_bad"]) == (1, 1)
    assert moved.status == 0, moved.stderr
    assert positions(inline_loader.engine) == {(orders, 0): 2}
    assert rows(inline_loader.engine, "SELECT count(*) FROM europe_orders") == [(2,)]


@pytest.mark.parametrize(
    ("task", "why"),
    [
        (of("load", "--map-index", "0"), "loads group 'asia', not 'europe'"),
        (of("load", "--map-index", "2"), "is mapped to 2 task instances: --map-index is from 0 on"),
        (of("in_a_run"), "is mapped over what another task returns in a run: give the values with --map-values"),
        (of("in_a_run", "--map-values", '{"groups": "x"}'), "--map-values are not what it is mapped over"),
    ],
)
def test_another_one_is_refused(cli: CommandLine, task: tuple[str, ...], why: str) -> None:
    assert why in failed(cli("verify", "europe", *DB, *task), "verify")


def test_a_group_of_no_task_instance_is_named(cli: CommandLine, inline_loader: Loader, orders: str) -> None:
    inline_loader(orders, group_id="africa", sink=SqlTable("africa_orders"), on_bad_record=DeadLetters())
    line = failed(cli("verify", "africa", *DB, *of("load")), "verify")
    assert "none of its 2 task instances loads group 'africa'" in line
