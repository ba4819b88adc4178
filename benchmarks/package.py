"""This package, as a task uses it: `load` with spark-submit on local[*]; and an empty Spark application."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import sqlalchemy as sa
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

from airflow_kafka_offsets import Json, Pipeline, SqlTable
from airflow_kafka_offsets import load as load_batches
from airflow_kafka_offsets.hooks.spark import SparkSubmitLauncher
from airflow_kafka_offsets.transforms.transform import Transform
from benchmarks.datasets import COLUMNS
from benchmarks.load import Load
from benchmarks.transforms import ARROW_NET, SQL_NET

# The package's own settings of Spark.
CONF = {
    "spark.ui.enabled": "false",
    "spark.log.level": "WARN",
    "spark.sql.session.timeZone": "UTC",
    "spark.pyspark.driver.python": sys.executable,
    "spark.pyspark.python": sys.executable,
}


def load_orders(load: Load) -> None:
    _load(load, None)


def load_with_transform(load: Load) -> None:
    _load(load, "benchmarks.net_amount.net")


def load_with_arrow(load: Load) -> None:
    _load(load, ARROW_NET)


def load_with_sql(load: Load) -> None:
    _load(load, SQL_NET)


def run_empty_application(_: Load) -> None:
    """Start Spark, create a session, stop."""
    with tempfile.TemporaryDirectory() as directory:
        application = Path(directory) / "empty.py"
        application.write_text(
            "from pyspark.sql import SparkSession\nSparkSession.builder.getOrCreate().stop()\n", encoding="utf-8"
        )
        SparkSubmitHook(conn_id="spark_default", conf=CONF).submit(str(application))


def _load(load: Load, transform: str | Transform | None) -> None:
    engine = sa.create_engine(load.postgres.url(load.database))
    pipeline = Pipeline(
        group_id="benchmark",
        topics=(load.dataset.topic,),
        value_format=Json(COLUMNS),
        sink=SqlTable("orders"),
        transform=transform,
    )
    load_batches(
        pipeline,
        kafka_config={"bootstrap.servers": load.kafka.bootstrap_servers},
        engine=engine,
        launcher=SparkSubmitLauncher("spark_default"),
    )
    engine.dispose()
