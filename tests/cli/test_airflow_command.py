"""`kafka-offsets …` as it is typed: what reaches standard output, standard error and the status."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa
from airflow.utils import yaml
from sqlalchemy.engine import Engine

from airflow_kafka_offsets import DeadLetters, StateTables
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from devstack.airflow import AirflowHome
from devstack.kafka import KafkaBroker
from devstack.topics import delete_topic
from tests.support.clients import produce
from tests.support.command_line import database_connection, kafka_connection
from tests.support.inline import InlineLauncher
from tests.support.loads import Loader, TopicFactory, names
from tests.support.warm_airflow import WarmAirflowHome

pytestmark = [pytest.mark.server, pytest.mark.broker]


def test_data_notes_and_failures_go_where_a_shell_expects_them(
    kafka: KafkaBroker, postgres_engine: Engine, topic: TopicFactory
) -> None:
    loader = Loader(kafka, postgres_engine, InlineLauncher())
    name, gone = topic(), topic()
    produce(kafka, name, names(0, 3))
    loader(name, gone, state_tables=StateTables(prefix="my_"), sink=SqlTable("target"))
    produce(kafka, name, names(3, 2))
    connections = {
        "warehouse": database_connection(postgres_engine),
        # Is warned about.
        "kafka_default": kafka_connection(kafka, **{"enable.ssl.certificate.verification": "false"}),
    }
    db = ("--conn-id", "warehouse", "--prefix", "my_")
    with WarmAirflowHome(connections=connections) as home:
        shown = home.run("kafka-offsets", "show", "loader", *db, "--output", "json")
        delete_topic(kafka.bootstrap_servers, gone)
        with AirflowHome(connections=connections) as cold:
            incomplete = cold.run("kafka-offsets", "lag", "loader", *db, "--output", "plain")
        unknown = home.run("kafka-offsets", "history", "loder", *db)

    assert shown.returncode == 0, shown.stderr
    assert {row["topic"]: row["lag"] for row in json.loads(shown.stdout)} == {name: 2, gone: 0}
    assert "TLS certificates of the Kafka brokers are not verified" in shown.stderr

    assert incomplete.returncode == 1
    assert incomplete.stdout.splitlines()[-1].split()[:4] == ["loader", "TOTAL", "2", "2"]
    assert incomplete.stderr.splitlines()[-1].startswith("kafka-offsets lag: the lag of group 'loader' is incomplete")

    assert (unknown.returncode, unknown.stdout) == (1, "")
    assert unknown.stderr.splitlines()[-1].startswith("kafka-offsets history: ")
    assert "'loader'" in unknown.stderr.splitlines()[-1]


NOISY_DAG = """
import os, sys
from airflow.sdk import DAG
from airflow_kafka_offsets import DeadLetters, Json, KafkaBatchOperator, SqlTable

print("noise of a DAG file")
os.system("echo noise of a child process")

with DAG("shop"):
    KafkaBatchOperator(
        task_id="load",
        group_id="loader",
        topics="{topic}",
        value_format=Json("id BIGINT NOT NULL, name STRING"),
        sink=SqlTable("target", conn_id="warehouse"),
    )
"""

SOME_COMMANDS = [["groups"], ["verify", "loader", "--dag-id", "shop", "--task-id", "load"]]

COMMANDS = [
    ["groups"],
    ["groups", "delete", "loader"],
    ["groups", "rename", "loader", "shop"],
    ["show", "loader"],
    ["lag", "loader"],
    ["history", "loader"],
    ["history", "loader", "--batch", "1"],
    ["plan", "loader"],
    ["verify", "loader", "--table", "target"],
    ["verify", "loader", "--dag-id", "shop", "--task-id", "load"],
    ["mirror", "loader", "--to", "shown"],
    ["rewind", "loader", "--to-earliest"],
    ["import", "loader", "--from-group", "shown"],
    ["dead-letters", "list", "loader"],
    ["dead-letters", "show", "loader"],
    ["dead-letters", "drop", "loader"],
    ["rewind", "loader", "--to-earliest", "--execute", "--yes", "--reason", "a test"],
    ["rewind", "loader", "--undo", "--execute", "--yes", "--reason", "a test"],
]

RUN_ALL = """
import json, logging, os, sys, tempfile
from tests.support.warm_airflow import run_command

