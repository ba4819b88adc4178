"""Key, value, headers and timestamp of a record as columns: each with its own bad records, none of which shifts another
row.
"""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest
import sqlalchemy as sa

from airflow_kafka_offsets import DeadLetters, ExtraColumns
from airflow_kafka_offsets.core.instants import milliseconds
from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.formats.extra_columns import Header, Which, _of_metadata, whole_record
from airflow_kafka_offsets.formats.simple_formats import Json, Raw, Text
from airflow_kafka_offsets.loading.pipeline import Pipeline
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from tests.support.clients import Kafka, producer
from tests.support.decoding import decoded_as, record_batch
from tests.support.inline import InlineLauncher
from tests.support.loads import Loader, TopicFactory, rows
from tests.support.openings import KEPT, NOON, at

KEY, VALUE = Json("customer BIGINT"), Json("amount BIGINT")


@pytest.fixture
def kafka(log: Kafka) -> Kafka:
    return log


@pytest.fixture
def loader(kafka: Kafka, tmp_path: Any) -> Loader:
    return Loader(kafka, sa.create_engine(f"sqlite:///{tmp_path}/w.db"), InlineLauncher())


def put(loader: Loader, topic: str, *records: dict[str, Any]) -> None:
    writer = producer(loader.kafka)
    for number, record in enumerate(records):
        writer.produce(topic, partition=0, timestamp=milliseconds(at(number)), **record)
    assert writer.flush(30) == 0


def columns(value: Any = VALUE, **parts: Any) -> list[str]:
    pipeline = Pipeline(group_id="g", topics=("t",), value_format=value, sink=SqlTable("target"), **parts)
    return [name for name in pipeline.check().names if not name.startswith("_kafka_")]


def test_the_columns_of_the_key_come_first_and_those_of_metadata_last() -> None:
    assert columns(extra_columns=ExtraColumns(key_format=KEY, metadata={"at": "timestamp", "trace": Header("t")})) == [
        "customer",
        "amount",
        "at",
        "trace",
    ]


def test_without_key_and_metadata_the_format_is_that_of_the_value() -> None:
    assert whole_record(VALUE) is VALUE
    assert whole_record(VALUE, None, {}) is VALUE


@pytest.mark.parametrize(
    ("parts", "doubled"),
    [
        ({"extra_columns": ExtraColumns(key_format=Json("Amount INT"))}, "Amount, amount"),
        ({"extra_columns": ExtraColumns(metadata={"amount": "timestamp"})}, "amount"),
        ({"extra_columns": ExtraColumns(key_format=KEY, metadata={"customer": Header("c")})}, "customer"),
    ],
)
def test_a_name_is_that_of_one_column(parts: dict[str, Any], doubled: str) -> None:
    with pytest.raises(ConfigurationError, match=f"have the same name: {doubled}"):
        columns(**parts)


@pytest.mark.parametrize(
    "wrong",
    [
        {"at": "timestmp"},
        {"": "timestamp"},
        {"trace": Header("t", which="second")},  # type: ignore[arg-type]
        {"trace": Header("t", type="INT")},  # type: ignore[arg-type]
        {"trace": Header},
        ["timestamp"],
    ],
)
def test_other_metadata_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"ExtraColumns\.metadata must be a dictionary of column names"):
        columns(extra_columns=ExtraColumns(metadata=wrong))


def test_a_name_of_the_package_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="'_kafka_at' cannot be declared"):
        columns(extra_columns=ExtraColumns(metadata={"_kafka_at": "timestamp"}))


def test_each_decides_the_fingerprint() -> None:
    formats = [
        whole_record(VALUE),
        whole_record(VALUE, KEY),
        whole_record(VALUE, Text()),
        whole_record(VALUE, None, {"a": "timestamp"}),
        whole_record(VALUE, None, {"a": Header("a")}),
        whole_record(VALUE, None, {"a": Header("a", which="first")}),
        whole_record(VALUE, None, {"a": Header("b")}),
    ]
    assert len({one.fingerprint() for one in formats}) == len(formats)


def test_all_are_loaded_into_their_columns(loader: Loader, topic: TopicFactory) -> None:
    name = topic(**KEPT)
    twice = [("trace", b"first"), ("other", b"x"), ("trace", b"last")]
    put(
        loader,
        name,
        {"key": b'{"customer": 1}', "value": b'{"amount": 10}', "headers": twice},
        {"key": None, "value": b'{"amount": 20}', "headers": [("trace", None)]},
        {"key": b'{"customer": 3}', "value": None},
    )

    loader(
        name,
        value_format=VALUE,
        extra_columns=ExtraColumns(
            key_format=KEY,
            metadata={
                "at": "timestamp",
                "newest": Header("trace"),
                "oldest": Header("trace", which="first"),
                "bytes": Header("trace", type="BINARY"),
            },
        ),
    )

    stored = rows(
        loader.engine, "SELECT customer, amount, at, newest, oldest, bytes FROM target ORDER BY _kafka_offset"
    )
    assert stored == [
        (1, 10, f"{NOON:%Y-%m-%d %H:%M:%S}.000000", "last", "first", b"last"),
        (None, 20, f"{at(1):%Y-%m-%d %H:%M:%S}.000000", None, None, None),
        (3, None, f"{at(2):%Y-%m-%d %H:%M:%S}.000000", None, None, None),
    ]


