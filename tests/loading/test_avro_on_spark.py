"""Avro through Spark's Python workers, which are forked, into the database."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

import pytest

from airflow_kafka_offsets import DeadLetters, Staging
from airflow_kafka_offsets.formats.avro_format import Avro
from tests.support.avro import VERSIONS, encode, wire
from tests.support.clients import Kafka, produce
from tests.support.loads import Loader, TopicFactory, rows
from tests.support.registry import fake_registry

# tests/loading/test_protobuf_on_spark.py takes the same way every day, test_avro_loads.py that of Avro without Spark.
pytestmark = [pytest.mark.server, pytest.mark.long]

DDL = (
    "id BIGINT, name STRING, ratio DOUBLE, price DECIMAL(38,10), day DATE, seen TIMESTAMP, local TIMESTAMP_NTZ, "
    "ref STRING, kind STRING"
)


def test_three_schemas_mixed_in_a_partition_reach_postgres(
    postgres_loader: Loader, kafka: Kafka, topic: TopicFactory
) -> None:
    name = topic()
    value = {
        "id": -(2**31),
        "name": "größer 😀",
        "first_name": "größer 😀",
        "gone": None,
        "level": 1,
        "note": None,
        "ratio": float("nan"),
        "ok": None,
        "data": b"\0\xff",
        "price": Decimal("-9999999999999999999999999999.9999999999"),
        "tax": Decimal("0.0001"),
        "day": datetime(1, 1, 1).date(),
        "seen": datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
        "sent": None,
        "local": datetime(9999, 12, 31, 23, 59, 59, 999999),
        "at": datetime(2000, 1, 1, 1, 2, 3).time(),
        "ref": "00000000-0000-0000-0000-000000000007",
        "kind": "PAID",
        "tags": ["a", None],
        "counts": {"k": 1},
        "place": {"x": 1, "label": "l", "sizes": [[1.0], []]},
        "either": 5,
    }
    good = [wire(version, encode(version, value)) for version in sorted(VERSIONS)] * 200
    produce(kafka, name, [*good, good[0][:-1], None])

    record_format = Avro(DDL, registry_conn_id="registry")
    with fake_registry() as registry:
        for version, schema in sorted(VERSIONS.items()):
            registry.register(f"{name}-value", schema, number=version)
        postgres_loader.connections = {"registry": registry.config}
        result = postgres_loader(
            name, value_format=record_format, on_bad_record=DeadLetters(), staging=Staging(slice_offsets=100)
        )

    assert (result.rows, result.dead_letters) == (601, 1)
    found = rows(
        postgres_loader.engine,
        "SELECT DISTINCT id, coalesce(name, '-'), price, day::text, seen AT TIME ZONE 'UTC', local, ref, kind, "
        "ratio::text FROM target"
        " WHERE id IS NOT NULL ORDER BY 2",
    )
    rest = (
        value["price"],
        "0001-01-01",
        datetime(1969, 12, 31, 23, 59, 59, 999999),
        value["local"],
        value["ref"],
        "PAID",
        "NaN",
    )
    assert found == [(value["id"], "-", *rest), (value["id"], value["name"], *rest)]
    assert rows(postgres_loader.engine, "SELECT offset_value FROM dead_letters") == [(600,)]
    assert rows(postgres_loader.engine, "SELECT count(*) FROM target WHERE name IS NULL AND id IS NOT NULL") == [(200,)]
