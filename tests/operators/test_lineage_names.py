"""How OpenLineage names what sinks write to: https://openlineage.io/docs/spec/naming."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from airflow.providers.openlineage.extractors.base import DefaultExtractor

from airflow_kafka_offsets import (
    Branch,
    DeltaTable,
    Json,
    KafkaBatchOperator,
    KafkaRewindOperator,
    ParquetFiles,
    SqlTable,
)
from airflow_kafka_offsets.operators.lineage import FACET, _load_facet, _topic, datasets_of
from airflow_kafka_offsets.operators.positions import KafkaVerifyOperator
from airflow_kafka_offsets.operators.results import topic_uris
from airflow_kafka_offsets.sinks.fan_out import as_sink
from airflow_kafka_offsets.sinks.lake.sink import dataset_name
from airflow_kafka_offsets.sinks.sql import connected_table
from airflow_kafka_offsets.sinks.table import Dataset

DONE: dict[str, Any] = {
    "ranges": {"orders": {"0": [0, 5]}},
    "batches": [1],
    "records": 5,
    "rows": 5,
    "dead_letters": 0,
    "complete": True,
}


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("postgres://db:5432/shop/public/orders", ("postgres://db:5432", "shop.public.orders")),
        ("mysql://db:3306/shop/orders", ("mysql://db:3306", "shop.orders")),
        ("postgres://db:5432/shop/public/a%2Fb", ("postgres://db:5432", "shop.public.a/b")),
        ("sqlite:///data/shop.db/orders", ("sqlite:///data/shop.db", "orders")),
    ],
)
def test_a_table_is_named_after_its_database(uri: str, expected: tuple[str, str]) -> None:
    assert connected_table.dataset_name(uri) == expected


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("/data/orders/", ("file", "/data/orders")),
        ("file:///data/my%20orders", ("file", "/data/my orders")),
        ("s3a://bucket/lake/orders", ("s3://bucket", "lake/orders")),
        ("gs://bucket/orders", ("gs://bucket", "orders")),
        ("hdfs://name:8020/lake/orders", ("hdfs://name:8020", "/lake/orders")),
        ("abfss://box@store.dfs.core.windows.net/orders", ("abfss://box@store.dfs.core.windows.net", "orders")),
        ("s3://key:canary@bucket/orders?token=canary", ("s3://bucket", "orders")),
        ("abfss://key:canary@store/orders", ("abfss://store", "orders")),
    ],
)
def test_files_are_named_after_their_bucket_without_a_login(uri: str, expected: tuple[str, str]) -> None:
    assert dataset_name(uri) == expected


def test_the_first_bootstrap_server_names_the_cluster() -> None:
    (uri,) = topic_uris("SASL_SSL://one:9093,two:9093", ["orders"])
    assert (_topic(uri, None, {}).namespace, _topic(uri, None, {}).name) == ("kafka://one:9093", "orders")


def test_each_of_several_targets_is_a_dataset_of_its_own_with_its_columns(tmp_path: Path) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path}/shop.db")
    with engine.begin() as conn:
        conn.execute(sa.text("CREATE TABLE orders (id BIGINT NOT NULL, name TEXT)"))
        conn.execute(sa.text("CREATE TABLE totals (total BIGINT)"))
    sink = as_sink([SqlTable("orders", conn_id="warehouse"), Branch(SqlTable("totals", conn_id="warehouse"))])
    assert sink is not None

    assert datasets_of(sink, engine) == [
        Dataset(f"sqlite://{tmp_path}/shop.db", "orders", [("id", "BIGINT"), ("name", "TEXT")]),
        Dataset(f"sqlite://{tmp_path}/shop.db", "totals", [("total", "BIGINT")]),
    ]


def test_files_of_a_table_have_its_columns(tmp_path: Path) -> None:
    lake = DeltaTable(str(tmp_path), conn_id="warehouse")
    lake.connect(sa.create_engine("sqlite://")).create(pa.schema([("id", pa.int64())]))

    (table,) = datasets_of(lake, sa.create_engine("sqlite://"))
    assert table == Dataset("file", str(tmp_path), [("id", "int64"), *(table.fields or ())[1:]])


def test_a_table_that_is_not_created_yet_has_a_name_and_no_columns(tmp_path: Path) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path}/shop.db")
    table = ParquetFiles(str(tmp_path / "lake"), conn_id="warehouse")

    assert datasets_of(table, engine) == [Dataset("file", f"{tmp_path}/lake", None)]
    assert datasets_of(SqlTable("orders", conn_id="warehouse"), engine)[0].fields is None


def test_the_names_of_topics_are_values_and_no_keys_which_openlineage_could_hide() -> None:
    done = DONE | {"ranges": {"access_token": {"0": [0, 5]}}}
    assert _load_facet("loader", "load", done).ranges == [
        {"topic": "access_token", "partition": 0, "start": 0, "end": 5}
    ]
    assert _load_facet("loader", "load", done | {"ranges": None}).ranges is None
    assert FACET == "kafkaOffsets"


@pytest.fixture
def warehouse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The namespace of a database with a table of orders, which connections name."""
    with sa.create_engine(f"sqlite:///{tmp_path}/shop.db").begin() as conn:
        conn.execute(sa.text("CREATE TABLE orders (id BIGINT NOT NULL)"))
    kafka = {"bootstrap.servers": "one:9092,two:9092", "sasl.password": "canary"}
    connections: dict[str, Any] = {
        "warehouse": {"conn_type": "sqlite", "host": f"{tmp_path}/shop.db"},
        "kafka_default": {"conn_type": "kafka", "extra": kafka},
    }
    for name, value in connections.items():
        monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps(value))
    return f"sqlite://{tmp_path}/shop.db"