def test_a_record_is_bad_for_any_of_its_parts_and_shifts_no_other(loader: Loader, topic: TopicFactory) -> None:
    name = topic(**KEPT)
    good = {"key": b'{"customer": 1}', "value": b'{"amount": 1}', "headers": [("trace", b"t")]}
    put(
        loader,
        name,
        good,
        good | {"key": b"{"},
        good | {"value": b"{"},
        good | {"headers": [("trace", b"\xff")]},
        good | {"key": b"{", "value": b"{"},
        good | {"key": b'{"customer": 7}', "value": b'{"amount": 7}', "headers": [("trace", b"seventh")]},
    )

    result = loader(
        name,
        value_format=VALUE,
        extra_columns=ExtraColumns(key_format=KEY, metadata={"trace": Header("trace")}),
        on_bad_record=DeadLetters(),
    )

    assert (result.rows, result.dead_letters) == (2, 4)
    assert rows(loader.engine, "SELECT customer, amount, trace, _kafka_offset FROM target ORDER BY 4") == [
        (1, 1, "t", 0),
        (7, 7, "seventh", 5),
    ]
    errors = dict(rows(loader.engine, "SELECT offset_value, error FROM dead_letters"))
    assert errors[1].startswith("key: ")
    assert not errors[2].startswith("key: ")
    assert "declare it as BINARY" in errors[3]
    assert errors[4].startswith("key: ")


def test_text_and_raw_bytes_beside_each_other(loader: Loader, topic: TopicFactory) -> None:
    name = topic()
    put(
        loader,
        name,
        {"key": b"k", "value": "größer".encode()},
        {"key": b"", "value": b""},
        {"key": None, "value": None},
        {"key": b"k", "value": b"\xff"},
    )

    loader(
        name,
        value_format=Text("line"),
        extra_columns=ExtraColumns(key_format=Text("name")),
        on_bad_record=DeadLetters(),
    )

    assert rows(loader.engine, "SELECT name, line FROM target ORDER BY _kafka_offset") == [
        ("k", "größer"),
        ("", ""),
        (None, None),
    ]
    assert rows(loader.engine, "SELECT offset_value, error FROM dead_letters") == [(3, "the value is not UTF-8")]


def test_all_headers_of_a_name_are_an_array() -> None:
    pipeline = Pipeline(
        group_id="g",
        topics=("t",),
        value_format=Raw(headers=True),
        extra_columns=ExtraColumns(metadata={"traces": Header("t", which="all")}),
        sink=SqlTable("target"),
    )
    assert str(pipeline.check().field("traces").type) == "list<item: string>"


@pytest.mark.parametrize(("which", "bad"), [("last", [1]), ("first", [0]), ("all", [0, 1])])
def test_a_header_that_no_column_has_makes_no_record_bad(which: Which, bad: list[int]) -> None:
    headers = pa.array(
        [[("h", b"\xff"), ("h", b"ok")], [("h", b"ok"), ("g", b"\xff"), ("h", b"\xff")], [("g", b"\xff")]],
        pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
    )

    rows, found = decoded_as(
        whole_record(VALUE, None, {"h": Header("h", which)}), record_batch([None] * 3, headers=headers)
    )

    assert [record.row for record in found] == bad
    assert rows.num_rows == 3 - len(bad)


class CountedHeader(dict[str, Any]):
    """A header that counts how often somebody asks for its name."""

    asked = 0

    def __getitem__(self, name: str) -> Any:
        CountedHeader.asked += name == "key"
        return super().__getitem__(name)


def test_headers_are_not_looked_through_for_each_column() -> None:
    metadata: dict[str, Header] = {f"column_{number}": Header("h", which="all") for number in range(50)}
    columns = pa.schema([(name, pa.list_(pa.string())) for name in metadata])
    found = [CountedHeader(key="h", value=b"1")] * 1_000
    records = Mock(num_rows=1)
    records.column.return_value.to_pylist.return_value = [found]

    rows = _of_metadata(columns, metadata)(records).rows

    assert rows.to_pylist() == [dict.fromkeys(metadata, ["1"] * 1_000)]
    assert CountedHeader.asked <= 3_000
