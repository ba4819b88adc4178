"""The formats without schemas, as a DAG author writes them: JSON objects, text, and records as they are.

A DAG file imports this module.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from airflow_kafka_offsets.core.bisection import Failure, Run, split_at_failures
from airflow_kafka_offsets.core.templates import Templated
from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.formats.plain_ddl import check_literal
from airflow_kafka_offsets.formats.record_format import BadRecord, Decoded, Decoder

if TYPE_CHECKING:
    import pyarrow as pa


class _SimpleFormat(Templated):
    __slots__ = ()

    kind: ClassVar[str]

    @property
    def reads_headers(self) -> bool:
        return False

    def fingerprint(self) -> str:
        return self.kind


@dataclass(frozen=True, slots=True)
class Json(_SimpleFormat):
    """One JSON object a record, decoded to declared columns.

    Fields that are not declared are ignored, and missing fields are null. A record with a null value (a tombstone)
    becomes a row whose declared columns are all null. Dates and timestamps are ISO 8601 text; a timestamp without a
    zone is in UTC. They must be in the years 1 to 9999, in UTC: a database may store others, but its clients cannot
    read them. A record with a value that does not fit the declared type is bad.

    :param ddl: the columns as Spark DDL: `"id BIGINT NOT NULL, customer STRING, amount DECIMAL(10,2)"` (templated)
    :raises ConfigurationError: the DDL cannot be used; raised when the DAG is parsed, or of a template when it is
        rendered
    """

    kind: ClassVar[str] = "json"
    template_fields: ClassVar[tuple[str, ...]] = ("ddl",)
    ddl: str

    def __post_init__(self) -> None:
        check_literal(self.ddl)

    def columns(self) -> pa.Schema:
        """Return the declared columns as an Arrow schema.

        :raises ConfigurationError: the DDL cannot be parsed, has an unknown type, or declares a column twice
        """
        from airflow_kafka_offsets.formats.columns import parse_ddl

        return parse_ddl(self.ddl)

    def decoder(self, columns: pa.Schema) -> Decoder:
        """Return a decoder of the declared columns."""
        from airflow_kafka_offsets.formats.json_decoder import JsonDecoder

        return JsonDecoder(columns)


@dataclass(frozen=True, slots=True)
class Text(_SimpleFormat):
    """The whole value as one text; a record without a value becomes null. A record whose value is not UTF-8 is bad.

    :param column: the name of the column (templated)
    """

    kind: ClassVar[str] = "text"
    template_fields: ClassVar[tuple[str, ...]] = ("column",)
    column: str = "text"

    def __post_init__(self) -> None:
        if not isinstance(self.column, str) or not self.column:
            raise ConfigurationError(f"Text needs the name of a column; got column={self.column!r}")

    def columns(self) -> pa.Schema:
        import pyarrow as pa

        return pa.schema([(self.column, pa.string())])

    def decoder(self, columns: pa.Schema) -> Decoder:
        """Return a decoder of UTF-8."""
        import pyarrow as pa

        def decode(records: pa.RecordBatch) -> Decoded:
            values = records.column("value")
            parts = list(
                split_at_failures(len(values), lambda first, end: values[first:end].cast(pa.string()), pa.ArrowInvalid)
            )
            texts = [part.result for part in parts if isinstance(part, Run)]
            bad = [BadRecord(part.position, "the value is not UTF-8") for part in parts if isinstance(part, Failure)]
            rows = pa.concat_arrays(texts) if texts else pa.array([], pa.string())
            return Decoded(pa.RecordBatch.from_arrays([rows], schema=columns), bad)

        return decode


@dataclass(frozen=True, slots=True)
class Raw(_SimpleFormat):
    """The record as it is: `key BINARY, value BINARY`, and `headers` with the shape of Spark's own Kafka source.

    For formats that a transform decodes.

    :param headers: whether to read the headers; they are an array of (key STRING, value BINARY)
    """

    kind: ClassVar[str] = "raw"
    headers: bool = False

    @property
    def reads_headers(self) -> bool:
        return self.headers

    def columns(self) -> pa.Schema:
        """Return the columns as an Arrow schema."""
        import pyarrow as pa

        fields = [pa.field("key", pa.binary()), pa.field("value", pa.binary())]
        if self.headers:
            header = pa.struct([("key", pa.string()), ("value", pa.binary())])
            fields.append(pa.field("headers", pa.list_(header)))
        return pa.schema(fields)

    def decoder(self, columns: pa.Schema) -> Decoder:
        """Return a decoder that passes key, value and headers on; a record with a header key that is not UTF-8 is
        bad.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        def decode(records: pa.RecordBatch) -> Decoded:
            bad: Sequence[BadRecord] = ()
            if self.headers:
                # The reader has no headers for a record whose header keys cannot be read.
                unread = records.column("headers").is_null()
                reason = "the key of a header is not UTF-8"
                bad = [BadRecord(row, reason, "header") for row in pc.indices_nonzero(unread).to_pylist()]
                records = records.filter(pc.invert(unread)) if bad else records
            rows = pa.RecordBatch.from_arrays([records.column(name) for name in columns.names], schema=columns)
            return Decoded(rows, bad)

        return decode
