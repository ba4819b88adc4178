"""`kafka-offsets doctor`: what it finds, on both databases, with real servers and without them."""

from __future__ import annotations

import importlib.metadata
import json
import socket
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.hooks.spark import SparkSubmitLauncher
from airflow_kafka_offsets.ledger.install import initialize
from airflow_kafka_offsets.ledger.tables import Ledger, Tables
from airflow_kafka_offsets.sinks.sql import connected_table
from devstack.kafka import KafkaBroker
from devstack.process import free_port
from devstack.spark_connect import SparkConnectServer
from tests.support.clients import produce
from tests.support.command_line import DB, CommandLine, Done, findings, kafka_connection
from tests.support.loads import Loader, TopicFactory, names

pytestmark = [pytest.mark.server, pytest.mark.broker]

SECRET = "5ecret-canary"


def results(done: Done) -> dict[str, str]:
    return {check: row["result"] for check, row in findings(done).items()}


@pytest.mark.parametrize("output", ["table", "plain", "yaml"])
def test_doctor_prints_failed_checks_in_every_format(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch, output: str
) -> None:
    monkeypatch.delenv("AIRFLOW_CONN_KAFKA_DEFAULT")
    done = cli("doctor", *DB, "--output", output)
    assert done.status == 1
    assert "kafka_default" in done.stdout
    assert done.stderr.splitlines()[-1] == (
        "kafka-offsets doctor: 1 check failed: Kafka connection; the column FIX says what to do"
    )


def test_a_machine_that_can_load(cli: CommandLine, inline_loader: Loader, topic: TopicFactory) -> None:
    inline_loader(topic(partitions=3), topic())

    done = cli("doctor", *DB, "--output", "json")

    found = findings(done)
    is_postgres = inline_loader.engine.dialect.name == "postgresql"
    assert {check: row["result"] for check, row in found.items()} == {
        "versions": "ok",
        "database": "ok",
        "database security": "ok" if is_postgres else "skipped",
        "state tables": "ok",
        "rights": "ok",
        "target": "ok",
        "between commits": "ok",
        "binary COPY": "ok" if is_postgres else "skipped",
        "Kafka connection": "ok",
        "Kafka security": "ok",
        "Kafka cluster": "ok",
        "Kafka topics": "ok",
        "headroom in time": "ok",
        "PySpark": "ok",
        "Java": "ok",
        "Spark connection": "ok",
        "spark-submit": "ok",
        "Spark security": "skipped",
        "Spark master": "skipped",
    }
    assert done.status == 0
    assert found["Kafka topics"]["found"] == "2 topics, 4 partitions"
    assert importlib.metadata.version("confluent-kafka") in found["versions"]["found"]


def test_a_table_that_is_newer_than_the_state_tables_is_no_target(
    cli: CommandLine, inline_loader: Loader, topic: TopicFactory
) -> None:
    name = topic()
    produce(inline_loader.kafka, name, names(0, 3))
    inline_loader(name)
    with inline_loader.engine.begin() as conn:
        conn.execute(sa.text("UPDATE target SET _batch_id = 9"))

    row = findings(cli("doctor", *DB, "--output", "json"))["target"]

    assert row["result"] == "failed"
    assert "holds rows of batch 9, which the state tables do not know" in row["found"]
    assert "restore the state tables and the table" in row["fix"]


def test_a_batch_between_two_commits_is_a_warning(cli: CommandLine, engine: Engine) -> None:
    ledger = Ledger(engine)
    initialize(ledger)
    since = datetime(2026, 5, 4, 3, 2, 1, tzinfo=UTC)
    values = {
        "batch_id": 7,
        "consumer_group": "loader",
        "generation": 0,
        "kind": "load",
        "state": "staged",
        "attempt": 1,
    }
    values |= {"target_table": "iceberg://lake/orders", "planned_at": since, "publish_started_at": since}
    with engine.begin() as conn:
        conn.execute(ledger.tables.offset_batches.insert(), values)

    done = cli("doctor", *DB, "--output", "json")

    row = findings(done)["between commits"]
    assert (done.status, row["result"], row["found"]) == (
        0,
        "warning",
        "batch 7 of group 'loader' (staged) and iceberg://lake/orders, since 2026-05-04 03:02:01 UTC",
    )
    assert "run the load again" in row["fix"]


@pytest.mark.parametrize("engine", ["postgresql"], indirect=True)
def test_rows_that_are_written_by_insert_are_a_warning(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connected_table, "find_spec", lambda _: None)

    done = cli("doctor", *DB, "--output", "json")

    row = findings(done)["binary COPY"]
    assert (done.status, row["result"]) == (0, "warning")
    assert "by INSERT, many times slower than by COPY, which needs pgpq" in row["found"]


