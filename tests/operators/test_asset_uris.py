"""Topics and targets as assets: their URIs, the events of a task, and what the author of the DAG gives himself."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa
from airflow.sdk import Asset, AssetAlias
from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
from airflow.sdk.execution_time.comms import ErrorResponse
from airflow.sdk.execution_time.context import OutletEventAccessors

from airflow_kafka_offsets import (
    BatchBounds,
    Branch,
    DeltaTable,
    FunctionSink,
    IcebergTable,
    Json,
    KafkaBatchOperator,
    KafkaReplayOperator,
    ParquetFiles,
    SqlTable,
)
from airflow_kafka_offsets.operators.results import alias_of, announce, topic_uris
from airflow_kafka_offsets.sinks.fan_out import FanOut
from airflow_kafka_offsets.sinks.sink import Sink

POSTGRES = "postgresql+psycopg://ada:secret@db.example/shop"
GIVEN: dict[str, Any] = {
    "task_id": "load",
    "group_id": "orders_loader",
    "topics": ["orders"],
    "value_format": Json("id BIGINT"),
    "sink": SqlTable("orders", conn_id="warehouse"),
}
URI = "postgres://db.example:5432/shop/sales/orders"


@pytest.mark.parametrize(
    ("servers", "expected"),
    [
        ("kafka-1:9093,kafka-2:9093", "kafka://kafka-1:9093/orders"),
        ("SASL_SSL://kafka-1", "kafka://kafka-1:9092/orders"),
        (" [::1]:9092 ", "kafka://[::1]:9092/orders"),
    ],
)
def test_topic_uri_equals_that_of_the_kafka_provider(servers: str, expected: str) -> None:
    assert topic_uris(servers, ["orders"]) == [expected]
    assert Asset(uri=expected).normalized_uri == expected


@pytest.mark.parametrize(
    ("sink", "database", "expected"),
    [
        (SqlTable("orders", schema="sales"), POSTGRES, [URI]),
        (SqlTable("orders"), POSTGRES, ["postgres://db.example:5432/shop/default/orders"]),
        (SqlTable("a b/c", schema="sales"), POSTGRES, ["postgres://db.example:5432/shop/sales/a%20b%2Fc"]),
        (SqlTable("orders"), "mysql+pymysql://db.example:3307/shop", ["mysql://db.example:3307/shop/orders"]),
        (SqlTable("orders", schema="crm"), "mariadb+pymysql://db.example/shop", ["mysql://db.example:3306/crm/orders"]),
        (SqlTable("orders"), "sqlite:////data/shop.db", ["sqlite:///data/shop.db/orders"]),
        (DeltaTable("s3a://lake/orders"), POSTGRES, ["s3://lake/orders"]),
        (ParquetFiles("/lake/my orders"), POSTGRES, ["file:///lake/my%20orders"]),
        (ParquetFiles("file:///lake/orders"), POSTGRES, ["file:///lake/orders"]),
        (IcebergTable("shop.orders", catalog_name="prod"), POSTGRES, ["iceberg://prod/shop/orders"]),
        (FunctionSink("shop.write", table="orders", schema="sales"), POSTGRES, [URI]),
        (FunctionSink("shop.write"), POSTGRES, []),
        (
            FanOut.of([Branch(SqlTable("orders", schema="sales")), SqlTable("lines", schema="sales")]),
            POSTGRES,
            ["postgres://db.example:5432/shop/sales/lines", URI],
        ),
    ],
    ids=str,
)
def test_target_uris(sink: Sink, database: str, expected: list[str]) -> None:
    assert list(sink.uris(sa.create_engine(database))) == expected
    assert "secret" not in str(expected)


@pytest.mark.parametrize("kind", [KafkaBatchOperator, partial(KafkaReplayOperator, bounds=BatchBounds(1))])
def test_the_outlet_is_an_alias_of_the_group_beside_those_of_the_author(kind: Any) -> None:
    own = [Asset("orders")]

    assert kind(**GIVEN).outlets == [AssetAlias("kafka_offsets:orders_loader")]
    assert kind(**GIVEN, outlets=own).outlets == [Asset("orders"), AssetAlias("kafka_offsets:orders_loader")]
    assert own == [Asset("orders")]
    assert kind(**GIVEN, outlets=own, assets=False).outlets == own


def test_the_alias_of_a_group_that_a_template_names_is_that_of_the_task() -> None:
    assert alias_of("{{ params.group }}", "load") == AssetAlias("kafka_offsets:load")
    assert alias_of("größe", "load") == AssetAlias("kafka_offsets:gr%C3%B6%C3%9Fe")


@pytest.fixture
def known_assets(monkeypatch: pytest.MonkeyPatch) -> dict[str, Asset]:
    """The assets that DAGs name, by their URIs."""
    known: dict[str, Asset] = {}

    def find(name: str | None = None, uri: str | None = None) -> Asset:
        if uri not in known:
            raise AirflowRuntimeError(ErrorResponse(error=ErrorType.ASSET_NOT_FOUND))
        return known[uri]

    monkeypatch.setattr(OutletEventAccessors, "_asset_ref_cache", {})
    for accessor in OutletEventAccessors.__mro__:
        if "_get_asset_from_db" in vars(accessor):
            monkeypatch.setattr(accessor, "_get_asset_from_db", staticmethod(find))
    return known


def added(context: Any, alias: AssetAlias) -> list[tuple[str, str, Any]]:
    events = context["outlet_events"][alias].asset_alias_events
    return [(event.dest_asset_key.name, event.dest_asset_key.uri, event.extra) for event in events]


def test_an_event_goes_to_the_asset_of_the_target(known_assets: dict[str, Asset]) -> None:
    context: Any = {"outlet_events": OutletEventAccessors()}
    alias = AssetAlias("kafka_offsets:g")

    announce(context, [alias], [URI], {"rows": 5})
    assert added(context, alias) == [(URI, URI, {"rows": 5})]


def test_an_event_goes_to_the_name_that_a_dag_has_given_to_the_uri(known_assets: dict[str, Asset]) -> None:
    known_assets[URI] = Asset("orders", URI)
    context: Any = {"outlet_events": OutletEventAccessors()}
    alias = AssetAlias("kafka_offsets:g")

    announce(context, [alias], [URI], {"rows": 5})
    assert added(context, alias) == [("orders", URI, {"rows": 5})]


def test_an_asset_of_the_author_gets_the_ranges_and_no_second_event(known_assets: dict[str, Asset]) -> None:
    own, alias = Asset("orders", URI), AssetAlias("kafka_offsets:g")
    context: Any = {"outlet_events": OutletEventAccessors()}

    announce(context, [own, alias], [URI], {"rows": 5})
    assert context["outlet_events"][own].extra == {"rows": 5}
    assert added(context, alias) == []
