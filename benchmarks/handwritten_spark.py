"""A hand-written Spark job: Spark's Kafka connector, from_json, JDBC append; submitted like this package's own."""

from __future__ import annotations

import json
import os
from pathlib import Path

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

from benchmarks.datasets import COLUMNS
from benchmarks.load import Load
from benchmarks.package import CONF
from devstack.spark_jars import spark_with_delta

_APPLICATION = Path(__file__).with_name("spark_application.py")


def load_orders(load: Load) -> None:
    load.create_table()
    postgres = load.postgres
    job = {
        "bootstrap_servers": load.kafka.bootstrap_servers,
        "topic": load.dataset.topic,
        "columns": COLUMNS.replace(" NOT NULL", ""),
        "url": f"jdbc:postgresql://127.0.0.1:{postgres.port}/{load.database}",
        "user": postgres.user,
        "password": postgres.password,
    }
    hook = SparkSubmitHook(conn_id="spark_default", conf=CONF, jars=spark_with_delta().jars)
    # Not in the arguments: every user of the machine can read these.
    hook.submit(str(_APPLICATION), env=os.environ | {"HANDWRITTEN_JOB": json.dumps(job)})