def test_doctor_creates_no_tables(cli: CommandLine, engine: Engine) -> None:
    done = cli("doctor", *DB, "--output", "json")

    found = findings(done)
    assert done.status == 0, done.stderr
    assert "may create them" in found["state tables"]["found"]
    assert (found["rights"]["result"], found["Kafka topics"]["result"]) == ("skipped", "skipped")
    assert sa.inspect(engine).get_table_names() == []


def test_doctor_writes_nothing(cli: CommandLine, inline_loader: Loader, topic: TopicFactory) -> None:
    inline_loader(topic())

    def everything() -> list[Any]:
        with inline_loader.engine.connect() as conn:
            return [conn.execute(sa.select(table)).all() for table in Tables().metadata.sorted_tables]

    before = everything()
    assert cli("doctor", *DB).status == 0
    assert everything() == before


def test_a_table_that_was_dropped_is_named(cli: CommandLine, engine: Engine) -> None:
    initialize(Ledger(engine))
    with engine.begin() as conn:
        conn.execute(sa.text("DROP TABLE offset_gaps"))

    found = findings(cli("doctor", *DB, "--output", "json"))

    assert "offset_gaps" in found["state tables"]["found"]
    assert found["rights"]["result"] == "skipped"


def test_tables_of_another_version_are_an_error(cli: CommandLine, engine: Engine) -> None:
    initialize(Ledger(engine))
    with engine.begin() as conn:
        conn.execute(sa.text("UPDATE offsets_schema_version SET version = 99"))

    assert "99" in findings(cli("doctor", *DB, "--output", "json"))["state tables"]["found"]


def test_one_topic_is_not_called_topics(cli: CommandLine, topic: TopicFactory) -> None:
    found = findings(cli("doctor", *DB, "--topic", f"{topic()}:0", "--output", "json"))
    assert found["Kafka topics"]["found"] == "1 topic, 1 partition"


@pytest.mark.usefixtures("unknown_at_once")
def test_topics_that_are_named_must_be_there(cli: CommandLine, topic: TopicFactory) -> None:
    name = topic()
    found = findings(cli("doctor", *DB, "--topic", name, "--topic", "no-such-topic", "--output", "json"))
    assert found["Kafka topics"]["result"] == "failed"
    assert "'no-such-topic'" in found["Kafka topics"]["found"]


@pytest.mark.usefixtures("impatient")
def test_one_failure_does_not_hide_the_others_and_no_secret_is_told(cli: CommandLine) -> None:
    dead = free_port()
    cli.connect("warehouse", f"postgres://someone:{SECRET}@127.0.0.1:{dead}/orders")
    extra = {"bootstrap.servers": f"127.0.0.1:{dead}", "sasl.password": SECRET, "sasl.username": "someone"}
    cli.connect("kafka_default", json.dumps({"conn_type": "kafka", "extra": extra}))
    cli.connect(
        "spark_default", json.dumps({"conn_type": "spark", "host": f"spark://127.0.0.1:{dead}", "password": SECRET})
    )

    done = cli("doctor", *DB, "--output", "json")

    assert results(done) == {
        "versions": "ok",
        "database": "failed",
        "database security": "skipped",
        "state tables": "skipped",
        "rights": "skipped",
        "target": "skipped",
        "Kafka connection": "ok",
        "Kafka security": "ok",
        "Kafka cluster": "failed",
        "Kafka topics": "skipped",
        "headroom in time": "skipped",
        "PySpark": "ok",
        "Java": "ok",
        "Spark connection": "ok",
        "spark-submit": "ok",
        "Spark security": "failed",
        "Spark master": "failed",
    }
    assert SECRET not in done.stdout + done.stderr


def test_a_connection_of_spark_connect(cli: CommandLine, spark_connect: SparkConnectServer) -> None:
    cli.connect("spark_default", json.dumps(spark_connect.connection))

    done = cli("doctor", *DB, "--output", "json")

    found = findings(done)
    assert done.status == 0
    assert {name: found[name]["result"] for name in ("Java", "spark-submit", "Spark connection", "Spark security")} == {
        "Java": "skipped",
        "spark-submit": "skipped",
        "Spark connection": "ok",
        "Spark security": "ok",
    }
    version = importlib.metadata.version("pyspark")
    assert found["Spark master"]["found"] == f"localhost:{spark_connect.port} answers, with Spark {version}"
    assert str(spark_connect.token) not in done.stdout + done.stderr


def test_a_service_starts_spark_itself(cli: CommandLine) -> None:
    cli.connect("spark_default", json.dumps({"conn_type": "aws"}))

    found = findings(cli("doctor", *DB, "--spark-conn-id", "spark_default", "--output", "json"))

    assert found["Spark connection"]["found"] == "service EMR Serverless"
    assert {found[name]["result"] for name in ("Java", "spark-submit", "Spark security", "Spark master")} == {"skipped"}


