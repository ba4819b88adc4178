"""Measures the processor time of commands in `airflow kafka-offsets` and in `kafka-offsets`: `python -m
benchmarks.commands`.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import sqlalchemy as sa

from airflow_kafka_offsets import Json, LoadOptions, Pipeline, SqlTable, load
from devstack.airflow import AirflowHome
from devstack.kafka import KafkaBroker
from devstack.orders import produce_orders
from tests.support.inline import InlineLauncher

ROUNDS = 5

COMMANDS = (("groups",), ("lag", "orders_loader"))


def seconds(run: Callable[[], subprocess.CompletedProcess[str]]) -> float:
    """Return the processor time of a command in all its processes, the median of some rounds after a first one."""
    measured = []
    for _ in range(ROUNDS + 1):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = run()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert done.returncode == 0, done.stderr
        measured.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return statistics.median(measured[1:])


def main() -> None:
    with tempfile.TemporaryDirectory() as directory, KafkaBroker() as kafka:
        url = f"sqlite:///{directory}/warehouse.db"
        produce_orders(kafka.bootstrap_servers, "orders", 1000)
        config = {"bootstrap.servers": kafka.bootstrap_servers}
        load(
            Pipeline(
                group_id="orders_loader",
                topics=("orders",),
                value_format=Json("id BIGINT, customer STRING"),
                sink=SqlTable("orders"),
            ),
            LoadOptions(start="earliest"),
            kafka_config=config,
            engine=sa.create_engine(url),
            launcher=InlineLauncher(),
        )
        file = Path(directory, "kafka.json")
        file.write_text(json.dumps(config), encoding="utf-8")
        environment = os.environ | {"KAFKA_OFFSETS_DATABASE": url, "KAFKA_OFFSETS_KAFKA_CONFIG": str(file)}
        program = str(Path(sys.executable).with_name("kafka-offsets"))
        connections = {"warehouse": url, "kafka_default": json.dumps({"conn_type": "kafka", "extra": config})}
        with AirflowHome(connections=connections) as home:
            for command in COMMANDS:
                airflow = seconds(lambda command=command: home.run("kafka-offsets", *command, "--conn-id", "warehouse"))  # type: ignore[misc]
                own = seconds(
                    lambda command=command: subprocess.run(  # type: ignore[misc]
                        [program, *command], env=environment, capture_output=True, text=True, check=False
                    )
                )
                print(
                    f"{command[0]}: airflow {airflow:.2f} s, kafka-offsets {own:.2f} s, a share of {own / airflow:.2f}"
                )


if __name__ == "__main__":
    main()
