"""KafkaBatchOperator and the command line, through the real `airflow` command."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from airflow_kafka_offsets.ledger.install import initialize
from airflow_kafka_offsets.ledger.tables import Ledger
from airflow_kafka_offsets.operators.retry_policy import ASKED
from devstack.kafka import KafkaBroker
from devstack.process import free_port
from devstack.spark import SparkStandalone
from tests.support.airflow_runs import DAGS, Runs, airflow_runs, airflow_uri, locked, waits_for_a_lock
from tests.support.clients import produce
from tests.support.inline import InlineLauncher
from tests.support.loads import Loader, TopicFactory, assert_exactly_once, names, positions, rows
from tests.support.warm_airflow import WarmAirflowHome

pytestmark = pytest.mark.server

CANARY = "canary-4f1d"


@pytest.fixture
def runs(kafka: KafkaBroker, postgres_engine: Engine) -> Iterator[Runs]:
    with airflow_runs(kafka, airflow_uri(postgres_engine)) as made:
        yield made


@pytest.mark.long  # tests/loading/test_races.py has it without Airflow every day
def test_concurrent_runs_load_every_offset_once(
    runs: Runs, kafka: KafkaBroker, topic: TopicFactory, postgres_engine: Engine
) -> None:
    name = topic()
    produce(kafka, name, names(0, 2000))
    initialize(Ledger(postgres_engine))

    first = runs.begin("2026-01-01", topics=[name])
    first.until(lambda: rows(postgres_engine, "SELECT state FROM offset_batches") == [("planned",)], "the plan")
    # Held at its commit, the first run is alive for as long as the others take.
    with locked(postgres_engine, "consumed_offsets", "SHARE"):
        waiting = runs.begin("2026-01-02", topics=[name])
        failing = runs.begin("2026-01-03", topics=[name], coordination={"on_busy": "fail"})
        skipping = runs.begin("2026-01-04", topics=[name], coordination={"on_busy": "skip"})
        status, output = failing.end()
        assert status != 0
        assert "Group 'loader' is being" in output
        status, output = skipping.end()
        assert status == 0
        assert "skipped" in output.lower()
        waiting.until(lambda: "Waiting for it" in waiting.output(), "the second run to wait")
        first.until(lambda: waits_for_a_lock(postgres_engine, "INSERT INTO consumed_offsets"), "the commit")

    for run in (first, waiting):
        status, output = run.end()
        assert status == 0, output[-8000:]
    assert rows(postgres_engine, "SELECT state, dag_id, task_id, map_index, try_number FROM offset_batches") == [
        ("committed", "load_under_test", "load", -1, 1)
    ]
    assert positions(postgres_engine) == {(name, 0): 2000}
    assert_exactly_once(postgres_engine)


@pytest.mark.long  # loads through `spark-submit` with a transform run every day, the cluster in `make compat`, too
def test_a_standalone_cluster_and_a_transform_beside_the_dag(
    spark_cluster: SparkStandalone, kafka: KafkaBroker, topic: TopicFactory, postgres_engine: Engine, tmp_path: Path
) -> None:
    name = topic(partitions=2)
    for partition in range(2):
        produce(kafka, name, names(partition * 500, 500), partition)
    secrets = {"sasl.password": CANARY, "ssl.key.password": CANARY}
    warehouse = airflow_uri(postgres_engine)
    with airflow_runs(kafka, warehouse, spark=spark_cluster.master_url, config=secrets) as runs:
        run = runs.begin(
            topics=[name],
            transform="load_under_test.keep_all",
            staging={"dir": str(tmp_path), "slice_offsets": 200},
            spark={
                "conf": {
                    "spark.ui.enabled": "false",
                    "spark.eventLog.enabled": "true",
                    "spark.eventLog.dir": str(tmp_path),
                }
            },
        )
        status, output = run.end()

    assert status == 0, output[-8000:]
    assert_exactly_once(postgres_engine)
    assert "read 1,000 records of 1,000 planned (100%), 6 of 6 slices finished" in output
    left = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert left, "the event log is expected"
    assert CANARY not in output
    assert not [file for file in left if CANARY.encode() in file.read_bytes()]
    assert not [
        file
        for file in Path(spark_cluster.directory).rglob("*")
        if file.is_file() and CANARY.encode() in file.read_bytes()
    ]


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        pytest.param(
            {"AIRFLOW_CONN_SPARK_DEFAULT": None},
            "spark.conn_id='spark_default': there is no such connection",
            id="spark",
        ),
        pytest.param(
            {"JAVA_HOME": "/nowhere"},
            "Spark needs Java 17 or newer, and JAVA_HOME is '/nowhere'",
            id="java",
            marks=pytest.mark.long,
        ),
    ],
)
def test_missing_parameter_is_named_before_spark_starts(
    kafka: KafkaBroker,
    topic: TopicFactory,
    postgres_engine: Engine,
    broken: dict[str, str | None],
    message: str,
) -> None:
    name = topic()
    with airflow_runs(kafka, airflow_uri(postgres_engine)) as runs:
        for variable, value in broken.items():
            if value is None:
                del runs.home.env[variable]
            else:
                runs.home.env[variable] = value
        status, output = runs.begin(topics=[name]).end()

    assert status != 0
    assert message in output
    assert "Spark-Submit cmd" not in output


@pytest.mark.long
def test_permanent_error_fails_at_once_and_an_outage_is_retried(
    kafka: KafkaBroker, topic: TopicFactory, postgres_engine: Engine
) -> None:
    nobody_listens = airflow_uri(postgres_engine).replace(str(postgres_engine.url.port), str(free_port()))
    with airflow_runs(kafka, airflow_uri(postgres_engine)) as runs, airflow_runs(kafka, nobody_listens) as cut_off:
        terminal = runs.begin(topics=["no-such-topic"], retries=1, retry_delay_seconds=0)
        retriable = cut_off.begin(topics=[topic()], retries=1, retry_delay_seconds=0)
        status, output = terminal.end()
        assert status != 0
        assert "UnknownTopicError: a retry cannot help" in output
        status, output = retriable.end()
        assert status != 0
        assert "DatabaseUnavailableError: the next try carries on where this one stopped" in output


def test_a_run_without_a_data_interval_is_told_so_and_not_tried_again() -> None:
    test = f"""
