"""Transforms on real Spark: in the pass without Spark SQL, errors on executors, and the advice to use Sql."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame

from airflow_kafka_offsets import Staging
from airflow_kafka_offsets.exceptions import TargetError, TransformError
from airflow_kafka_offsets.sinks.fan_out import Branch
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from airflow_kafka_offsets.transforms.arrow import ArrowTransform
from airflow_kafka_offsets.transforms.dataframe import TaskBody
from airflow_kafka_offsets.transforms.sql import Sql
from devstack.kafka import KafkaBroker
from tests.support.clients import produce
from tests.support.loads import Loader, TopicFactory, names, rows

pytestmark = pytest.mark.server

FACTOR = 3


def tripled(records: pa.RecordBatch) -> pa.RecordBatch:
    import pandas  # type: ignore[import-untyped]

    return records.append_column("x", pa.array(pandas.Series(records["id"].to_pylist(), dtype="int64") * FACTOR))


def strict(records: pa.RecordBatch) -> pa.RecordBatch:
    if records.num_rows:
        raise ValueError("no such day")
    return records


def careless(records: DataFrame) -> DataFrame:
    from pyspark.sql import functions

    return records.withColumn("name", functions.udf(lambda name: refuse(name), "string")("name"))


def refuse(name: str) -> str:
    raise ValueError("no such day")


def divided(records: DataFrame) -> DataFrame:
    return records.selectExpr("*", "100 div (id - 2) AS x")


def as_number(records: DataFrame) -> DataFrame:
    return records.selectExpr("*", "cast(name AS int) AS x")


def raised(records: DataFrame) -> DataFrame:
    return records.selectExpr("*", "raise_error('no such day') AS x")


def waited(records: DataFrame) -> DataFrame:
    return records.selectExpr("*", "make_dt_interval(id) AS x", "make_ym_interval(1) AS y")


def untyped(records: DataFrame) -> DataFrame:
    return records.selectExpr("*", "NULL AS x")


def doubled(records: DataFrame) -> DataFrame:
    return records.where("id > 1").withColumn("x", records.id * 2)


def numbered(records: DataFrame) -> DataFrame:
    return doubled(records).repartition(1)


@pytest.mark.parametrize(
    ("transform", "expected"),
    [
        (Sql("SELECT id, id * 3 AS x FROM records WHERE id < 3"), [(0, 0), (1, 3), (2, 6)]),
        (ArrowTransform(f"{__name__}.tripled"), [(number, 3 * number) for number in range(10)]),
    ],
    ids=["sql", "arrow"],
)
def test_transform_runs_where_records_are_decoded(
    postgres_loader: Loader, kafka: KafkaBroker, topic: TopicFactory, transform: Any, expected: list[tuple[int, int]]
) -> None:
    name = topic()
    produce(kafka, name, names(0, 10))
    assert postgres_loader(name, transform=transform, staging=Staging(slice_offsets=3)).rows == len(expected)
    assert rows(postgres_loader.engine, "SELECT id, x FROM target ORDER BY id") == expected


def test_branches_of_several_sinks_run_there_too(
    postgres_loader: Loader, kafka: KafkaBroker, topic: TopicFactory
) -> None:
    name = topic()
    produce(kafka, name, names(0, 10))
    sinks = [SqlTable("target"), Branch(SqlTable("tripled"), ArrowTransform(f"{__name__}.tripled"))]
    assert postgres_loader(name, sink=sinks, staging=Staging(slice_offsets=3)).rows == 20
    joined = "SELECT count(*), sum(x) - sum(3 * target.id) FROM target JOIN tripled USING (_kafka_offset)"
    assert rows(postgres_loader.engine, joined) == [(10, 0)]


@pytest.mark.parametrize(
    ("transform", "error", "said"),
    [
        (
            "waited",
            TransformError,
            "Transform '.*waited' returns 'x', 'y' as INTERVAL, which no target can have: cast it",
        ),
        ("untyped", TargetError, "Column 'x' is null: SqlTable has no such type. Cast it in the transform"),
    ],
)
def test_a_type_that_no_target_can_have_is_named(
    postgres_loader: Loader,
    kafka: KafkaBroker,
    topic: TopicFactory,
    transform: str,
    error: type[Exception],
    said: str,
) -> None:
    name = topic()
    produce(kafka, name, names(0, 3))
    with pytest.raises(error, match=said):
        postgres_loader(name, transform=f"{__name__}.{transform}")


@pytest.mark.parametrize(
    ("transform", "functions"),
    [(f"{__name__}.careless", ["<lambda>", "refuse"]), (ArrowTransform(f"{__name__}.strict"), ["strict"])],
    ids=["dataframe", "arrow"],
)
def test_an_error_on_an_executor_shows_the_users_frames(
    postgres_loader: Loader, kafka: KafkaBroker, topic: TopicFactory, transform: Any, functions: list[str]
) -> None:
    name = topic()
    produce(kafka, name, [b'{"id": 1, "name": "secret"}'])
    with pytest.raises(TransformError) as raised:
        postgres_loader(name, transform=transform)
    first, *lines = str(raised.value).splitlines()
    assert first.startswith("Transform 'tests.loading.test_transforms_on_spark.")
    assert first.endswith("raised ValueError: no such day")
    frames = [line for line in lines if line.startswith("  File")]
    assert [frame.rpartition(", in ")[2] for frame in frames] == functions
    assert all(f'File "{__file__}"' in frame for frame in frames)
    assert "secret" not in str(raised.value)
    assert raised.value.__suppress_context__


@pytest.mark.parametrize(
    ("transform", "said"),
    [
        ("divided", r"\[DIVIDE_BY_ZERO\] Division by zero"),
        ("as_number", r"\[CAST_INVALID_INPUT\] The value 'name-0'"),
        ("raised", r"\[USER_RAISED_EXCEPTION\] no such day"),
    ],
)
def test_a_value_that_a_function_of_spark_refuses_is_an_error_of_the_transform(
    postgres_loader: Loader, kafka: KafkaBroker, topic: TopicFactory, transform: str, said: str
) -> None:
    name = topic()
    produce(kafka, name, names(0, 3))
    with pytest.raises(TransformError, match=rf"^Transform '{__name__}\.{transform}' failed: {said}"):
        postgres_loader(name, transform=f"{__name__}.{transform}")


def test_a_transform_that_sql_could_do_is_advised_to_be_sql(
    postgres_loader: Loader, kafka: KafkaBroker, topic: TopicFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    name = topic()
    produce(kafka, name, names(0, 3))
    assert postgres_loader(name, transform=f"{__name__}.doubled").rows == 1
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "Sql(…)" in line]
    assert line.startswith(f"Transform '{__name__}.doubled' can be written as Sql(…)")
    produce(kafka, name, names(3, 3))
    postgres_loader(name, transform=f"{__name__}.numbered")
    assert "Sql(…)" not in capsys.readouterr().out


def test_the_body_of_a_task_travels_with_what_it_uses(
    postgres_loader: Loader, kafka: KafkaBroker, topic: TopicFactory
) -> None:
    def clean(records: DataFrame, least: int) -> DataFrame:
        from pyspark.sql import functions

        times = functions.udf(lambda number: number * FACTOR, "bigint")
        return records.where(records.id >= least).withColumn("x", times("id"))

    name = topic()
    produce(kafka, name, names(0, 4))
    postgres_loader(name, transform=TaskBody.of(clean, {"least": 2}))
    assert rows(postgres_loader.engine, "SELECT id, x FROM target ORDER BY id") == [(2, 6), (3, 9)]
