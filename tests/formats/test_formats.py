"""Value formats: which columns a record becomes."""

import pickle
from dataclasses import FrozenInstanceError

import pyarrow as pa
import pytest

from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.formats.columns import ORIGIN_COLUMNS, row_columns
from airflow_kafka_offsets.formats.record_format import RecordFormat
from airflow_kafka_offsets.formats.simple_formats import Json, Raw


def test_json_has_the_declared_columns() -> None:
    columns = Json("id BIGINT NOT NULL, name STRING").columns()
    assert columns == pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string())])


def test_raw_has_key_and_value() -> None:
    assert Raw().columns() == pa.schema([("key", pa.binary()), ("value", pa.binary())])


def test_raw_with_headers_has_the_shape_of_sparks_own_kafka_source() -> None:
    headers = Raw(headers=True).columns().field("headers").type
    assert headers == pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@pytest.mark.parametrize("value_format", [Json("id INT"), Raw(), Raw(headers=True)])
def test_a_format_is_the_same_after_its_way_to_the_driver(value_format: RecordFormat) -> None:
    assert pickle.loads(pickle.dumps(value_format)) == value_format


def test_a_format_is_plain_data_that_nobody_changes() -> None:
    value_format = Json("id INT")
    assert value_format == Json("id INT")
    assert hash(value_format) == hash(Json("id INT"))
    with pytest.raises(FrozenInstanceError):
        value_format.ddl = "id BIGINT"  # type: ignore[misc]


def test_a_column_that_is_declared_twice_is_refused_before_the_columns_are_asked_for() -> None:
    with pytest.raises(ConfigurationError, match="declared twice"):
        Json("id INT, ID ARRAY<STRUCT<a: INT, b DECIMAL(2,1)>>")


def test_audit_columns_say_where_a_row_came_from() -> None:
    assert (
        pa.schema(
            [
                ("_kafka_topic", pa.string()),
                ("_kafka_partition", pa.int32()),
                ("_kafka_offset", pa.int64()),
                ("_kafka_timestamp", pa.timestamp("us", "UTC")),
            ]
        )
        == ORIGIN_COLUMNS
    )


@pytest.mark.parametrize("value_format", [Json("id INT NOT NULL, name STRING"), Raw(), Raw(headers=True)])
def test_a_row_has_the_columns_of_its_format_and_then_the_audit_columns(value_format: RecordFormat) -> None:
    assert list(row_columns(value_format)) == [*value_format.columns(), *ORIGIN_COLUMNS]


@pytest.mark.parametrize(
    "name", ["_kafka_offset", "_kafka_anything", "_KAFKA_TOPIC", "_Kafka_x", "_batch_id", "_BATCH_ID"]
)
def test_a_reserved_name_is_refused_whatever_its_case(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"Column '{name}' cannot be declared.*'_kafka_', and '_batch_id'"):
        row_columns(Json(f"id INT, {name} INT"))


@pytest.mark.parametrize("name", ["kafka_offset", "batch_id", "_kafka", "x_kafka_offset", "_batch_id2"])
def test_a_name_that_is_only_alike_may_be_declared(name: str) -> None:
    assert name in row_columns(Json(f"{name} INT")).names