from types import SimpleNamespace
from airflow_kafka_offsets.version_compat import dag_bag
dag_bag(SimpleNamespace(path={str(DAGS)!r}, name="dags-folder")).dags["load_under_test"].test(logical_date=None)
"""
    with WarmAirflowHome(dags=DAGS) as home:
        home.env["LOAD_UNDER_TEST"] = json.dumps(
            {"topics": ["any"], "until": "{{ data_interval_end }}", "retries": 1, "retry_delay_seconds": 0}
        )
        run = home.run_code(test)

    assert run.returncode == 0, run.stderr
    output = run.stdout + run.stderr
    assert "ConfigurationError: 'data_interval_end' is undefined: this run has no data interval" in output
    # The reason of the retry policy, or the error of an Airflow without policies.
    assert (
        "ConfigurationError: a retry cannot help" if ASKED else "AirflowFailException: ConfigurationError"
    ) in output


def test_positions_are_a_macro_in_templates(kafka: KafkaBroker, postgres_engine: Engine, topic: TopicFactory) -> None:
    name = topic(partitions=2)
    for partition in range(2):
        produce(kafka, name, names(0, 5 + partition), partition)
    Loader(kafka, postgres_engine, InlineLauncher())(name)

    with WarmAirflowHome(dags=DAGS, connections={"warehouse": airflow_uri(postgres_engine)}) as home:
        run = home.run("dags", "test", "positions_macro")

    assert run.returncode == 0, run.stdout[-5000:] + run.stderr[-5000:]
    assert f"known: {{'{name}': {{0: 5, 1: 6}}}}".replace("'", "") in (run.stdout + run.stderr).replace("'", "")


def test_init_prints_sql_or_runs_it(database: str) -> None:
    engine = sa.create_engine(database)
    with WarmAirflowHome(connections={"warehouse": airflow_uri(engine)}) as home:
        printed = home.run("kafka-offsets", "init", "--conn-id", "warehouse", "--show-sql")
        assert printed.returncode == 0, printed.stderr
        assert "CREATE TABLE IF NOT EXISTS consumed_offsets" in printed.stdout
        assert sa.inspect(engine).get_table_names() == []

        made = home.run("kafka-offsets", "init", "--conn-id", "warehouse")
        assert (made.returncode, made.stdout) == (0, "")
        assert "The state tables were created" in made.stderr
        assert "consumed_offsets" in sa.inspect(engine).get_table_names()

        missing = home.run("kafka-offsets", "init", "--conn-id", "nowhere")
        assert missing.returncode != 0
        assert "nowhere" in missing.stderr
    engine.dispose()
