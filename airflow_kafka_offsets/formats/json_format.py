"""The format JSON, as a DAG author writes it. A DAG file imports this module: the decoder is in `json_decoder`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from airflow_kafka_offsets.core.templates import Templated

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_kafka_offsets.formats.record_format import Decoder


@dataclass(frozen=True, slots=True)
class Json(Templated):
    """One JSON object a record, decoded to declared columns.

    Fields that are not declared are ignored, and missing fields are null. A record with a null value (a tombstone)
    becomes a row whose declared columns are all null. Dates and timestamps are ISO 8601 text; a timestamp without a
    zone is in UTC. They lie in the years 1 to 9999, in UTC: databases store others, and their clients cannot read them.
    A record with any other value that does not fit the declared type is bad.

    :param ddl: the columns as Spark DDL: `"id BIGINT NOT NULL, customer STRING, amount DECIMAL(10,2)"` (templated)
    """

    kind: ClassVar[str] = "json"
    template_fields: ClassVar[tuple[str, ...]] = ("ddl",)
    ddl: str

    @property
    def reads_headers(self) -> bool:
        return False

    def fingerprint(self) -> str:
        return self.kind

    def columns(self) -> pa.Schema:
        """Return the declared columns as an Arrow schema.

        :raises ConfigurationError: the DDL cannot be parsed, has an unknown type, or declares a column twice
        """
        from airflow_kafka_offsets.formats.spark_ddl import parse_ddl

        return parse_ddl(self.ddl)

    def decoder(self, columns: pa.Schema) -> Decoder:
        """Return a decoder of the declared columns."""
        from airflow_kafka_offsets.formats.json_decoder import JsonDecoder

        return JsonDecoder(columns)
