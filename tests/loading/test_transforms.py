"""Transforms decide the rows, and neither the positions nor which records are read."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from pyspark.sql import DataFrame, SparkSession

from airflow_kafka_offsets import DeadLetters, Limits, Staging
from airflow_kafka_offsets.exceptions import TargetError, TransformError
from devstack.kafka import KafkaBroker
from tests.support.clients import produce
from tests.support.database_faults import ADDED
from tests.support.loads import Loader, TopicFactory, names, positions, rows

pytestmark = pytest.mark.server


def only_even(records: DataFrame) -> DataFrame:
    return records.where("id % 2 = 0")


def nothing(records: DataFrame) -> DataFrame:
    return records.where("false")


def twice(records: DataFrame) -> DataFrame:
    return records.union(records)


def with_a_bad_twin(records: DataFrame) -> DataFrame:
    from pyspark.sql import functions

    bad = records.where("id = 3").withColumn("name", functions.lit("bad"))
    return records.union(records).union(bad)


def first_only(records: DataFrame) -> DataFrame:
    return records.limit(1)


def renamed(records: DataFrame) -> DataFrame:
    return records.withColumnRenamed("name", "label")


def raising(records: DataFrame) -> DataFrame:
    raise ValueError("no such day")


def not_a_dataframe(records: DataFrame) -> str:
    return "rows"


def shouted(records: DataFrame) -> DataFrame:
    from pyspark.sql import functions

    shout = functions.udf(lambda text: upper(text), "string")
    return records.withColumn("name", shout("name"))


def upper(text: str) -> str:
    return text.upper()


@pytest.mark.parametrize(("transform", "expected"), [("only_even", 5), ("nothing", 0), ("twice", 20), ("shouted", 10)])
def test_a_transform_decides_the_rows_and_not_the_positions(
    loader: Loader, kafka: KafkaBroker, topic: TopicFactory, transform: str, expected: int
) -> None:
    name = topic()
    produce(kafka, name, names(0, 10))

    result = loader(name, transform=f"{__name__}.{transform}", staging=Staging(slice_offsets=3))

    assert result.rows == expected
    assert positions(loader.engine) == {(name, 0): 10}


def of_the_active_session(records: DataFrame) -> DataFrame:
    active = SparkSession.getActiveSession()
    assert active is not None, "there is no active session"
    return records.crossJoin(active.createDataFrame([("loaded",)], "state STRING"))


def test_a_transform_finds_its_session_in_every_batch(loader: Loader, kafka: KafkaBroker, topic: TopicFactory) -> None:
    """Batches after the first are staged in another thread."""
    name = topic()
    produce(kafka, name, names(0, 3))

    result = loader(name, transform=f"{__name__}.of_the_active_session", limits=Limits(max_records=1))

    assert (len(result.batches), result.rows) == (3, 3)


def test_a_transform_that_stops_reading_is_refused(loader: Loader, kafka: KafkaBroker, topic: TopicFactory) -> None:
    name = topic()
    # More than fits into the buffers between Python and Spark: all of it must not be read before Spark has its one row.
    long = "x" * 1000
    produce(kafka, name, [b'{"id": %d, "name": "%s"}' % (number, long.encode()) for number in range(60_000)])

    with pytest.raises(TransformError, match="stops reading early"):
        loader(name, transform=f"{__name__}.first_only", staging=Staging(slice_offsets=60_000))

    assert positions(loader.engine) == {}


@pytest.mark.parametrize(
    ("transform", "message"),
    [("raising", "raised ValueError: no such day"), ("not_a_dataframe", "returned str, not a DataFrame")],
)
def test_a_broken_transform_is_named(
    loader: Loader, kafka: KafkaBroker, topic: TopicFactory, transform: str, message: str
) -> None:
    name = topic()
    produce(kafka, name, names(0, 10))

    with pytest.raises(TransformError, match=message):
        loader(name, transform=f"{__name__}.{transform}")


def test_a_transform_that_does_not_fit_the_target_is_refused_before_reading(
    loader: Loader, kafka: KafkaBroker, topic: TopicFactory
) -> None:
    name = topic()
    produce(kafka, name, [b"not json"])
    with loader.engine.begin() as conn:
        conn.execute(sa.text("CREATE TABLE target (id BIGINT, name TEXT NOT NULL)"))

    # The record would fail the batch with an error of its own, had it been read.
    with pytest.raises(TargetError, match="no column 'label'; the target needs column 'name'"):
        loader(name, transform=f"{__name__}.renamed")


def ten_of_them(records: DataFrame) -> DataFrame:
    return records.sparkSession.createDataFrame(records.take(10), records.schema)


def test_a_transform_that_takes_some_records_is_refused(
    loader: Loader, kafka: KafkaBroker, topic: TopicFactory
) -> None:
    name = topic()
    produce(kafka, name, names(0, 100))

    with pytest.raises(TransformError, match="stops reading early"):
        loader(name, transform=f"{__name__}.ten_of_them", staging=Staging(slice_offsets=25))

    assert positions(loader.engine) == {}


def test_refused_row_removes_all_rows_of_its_record(
    postgres_loader: Loader, kafka: KafkaBroker, topic: TopicFactory
) -> None:
    name = topic()
    produce(kafka, name, names(0, 6))
    with postgres_loader.engine.begin() as conn:
        conn.exec_driver_sql(f"CREATE TABLE target (id BIGINT, name TEXT CHECK (name <> 'bad'), {ADDED})")

    result = postgres_loader(name, transform=f"{__name__}.with_a_bad_twin", on_bad_record=DeadLetters())

    assert (result.rows, result.dead_letters) == (10, 1)
    assert rows(postgres_loader.engine, "SELECT id, count(*) FROM target GROUP BY id ORDER BY id") == [
        (number, 2) for number in (0, 1, 2, 4, 5)
    ]
    assert rows(postgres_loader.engine, "SELECT offset_value FROM dead_letters") == [(3,)]
