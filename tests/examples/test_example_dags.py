"""The example DAGs: they parse, cost nothing to parse, and load what they say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa

from devstack.airflow import AirflowHome
from devstack.kafka import KafkaBroker
from devstack.orders import produce_orders
from devstack.topics import create_topic

EXAMPLES = Path(__file__).resolve().parents[2] / "example_dags"
FILES = sorted(path for path in EXAMPLES.glob("*.py") if "KafkaBatchOperator" in path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_parsing_a_dag_file_imports_neither_spark_nor_arrow_nor_a_kafka_client(path: Path) -> None:
    heavy = ["pyspark", "pyarrow", "confluent_kafka", "sqlglot", "pgpq"]
    code = (
        f"import runpy, sys; runpy.run_path({str(path)!r});print([name for name in {heavy!r} if name in sys.modules])"
    )

    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert run.stdout.splitlines()[-1] == "[]"


@pytest.fixture
def orders(kafka: KafkaBroker) -> int:
    """The topic that the examples name; how many records it holds is known to nobody but the broker."""
    create_topic(kafka.bootstrap_servers, "orders", 4)
    return produce_orders(kafka.bootstrap_servers, "orders", 2000)


def test_the_transform_example_loads(kafka: KafkaBroker, database: str, orders: int) -> None:
    engine = sa.create_engine(database)
    connections = {
        "kafka_default": json.dumps({"conn_type": "kafka", "extra": {"bootstrap.servers": kafka.bootstrap_servers}}),
        "spark_default": json.dumps({"conn_type": "spark", "host": "local[2]"}),
        "warehouse": engine.url.set(drivername="postgres").render_as_string(hide_password=False),
    }
    with AirflowHome(dags=EXAMPLES, connections=connections) as home:
        run = home.run("dags", "test", "transform_orders", "2026-01-01")
        errors = home.run("dags", "list-import-errors", "--local", "--output", "plain")

    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-8000:]
    assert errors.returncode == 0, errors.stdout
    with engine.connect() as conn:
        ((rows, smallest),) = conn.execute(sa.text("SELECT count(*), min(net_amount) FROM large_orders")).all()
        ((read,),) = conn.execute(sa.text("SELECT sum(records) FROM offset_batches")).all()
    engine.dispose()
    assert read >= orders
    assert 0 < rows < read
    assert smallest > 420
