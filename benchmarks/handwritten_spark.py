"""Hand-written Spark jobs into the table: a batch job, the same with a transform, and Structured Streaming; submitted
like this package's own.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

from benchmarks.datasets import COLUMNS
from benchmarks.load import Load
from benchmarks.package import CONF
from devstack.spark_jars import spark_with_delta

_BATCH = "spark_application.py"
_STREAMING = "streaming_table_application.py"


def load_orders(load: Load) -> None:
    _run(load, _BATCH, transform=False)


def load_with_transform(load: Load) -> None:
    _run(load, _BATCH, transform=True)


def load_available_now(load: Load) -> None:
    with tempfile.TemporaryDirectory(prefix="benchmark-checkpoint-") as checkpoint:
        _run(load, _STREAMING, checkpoint=checkpoint)


def _run(load: Load, application: str, **more: object) -> None:
    load.create_table()
    postgres = load.postgres
    job = {
        "bootstrap_servers": load.kafka.bootstrap_servers,
        "topic": load.dataset.topic,
        "columns": COLUMNS.replace(" NOT NULL", ""),
        "host": "127.0.0.1",
        "port": postgres.port,
        "database": load.database,
        "user": postgres.user,
        "password": postgres.password,
        **more,
    }
    hook = SparkSubmitHook(conn_id="spark_default", conf=CONF, jars=spark_with_delta().jars)
    # Not in the arguments: every user of the machine can read these.
    env = os.environ | {"HANDWRITTEN_JOB": json.dumps(job)}
    hook.submit(str(Path(__file__).with_name(application)), env=env)
