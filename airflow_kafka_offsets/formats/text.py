"""The format of records that are text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from airflow_kafka_offsets.core.templates import Templated

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_kafka_offsets.formats.record_format import Decoded, Decoder


@dataclass(frozen=True, slots=True)
class Text(Templated):
    """The whole value as one text; null where a record has none, and empty where it is empty. Bytes that are no UTF-8
    are bad.

    :param column: the name of the column (templated)
    """

    kind: ClassVar[str] = "text"
    template_fields: ClassVar[tuple[str, ...]] = ("column",)
    column: str = "text"

    @property
    def reads_headers(self) -> bool:
        return False

    def fingerprint(self) -> str:
        return self.kind

    def columns(self) -> pa.Schema:
        import pyarrow as pa

        from airflow_kafka_offsets.exceptions import ConfigurationError

        if not isinstance(self.column, str) or not self.column:
            raise ConfigurationError(f"Text needs the name of a column; got column={self.column!r}")
        return pa.schema([(self.column, pa.string())])

    def decoder(self, columns: pa.Schema) -> Decoder:
        """Return a decoder of UTF-8."""
        import pyarrow as pa

        from airflow_kafka_offsets.formats.record_format import BadRecord, Decoded

        def decode(records: pa.RecordBatch) -> Decoded:
            values = records.column("value")
            bad: list[BadRecord] = []
            try:
                texts = values.cast(pa.string())
            except pa.ArrowInvalid:
                good = [_is_utf8(value) for value in values.to_pylist()]
                bad = [BadRecord(row, "the value is not UTF-8") for row, is_good in enumerate(good) if not is_good]
                texts = values.filter(pa.array(good, pa.bool_())).cast(pa.string())
            return Decoded(pa.RecordBatch.from_arrays([texts], schema=columns), bad)

        return decode


def _is_utf8(value: bytes | None) -> bool:
    try:
        (value or b"").decode()
    except UnicodeDecodeError:
        return False
    return True
