"""The columns of a format whose records have schemas: declared, or those of fields."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, get_args

from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.formats.record_format import ColumnsFrom

if TYPE_CHECKING:
    import pyarrow as pa


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
