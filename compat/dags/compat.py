"""The loads of a cell: a sensor, deferred or not, and after it a load, an upsert with `Sql`, and a DataFrame transform
that is written here.
"""

from __future__ import annotations

import os
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from airflow.sdk import DAG, task

from airflow_kafka_offsets import (
    DeadLetters,
    Json,
    KafkaBatchOperator,
    KafkaLagSensor,
    KafkaVerifyOperator,
    Raw,
    Sql,
    SqlTable,
    Staging,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ORDERS = Json("id BIGINT NOT NULL, customer STRING, amount DECIMAL(10,2), created TIMESTAMP")
START = datetime(2026, 1, 1)
STAGING = Staging(dir=os.environ.get("COMPAT_STAGING"))

orders, customers = SqlTable("orders", conn_id="warehouse"), SqlTable(
    "customers", conn_id="warehouse", upsert_key=("customer",)
)  # fmt: skip
gross_orders = SqlTable("gross_orders", conn_id="warehouse")


def load_orders() -> KafkaBatchOperator:
    return KafkaBatchOperator(
        task_id="load", group_id="orders", topics=["orders"], value_format=ORDERS, sink=orders,
        on_bad_record=DeadLetters(), staging=STAGING,
    )  # fmt: skip


with DAG("compat_load", start_date=START, schedule=None):
    load_orders() >> KafkaVerifyOperator(task_id="verify", group_id="orders", sink=orders)

for name, deferrable in (("compat_wait", False), ("compat_defer", True)):
    with DAG(name, start_date=START, schedule=None) as dag:
        wait = KafkaLagSensor(
            task_id="wait", group_id="orders", topics=["orders"], conn_id="warehouse", min_lag=1,
            deferrable=deferrable, poke_interval=1, timeout=timedelta(minutes=3).total_seconds(),
        )  # fmt: skip
        wait >> load_orders()
    globals()[name] = dag

with DAG("compat_transforms", start_date=START, schedule=None):
    upsert = KafkaBatchOperator(
        task_id="upsert", group_id="customers", topics=["orders"], value_format=ORDERS, sink=customers,
        transform=Sql("SELECT customer, id AS last_order FROM records"),
        on_bad_record=DeadLetters(), staging=STAGING,
    )  # fmt: skip

    @task.kafka_batch(
        group_id="gross", topics=["orders"], value_format=ORDERS, sink=gross_orders, on_bad_record=DeadLetters(),
        staging=STAGING,
    )  # fmt: skip
    def gross(orders: DataFrame) -> DataFrame:
        return orders.selectExpr("*", "CAST(amount * 1.19 AS DECIMAL(12,4)) AS gross")

    upsert >> gross()  # type: ignore[call-arg]

with DAG("compat_topics", start_date=START, schedule=None):
    KafkaBatchOperator(
        task_id="load", group_id="topics", topics=["compacted", "transactions", "recreated"], value_format=Raw(),
        sink=SqlTable("records", conn_id="warehouse"), staging=STAGING,
    )  # fmt: skip
