"""The example DAGs with transforms, and with formats that need no registry, load what they say."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from devstack.kafka import KafkaBroker
from devstack.orders import produce_orders
from devstack.topics import create_topic
from tests.docs.test_example_dags import EXAMPLES
from tests.support.loads import rows
from tests.support.warm_airflow import WarmAirflowHome

pytestmark = pytest.mark.server


@pytest.fixture
def warehouse(kafka: KafkaBroker, database: str) -> Iterator[Engine]:
    create_topic(kafka.bootstrap_servers, "orders", 4)
    produce_orders(kafka.bootstrap_servers, "orders", 500)
    engine = sa.create_engine(database)
    yield engine
    engine.dispose()


@pytest.fixture
def home(kafka: KafkaBroker, warehouse: Engine) -> Iterator[WarmAirflowHome]:
    connections = {
        "kafka_default": json.dumps({"conn_type": "kafka", "extra": {"bootstrap.servers": kafka.bootstrap_servers}}),
        "spark_default": json.dumps({"conn_type": "spark", "host": "local[2]"}),
        "warehouse": warehouse.url.set(drivername="postgres").render_as_string(hide_password=False),
    }
    with WarmAirflowHome(dags=EXAMPLES, connections=connections) as made:
        yield made


@pytest.mark.parametrize(
    ("dag", "query", "expected"),
    [
        # tests/transforms/test_sql_loads.py has its short sibling.
        pytest.param(
            "transform_orders_with_sql",
            "SELECT count(*) > 0, max(double) <= 1000, count(DISTINCT day) > 0, count(*) = count(_kafka_offset) FROM "
            "small_orders",
            (True, True, True, True),
            marks=pytest.mark.long,
        ),
        # tests/loading/test_transforms_on_spark.py has its short sibling.
        pytest.param(
            "transform_orders_with_arrow",
            "SELECT count(*) > 0, bool_and(abs(tax - (amount - amount / 1.19)) < 0.02), count(*) = "
            "count(_kafka_offset) FROM taxed_orders",
            (True, True, True),
            marks=pytest.mark.long,
        ),
        # tests/formats/test_whole_record.py and tests/transforms/test_sql_loads.py have the short siblings.
        pytest.param(
            "load_order_lines",
            "SELECT count(*) > 0, bool_and((line::json ->> 'id') IS NOT NULL), count(written_at) = count(*) FROM "
            "order_lines",
            (True, True, True),
            marks=pytest.mark.long,
        ),
        pytest.param(
            "load_raw_orders",
            "SELECT count(*) > 0, min(octet_length(digest)), min(length(body)) > 10, count(*) = count(_kafka_offset) "
            "FROM order_digests",
            (True, 32, True, True),
            marks=pytest.mark.long,
        ),
        # tests/transforms/test_body.py and tests/loading/test_transforms_on_spark.py have the short siblings.
        pytest.param(
            "transform_orders_in_dag",
            "SELECT count(*) > 0, min(gross) > 499, bool_and(loaded_for = '2026-01-01'), count(*) = "
            "count(_kafka_offset) FROM daily_orders",
            (True, True, True, True),
            marks=pytest.mark.long,
        ),
    ],
)
def test_the_example_loads(
    home: WarmAirflowHome, warehouse: Engine, dag: str, query: str, expected: tuple[bool, ...]
) -> None:
    run = home.run("dags", "test", dag, "2026-01-01")

    output = run.stdout + run.stderr
    assert run.returncode == 0, output[-8000:]
    assert "is proved" in output
    assert rows(warehouse, query) == [expected]


@pytest.mark.long  # tests/sinks/test_callable.py is its short sibling
def test_the_function_of_the_example_adds_each_order_once(home: WarmAirflowHome, warehouse: Engine) -> None:
    for day in ("2026-01-01", "2026-01-02"):
        run = home.run("dags", "test", "load_customer_totals", day)

    output = run.stdout + run.stderr
    assert run.returncode == 0, output[-8000:]
    assert "history and positions are proved" in output
    totals = "SELECT sum(orders) = (SELECT sum(row_count) FROM offset_batches), sum(amount) > 0 FROM customer_totals"
    assert rows(warehouse, totals) == [(True, True)]


@pytest.mark.long  # tests/sinks/test_fan_out.py is its short sibling
def test_the_example_with_two_sinks_loads_both(home: WarmAirflowHome, warehouse: Engine) -> None:
    run = home.run("dags", "test", "load_orders_and_customers", "2026-01-01")

    output = run.stdout + run.stderr
    assert run.returncode == 0, output[-8000:]
    assert "history and positions are proved" in output
    last = "SELECT count(*) > 0, count(*) = count(DISTINCT customer), min(length(customer)) > 0 FROM customers"
    assert rows(warehouse, last) == [(True, True, True)]
    known = "SELECT count(DISTINCT customer) = (SELECT count(*) FROM customers) FROM customer_orders"
    assert rows(warehouse, known) == [(True,)]
