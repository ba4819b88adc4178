"""What a record format is, and the table of the formats that exist.

A format says which columns a record becomes. It has three sides: what a DAG author writes (plain data that costs nothing to
make), the columns, which the worker resolves before Spark starts, and a decoder, which Spark's tasks call for each batch of records.

To add a format, write a module beside this one with a frozen dataclass that is a `RecordFormat`, and add a line to `FORMATS`.
The reading of records, dead letters and the columns that say where a row came from are the same for all formats, and not here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, cast, runtime_checkable

if TYPE_CHECKING:
    import pyarrow as pa

FORMATS = {
    "json": "airflow_kafka_offsets.formats.json_format:Json",
    "raw": "airflow_kafka_offsets.formats.raw:Raw",
}
"""The class of each format, by its kind."""


class BadRecord(NamedTuple):
    """A record that does not decode.

    :param row: its place in the batch, from 0
    :param reason: what is wrong with it, for the message of a RecordError or a dead letter
    """

    row: int
    reason: str


class Decoded(NamedTuple):
    """What a batch of records became.

    :param rows: a row for each record that decodes, in the order of the records, with the columns of the format
    :param bad: the other records, in the same order
    """

    rows: pa.RecordBatch
    bad: Sequence[BadRecord] = ()


class Decoder(Protocol):
    """Decodes batches of records. A task makes one for each slice, and calls it for each batch of the slice."""

    def __call__(self, records: pa.RecordBatch) -> Decoded:
        """Decode records.

        :param records: what `kafka.reader.read` yields, never empty: `key`, `value` (BINARY), `offset` (BIGINT), `timestamp`, and
            `headers` (an array of key and value) where the format reads them
        """


@runtime_checkable
class RecordFormat(Protocol):
    """How the bytes of a record become columns: a frozen dataclass whose fields are plain data."""

    kind: ClassVar[str]
    """Its name in `FORMATS`."""

    @property
    def reads_headers(self) -> bool:
        """Whether the decoder needs the headers of the records: reading them takes time."""

    def fingerprint(self) -> str:
        """Return what, beside the columns, decides what a record becomes: files of another fingerprint are staged again."""

    def columns(self) -> pa.Schema:
        """Return the columns that a record becomes. Called on the worker, before anything is read.

        :raises ConfigurationError: the format cannot work as it was written
        """

    def decoder(self, columns: pa.Schema) -> Decoder:
        """Return a decoder. Called in Spark's tasks, where neither Airflow nor SQLAlchemy nor sqlglot can be imported.

        :param columns: what `columns` returned on the worker
        """


def to_plain(record_format: RecordFormat) -> dict[str, Any]:
    """Return a format as JSON can hold it."""
    return {"kind": record_format.kind, **asdict(cast("Any", record_format))}


def from_plain(plain: Mapping[str, Any]) -> RecordFormat:
    """Return the format that `to_plain` made plain."""
    fields = dict(plain)
    module, _, name = FORMATS[fields.pop("kind")].partition(":")
    record_format: RecordFormat = getattr(import_module(module), name)(**fields)
    return record_format
