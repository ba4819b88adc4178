"""Values of every format through a broker, a registry and the databases: equal to what independent readers find in the
records.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.engine import Engine

from airflow_kafka_offsets import DeadLetters
from airflow_kafka_offsets.transforms.arrow import ArrowTransform
from devstack.registry import SchemaRegistryServer
from tests.support.clients import Kafka, producer
from tests.support.examples import examples
from tests.support.inline import InlineLauncher
from tests.support.loads import Loader, TopicFactory, positions, reflected
from tests.support.protobuf import ordered
from tests.support.registry import fake_registry, post_schema
from tests.support.round_trips import FORMATS, Row, Sample, is_nested, nested_text, text_of_nested

pytestmark = [pytest.mark.server, pytest.mark.broker]

Register = Callable[[str, str, str], int]
"""Registers a schema of a kind for a subject, and returns its id."""


class Registry:
    """A schema registry: its URL, and how a schema gets into it."""

    def __init__(self, url: str, register: Register) -> None:
        self.config, self.register = {"url": url}, register


@pytest.fixture(params=["small", pytest.param("real", marks=pytest.mark.long)])
def registry(request: pytest.FixtureRequest) -> Iterator[Registry]:
    if request.param == "real":
        with SchemaRegistryServer() as server:
            yield Registry(
                server.url, lambda subject, schema, kind: post_schema(server.url, subject, schema, schemaType=kind)
            )
        return
    with fake_registry() as small:
        yield Registry(small.url, lambda subject, schema, kind: small.register(subject, schema, kind=kind))


@pytest.fixture
def loader(kafka: Kafka, engine: Engine, registry: Registry) -> Loader:
    return Loader(kafka, engine, InlineLauncher(), connections={"registry": registry.config})


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_values_come_through(name: str, loader: Loader, registry: Registry, topic: TopicFactory) -> None:
    written, topic_name = FORMATS[name], topic()
    ids = {
        version: registry.register(f"{topic_name}-value", schema, written.kind)
        for version, schema in written.versions.items()
    }

    @examples(20)
    @given(samples=st.lists(st.none() | written.samples, min_size=1, max_size=30))
    def batches_come_through(samples: Sequence[Sample | None]) -> None:
        end = positions(loader.engine).get((topic_name, 0), 0) if sa.inspect(loader.engine).get_table_names() else 0
        put(
            loader,
            topic_name,
            [None if each is None else written.wire(ids.get(each[0], 0), each[1]) for each in samples],
        )
        loader(
            topic_name,
            value_format=written.record_format,
            transform=ArrowTransform(f"{text_of_nested.__module__}.{text_of_nested.__name__}"),
            on_bad_record=DeadLetters(limit=None),
        )
        columns = loader.launcher.jobs[-1].columns
        own = [column for column in columns if not column.name.startswith("_kafka_")]
        rows = stored(loader.engine, "target", end)
        expected = {
            end + place: dict.fromkeys(columns.names) if sample is None else sample[2]
            for place, sample in enumerate(samples)
        }
        refused = unstorable(loader.engine, own, expected)
        assert rows.keys() == expected.keys() - refused
        assert stored(loader.engine, "dead_letters", end).keys() == refused
        for column in own:
            found = [as_written(rows[offset][column.name], column.type) for offset in rows]
            wanted = [as_stored(loader.engine, expected[offset][column.name], column.type) for offset in rows]
            assert comparable(found, column) == comparable(wanted, column), column

    batches_come_through()


def put(loader: Loader, topic: str, values: Sequence[bytes | None]) -> None:
    writer = producer(loader.kafka)
    for value in values:
        writer.produce(topic, partition=0, value=value)
    assert writer.flush(30) == 0


def stored(engine: Engine, name: str, first: int) -> dict[int, Mapping[str, Any]]:
    """Return the rows of a table, or the dead letters, from an offset on, by their offsets."""
    table = reflected(engine, name)
    offset = table.c["_kafka_offset" if name == "target" else "offset_value"]
    with engine.connect() as conn:
        found = conn.execute(sa.select(table, offset.label("_at")).where(offset >= first).order_by(offset)).mappings()
        return {row["_at"]: dict(row) for row in found}


def unstorable(engine: Engine, columns: Sequence[pa.Field], rows: Mapping[int, Row]) -> set[int]:
    """Return the offsets of the rows that a database refuses: Postgres has no text with NUL, SQLite no NaN, MariaDB
    no NaN and no infinity.
    """
    numbers = [column.name for column in columns if pa.types.is_floating(column.type)]
    if engine.dialect.name == "sqlite":
        return {offset for offset, row in rows.items() if any(math.isnan(row[name] or 0) for name in numbers)}
    if engine.dialect.name == "mysql":
        return {offset for offset, row in rows.items() if not all(math.isfinite(row[name] or 0) for name in numbers)}
    texts = [column.name for column in columns if pa.types.is_string(column.type)]
    return {offset for offset, row in rows.items() if any("\0" in (row[name] or "") for name in texts)}


def as_stored(engine: Engine, value: Any, kind: pa.DataType) -> Any:
    """Return a value as a database keeps it: SQLite has no negative zero."""
    if is_nested(kind):
        return nested_text(value)
    if engine.dialect.name == "sqlite" and isinstance(value, float):
        return value + 0.0
    return value


def as_written(value: Any, kind: pa.DataType) -> Any:
    """Return a value of a database in its type: SQLite has text for long decimals, and no time zones; MariaDB numbers
    for booleans.
    """
    if pa.types.is_boolean(kind) and value is not None:
        return bool(value)
    if pa.types.is_decimal(kind) and value is not None:
        return Decimal(value)
    if isinstance(value, datetime) and value.tzinfo is None and kind == pa.timestamp("us", "UTC"):
        return value.replace(tzinfo=UTC)
    return value


def comparable(values: Sequence[Any], column: pa.Field) -> list[Any]:
    """Return values in a form in which equal values are equal: a NaN is one, and maps and objects of JSON have no
    order.
    """
    if is_nested(column.type):
        return [ordered({column.name: value and json.loads(value)}) for value in values]
    return [ordered({column.name: value}) for value in pa.array(values, column.type).to_pylist()]
