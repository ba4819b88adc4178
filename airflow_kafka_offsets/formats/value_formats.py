"""Value formats: which columns a record becomes.

A format is plain data that a DAG file can make at no cost. `columns()` resolves it to an Arrow schema, on the worker,
before anything is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from airflow_kafka_offsets.core.origin import BATCH_ID, RESERVED_PREFIX, audit_columns
from airflow_kafka_offsets.exceptions import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Json:
    """One JSON object a record, decoded to declared columns.

    Fields that are not declared are ignored, missing fields are null, and a record with a null value (a tombstone)
    becomes a row whose declared columns are all null. Dates and timestamps are ISO 8601 text; a timestamp without a
    zone is UTC. Anything else that does not fit its declared type is an error that names the record.

    One malformed form is not noticed: further fields behind the object's end, as in `{"id": 1}, "x": 2`; they are ignored.

    :param ddl: the columns as Spark DDL: `"id BIGINT NOT NULL, customer STRING, amount DECIMAL(10,2)"`
    """

    kind: ClassVar[str] = "json"
    ddl: str

    def columns(self) -> pa.Schema:
        """The declared columns as an Arrow schema.

        :raises ConfigurationError: the DDL cannot be read, or names an unknown type, or a column twice
        """
        from airflow_kafka_offsets.formats.spark_ddl import parse_ddl

        return parse_ddl(self.ddl)


@dataclass(frozen=True, slots=True)
class Raw:
    """The record as it is: `key BINARY, value BINARY`, and `headers` with the shape of Spark's own Kafka source.

    For formats that a DataFrame transform decodes.

    :param headers: whether to read the headers; they are an array of (key STRING, value BINARY)
    """

    kind: ClassVar[str] = "raw"
    headers: bool = False

    def columns(self) -> pa.Schema:
        """The columns as an Arrow schema."""
        import pyarrow as pa

        fields = [pa.field("key", pa.binary()), pa.field("value", pa.binary())]
        if self.headers:
            header = pa.struct([("key", pa.string()), ("value", pa.binary())])
            fields.append(pa.field("headers", pa.list_(header)))
        return pa.schema(fields)


ValueFormat = Json | Raw


def row_columns(value_format: ValueFormat) -> pa.Schema:
    """The columns of a decoded row: those of the format, then those that say where it came from.

    :raises ConfigurationError: a declared column has the name of one that this package adds
    """
    import pyarrow as pa

    declared = value_format.columns()
    for name in declared.names:
        if name.lower().startswith(RESERVED_PREFIX) or name.lower() == BATCH_ID:
            raise ConfigurationError(
                f"Column {name!r} cannot be declared: names that start with {RESERVED_PREFIX!r}, and {BATCH_ID!r}, "
                "are those of the columns that say where a row came from"
            )
    return pa.schema([*declared, *audit_columns()])
