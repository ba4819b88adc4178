"""`verify`, `rewind --replace`, `replay` and `dead-letters replay` with `--dag-id --task-id`: the target is that of the
task, whichever it is.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from airflow_kafka_offsets import DeadLetters, DeltaTable, IcebergTable, ParquetFiles, SqlTable
from airflow_kafka_offsets.hooks import connections
from airflow_kafka_offsets.sinks.fan_out import Sinks
from airflow_kafka_offsets.verification.verify import verify
from tests.support import fixtures
from tests.support.clients import Kafka, produce
from tests.support.command_line import DB, CommandLine, data, failed, ok
from tests.support.loads import Loader, TopicFactory, names, positions
from tests.support.runbook import snippets

pytestmark = pytest.mark.server

TASK = ("--dag-id", "shop", "--task-id", "load")
JSON = ("--output", "json")

DAG = """
from airflow.sdk import DAG
from airflow_kafka_offsets import (
    DeadLetters, DeltaTable, IcebergTable, Json, KafkaBatchOperator, ParquetFiles, Spark, SqlTable, Staging
)

with DAG("shop"):
    KafkaBatchOperator(
        task_id="load",
        group_id="{group}",
        topics=["{topic}"],
        value_format=Json("id BIGINT NOT NULL, name STRING"),
        sink={sink},
        kafka_conn_id="kafka_shop",
        spark=Spark("spark_shop"),
        on_bad_record=DeadLetters(),
        staging=Staging(dir="{staging_dir}"),
    )
