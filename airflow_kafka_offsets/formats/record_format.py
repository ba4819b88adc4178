"""The protocol of record formats.

A format has three parts: the plain data that a DAG author writes, the columns, which the worker resolves before Spark
starts, and a decoder, which Spark's tasks call for each batch of records.

To add a format, write a frozen dataclass that is a `RecordFormat`, in a module that Spark's driver and executors can
import. Reading records, dead letters and the origin columns are the same for all formats, and elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol, runtime_checkable

from airflow_kafka_offsets.core.text import shortened
from airflow_kafka_offsets.escaping import printable

if TYPE_CHECKING:
    import pyarrow as pa

OnNewField = Literal["ignore", "fail", "add"]
"""What to do with fields of records without a column."""

ColumnsFrom = Literal["schema", "target"]
"""What decides the columns of a format where they are not declared: the reader's schema, or the table that the rows are
written to.
"""


class BadRecord(NamedTuple):
    """A record that cannot be decoded.

    :param row: the index of the record in the batch
    :param reason: what is wrong with it, for the message of a RecordError or a dead letter; it is logged, and must hold
        no values
    :param part: what is bad: `value`, `key` or `header`; `size` if the record is too large; `crash` if it ends the
        process or takes too much memory; `transform` if the transform raises for it; `target` if the target refuses its
        row
    """

    row: int
    reason: str
    part: str = "value"


class Decoded(NamedTuple):
    """The rows of a batch of records, and its bad records.

    :param rows: a row for each good record, in the order of the records, with the columns of the format
    :param bad: the bad records, in the same order
    """

    rows: pa.RecordBatch
    bad: Sequence[BadRecord] = ()


class Decoder(Protocol):
    """Decodes batches of records. A task creates a decoder for each slice, and calls it for each batch of the slice.

    A record that cannot be decoded is returned among the bad ones, whatever is wrong with it. An exception ends the
    load, and only a `RefusedSchemasError` names a record.
    """

    def __call__(self, records: pa.RecordBatch) -> Decoded:
        """Decode records.

        :param records: what `kafka.reader.read` yields, never empty: `key`, `value` (BINARY), `offset` (BIGINT),
            `timestamp`, and `headers` (an array of key and value) where the format reads them
        """


@runtime_checkable
class RecordFormat(Protocol):
    """How the bytes of a record become columns: a frozen dataclass that is pickled on its way to Spark.

    DAG files import its module: what is heavy (pyarrow, a decoder's library) is imported in the methods.
    """

    kind: ClassVar[str]
    """Its name in messages and in the history of schemas."""

    @property
    def reads_headers(self) -> bool:
        """Whether the decoder needs the headers of the records: reading them takes time."""

    def fingerprint(self) -> str:
        """Return what decides, besides the columns, how a record is decoded. A batch with another fingerprint is staged
        again.
        """

    def columns(self) -> pa.Schema:
        """Return the columns that a record becomes. Called on the worker, before anything is read.

        Their types are those of `spark_ddl`: a transform gets them from Spark.

        :raises ConfigurationError: the parameters of the format are wrong
        """

    def decoder(self, columns: pa.Schema) -> Decoder:
        """Return a decoder. Called in Spark's tasks, where neither Airflow nor SQLAlchemy nor sqlglot can be imported.

        :param columns: what `columns` returned on the worker
        """


class SchemaError(ValueError):
    """A schema is missing, invalid or unusable; the message says why, and may quote the schema."""

    def __init__(self, reason: str) -> None:
        super().__init__(printable(shortened(reason, 1_000)))


class RefusedSchemasError(Exception):
    """Too many schema ids are unusable, and the registry is not asked for more.

    :ivar row: the index of a record with another id
    """

    row = 0


Connections = Mapping[str, Mapping[str, Any]]
"""What the connections hold that formats name: addresses and secrets, which are in no plain data of a format."""


@runtime_checkable
class ConnectedDecoding(Protocol):
    """A format whose decoder may ask another server, or that has a part whose decoder may."""

    def connected_decoder(self, columns: pa.Schema, connections: Connections) -> Decoder:
        """Return a decoder; see `RecordFormat.decoder`."""


def decoder_of(record_format: RecordFormat, columns: pa.Schema, connections: Connections) -> Decoder:
    """Return the decoder of a format, in a task."""
    if isinstance(record_format, ConnectedDecoding):
        return record_format.connected_decoder(columns, connections)
    return record_format.decoder(columns)
