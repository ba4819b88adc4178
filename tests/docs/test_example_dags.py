"""The example DAGs: they parse, cost nothing to parse, and load what they say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa

from devstack.kafka import KafkaBroker
from devstack.orders import produce_orders
from devstack.topics import create_topic
from tests.support.warm_airflow import WarmAirflowHome

pytestmark = pytest.mark.server

EXAMPLES = Path(__file__).resolve().parents[2] / "example_dags"


def test_parsing_the_examples_imports_neither_spark_nor_arrow_nor_a_kafka_client() -> None:
    heavy = ["pyspark", "pyarrow", "confluent_kafka", "sqlglot", "pgpq"]
    code = f"""
import runpy, sys
from pathlib import Path
files = sorted(Path({str(EXAMPLES)!r}).glob("*.py"))
# The text of a Sql is checked when a DAG is parsed: these are parsed last here.
with_sql = {{"load_orders_and_customers.py", "load_raw_orders.py", "transform_orders_with_sql.py"}}
for path in files:
    if path.name not in {{"order_transforms.py", *with_sql}}:
        runpy.run_path(str(path))
found = [name for name in {heavy!r} if name in sys.modules]
for path in files:
    if path.name in with_sql:
        runpy.run_path(str(path))
print(len(files), found + [name for name in {heavy!r} if name in sys.modules and name != "sqlglot"])
"""

    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert run.stdout.splitlines()[-1] == f"{len(list(EXAMPLES.glob('*.py')))} []"


@pytest.fixture
def orders(kafka: KafkaBroker) -> int:
    """The topic that the examples name; how many records it holds is known to nobody but the broker."""
    create_topic(kafka.bootstrap_servers, "orders", 4)
    return produce_orders(kafka.bootstrap_servers, "orders", 2000)


# A DataFrame transform beside its DAG loads in tests/operators/test_batch.py every day.
@pytest.mark.long
def test_the_transform_example_loads(kafka: KafkaBroker, database: str, orders: int) -> None:
    engine = sa.create_engine(database)
    connections = {
        "kafka_default": json.dumps({"conn_type": "kafka", "extra": {"bootstrap.servers": kafka.bootstrap_servers}}),
        "spark_default": json.dumps({"conn_type": "spark", "host": "local[2]"}),
        "warehouse": engine.url.set(drivername="postgres").render_as_string(hide_password=False),
    }
    with WarmAirflowHome(dags=EXAMPLES, connections=connections) as home:
        run = home.run("dags", "test", "transform_orders", "2026-01-01")
        errors = home.run("dags", "list-import-errors", "--local", "--output", "plain")

    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-8000:]
    assert errors.returncode == 0, errors.stdout
    assert "The coverage of group 'large_orders_loader' is proved" in run.stdout + run.stderr
    with engine.connect() as conn:
        ((rows, smallest),) = conn.execute(sa.text("SELECT count(*), min(net_amount) FROM large_orders")).all()
        ((read,),) = conn.execute(sa.text("SELECT sum(records) FROM offset_batches")).all()
    engine.dispose()
    assert read >= orders
    assert 0 < rows < read
    assert smallest > 420


def test_two_parses_serialize_alike_also_when_mapped(tmp_path: Path) -> None:
    """Airflow makes a new version of a DAG whenever its serialization changes."""
    code = """
import json
from datetime import datetime
from airflow.sdk import DAG
from airflow.serialization.serialized_objects import DagSerialization
from airflow_kafka_offsets import Json, KafkaBatchOperator, SqlTable
common = {"value_format": Json("id BIGINT"), "sink": SqlTable("target", conn_id="warehouse")}
with DAG("parsed", schedule=None, start_date=datetime(2026, 1, 1)) as dag:
    KafkaBatchOperator(task_id="one", group_id="g", topics=["t"], **common)
    KafkaBatchOperator.partial(task_id="each", **common).expand_kwargs([{"group_id": "g1", "topics": ["t1"]}])
print(json.dumps(DagSerialization.to_dict(dag), sort_keys=True))
"""
    path = tmp_path / "parsed.py"
    path.write_text(code, encoding="utf-8")

    first, second = (
        subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=True).stdout for _ in range(2)
    )

    assert first == second
    assert "SqlTable(table='target', schema=None, conn_id='warehouse', upsert_key=())" in first