"""

SINKS = {
    "iceberg": "IcebergTable('shop.orders', warehouse='file://{lake}', conn_id='warehouse')",
    "delta": "DeltaTable('{lake}/orders', conn_id='warehouse')",
    "parquet": "ParquetFiles('{lake}/orders', conn_id='warehouse')",
    "fan-out": "[SqlTable('orders', conn_id='warehouse'), SqlTable('copies', conn_id='warehouse')]",
    "table": "SqlTable('orders', conn_id='warehouse')",
}


engine = fixtures.sqlite_engine


@pytest.fixture(params=SINKS)
def sink_text(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return SINKS[request.param].format(lake=tmp_path / "lake")


@pytest.fixture
def sink(sink_text: str) -> Sinks:
    kinds = {kind.__name__: kind for kind in (DeltaTable, IcebergTable, ParquetFiles, SqlTable)}
    found: Sinks = eval(sink_text, kinds)
    return found


@pytest.fixture
def orders(
    inline_loader: Loader,
    kafka: Kafka,
    topic: TopicFactory,
    cli: CommandLine,
    sink: Sinks,
    sink_text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> str:
    """A topic of ten records, loaded in two batches into the target of the task; the last one is a dead letter."""
    name = topic()
    produce(kafka, name, names(0, 6))
    inline_loader(name, sink=sink, on_bad_record=DeadLetters())
    produce(kafka, name, [*names(6, 3), b"nothing"])
    inline_loader(name, sink=sink, on_bad_record=DeadLetters())
    for conn_id in ("kafka_shop", "spark_shop"):
        cli.connect(conn_id, cli_connection(conn_id, kafka))
    for conn_id in ("kafka_default", "spark_default"):
        monkeypatch.delenv(f"AIRFLOW_CONN_{conn_id.upper()}")
    monkeypatch.setattr(connections, "make_launcher", lambda conn_id, *, conf, name: inline_loader.launcher)
    dags = tmp_path / "dags"
    dags.mkdir()
    bundle = {
        "name": "shop",
        "classpath": "airflow.dag_processing.bundles.local.LocalDagBundle",
        "kwargs": {"path": str(dags)},
    }
    monkeypatch.setenv("AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST", json.dumps([bundle]))
    write_dag(tmp_path, name, sink_text)
    return name


def cli_connection(conn_id: str, kafka: Kafka) -> str:
    if conn_id.startswith("kafka"):
        return json.dumps({"conn_type": "kafka", "extra": {"bootstrap.servers": kafka.bootstrap_servers}})
    return json.dumps({"conn_type": "spark", "host": "local[2]"})


def write_dag(tmp_path: Path, topic: str, sink: str, group: str = "loader", staging_dir: str = "") -> None:
    text = DAG.format(topic=topic, sink=sink, group=group, staging_dir=staging_dir)
    (tmp_path / "dags" / "shop.py").write_text(text)


def rows_of(rows: int, sink: Sinks) -> int:
    """Return how many rows each target has; those of a fan-out have the same."""
    assert not isinstance(sink, list) or rows % len(sink) == 0
    return rows // len(sink) if isinstance(sink, list) else rows


def test_its_target_is_verified(cli: CommandLine, orders: str, sink: Sinks) -> None:
    (alone,) = data(cli, "verify", "loader", *TASK)
    (compared,) = data(cli, "verify", "loader", *TASK, "--kafka-conn-id", "kafka_shop")

    assert (alone["records"], alone["dead_letters"], alone["output_checked"]) == (10, 1, True)
    # Of a fan-out the numbers of rows are compared, as where a transform makes them.
    assert compared["reread"] == (0 if isinstance(sink, list) else 10)


def test_a_rewind_replaces_the_rows_of_its_target(
    cli: CommandLine, orders: str, inline_loader: Loader, sink: Sinks
) -> None:
    move = ("rewind", "loader", *DB, "--kafka-conn-id", "kafka_shop", "--to-offset", "6", "--replace", *TASK)
    ok(cli(*move, *JSON))
    assert positions(inline_loader.engine) == {(orders, 0): 10}

    done = cli(*move, "--execute", "--reason", "a test", *JSON)

    assert done.status == 0, done.stderr
    assert "rows and 1 dead letter were removed" in done.stderr
    assert positions(inline_loader.engine) == {(orders, 0): 6}
    assert rows_of(verify("loader", sink=sink, engine=inline_loader.engine).rows, sink) == 6
    inline_loader(orders, sink=sink, on_bad_record=DeadLetters())
    (proved,) = data(cli, "verify", "loader", *TASK)
    assert (rows_of(proved["rows"], sink), proved["dead_letters"]) == (9, 1)


def test_a_replay_goes_through_its_pipeline(cli: CommandLine, orders: str, inline_loader: Loader, sink: Sinks) -> None:
    done = cli("replay", "loader", *DB, "--batch", "2", "--replace", "--reason", "a test", *TASK, *JSON)

    (result,) = ok(done)
    assert (result["records"], result["dead_letters"]) == (4, 1)  # as the task says: DeadLetters()
    assert positions(inline_loader.engine) == {(orders, 0): 10}
    (proved,) = data(cli, "verify", "loader", *TASK)
    assert (rows_of(proved["rows"], sink), proved["dead_letters"]) == (9, 1)


def test_its_dead_letters_are_replayed(cli: CommandLine, orders: str, sink: Sinks, tmp_path: Path) -> None:
    shown = data(cli, "dead-letters", "show", "loader")
    shown[0]["value"] = '{"id": 9, "name": "nine"}'
    file = tmp_path / "corrected.json"
    file.write_text(json.dumps(shown))

    (replayed,) = data(cli, "dead-letters", "replay", "loader", *TASK, "--corrected", str(file))

    assert (replayed["records"], replayed["still_bad"]) == (1, 0)
    (proved,) = data(cli, "verify", "loader", *TASK)
    assert (rows_of(proved["rows"], sink), proved["dead_letters"]) == (10, 0)


@pytest.mark.parametrize("sink_text", ["iceberg"], indirect=True)
def test_the_commands_of_the_document(cli: CommandLine, orders: str, kafka: Kafka) -> None:
    document = (Path(__file__).resolve().parents[2] / "docs" / "targets.md").read_text(encoding="utf-8")
    (text,) = snippets(document, "sh")
    text = text.replace("\\\n", " ").replace("orders_loader", "loader")
    text = text.replace("--task-id load_orders", "--task-id load").replace("load_orders", "shop")
    verify, rewind, replay = (shlex.split(line)[1:] for line in text.splitlines())
    cli.connect("kafka_default", cli_connection("kafka_default", kafka))

    for command in (verify, replay, rewind, verify):
        done = cli(*command)
        assert done.status == 0, done.stderr


@pytest.mark.parametrize("sink_text", [SINKS["table"]])
class TestArguments:
    def test_a_proof_needs_no_template_of_a_run(
        self, cli: CommandLine, orders: str, tmp_path: Path, sink_text: str
    ) -> None:
        write_dag(tmp_path, orders, sink_text, staging_dir="/staging/{{ ds }}")

        assert data(cli, "verify", "loader", *TASK)[0]["records"] == 10
        line = failed(cli("replay", "loader", *DB, "--batch", "2", *TASK), "replay")
        assert "has a template that only a run can render" in line

    def test_templates_of_the_target_are_rendered(
        self, cli: CommandLine, orders: str, tmp_path: Path, inline_loader: Loader
    ) -> None:
        write_dag(tmp_path, orders, "SqlTable('{{ \"orders\" }}', conn_id='warehouse')")
        move = ("--kafka-conn-id", "kafka_shop", "--to-offset", "4", "--replace", "--execute", "--reason", "a test")

        assert data(cli, "verify", "loader", *TASK)[0]["rows"] == 9
        ok(cli("rewind", "loader", *DB, *move, *TASK, *JSON))

        assert verify("loader", sink=SqlTable("orders"), engine=inline_loader.engine).rows == 4

    def test_a_template_of_the_target_that_needs_a_run_is_named(
        self, cli: CommandLine, orders: str, tmp_path: Path
    ) -> None:
        write_dag(tmp_path, orders, "SqlTable('orders_{{ ds }}', conn_id='warehouse')")

        line = failed(cli("verify", "loader", *DB, *TASK), "verify")

        assert "sink of task 'load' of DAG 'shop' has a template that only a run can render ('ds' is undefined)" in line

    @pytest.mark.parametrize(
        ("command", "given"),
        [
            ("verify", ()),
            ("rewind", ("--to-earliest", "--kafka-conn-id", "kafka_shop", "--replace")),
            ("replay", ("--batch", "1", "--replace", "--reason", "x")),
        ],
    )
    def test_a_task_of_another_group_is_refused(
        self, cli: CommandLine, orders: str, tmp_path: Path, sink_text: str, command: str, given: tuple[str, ...]
    ) -> None:
        write_dag(tmp_path, orders, sink_text, group="elsewhere")

        line = failed(cli(command, "loader", *DB, *given, *TASK), command)

        assert "Task 'load' of DAG 'shop' loads group 'elsewhere', not 'loader'" in line

    @pytest.mark.parametrize(
        ("command", "given", "why"),
        [
            ("verify", (), "A proof needs --dag-id and --task-id of the load, or --table"),
            ("verify", (*TASK, "--table", "orders"), "defines --table"),
            ("verify", (*TASK, "--upsert-key", "id"), "defines --upsert-key"),
            ("verify", ("--dag-id", "shop"), "--dag-id and --task-id belong together"),
            ("replay", ("--batch", "1"), "A replay needs --dag-id and --task-id of the load, or --table"),
            ("replay", ("--batch", "1", "--table", "orders"), "A replay needs --topic, or --dag-id"),
            ("replay", ("--batch", "1", *TASK, "--columns", "id INT"), "defines --columns"),
            (
                "rewind",
                ("--undo", "--replace"),
                "--replace needs --dag-id and --task-id of the load, or --replace TABLE",
            ),
            ("rewind", ("--undo", "--replace", "orders", *TASK), "defines --replace TABLE"),
            ("rewind", ("--undo", *TASK), "name the target of --replace"),
            ("import", ("--from-group", "other", *TASK), "name the target of --replace"),
        ],
    )
    def test_one_target_is_named(
        self, cli: CommandLine, orders: str, command: str, given: tuple[str, ...], why: str
    ) -> None:
        done = cli(command, "loader", *DB, *given)

        assert (done.status, why in done.stderr) == (2, True), done.stderr
