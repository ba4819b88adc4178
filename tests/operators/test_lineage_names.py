"""How OpenLineage names what sinks write to: https://openlineage.io/docs/spec/naming."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
import sqlalchemy as sa

from airflow_kafka_offsets import Branch, DeltaTable, ParquetDataset, SqlTable
from airflow_kafka_offsets.operators.assets import topic_uris
from airflow_kafka_offsets.operators.lineage import FACET, Table, _load_facet, _topic, file_name, sql_name, tables_of
from airflow_kafka_offsets.sinks.fan_out import as_sink


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
    assert sql_name(uri) == expected


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
    assert file_name(uri) == expected


def test_the_first_bootstrap_server_names_the_cluster() -> None:
    (uri,) = topic_uris("SASL_SSL://one:9093,two:9093", ["orders"])
    assert (_topic(uri).namespace, _topic(uri).name) == ("kafka://one:9093", "orders")


def test_each_of_several_targets_is_a_dataset_of_its_own_with_its_columns(tmp_path: Path) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path}/shop.db")
    with engine.begin() as conn:
        conn.execute(sa.text("CREATE TABLE orders (id BIGINT NOT NULL, name TEXT)"))
        conn.execute(sa.text("CREATE TABLE totals (total BIGINT)"))
    sink = as_sink([SqlTable("orders", conn_id="warehouse"), Branch(SqlTable("totals", conn_id="warehouse"))])
    assert sink is not None

    assert tables_of(sink, engine) == [
        Table(f"sqlite://{tmp_path}/shop.db", "orders", [("id", "BIGINT"), ("name", "TEXT")]),
        Table(f"sqlite://{tmp_path}/shop.db", "totals", [("total", "BIGINT")]),
    ]


def test_files_of_a_table_have_its_columns(tmp_path: Path) -> None:
    lake = DeltaTable(str(tmp_path), conn_id="warehouse")
    lake.create(pa.schema([("id", pa.int64())]))

    (table,) = tables_of(lake, sa.create_engine("sqlite://"))
    assert table == Table("file", str(tmp_path), [("id", "int64"), *(table.columns or ())[1:]])


def test_a_table_that_is_not_created_yet_has_a_name_and_no_columns(tmp_path: Path) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path}/shop.db")
    table = ParquetDataset(str(tmp_path / "lake"), conn_id="warehouse")

    assert tables_of(table, engine) == [Table("file", f"{tmp_path}/lake", None)]
    assert tables_of(SqlTable("orders", conn_id="warehouse"), engine)[0].columns is None


def test_the_names_of_topics_are_values_and_no_keys_which_openlineage_could_hide() -> None:
    done = {
        "ranges": {"access_token": {"0": [0, 5]}},
        "batches": [1],
        "records": 5,
        "rows": 5,
        "dead_letters": 0,
        "complete": True,
    }
    assert _load_facet("loader", "load", done).ranges == [
        {"topic": "access_token", "partition": 0, "start": 0, "end": 5}
    ]
    assert _load_facet("loader", "load", done | {"ranges": None}).ranges is None
    assert FACET == "kafkaOffsets"
