"""Load orders into a table, and the last order of each customer into another one: read once, in one transaction."""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow.sdk import DAG

from airflow_kafka_offsets import Branch, DeadLetters, Json, KafkaBatchOperator, KafkaVerifyOperator, Sql, SqlTable

with DAG(
    dag_id="load_orders_and_customers",
    schedule=timedelta(hours=1),
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    tags=["kafka"],
):
    orders_and_customers = [
        SqlTable("customer_orders", conn_id="warehouse"),
        Branch(
            SqlTable("customers", conn_id="warehouse", upsert_key=("customer",)),
            transform=Sql("SELECT customer, id AS last_order, created AS last_seen FROM records"),
        ),
    ]
    load = KafkaBatchOperator(
        task_id="load_orders_and_customers",
        group_id="orders_and_customers_loader",
        topics=["orders"],
        value_format=Json("id BIGINT NOT NULL, customer STRING NOT NULL, amount DECIMAL(10,2), created TIMESTAMP"),
        sink=orders_and_customers,
        on_bad_record=DeadLetters(limit=100),
    )
    verify = KafkaVerifyOperator(task_id="verify", group_id="orders_and_customers_loader", sink=orders_and_customers)
    load >> verify
