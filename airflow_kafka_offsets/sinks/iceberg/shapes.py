"""A table as its files have to be written: with the columns that a commit is about to add."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.table import Table, Transaction
from pyiceberg.transforms import IdentityTransform

from airflow_kafka_offsets.core.origin import BATCH_ID, RECORD, RESERVED_PREFIX
from airflow_kafka_offsets.exceptions import TargetError
from airflow_kafka_offsets.writers.iceberg_files import TableShape


def arrow_columns(schema: Schema) -> pa.Schema:
    """Return the columns of a table in Arrow's types."""
    return schema_to_pyarrow(schema, include_field_ids=False)


def required_columns(schema: Schema, key: Sequence[str] = ()) -> list[str]:
    """Return the columns that may not be null: where rows are replaced by a key, also its own, and those that name the
    record.

    :raises TargetError: the table lacks one of these, or values of the key cannot be told apart exactly
    """
    columns = arrow_columns(schema)
    needed = [*key, *(RECORD if key else ())]
    if missing := [name for name in needed if name not in columns.names]:
        raise TargetError(
            f"The Iceberg table has no column {', '.join(map(repr, missing))}, which upsert_key needs: add it (ALTER "
            "TABLE … ADD COLUMN), or append, without upsert_key"
        )
    if unusable := [name for name in key if not _is_exact(columns.field(name).type)]:
        raise TargetError(
            f"upsert_key names {', '.join(map(repr, unusable))}, whose values cannot be told apart exactly: it takes "
            "columns of whole numbers, decimals, texts, bytes, booleans, dates and times"
        )
    return list(dict.fromkeys([*(field.name for field in schema.fields if field.required), *needed]))


def _is_exact(kind: pa.DataType) -> bool:
    return not (pa.types.is_floating(kind) or pa.types.is_nested(kind) or isinstance(kind, pa.BaseExtensionType))


def lacking(schema: Schema, columns: pa.Schema) -> list[pa.Field]:
    """Return the columns of rows that a table has not, but for those that this package adds: they are left out."""
    known = {field.name for field in schema.fields}
    return [field for field in columns if field.name not in known and not _is_added(field.name)]


def written(schema: Schema, columns: pa.Schema) -> pa.Schema:
    """Return the columns of rows that are written, or that the table would have to have."""
    known = {field.name for field in schema.fields}
    return pa.schema([field for field in columns if field.name in known or not _is_added(field.name)])


def _is_added(name: str) -> bool:
    return name.startswith(RESERVED_PREFIX) or name == BATCH_ID


def check_names(name: str, schema: Schema, columns: pa.Schema) -> None:
    """Check that new columns have names of their own, also for engines to which upper and lower case are the same.

    :raises TargetError: they have not
    """
    existing = {field.name.lower(): field.name for field in schema.fields}
    for field in lacking(schema, columns):
        if (other := existing.get(field.name.lower())) is not None:
            raise TargetError(
                f"Table {name!r} has a column {other!r}, and gets no column {field.name!r}, whose name differs in case "
                "only: rename the column, or the field by a transform"
            )


def add_columns(transaction: Transaction, columns: pa.Schema) -> list[str]:
    """Add the columns that a table lacks, nullable; their ids depend on the table alone.

    :return: their names
    :raises TargetError: Iceberg has no such column
    """
    missing = lacking(transaction.table_metadata.schema(), columns)
    if missing:
        try:
            nullable = pa.schema([pa.field(field.name, field.type) for field in missing])
            types = Catalog._convert_schema_if_needed(nullable)
            with transaction.update_schema() as update:
                for field in types.fields:
                    update.add_column((field.name,), field.field_type)
        except Exception as error:  # pyiceberg has no class for types that it does not know
            names = ", ".join(repr(field.name) for field in missing)
            raise TargetError(
                f"Iceberg table {transaction._table.name()} cannot have column {names}: {error}"
            ) from error
    return [field.name for field in missing]


def shape_of(table: Table, columns: pa.Schema | None = None) -> TableShape:
    """Return the shape of a table, with columns that it lacks.

    :param columns: of the rows that are about to be written
    """
    transaction = table.transaction()
    if columns is not None:
        add_columns(transaction, columns)
    metadata = transaction.table_metadata
    schema = metadata.schema()
    sort_by = [
        (schema.find_column_name(field.source_id), str(field.direction.value))
        for field in table.sort_order().fields
        if isinstance(field.transform, IdentityTransform)
        and "." not in (schema.find_column_name(field.source_id) or ".")
    ]
    properties = {name: value for name, value in metadata.properties.items() if name.startswith("write.")}
    return TableShape(
        schema.model_dump_json(),
        metadata.spec().model_dump_json(),
        metadata.location,
        properties,
        json.dumps(sort_by),
        str(metadata.table_uuid),
    )
