"""Airflow's ConsumeFromTopicOperator with inserts in batches: at least once, in the process of the task."""

from __future__ import annotations

import json
import os
from typing import Any

from airflow.providers.apache.kafka.operators.consume import ConsumeFromTopicOperator
from airflow.providers.postgres.hooks.postgres import PostgresHook
from confluent_kafka import Message

from benchmarks.load import Load

# Ten times the operator's default, in its favour: fewer commits.
_BATCH = 10_000


def load_orders(load: Load) -> None:
    load.create_table()
    config = {
        "bootstrap.servers": load.kafka.bootstrap_servers,
        "group.id": load.database,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": "false",
    }
    os.environ["AIRFLOW_CONN_KAFKA_DEFAULT"] = json.dumps({"conn_type": "kafka", "extra": config})
    os.environ["AIRFLOW_CONN_WAREHOUSE"] = load.postgres.airflow_uri(load.database)
    connection = PostgresHook("warehouse").get_conn()
    ConsumeFromTopicOperator(
        task_id="load_orders",
        topics=[load.dataset.topic],
        apply_function_batch=insert_orders,
        apply_function_kwargs={"connection": connection},
        commit_cadence="end_of_batch",
        # Without it the operator waits a minute at the end of the topic.
        max_messages=load.dataset.records,
        max_batch_size=min(_BATCH, load.dataset.records),
    ).execute({})
    connection.close()


def insert_orders(messages: list[Message], connection: Any) -> None:
    orders = [json.loads(message.value()) for message in messages]
    rows = [(order["id"], order["customer"], order["amount"], order["created"]) for order in orders]
    with connection.cursor() as cursor:
        cursor.executemany("INSERT INTO orders (id, customer, amount, created) VALUES (%s, %s, %s, %s)", rows)
    connection.commit()
