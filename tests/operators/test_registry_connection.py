"""Which connections of formats an operator looks up, and that their secrets go to the load alone."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_kafka_offsets import Avro, ExtraColumns, Json, KafkaBatchOperator, SqlTable
from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.loading.context import LoadResult
from airflow_kafka_offsets.operators import base

CANARY = "canary-2d4f"


@pytest.fixture(autouse=True)
def _connections(monkeypatch: pytest.MonkeyPatch) -> None:
    connections = {
        "KAFKA_DEFAULT": {"conn_type": "kafka", "extra": {"bootstrap.servers": "localhost:9092"}},
        "SPARK_DEFAULT": {"conn_type": "spark", "host": "local[2]"},
        "WAREHOUSE": {"conn_type": "sqlite", "host": "/nowhere.db"},
        "REGISTRY": {"conn_type": "http", "host": "https://registry", "login": "ada", "password": CANARY},
    }
    for name, connection in connections.items():
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", json.dumps(connection))
    # Nothing is loaded here, and there are no state tables to ask.
    monkeypatch.setattr(base, "outcome", lambda *_, **__: {"batches": []})


def connections_of(**formats: Any) -> Any:
    operator = KafkaBatchOperator(
        task_id="load", group_id="g", topics=["orders"], sink=SqlTable("t", conn_id="warehouse"), **formats
    )
    task = SimpleNamespace(dag_id="d", task_id="load", run_id="r", map_index=-1, try_number=1)
    given: dict[str, Any] = {}

    def work(pipeline: Any, **options: Any) -> LoadResult:
        given.update(options)
        assert CANARY not in repr(pipeline)
        return LoadResult()

    context: Any = {"ti": task, "dag_run": SimpleNamespace(triggering_user_name=None)}
    operator.run_on_spark(context, work)
    assert CANARY not in repr(vars(operator))
    return given["connections"]


def test_registry_connection_serves_key_and_value() -> None:
    expected = {"registry": {"url": "https://registry", "basic.auth.user.info": f"ada:{CANARY}"}}
    avro = Avro(registry_conn_id="registry")
    assert connections_of(value_format=avro) == expected
    assert connections_of(value_format=Json("id INT"), extra_columns=ExtraColumns(key_format=avro)) == expected


def test_formats_without_one_need_none() -> None:
    assert (
        connections_of(value_format=Json("id INT"), extra_columns=ExtraColumns(key_format=Avro(schema='"int"'))) == {}
    )


def test_a_connection_of_another_type_is_refused() -> None:
    with pytest.raises(
        ConfigurationError, match="'kafka_default' is of type 'kafka'; the connection of a schema registry"
    ):
        connections_of(value_format=Avro(registry_conn_id="kafka_default"))
