"""The columns, partitions and sort order of an Iceberg table: to create it, to add columns, and to write its files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import TableAlreadyExistsError, ValidationError
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table import Table, Transaction
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortDirection, SortField, SortOrder
from pyiceberg.transforms import IdentityTransform, parse_transform
from pyiceberg.types import DoubleType

from airflow_kafka_offsets.core.origin import BATCH_ID
from airflow_kafka_offsets.core.text import first_few
from airflow_kafka_offsets.exceptions import ConfigurationError, TargetError
from airflow_kafka_offsets.formats.columns import ORIGIN_COLUMNS
from airflow_kafka_offsets.sinks.iceberg.private import iceberg_schema
from airflow_kafka_offsets.sinks.lake.columns import lacking
from airflow_kafka_offsets.writers.iceberg_files import TableShape

if TYPE_CHECKING:
    from airflow_kafka_offsets.sinks.iceberg.table import IcebergTable


def arrow_columns(schema: Schema) -> pa.Schema:
    """Return the columns of a table in Arrow's types."""
    return schema_to_pyarrow(schema, include_field_ids=False)


def add_columns(name: str, transaction: Transaction, columns: pa.Schema) -> None:
    """Add the columns that a table lacks, nullable; their ids depend on the table alone.

    :param name: of the table, for the message
    :raises TargetError: Iceberg has no such column
    """
    missing = lacking(arrow_columns(transaction.table_metadata.schema()), columns)
    if not missing:
        return
    try:
        types = iceberg_schema(pa.schema([pa.field(field.name, field.type) for field in missing]))
        with transaction.update_schema() as update:
            for field in types.fields:
                update.add_column((field.name,), field.field_type)
    except Exception as error:  # pyiceberg has no class for types that it does not know
        names = first_few(repr(field.name) for field in missing)
        raise TargetError(f"Iceberg table {name!r} cannot have column {names}: {error}") from error


def shape_of(table: Table, columns: pa.Schema | None = None) -> TableShape:
    """Return the shape of a table, with columns that it lacks.

    :param columns: of the rows that are about to be written
    :raises TargetError: a property of the table cannot be used
    """
    transaction = table.transaction()
    if columns is not None:
        add_columns(".".join(table.name()), transaction, columns)
    metadata = transaction.table_metadata
    schema = metadata.schema()
    sort_by = [
        (schema.find_column_name(field.source_id), str(field.direction.value))
        for field in table.sort_order().fields
        if isinstance(field.transform, IdentityTransform)
        and "." not in (schema.find_column_name(field.source_id) or ".")
    ]
    properties = {name: value for name, value in metadata.properties.items() if name.startswith("write.")}
    shape = TableShape(
        schema.model_dump_json(),
        metadata.spec().model_dump_json(),
        metadata.location,
        properties,
        json.dumps(sort_by),
        str(metadata.table_uuid),
    )
    try:
        # Of a copy: what is computed of the shape is not sent to Spark.
        replace(shape).check_properties()
    except (ValueError, pa.ArrowException) as error:
        name = ".".join(table.name())
        raise TargetError(f"Iceberg table {name!r} has a property for writing that cannot be used: {error}") from error
    return shape


_TERM = re.compile(r"(?:(\w+)\((?:\s*(\d+)\s*,)?\s*([^()\s,]+)\s*\)|([^()\s,]+))")

_SIZED = {"bucket": "bucket_{}", "truncate": "trunc_{}"}

_SIMPLE = ("year", "month", "day", "hour")


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
    of_origin = [name for name in (BATCH_ID, *ORIGIN_COLUMNS.names) if name in arrow.names]
    bounds = {f"write.metadata.metrics.column.{name}": "full" for name in of_origin}
    try:
        spec, order = partition_spec(schema, sink.partition_by), sort_order(schema, sink.sort_by)
        spec.check_compatible(schema)
        order.check_compatible(schema)
        catalog.create_namespace_if_not_exists(identifier.rpartition(".")[0])
        catalog.create_table(identifier, schema, None, spec, order, {**bounds, **properties})
    except TableAlreadyExistsError:  # created by another process, at the same moment
        return
    except (ValueError, NotImplementedError, ValidationError) as error:
        given = f"partition_by={sink.partition_by!r}, sort_by={sink.sort_by!r}"
        raise ConfigurationError(f"Iceberg table {identifier!r} cannot be created with {given}: {error}") from error


def partition_spec(schema: Schema, terms: Sequence[str]) -> PartitionSpec:
    """Return how a table is partitioned.

    :param terms: columns, or transforms of them, such as `day(created)` and `bucket(16, id)`
    :raises ConfigurationError: a term cannot be read, or names no column
    """
    fields = []
    for number, term in enumerate(terms):
        column, transform, name = parsed_term(term)
        source = _source(schema, column, term, "partition_by")
        fields.append(PartitionField(source, PARTITION_FIELD_ID_START + number, parse_transform(transform), name))
    spec = PartitionSpec(*fields)
    if doubles := doubles_of(spec, [schema]):
        raise ConfigurationError(f"partition_by names {', '.join(doubles)}: {NO_DOUBLES}")
    return spec


NO_DOUBLES = (
    "pyiceberg reads partitions of type double with single precision, with which a rewind or a replay with replace "
    "would round the values of other rows"
)


def doubles_of(spec: PartitionSpec, schemas: Iterable[Schema]) -> list[str]:
    """Return the names of the partitions that are columns of type double.

    :param schemas: of the table, the newest one last
    """
    newest_first = [*schemas][::-1]

    def is_double(source_id: int) -> bool:
        schema = next((schema for schema in newest_first if source_id in schema.field_ids), None)
        return schema is not None and isinstance(schema.find_type(source_id), DoubleType)

    return [
        field.name
        for field in spec.fields
        if isinstance(field.transform, IdentityTransform) and is_double(field.source_id)
    ]


def of_dropped_columns(spec: PartitionSpec, schema: Schema) -> list[str]:
    """Return the names of the partitions whose columns the table has no more."""
    known = schema.field_ids
    return [field.name for field in spec.fields if field.source_id not in known]


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


def parsed_term(term: str) -> tuple[str, str, str]:
    """Return the column of a term of `partition_by`, the transform as Iceberg writes it, and the name of the partition
    field.

    :raises ConfigurationError: the term cannot be read
    """
    found = _TERM.fullmatch(term.strip())
    function, size, column, plain = found.groups(default="") if found else ("", "", "", "")
    column, name = column or plain, (function or "identity").lower().removesuffix("s")
    if column and not size:
        if name == "identity":
            return column, name, column
        if name in _SIMPLE:
            return column, name, f"{column}_{name}"
    elif column and name in _SIZED and int(size) > 0:
        return column, f"{name}[{int(size)}]", f"{column}_{_SIZED[name].format(int(size))}"
    raise ConfigurationError(
        "partition_by has columns, or transforms of them: 'country', 'day(created)', 'hour(…)', 'month(…)', 'year(…)', "
        f"'bucket(16, id)', 'truncate(4, name)'; got {term!r}"
    )


def _source(schema: Schema, column: str, term: str, what: str) -> int:
    try:
        return schema.find_field(column).field_id
    except ValueError:
        raise ConfigurationError(
            f"{what} names {term!r}, and the rows have no column {column!r}; they have {', '.join(schema.column_names)}"
        ) from None