def test_a_server_of_spark_connect_that_is_down(cli: CommandLine) -> None:
    connection = {"conn_type": "spark_connect", "host": "spark.invalid", "port": free_port(), "login": "a"}
    cli.connect("spark_default", json.dumps(connection))
    assert results(cli("doctor", *DB, "--output", "json"))["Spark security"] == "failed"

    connection |= {"host": "127.0.0.1", "password": SECRET}
    cli.connect("spark_default", json.dumps(connection))
    done = cli("doctor", *DB, "--output", "json")

    row = findings(done)["Spark master"]
    assert row["result"] == "failed"
    assert f"127.0.0.1:{connection['port']} of connection 'spark_default' does not answer" in row["found"]
    assert SECRET not in done.stdout + done.stderr


def test_plain_text_on_the_network_is_a_warning_and_no_failure(cli: CommandLine, kafka: KafkaBroker) -> None:
    servers = f"{kafka.bootstrap_servers},kafka.invalid:9092"
    cli.connect("kafka_default", json.dumps({"conn_type": "kafka", "extra": {"bootstrap.servers": servers}}))

    done = cli("doctor", *DB, "--output", "json")

    row = findings(done)["Kafka security"]
    assert (row["result"], row["fix"]) == ("warning", "see SECURITY.md")
    assert "cross the network to kafka.invalid:9092 in plain text" in row["found"]
    assert results(done)["Kafka cluster"] == "ok"
    assert done.status == 0


@pytest.mark.usefixtures("impatient")
def test_a_secret_is_told_nowhere_even_where_it_was_put_by_mistake(cli: CommandLine, kafka: KafkaBroker) -> None:
    servers = f"{SECRET}@{kafka.bootstrap_servers}"
    extra = {"bootstrap.servers": servers, "sasl.password": SECRET}
    cli.connect("kafka_default", json.dumps({"conn_type": "kafka", "extra": extra}))

    done = cli("doctor", *DB, "--output", "json")

    assert findings(done)["Kafka connection"]["found"].startswith(f"***@{kafka.bootstrap_servers}")
    assert SECRET not in done.stdout + done.stderr


def test_connections_that_do_not_exist(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WAREHOUSE", "KAFKA_DEFAULT", "SPARK_DEFAULT"):
        monkeypatch.delenv(f"AIRFLOW_CONN_{name}")

    found = results(cli("doctor", *DB, "--kafka-conn-id", "k", "--spark-conn-id", "s", "--output", "json"))

    assert [check for check, result in found.items() if result == "failed"] == [
        "database",
        "Kafka connection",
        "Spark connection",
    ]


def test_a_kafka_configuration_that_runs_commands_is_refused(cli: CommandLine, kafka: KafkaBroker) -> None:
    cli.connect("kafka_default", kafka_connection(kafka, **{"sasl.kerberos.kinit.cmd": SECRET}))
    done = cli("doctor", *DB, "--output", "json")
    assert "sasl.kerberos.kinit.cmd" in findings(done)["Kafka connection"]["found"]


def test_without_java_spark_cannot_start(cli: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    found = results(cli("doctor", *DB, "--output", "json"))
    assert (found["Java"], found["spark-submit"]) == ("failed", "skipped")


def test_pyspark_and_its_client_must_be_of_one_version(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "3.5.8" if name == "pyspark-client" else real(name))
    row = findings(cli("doctor", *DB, "--output", "json"))["PySpark"]
    assert row["result"] == "failed"
    assert "pyspark-client==" in row["fix"]


def test_an_error_that_nobody_foresaw_is_a_finding_that_tells_nothing_of_it(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_kafka_offsets.cli import doctor_checks

    def broken(name: str) -> str:
        raise RuntimeError(f"password={SECRET}")

    monkeypatch.setattr(doctor_checks, "_version", broken)
    done = cli("doctor", *DB, "--output", "json")
    assert "RuntimeError" in findings(done)["versions"]["found"]
    assert SECRET not in done.stdout + done.stderr


def test_spark_whose_protection_cannot_be_known_is_a_failed_check(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(self: SparkSubmitLauncher) -> str:
        raise ConfigurationError("spark-defaults.conf cannot be read")

    cli.connect("spark_default", json.dumps({"conn_type": "spark", "host": "yarn"}))
    monkeypatch.setattr(SparkSubmitLauncher, "weakness", unknown)
    row = findings(cli("doctor", *DB, "--output", "json"))["Spark security"]
    assert (row["result"], row["found"], row["fix"]) == (
        "failed",
        "spark-defaults.conf cannot be read",
        "see SECURITY.md",
    )


def test_a_master_that_answers(cli: CommandLine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as master:
        url = f"spark://127.0.0.1:{master.getsockname()[1]}"
        cli.connect("spark_default", json.dumps({"conn_type": "spark", "host": url}))
        assert results(cli("doctor", *DB, "--output", "json"))["Spark master"] == "ok"
