"""Tables that are created: columns, partitions, the order in a file, and properties."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import TableAlreadyExistsError, ValidationError
from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortDirection, SortField, SortOrder
from pyiceberg.transforms import IdentityTransform, parse_transform

from airflow_kafka_offsets.core.origin import BATCH_ID, OFFSET, PARTITION, TIMESTAMP, TOPIC
from airflow_kafka_offsets.exceptions import ConfigurationError, TargetError
from airflow_kafka_offsets.sinks.iceberg.private import iceberg_schema

if TYPE_CHECKING:
    from airflow_kafka_offsets.sinks.iceberg.table import IcebergTable

_TERM = re.compile(r"(?:(\w+)\((?:\s*(\d+)\s*,)?\s*([^()\s,]+)\s*\)|([^()\s,]+))")

_SIZED = {"bucket": "bucket_{}", "truncate": "trunc_{}"}

_SIMPLE = ("year", "month", "day", "hour")

ORIGIN = pa.schema(
    [
        (TOPIC, pa.string()),
        (PARTITION, pa.int32()),
        (OFFSET, pa.int64()),
        (TIMESTAMP, pa.timestamp("us", "UTC")),
    ]
)
"""What a created table has besides the columns that the user declares."""


def create_table(catalog: Catalog, sink: IcebergTable, columns: pa.Schema) -> None:
    """Create a table, and its namespace. All columns may be null: other writers know nothing of those that this package
    adds.

    :param columns: of the rows
    :raises ConfigurationError: a column cannot be partitioned or sorted so
    :raises TargetError: Iceberg has no such column
    """
    identifier = sink.identifier
    properties = {name: str(value) for name, value in sink.properties.items()}
    fields = [pa.field(field.name, field.type) for field in columns if field.name != BATCH_ID]
    try:
        arrow = pa.schema([*fields, pa.field(BATCH_ID, pa.int64())])
        schema = assign_fresh_schema_ids(iceberg_schema(arrow))
    except Exception as error:  # pyiceberg has no class for types that it does not know
        raise TargetError(f"Iceberg table {identifier!r} cannot have the columns of the rows: {error}") from error
    # Without bounds of the columns that say where a row is from, a rewind would have to read every file.
    bounds = {
        f"write.metadata.metrics.column.{name}": "full" for name in (BATCH_ID, *ORIGIN.names) if name in arrow.names
    }
    try:
        spec, order = partition_spec(schema, sink.partition_by), sort_order(schema, sink.sort_by)
        spec.check_compatible(schema)
        order.check_compatible(schema)
        catalog.create_namespace_if_not_exists(identifier.rpartition(".")[0])
        catalog.create_table(identifier, schema, None, spec, order, {**bounds, **properties})
    except TableAlreadyExistsError:  # created by another process, at the same moment
        return
    except (ValueError, NotImplementedError, ValidationError) as error:
        raise ConfigurationError(f"Iceberg table {identifier!r} cannot be created: {error}") from error


def partition_spec(schema: Schema, terms: Sequence[str]) -> PartitionSpec:
    """Return how a table is partitioned.

    :param terms: columns, or transforms of them, such as `day(created)` and `bucket(16, id)`
    :raises ConfigurationError: a term cannot be read, or names no column
    """
    fields = []
    for number, term in enumerate(terms):
        column, transform, name = _parsed(term, "partition_by")
        source = _source(schema, column, term, "partition_by")
        fields.append(PartitionField(source, PARTITION_FIELD_ID_START + number, parse_transform(transform), name))
    return PartitionSpec(*fields)


def sort_order(schema: Schema, terms: Sequence[str]) -> SortOrder:
    """Return how the rows of a file are sorted.

    :param terms: columns, each may have ` DESC`
    :raises ConfigurationError: a term names no column
    """
    fields = []
    for term in terms:
        column, _, order = term.strip().partition(" ")
        direction = {"": SortDirection.ASC, "ASC": SortDirection.ASC, "DESC": SortDirection.DESC}.get(
            order.strip().upper()
        )
        if direction is None:
            raise ConfigurationError(f"sort_by has columns such as 'created' and 'id DESC'; got {term!r}")
        fields.append(SortField(_source(schema, column, term, "sort_by"), IdentityTransform(), direction))
    return SortOrder(*fields) if fields else UNSORTED_SORT_ORDER


def check_terms(partition_by: Sequence[str]) -> None:
    """Check that partitions are written as they can be read, before there is a table.

    :raises ConfigurationError: they are not
    """
    for term in partition_by:
        _parsed(term, "partition_by")


def _parsed(term: str, what: str) -> tuple[str, str, str]:
    """Return the column, the transform as Iceberg writes it, and the name of the partition field."""
    found = _TERM.fullmatch(term.strip())
    function, size, column, plain = found.groups() if found else (None, None, None, None)
    if plain is not None:
        return plain, "identity", plain
    name = (function or "").lower().removesuffix("s")
    if name == "identity" and column and size is None:
        return column, "identity", column
    if name in _SIMPLE and column and size is None:
        return column, name, f"{column}_{name}"
    if name in _SIZED and column and size is not None and int(size) > 0:
        return column, f"{name}[{int(size)}]", f"{column}_{_SIZED[name].format(int(size))}"
    raise ConfigurationError(
        f"{what} has columns, or transforms of them: 'country', 'day(created)', 'hour(…)', 'month(…)', 'year(…)', "
        f"'bucket(16, id)', 'truncate(4, name)'; got {term!r}"
    )


def _source(schema: Schema, column: str, term: str, what: str) -> int:
    try:
        return schema.find_field(column).field_id
    except ValueError:
        raise ConfigurationError(
            f"{what} names {term!r}, and the rows have no column {column!r}; they have {', '.join(schema.column_names)}"
        ) from None