def of_task_that_ended(operator: Any) -> Any:
    """Return what Airflow's OpenLineage provider extracts when a task succeeds."""
    return DefaultExtractor(operator).extract_on_complete(None)


def test_a_load_names_what_it_reads_and_writes_and_in_the_end_how_much(warehouse: str) -> None:
    load = KafkaBatchOperator(
        task_id="load",
        group_id="loader",
        topics=["orders"],
        value_format=Json("id BIGINT"),
        sink=SqlTable("orders", conn_id="warehouse"),
    )
    started = load.get_openlineage_facets_on_start()
    load._done = DONE
    for lineage in (started, of_task_that_ended(load)):
        assert [(read.namespace, read.name) for read in lineage.inputs] == [("kafka://one:9092", "orders")]
        assert [(written.namespace, written.name) for written in lineage.outputs] == [(warehouse, "orders")]
        assert "canary" not in repr(lineage)
    assert started.run_facets[FACET].ranges is None
    assert lineage.run_facets[FACET].ranges == [{"topic": "orders", "partition": 0, "start": 0, "end": 5}]
    assert lineage.outputs[0].outputFacets["outputStatistics"].rowCount == 5


def test_a_rewind_names_what_moved_and_the_rows_it_removed(warehouse: str) -> None:
    rewind = KafkaRewindOperator(
        task_id="rewind",
        group_id="loader",
        scenario="to-earliest",
        conn_id="warehouse",
        replace=SqlTable("orders", conn_id="warehouse"),
    )
    stays = {"topic": "orders", "partition": 1, "old_offset": 3, "new_offset": 3}
    moves = {"topic": "orders", "partition": 0, "old_offset": 5, "new_offset": 0}
    rewind._done = {
        "partitions": [moves | {"reread": 5}, stays],
        "executed": True,
        "batch_id": 4,
        "rows_removed": 5,
        "dead_letters_removed": 0,
    }
    lineage = of_task_that_ended(rewind)

    facet = lineage.run_facets[FACET]
    assert (facet.ranges, facet.batches, facet.rows) == (
        [{"topic": "orders", "partition": 0, "old": 5, "new": 0}],
        [4],
        5,
    )
    assert [(read.namespace, read.name) for read in lineage.inputs] == [("kafka://one:9092", "orders")]
    assert [(written.namespace, written.name) for written in lineage.outputs] == [(warehouse, "orders")]


def test_unreadable_dataset_is_left_out_of_lineage(warehouse: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AIRFLOW_CONN_KAFKA_DEFAULT")
    verified = KafkaVerifyOperator(task_id="verify", group_id="loader", sink=SqlTable("orders", conn_id="warehouse"))
    assert [read.name for read in verified.get_openlineage_facets_on_start().inputs] == ["orders"]
    rewind = KafkaRewindOperator(task_id="rewind", group_id="loader", scenario="to-earliest", conn_id="warehouse")
    assert rewind.get_openlineage_facets_on_start().inputs == []
