"""Real Spark writes the data files, in its Python workers: with no transform, and behind one of DataFrames."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame

from airflow_kafka_offsets.exceptions import TargetError
from airflow_kafka_offsets.sinks.iceberg.table import IcebergTable
from airflow_kafka_offsets.verification.verify import verify
from tests.support import fixtures
from tests.support.clients import Kafka, produce
from tests.support.iceberg import open_table, scanned
from tests.support.loads import Loader, TopicFactory, names

pytestmark = pytest.mark.server


engine = fixtures.sqlite_engine


def doubled(records: DataFrame) -> DataFrame:
    return records.selectExpr("*", "id * 2 AS twice")


def test_spark_writes_the_files(loader: Loader, kafka: Kafka, topic: TopicFactory, tmp_path: Path) -> None:
    name = topic(partitions=2)
    for partition in (0, 1):
        produce(kafka, name, names(partition * 100, 100), partition)
    sink = IcebergTable(
        "shop.orders",
        warehouse=f"file://{tmp_path}/lake",
        columns="id BIGINT, name STRING, twice BIGINT",
        partition_by=("bucket(2, id)",),
    )

    assert loader(name, sink=sink, transform=f"{__name__}.doubled").rows == 200

    assert scanned(open_table(sink, loader.engine), "id", "twice") == [(number, number * 2) for number in range(200)]
    produce(kafka, name, names(200, 10), 0)
    assert loader(name, sink=sink).rows == 10
    coverage = verify("loader", sink=sink, engine=loader.engine, kafka_config=loader.config)
    assert coverage.rows == 210
    produce(kafka, name, names(210, 1), 0)
    other = "tests.sinks.iceberg.test_iceberg_on_spark.renamed"
    with pytest.raises(TargetError, match="thrice"):
        loader(name, sink=sink, transform=other)


def renamed(records: DataFrame) -> DataFrame:
    return records.selectExpr("*", "id * 3 AS thrice")
