"""What this package uses of pyiceberg and is not public there is still as it is used."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from pyiceberg import manifest
from pyiceberg.catalog import Catalog, MetastoreCatalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io import pyarrow as pyiceberg_arrow
from pyiceberg.io.pyarrow import ArrowProjectionVisitor
from pyiceberg.table import Table, Transaction
from pyiceberg.table.update.snapshot import _OverwriteFiles

from airflow_kafka_offsets.exceptions import TargetError
from airflow_kafka_offsets.sinks.iceberg.private import iceberg_schema
from airflow_kafka_offsets.sinks.table import Output
from tests.support.iceberg import iceberg_sink
from tests.support.lake import publish_rows


@pytest.mark.parametrize(
    ("function", "parameters"),
    [
        (RestCatalog._config_headers, ["self", "session"]),
        (RestCatalog._fetch_config, ["self"]),
        (RestCatalog._response_to_table, ["self", "identifier_tuple", "table_response"]),
        (RestCatalog._response_to_staged_table, ["self", "identifier_tuple", "table_response"]),
        (RestCatalog._load_file_io, ["self", "properties", "location"]),
        (Catalog._load_file_io, ["self", "properties", "location"]),
        (SqlCatalog._convert_orm_to_iceberg, ["self", "orm_table"]),
        (
            MetastoreCatalog._update_and_stage_table,
            ["self", "current_table", "table_identifier", "requirements", "updates"],
        ),
        (Table._do_commit, ["self", "updates", "requirements"]),
        (Catalog._convert_schema_if_needed, ["schema", "format_version"]),
        (
            pyiceberg_arrow._get_column_projection_values,
            ["file", "projected_schema", "table_schema", "partition_spec", "file_project_field_ids"],
        ),
        (ArrowProjectionVisitor.list, ["self", "list_type", "list_array", "value_array"]),
        (ArrowProjectionVisitor.map, ["self", "map_type", "map_array", "key_result", "value_result"]),
        (pyiceberg_arrow._read_all_delete_files, ["io", "tasks"]),
        (_OverwriteFiles._build_delete_files_partition_predicate, ["self"]),
    ],
)
def test_private_functions_have_the_parameters_that_they_are_called_with(
    function: Callable[..., Any], parameters: list[str]
) -> None:
    assert list(inspect.signature(function).parameters) == parameters


def test_a_transaction_has_its_updates_and_requirements() -> None:
    assert {"_updates", "_requirements"} <= set(inspect.get_annotations(Transaction))


def test_what_a_table_says_of_a_manifest_is_not_kept_for_others(tmp_path: Path) -> None:
    table = iceberg_sink("sql", tmp_path).connect(sa.create_engine("sqlite://"))
    publish_rows(table, pa.record_batch({"id": pa.array([1])}), tmp_path)
    snapshot: Any = table.snapshot()
    assert len(snapshot.files()) == 1
    assert len(manifest._manifest_cache) == 0


def test_columns_get_the_types_of_iceberg() -> None:
    schema = iceberg_schema(pa.schema([("id", pa.int64()), ("items", pa.list_(pa.string()))]))
    assert [str(field.field_type) for field in schema.fields] == ["long", "list<string>"]


def test_rows_with_nan_in_the_partition_are_removed(tmp_path: Path) -> None:
    table = iceberg_sink("sql", tmp_path, partition_by=("ratio",)).connect(sa.create_engine("sqlite://"))
    ratios = pa.array([math.nan, math.nan, 0.5], pa.float32())
    publish_rows(table, pa.record_batch({"id": pa.array([1, 2, 3]), "ratio": ratios}), tmp_path)
    assert [part.rows for part in table.retire(Output(1, "g", (), "series", "batch-1-y"))] == [3]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("write.target-file-size-bytes", "many"),
        ("write.parquet.compression-codec", "none of these"),
        ("write.parquet.row-group-limit", "-3"),
        ("write.metadata.metrics.default", "some"),
        ("write.object-storage.partitioned-paths", "perhaps"),
    ],
)
def test_properties_that_cannot_be_used_are_refused_before_spark(tmp_path: Path, name: str, value: str) -> None:
    table = iceberg_sink("sql", tmp_path, properties={name: value}).connect(sa.create_engine("sqlite://"))
    columns = pa.schema([("id", pa.int64())])
    table.prepare(columns)
    with pytest.raises(TargetError, match=r"Iceberg table '\S+' has a property for writing that cannot be used: "):
        table.writer(columns, Output(1, "g", (), "series", "batch-1-x"))
