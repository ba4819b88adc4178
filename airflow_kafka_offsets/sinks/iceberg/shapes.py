"""A table as its files have to be written: with the columns that a commit is about to add."""

from __future__ import annotations

import json

import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.table import Table, Transaction
from pyiceberg.transforms import IdentityTransform

from airflow_kafka_offsets.core.text import first_few
from airflow_kafka_offsets.exceptions import TargetError
from airflow_kafka_offsets.sinks.iceberg.private import iceberg_schema
from airflow_kafka_offsets.sinks.lake.columns import lacking
from airflow_kafka_offsets.writers.iceberg_files import TableShape


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
    return TableShape(
        schema.model_dump_json(),
        metadata.spec().model_dump_json(),
        metadata.location,
        properties,
        json.dumps(sort_by),
        str(metadata.table_uuid),
    )
