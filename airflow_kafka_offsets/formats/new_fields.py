"""Columns that follow the schemas of the records: which fields become columns, and what becomes of the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, get_args

from airflow_kafka_offsets.core.text import first_few
from airflow_kafka_offsets.exceptions import ConfigurationError, NewFieldError, NewSchemaError
from airflow_kafka_offsets.formats.record_format import ColumnsFrom, OnNewField, RecordFormat, SchemaFormat

if TYPE_CHECKING:
    import pyarrow as pa


def with_fields(
    record_format: SchemaFormat,
    on_new_field: OnNewField,
    target: str,
    target_columns: Callable[[], Sequence[str] | None],
) -> RecordFormat:
    """Return a format with the columns that its schemas, the target and the user's choice give it.

    :param target: its name, for messages
    :param target_columns: returns the names of its columns, or None if it does not exist
    :raises ConfigurationError: the target, which is to decide the columns, does not exist, or has none of the fields
    """
    known = record_format.field_names()
    if record_format.columns_from == "target":
        of_target = target_columns()
        if of_target is None:
            raise ConfigurationError(
                f"The columns of the records are to be those of {target!r}, which does not exist: create it, or declare the columns"
            )
        names = [name for name in of_target if name in known]
        if not names:
            raise ConfigurationError(
                f"The columns of the records are to be those of {target!r}, which has none of their fields: {first_few(map(repr, known))}"
            )
    else:
        names = record_format.columns().names
    if on_new_field == "add":
        names += [name for name in known if name not in names]
    return record_format.with_columns(names, on_new_field)


def columns_ddl(declared: str | None, names: Sequence[str], type_of: Callable[[str], pa.DataType]) -> str:
    """Return columns as Spark DDL: those that are declared, and those of other fields.

    :param declared: the declared columns as Spark DDL, if there are any
    :param type_of: returns the type of the column of a field; raises a SchemaError if it has none
    :raises ConfigurationError: a field cannot become a column
    """
    import pyarrow as pa

    from airflow_kafka_offsets.formats.spark_ddl import parse_ddl, spark_ddl
    from airflow_kafka_offsets.formats.wire_format import SchemaError

    given = parse_ddl(declared, binary=True) if declared is not None else pa.schema([])
    try:
        columns = [given.field(name) if name in given.names else pa.field(name, type_of(name)) for name in names]
    except SchemaError as error:
        raise ConfigurationError(
            f"A field of the schemas cannot become a column: {error}, or leave it out with on_new_field='ignore'"
        ) from error
    return spark_ddl(pa.schema(columns))


def check_columns_from(columns_from: str, declared: str | None) -> None:
    """Check what decides the columns.

    :raises ConfigurationError: it is none of `ColumnsFrom`, or columns are declared as well
    """
    if columns_from not in get_args(ColumnsFrom) or (columns_from == "target" and declared is not None):
        raise ConfigurationError(
            "A format has the columns that are declared, or columns_from='schema' or 'target'; got "
            f"columns_from={columns_from!r}{' with declared columns' if declared is not None else ''}"
        )


def new_field_error(schema: str, fields: Sequence[str], on_new_field: OnNewField) -> NewFieldError:
    """Return the error for records with fields that are no columns.

    :param schema: theirs, for the message
    """
    names = first_few(map(repr, fields))
    if on_new_field == "add":
        return NewSchemaError(
            f"{schema} has fields that are no columns yet: {names}. The schema was not known when the load was planned: run the task "
            "again, which looks for new schemas of the subject. If it is of another subject, name that one"
        )
    return NewFieldError(
        f"{schema} has fields that are no columns: {names}. Nothing of this batch was written and no position moved; declare them, or "
        "leave such fields out with on_new_field='ignore'"
    )
