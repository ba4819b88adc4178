"""Which state tables the pages know: those of the configuration, and those that tasks name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.serialization.serialized_objects import DagSerialization

from airflow_kafka_offsets import DeltaTable, Json, KafkaBatchOperator, KafkaVerifyOperator, SqlTable, StateTables
from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.plugin.sources import (
    Discovery,
    RegisteredTask,
    Source,
    configured,
    merged,
    of_serialized_dag,
)
from airflow_kafka_offsets.sinks.sink import DatabaseTable


def serialized(**options: Any) -> dict[str, object]:
    with DAG("shop") as dag:
        KafkaBatchOperator(
            task_id="load",
            group_id="orders",
            topics=["orders"],
            value_format=Json("id BIGINT"),
            sink=SqlTable("orders", conn_id="warehouse"),
            **options,
        )
    data: dict[str, object] = DagSerialization.to_dict(dag)
    assert DagSerialization.from_dict(data).dag_id == "shop"
    return data


def test_a_task_names_its_state_tables_and_its_group() -> None:
    found = of_serialized_dag(serialized(state_tables=StateTables(schema="team"), kafka_conn_id="kafka_eu"))

    tables = (DatabaseTable("orders"),)
    assert found == [RegisteredTask("load", "orders", Source("warehouse", "team"), "kafka_eu", tables)]


def test_a_task_names_all_its_tables_and_one_that_verifies_is_known() -> None:
    several = [SqlTable("orders", conn_id="warehouse"), SqlTable("keys", conn_id="warehouse", upsert_key=("id",))]
    with DAG("shop") as dag:
        KafkaVerifyOperator(task_id="prove", group_id="orders", sink=several)
        KafkaVerifyOperator(task_id="prove_lake", group_id="lake", sink=DeltaTable("/lake/orders", conn_id="warehouse"))

    found = of_serialized_dag(DagSerialization.to_dict(dag))

    source, tables = Source("warehouse"), (DatabaseTable("keys", upsert_key=("id",)), DatabaseTable("orders"))
    assert found == [
        RegisteredTask("prove", "orders", source, tables=tables, loads=False, verifies=True),
        RegisteredTask("prove_lake", "lake", source, loads=False, verifies=True),
    ]


_STATE: dict[str, Any] = {
    "conn_id": "warehouse",
    "schema": None,
    "prefix": "",
    "kafka_conn_id": "kafka_eu",
    "tables": [],
}
_TABLE: dict[str, Any] = {"table": "orders", "schema": None, "upsert_key": []}


@pytest.mark.parametrize(
    "state",
    [
        "{",
        "[]",
        "{}",
        "[" * 100_000,
        json.dumps(_STATE | {"conn_id": {"warehouse": 1}}),
        json.dumps(_STATE | {"conn_id": 7}),
        json.dumps(_STATE | {"prefix": None}),
        json.dumps(_STATE | {"kafka_conn_id": ["kafka_eu"]}),
        json.dumps(_STATE | {"tables": 7}),
        json.dumps(_STATE | {"tables": [_TABLE | {"table": None}]}),
        json.dumps(_STATE | {"tables": [_TABLE | {"upsert_key": [7]}]}),
    ],
    ids=lambda state: state[:80],
)
def test_a_task_that_says_something_else_hides_no_other(state: str) -> None:
    class Own(KafkaBatchOperator):
        kafka_offsets_state = state

    Own.__module__ = KafkaBatchOperator.__module__
    with DAG("shop") as dag:
        for task_id, operator in (("own", Own), ("load", KafkaBatchOperator)):
            operator(
                task_id=task_id,
                group_id="orders",
                topics=["orders"],
                value_format=Json("id BIGINT"),
                sink=SqlTable("orders", conn_id="warehouse"),
            )

    found = of_serialized_dag(DagSerialization.to_dict(dag))

    assert [task.task_id for task in found] == ["load"]


def test_the_configuration_names_state_tables() -> None:
    assert configured("warehouse, lake?schema=team&prefix=x_&kafka_conn_id=kafka_eu,") == {
        Source("warehouse"): Discovery(is_configured=True),
        Source("lake", "team", "x_"): Discovery(frozenset({"kafka_eu"}), is_configured=True),
    }


def test_a_mistake_in_the_configuration_is_named_without_its_text() -> None:
    with pytest.raises(ConfigurationError, match="entry 2 has password") as error:
        configured("warehouse, lake?password=secret")

    assert "secret" not in str(error.value)


def test_both_are_merged() -> None:
    registered = {"shop": of_serialized_dag(serialized())}

    assert merged(configured("warehouse,lake"), registered) == {
        Source("lake"): Discovery(frozenset({"kafka_default"}), is_configured=True),
        Source("warehouse"): Discovery(frozenset({"kafka_default"}), frozenset({"shop"}), is_configured=True),
    }
