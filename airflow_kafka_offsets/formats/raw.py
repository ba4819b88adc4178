"""The format of records that a transform decodes: keys, values and headers as they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from airflow_kafka_offsets.core.templates import Templated

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_kafka_offsets.formats.record_format import Decoded, Decoder


@dataclass(frozen=True, slots=True)
class Raw(Templated):
    """The record as it is: `key BINARY, value BINARY`, and `headers` with the shape of Spark's own Kafka source.

    For formats that a transform decodes.

    :param headers: whether to read the headers; they are an array of (key STRING, value BINARY)
    """

    kind: ClassVar[str] = "raw"
    headers: bool = False

    @property
    def reads_headers(self) -> bool:
        return self.headers

    def fingerprint(self) -> str:
        return self.kind

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

        from airflow_kafka_offsets.formats.record_format import BadRecord, Decoded

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
