"""Loads on YARN, with staging on its HDFS or in a directory that all machines share."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy.engine import Engine

from devstack.kafka import KafkaBroker
from devstack.orders import produce_orders
from devstack.paths import pyspark_home
from devstack.yarn import HadoopCluster
from tests.support.airflow_runs import Runs, airflow_runs, airflow_uri
from tests.support.loads import TopicFactory, assert_exactly_once, rows

pytestmark = [
    pytest.mark.server,
    pytest.mark.long,
    pytest.mark.skipif(sys.platform != "linux", reason="containers are found in /proc"),
]

RECORDS = 100_000

COLUMNS = "id BIGINT NOT NULL, customer STRING, amount DECIMAL(10,2), created TIMESTAMP"


def properties(**more: str) -> dict[str, str]:
    """What a cluster of one small machine needs."""
    local = {f"spark.{of}.SPARK_LOCAL_IP": "127.0.0.1" for of in ("yarn.appMasterEnv", "executorEnv")}
    return local | {
        # Else hundreds of megabytes are uploaded for each application.
        "spark.yarn.jars": f"local:{pyspark_home()}/jars/*",
        "spark.pyspark.python": sys.executable,
        "spark.executor.instances": "2",
        "spark.executor.memory": "512m",
        "spark.driver.memory": "512m",
        "spark.ui.enabled": "false",
        "spark.yarn.maxAppAttempts": "1",
        **more,
    }


@pytest.fixture(scope="module")
def hadoop() -> Iterator[HadoopCluster]:
    with HadoopCluster() as cluster:
        yield cluster


@pytest.fixture
def runs(hadoop: HadoopCluster, kafka: KafkaBroker, postgres_engine: Engine) -> Iterator[Runs]:
    with airflow_runs(kafka, airflow_uri(postgres_engine), spark="yarn") as runs:
        runs.home.env["HADOOP_CONF_DIR"] = str(hadoop.conf_dir)
        yield runs


@pytest.mark.parametrize("where", ["hdfs", "shared directory"])
def test_a_load_whose_driver_is_on_the_worker(
    hadoop: HadoopCluster,
    runs: Runs,
    kafka: KafkaBroker,
    topic: TopicFactory,
    postgres_engine: Engine,
    tmp_path: Path,
    where: str,
) -> None:
    name = topic(partitions=4)
    produce_orders(kafka.bootstrap_servers, name, RECORDS)
    directory = f"{hadoop.hdfs}/staging" if where == "hdfs" else f"file://{tmp_path}/staging"

    run = runs.begin(
        topics=[name],
        columns=COLUMNS,
        staging={"dir": directory, "slice_offsets": RECORDS // 10},
        spark={"conf": properties()},
    )
    status, output = run.end()

    assert status == 0, output[-8000:]
    assert f"read {RECORDS:,} records of {RECORDS:,} planned (100%)" in output
    assert rows(postgres_engine, "SELECT count(*), count(DISTINCT id) FROM target") == [(RECORDS, RECORDS)]
    assert_exactly_once(postgres_engine)
    assert {found["finalStatus"] for found in hadoop.applications()} == {"SUCCEEDED"}