logging.getLogger().addHandler(logging.StreamHandler(sys.stdout))
printed = []
for command in json.loads({commands!r}):
    for form in ("json", "yaml", "plain") if command == ["groups"] else ("json",):
        with tempfile.TemporaryFile() as output:
            sys.stdout.flush()
            kept = os.dup(1)
            os.dup2(output.fileno(), 1)
            status = 0
            try:
                run_command("kafka-offsets", *command, "--conn-id", "warehouse", "--output", form)
            except SystemExit as end:
                status = end.code
            sys.stdout.flush()
            os.dup2(kept, 1)
            output.seek(0)
            printed.append([command, form, status, output.read().decode()])
with open({path!r}, "w") as file:
    json.dump(printed, file)
"""


@pytest.mark.parametrize(
    "commands",
    [pytest.param(SOME_COMMANDS, id="some"), pytest.param(COMMANDS, id="all", marks=pytest.mark.long)],
)
def test_data_is_alone_on_standard_output(
    kafka: KafkaBroker, postgres_engine: Engine, topic: TopicFactory, tmp_path: Path, commands: list[list[str]]
) -> None:
    """With connections in Airflow's metadata database, as people store them, whose look-up logs a warning; with loggers
    that write to standard output, and DAG files that print.
    """
    name = topic()
    produce(kafka, name, [*names(0, 3), b"nothing"])
    loader = Loader(kafka, postgres_engine, InlineLauncher())
    loader(name, sink=SqlTable("target"), on_bad_record=DeadLetters())
    dags, found = tmp_path / "dags", tmp_path / "printed.json"
    dags.mkdir()
    (dags / "shop.py").write_text(NOISY_DAG.format(topic=name))
    with WarmAirflowHome(dags=dags) as home:
        home.migrate()
        added = ("connections", "add")
        home.run(*added, "warehouse", "--conn-uri", database_connection(postgres_engine))
        home.run(*added, "kafka_default", "--conn-json", kafka_connection(kafka))
        ran = home.run_code(RUN_ALL.format(commands=json.dumps(commands), path=str(found)))
        program = [str(Path(sys.executable).with_name("kafka-offsets")), "export", "loader", "--conn-id", "warehouse"]
        exported = subprocess.run(program, env=home.env, capture_output=True, text=True, check=True)

    assert ran.returncode == 0, ran.stderr
    assert exported.stdout == f"{name},0,4\n"
    printed = json.loads(found.read_text())
    assert len(printed) == len(commands) + 2
    for command, form, status, text in printed:
        assert (status, "noise" in text) == (0, False), (command, text, ran.stderr)
        if form == "json":
            json.loads(text)
        elif form == "yaml":
            assert [row["group"] for row in yaml.safe_load(text)] == ["loader"]
        else:
            assert text.splitlines()[0].startswith("GROUP "), text


def test_connections_that_users_have_added_are_found(tmp_path: Path) -> None:
    """They are in Airflow's metadata database, where Airflow lets only some processes look."""
    engine = sa.create_engine(f"sqlite:///{tmp_path}/warehouse.db")
    with WarmAirflowHome() as home:
        home.migrate()
        added = home.run("connections", "add", "added", "--conn-uri", database_connection(engine))
        created = home.run("kafka-offsets", "init", "--conn-id", "added")
        other = home.run("kafka-offsets", "groups", "--conn-id", "another")

    assert added.returncode == 0, added.stderr
    assert created.returncode == 0, created.stderr
    assert sa.inspect(engine).has_table("consumed_offsets")
    assert (other.returncode, other.stderr.splitlines()[-1]) == (
        1,
        "kafka-offsets groups: The conn_id `another` isn't defined. Name another connection by --conn-id, or add this "
        "one: 'airflow connections add'",
    )
    engine.dispose()
