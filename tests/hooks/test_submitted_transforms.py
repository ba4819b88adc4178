"""Transforms in an application that spark-submit runs: user code may use pandas, and its errors come back with the
user's frames.
"""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from sqlalchemy.engine import Engine

from airflow_kafka_offsets import Limits
from airflow_kafka_offsets.exceptions import TransformError
from airflow_kafka_offsets.hooks.spark import SparkSubmitLauncher
from airflow_kafka_offsets.transforms.arrow import ArrowTransform
from devstack.kafka import KafkaBroker
from tests.support.clients import produce
from tests.support.loads import Loader, TopicFactory, names, rows

pytestmark = pytest.mark.server


@pytest.fixture
def submitting(kafka: KafkaBroker, postgres_engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Loader:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[2]"}))
    return Loader(kafka, postgres_engine, SparkSubmitLauncher("spark_default"))


def with_pandas(records: pa.RecordBatch) -> pa.RecordBatch:
    import pandas  # type: ignore[import-untyped]

    return records.append_column("x", pa.array(pandas.Series(records["id"].to_pylist(), dtype="int64") * 3))


def tripled_by_pandas(records: DataFrame) -> DataFrame:
    from pyspark.sql.pandas import functions

    # In the second batch, workers are used again.
    tripled = functions.pandas_udf(lambda ids: ids * 3, "bigint")  # type: ignore[call-overload]
    return records.withColumn("x", tripled("id"))


def careless(records: DataFrame) -> DataFrame:
    from pyspark.sql import functions

    return records.withColumn("name", functions.udf(lambda name: refuse(name), "string")("name"))


def refuse(name: str) -> str:
    raise ValueError("no such day")


@pytest.mark.long
def test_a_function_of_batches_may_use_pandas(submitting: Loader, topic: TopicFactory, kafka: KafkaBroker) -> None:
    name = topic()
    produce(kafka, name, names(0, 3))
    submitting(name, transform=ArrowTransform(f"{__name__}.with_pandas"))
    assert rows(submitting.engine, "SELECT id, x FROM target ORDER BY id") == [(0, 0), (1, 3), (2, 6)]


@pytest.mark.long
def test_so_may_a_function_of_dataframes_in_every_batch(
    submitting: Loader, topic: TopicFactory, kafka: KafkaBroker
) -> None:
    name = topic()
    produce(kafka, name, names(0, 4))
    submitting(name, transform=f"{__name__}.tripled_by_pandas", limits=Limits(max_records=2))
    assert rows(submitting.engine, "SELECT id, x FROM target ORDER BY id") == [(0, 0), (1, 3), (2, 6), (3, 9)]


# tests/transforms/test_user_errors.py and tests/loading/test_transforms_on_spark.py have the short siblings.
@pytest.mark.long
def test_an_error_in_a_udf_comes_back_with_the_users_frames(
    submitting: Loader, topic: TopicFactory, kafka: KafkaBroker
) -> None:
    name = topic()
    produce(kafka, name, [b'{"id": 1, "name": "secret"}'])
    with pytest.raises(TransformError) as raised:
        submitting(name, transform=f"{__name__}.careless")
    text = str(raised.value)
    assert text.splitlines()[0] == f"Transform '{__name__}.careless' raised ValueError: no such day"
    frames = [line for line in text.splitlines() if line.startswith("  File")]
    assert [frame.rpartition(", in ")[2] for frame in frames] == ["<lambda>", "refuse"]
    assert all(f'File "{__file__}"' in frame for frame in frames)
    assert "secret" not in text
