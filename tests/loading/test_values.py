"""Values of every type, from records into columns."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal

import pytest
import sqlalchemy as sa
from pyspark.sql import DataFrame

from airflow_kafka_offsets.formats.simple_formats import Json, Raw
from devstack.kafka import KafkaBroker
from tests.support.clients import produce
from tests.support.loads import Loader, TopicFactory, reflected, rows

pytestmark = pytest.mark.server


def test_every_type_survives(loader: Loader, kafka: KafkaBroker, topic: TopicFactory) -> None:
    name = topic()
    value = {
        "flag": True,
        "tiny": -128,
        "small": -32768,
        "whole": -(2**31),
        "big": -(2**63),
        "single": 1.5,
        "twice": 0.1,
        "exact": "12345678.90",
        "text": 'ä€𝄞 \\ " , \t \n',
        "day": "2024-02-29",
        "instant": "2024-02-29T23:59:59.123456+02:00",
        "wall": "2024-02-29T23:59:59.123456",
    }
    produce(kafka, name, [json.dumps(value).encode(), b"{}", None, json.dumps({"text": ""}).encode()])
    ddl = (
        "flag BOOLEAN, tiny TINYINT, small SMALLINT, whole INT, big BIGINT, single FLOAT, twice DOUBLE,"
        " exact DECIMAL(12,2), text STRING, day DATE, instant TIMESTAMP, wall TIMESTAMP_NTZ"
    )

    loader(name, value_format=Json(ddl))

    table = reflected(loader.engine, "target")
    with loader.engine.connect() as conn:
        loaded = conn.execute(sa.select(table).order_by(table.c._kafka_offset)).mappings().all()
    instant = loaded[0]["instant"]
    assert (instant if instant.tzinfo else instant.replace(tzinfo=UTC)) == datetime(
        2024, 2, 29, 21, 59, 59, 123456, tzinfo=UTC
    )
    expected = value | {
        "day": datetime(2024, 2, 29).date(),
        "exact": Decimal("12345678.90"),
        "wall": datetime(2024, 2, 29, 23, 59, 59, 123456),
    }
    del expected["instant"]
    assert {key: loaded[0][key] for key in expected} == expected
    assert [row["text"] for row in loaded] == [value["text"], None, None, ""]
    assert {loaded[2][key] for key in value} == {None}


def test_raw_hands_on_keys_values_and_headers(loader: Loader, kafka: KafkaBroker, topic: TopicFactory) -> None:
    name = topic()
    produce(kafka, name, [b"\x00\xff", None])

    loader(name, value_format=Raw(headers=True), transform=f"{__name__}.count_headers")

    assert [
        (bytes(v) if v is not None else None, n)
        for v, n in rows(loader.engine, "SELECT value, headers FROM target ORDER BY _kafka_offset")
    ] == [(b"\x00\xff", 0), (None, 0)]


def count_headers(records: DataFrame) -> DataFrame:
    from pyspark.sql import functions

    return records.withColumn("headers", functions.size("headers"))


def test_bytes_survive_beside_types_that_postgres_reads_as_text(
    postgres_loader: Loader, kafka: KafkaBroker, topic: TopicFactory
) -> None:
    name = topic()
    values = [bytes(range(256)), b"a\\\\b", b"x\\101y", b"\\x4142", b""]
    produce(kafka, name, values)
    with postgres_loader.engine.begin() as conn:
        conn.execute(sa.text("CREATE TABLE target (value BYTEA, note JSON, _kafka_offset BIGINT)"))

    postgres_loader(name, value_format=Raw(), transform=f"{__name__}.with_a_note")

    loaded = rows(postgres_loader.engine, "SELECT value FROM target ORDER BY _kafka_offset")
    assert [bytes(value) for (value,) in loaded] == values


def with_a_note(records: DataFrame) -> DataFrame:
    from pyspark.sql import functions

    return records.drop("key").withColumn("note", functions.lit("{}"))
