"""Spark's own connector reads what loads wrote, and writes into the table meanwhile: by a REST catalog, and by one in
Postgres.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.engine import Engine

from airflow_kafka_offsets import Limits
from airflow_kafka_offsets.formats.simple_formats import Json
from airflow_kafka_offsets.sinks.iceberg.snapshot import IcebergSnapshot
from airflow_kafka_offsets.sinks.iceberg.table import IcebergTable
from devstack.spark_jars import spark_with_delta, spark_with_iceberg
from tests.support import fixtures
from tests.support.clients import Kafka, produce
from tests.support.iceberg import IcebergGroup, iceberg_sink, rest_server
from tests.support.loads import TopicFactory
from tests.support.rewinds import Rewinder
from tests.support.spark_sql import SparkSql, inserting

pytestmark = [pytest.mark.server, pytest.mark.long]

CREATED = "id BIGINT NOT NULL, name STRING, created TIMESTAMP"
COLUMNS = Json(CREATED)
EVOLVED = Json(f"{CREATED}, price DOUBLE")
_NUMBERS = itertools.count(1)
LAYOUT: dict[str, Any] = {"partition_by": ("day(created)", "bucket(2, id)"), "sort_by": ("id DESC",)}


def orders_of(first: int, count: int, **more: Any) -> list[bytes]:
    """Return orders of three days, in no order of their ids."""
    order = {"name": "ours", **more}
    return [
        json.dumps({"id": id_, "created": f"2026-11-{20 + id_ % 3}T12:00:00Z", **order}).encode()
        for id_ in range(first + count - 1, first - 1, -1)
    ]


@pytest.fixture(params=["rest", "positions"])
def where(request: pytest.FixtureRequest) -> str:
    return str(request.param)


engine = fixtures.postgres_engine


@pytest.fixture
def orders(kafka: Kafka, topic: TopicFactory) -> str:
    name = topic()
    produce(kafka, name, orders_of(0, 10))
    return name


@pytest.fixture
def catalog_name() -> str:
    """A SQL catalog stores its name; Spark opens each catalog once."""
    return f"catalog_{next(_NUMBERS)}"


@pytest.fixture
def sink(where: str, tmp_path: Path, catalog_name: str) -> IcebergTable:
    return iceberg_sink(where, tmp_path, catalog_name=catalog_name, **LAYOUT)


@pytest.fixture(scope="module")
def spark_sql() -> Iterator[SparkSql]:
    (driver,) = (jar for jar in spark_with_delta().jars.split(",") if "postgresql" in jar)
    with SparkSql(spark_with_iceberg(), {}, driver) as sql:
        yield sql


@pytest.fixture
def sql(where: str, spark_sql: SparkSql, engine: Engine, sink: IcebergTable) -> Iterator[SparkSql]:
    """Spark with the catalog of the table."""
    url = engine.url
    catalog = {
        "type": "jdbc",
        "uri": f"jdbc:postgresql://{url.host}:{url.port}/{url.database}",
        "warehouse": sink.warehouse or "",
        "jdbc.user": url.username or "",
        "jdbc.password": url.password or "",
        "jdbc.schema-version": "V1",
    }
    if where == "rest":
        catalog = rest_server().catalog
    # Without a cache: it reads what was committed last.
    for name, value in (catalog | {"cache-enabled": "false"}).items():
        spark_sql(f"SET `spark.sql.catalog.{sink.catalog_name}.{name}`=`{value}`")
    spark_sql(f"SET spark.sql.catalog.{sink.catalog_name}=org.apache.iceberg.spark.SparkCatalog")
    yield spark_sql
    with engine.connect() as conn:  # Spark keeps its connections
        others = "datname = current_database() AND application_name LIKE 'PostgreSQL JDBC%%'"
        conn.exec_driver_sql(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}")


@pytest.fixture
def table(sink: IcebergTable) -> str:
    return f"{sink.catalog_name}.{sink.identifier}"


def ours(sql: SparkSql, table: str) -> list[int]:
    """The offsets of our rows, as Spark reads them."""
    return [offset for (offset,) in sql(f"SELECT _kafka_offset FROM {table} WHERE _batch_id IS NOT NULL ORDER BY 1")]


def maintain(sql: SparkSql, table: str) -> None:
    """Compact all files, and expire all snapshots but the last."""
    catalog, _, name = table.partition(".")
    files = f"CALL {catalog}.system.rewrite_data_files(table => '{name}', options => map('rewrite-all', 'true'))"
    assert sql(files)[0][0] > 0
    sql(
        f"CALL {catalog}.system.expire_snapshots(table => '{name}', older_than => TIMESTAMP '2100-01-01 00:00:00', "
        "retain_last => 1)"
    )
    assert sql(f"SELECT count(*) FROM {table}.snapshots") == [(1,)]


def insert(sql: SparkSql, table: str, id_: int) -> None:
    sql(f"INSERT INTO {table} (id, name, created) VALUES ({id_}, 'foreign', TIMESTAMP '2026-11-20 00:00:00')")


def test_spark_counts_what_was_loaded_evolved_replaced_and_compacted(
    group: IcebergGroup, kafka: Kafka, sql: SparkSql, table: str
) -> None:
    group.load(limits=Limits(max_records=4), value_format=COLUMNS)
    produce(kafka, group.orders, orders_of(10, 5, price=1.5))
    sql(f"ALTER TABLE {table} ADD COLUMN price DOUBLE")
    assert group.load(value_format=EVOLVED).rows == 5
    assert ours(sql, table) == list(range(15))

    maintain(sql, table)
    assert group.replay({group.orders: {0: (2, 6)}}, replace=True, pipeline={"value_format": EVOLVED}).rows == 4
    maintain(sql, table)
    assert Rewinder(group.loader)("to-offset", 12, replace=group.sink).rows_removed == 3
    assert ours(sql, table) == list(range(12))
    assert group.load(value_format=EVOLVED).rows == 3

    assert ours(sql, table) == list(range(15))
    assert sql(f"SELECT count(*), count(DISTINCT id), sum(id), sum(price) FROM {table}") == [(15, 15, 105, 7.5)]
    # The partitions are what the rows say.
    wrong = f"SELECT count(*) FROM {table} WHERE CAST(created AS DATE) <> DATE '2026-11-20' + CAST(id % 3 AS INT)"
    assert sql(wrong) == [(0,)]
    assert sql(f"SELECT count(*) FROM {table} WHERE created < TIMESTAMP '2026-11-21 00:00:00'") == [(5,)]
    assert group.offsets() == list(range(15))
    assert group.proved() == (15, 0, 15)


def test_changes_by_spark_change_no_other_row(
    group: IcebergGroup, kafka: Kafka, sql: SparkSql, table: str, where: str
) -> None:
    group.load(limits=Limits(max_records=4), value_format=COLUMNS)
    mode = {"rest": "merge-on-read", "positions": "copy-on-write"}[where]
    modes = ", ".join(f"'write.{each}.mode' = '{mode}'" for each in ("delete", "update", "merge"))
    sql(f"ALTER TABLE {table} SET TBLPROPERTIES ({modes})")
    for number in range(3):
        insert(sql, table, -1 - number)
        merged = f"SELECT {number} AS id, 'merged' AS name UNION ALL SELECT -1, 'merged'"
        sql(
            f"MERGE INTO {table} t USING ({merged}) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET name = s.name "
            "WHEN NOT MATCHED THEN INSERT (id, name) VALUES (s.id, s.name)"
        )
        produce(kafka, group.orders, orders_of(10 + number, 1))
        assert group.load(value_format=COLUMNS).rows == 1
    sql(f"DELETE FROM {table} WHERE id = -2")

    assert ours(sql, table) == list(range(13))
    assert sql(f"SELECT id, name FROM {table} WHERE id < 0 OR name = 'merged' ORDER BY id") == [
        (-3, "foreign"),
        (-1, "merged"),
        *((id_, "merged") for id_ in range(3)),
    ]
    assert group.proved() == (13, 0, 13)

    assert group.replay({group.orders: {0: (6, 12)}}, replace=True, pipeline={"value_format": COLUMNS}).rows == 6
    assert ours(sql, table) == list(range(13))
    assert sql(f"SELECT id, name FROM {table} WHERE id < 0 OR name = 'merged' ORDER BY id") == [
        (-3, "foreign"),
        (-1, "merged"),
        # Ids 0 to 2 are at offsets 7 to 9, which were replayed.
    ]
    assert group.proved() == (13, 0, 13)


def test_commit_is_rebased_on_inserts_and_compaction_by_spark(
    group: IcebergGroup,
    kafka: Kafka,
    sql: SparkSql,
    table: str,
    where: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where the transaction holds the catalog's row, the catalog of Spark waits, and goes on from what was
    committed.
    """
    group.load(limits=Limits(max_records=4), value_format=COLUMNS)
    commit = IcebergSnapshot.commit
    writers: list[threading.Thread] = []

    def write() -> None:
        insert(sql, table, -1)
        maintain(sql, table)
        insert(sql, table, -2)

    def interfere(*args: Any, **options: Any) -> int:
        if not writers:
            writers.append(threading.Thread(target=write))
            writers[0].start()
            if where == "rest":
                writers[0].join()
        return commit(*args, **options)

    produce(kafka, group.orders, orders_of(10, 3))
    with monkeypatch.context() as patched:
        patched.setattr(IcebergSnapshot, "commit", interfere)
        assert group.load(value_format=COLUMNS).rows == 3
    writers[0].join()

    assert ours(sql, table) == list(range(13))
    assert sql(f"SELECT id FROM {table} WHERE _batch_id IS NULL ORDER BY 1") == [(-2,), (-1,)]
    assert group.proved() == (13, 0, 13)


def test_spark_that_inserts_all_the_time_loses_nothing_and_costs_nothing(
    group: IcebergGroup, kafka: Kafka, sql: SparkSql, table: str
) -> None:
    group.load(value_format=COLUMNS)
    with inserting(partial(insert, sql, table)) as inserted:
        for number in range(6):
            produce(kafka, group.orders, orders_of(10 + number, 1))
            assert group.load(value_format=COLUMNS).rows == 1

    assert ours(sql, table) == list(range(16))
    assert sql(f"SELECT id FROM {table} WHERE _batch_id IS NULL ORDER BY id DESC") == [(id_,) for id_ in inserted]
    assert group.proved() == (16, 0, 16)
