"""The columns of rows that do not come from the value of a record: the key by a separate format, headers and the
timestamp. A DAG file imports this module.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from airflow_kafka_offsets.core.options import Options, ruled
from airflow_kafka_offsets.core.parameters import Rule, one_of, or_none
from airflow_kafka_offsets.core.templates import Templated
from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.formats.record_format import (
    BadRecord,
    Connections,
    Decoded,
    Decoder,
    OnNewField,
    RecordFormat,
    decoder_of,
)

if TYPE_CHECKING:
    import pyarrow as pa


Which = Literal["last", "first", "all"]

HeaderType = Literal["STRING", "BINARY"]

TIMESTAMP_OF_RECORD = "timestamp"


@dataclass(frozen=True, slots=True)
class Header(Templated):
    """The value of a header, as a column; null where a record has no such header.

    A record is bad if this value is not UTF-8 and the type is STRING, or if the name of any header is not UTF-8.

    :param name: of the header (templated)
    :param which: which header, if several have the name: `last`, `first`, or `all` as an array, which a transform has
        to unnest for a table
    :param type: STRING or BINARY
    """

    template_fields: ClassVar[tuple[str, ...]] = ("name",)

    name: str
    which: Which = "last"
    type: HeaderType = "STRING"

    @property
    def is_valid(self) -> bool:
        return isinstance(self.name, str) and self.which in get_args(Which) and self.type in get_args(HeaderType)


MetadataColumns = Mapping[str, str | Header]
"""Names of columns, with `"timestamp"` or a `Header`."""


def are_metadata_columns(value: Any) -> bool:
    """Return whether a value is a mapping as `MetadataColumns` describes it."""
    return isinstance(value, Mapping) and all(
        isinstance(name, str)
        and bool(name)
        and (source == TIMESTAMP_OF_RECORD if not isinstance(source, Header) else source.is_valid)
        for name, source in value.items()
    )


def _is_format(value: Any) -> bool:
    # A class has the members of its instances.
    return isinstance(value, RecordFormat) and not isinstance(value, type)


FORMAT = Rule("a format, such as Json(…) or Raw(…)", _is_format)


@dataclass(frozen=True, kw_only=True, repr=False)
class ExtraColumns(Options):
    """The columns of rows besides those that `value_format` declares.

    :param key_format: the format of the key, whose columns are added; None leaves the key out (templated)
    :param metadata: columns of the record itself, by name: each is `"timestamp"` or a `Header` (templated)
    :param on_new_field: what to do with fields without a column, if the format has schemas: ignore them, fail, or add
        the columns to the target in the transaction of the commit
    """

    key_format: RecordFormat | None = field(default=None, metadata=ruled(or_none(FORMAT), templated=True))
    metadata: MetadataColumns | None = field(
        default=None,
        metadata=ruled(
            or_none(Rule("a dictionary of column names, with 'timestamp' or Header(…)", are_metadata_columns)),
            templated=True,
        ),
    )
    on_new_field: OnNewField = field(default="ignore", metadata=ruled(one_of(*get_args(OnNewField))))


def whole_record(
    value: RecordFormat, key: RecordFormat | None = None, metadata: MetadataColumns | None = None
) -> RecordFormat:
    """Return the format that decodes the value of records and, if given, their key and metadata."""
    if key is None and not metadata:
        return value
    return WholeRecord(value, key, metadata or {})


@dataclass(frozen=True, slots=True)
class WholeRecord:
    """The columns of the key, those of the value, and those of metadata, in this order.

    :param value: its format
    :param key: the format of the key; None leaves the key out
    """

    kind: ClassVar[str] = "record"
    value: RecordFormat
    key: RecordFormat | None = None
    metadata: MetadataColumns = field(default_factory=dict)

    @property
    def _headers(self) -> dict[str, Header]:
        return {name: source for name, source in self.metadata.items() if isinstance(source, Header)}

    @property
    def formats(self) -> dict[str, RecordFormat]:
        """The formats of key and value, the key first."""
        return {"value": self.value} if self.key is None else {"key": self.key, "value": self.value}

    @property
    def reads_headers(self) -> bool:
        return bool(self._headers) or any(record_format.reads_headers for record_format in self.formats.values())

    def fingerprint(self) -> str:
        parts = {part: record_format.fingerprint() for part, record_format in self.formats.items()}
        metadata = dict.fromkeys(self.metadata) | {name: asdict(header) for name, header in self._headers.items()}
        return json.dumps([self.kind, parts, metadata], sort_keys=True)

    def columns(self) -> pa.Schema:
        """Return the columns as an Arrow schema.

        :raises ConfigurationError: two columns have the same name, or a format's parameters are wrong
        """
        import pyarrow as pa

        fields = [column for record_format in self.formats.values() for column in record_format.columns()]
        fields += [pa.field(name, _type(source)) for name, source in self.metadata.items()]
        names = [column.name.lower() for column in fields]
        if doubled := sorted({column.name for column in fields if names.count(column.name.lower()) > 1}):
            raise ConfigurationError(
                f"Columns of key, value and metadata have the same name: {', '.join(doubled)}. Each column needs a "
                "name of its own"
            )
        return pa.schema(fields)

    def decoder(self, columns: pa.Schema) -> Decoder:
        """Return a decoder; a record is bad where its key, its value or its headers are."""
        return self.connected_decoder(columns, {})

    def connected_decoder(self, columns: pa.Schema, connections: Connections) -> Decoder:
        """Return the same decoder, of which those of key and value may ask other servers."""
        import pyarrow as pa

        fields = list(columns)
        parts: dict[str, Decoder] = {}
        for part, record_format in self.formats.items():
            count = len(record_format.columns())
            parts[part] = decoder_of(record_format, pa.schema(fields[:count]), connections)
            fields = fields[count:]
        return _WholeDecoder(columns, parts, _of_metadata(pa.schema(fields), self._headers) if self.metadata else None)


class _WholeDecoder:
    """Decodes key, value and metadata of records.

    :param parts: the decoders of key and value
    """

    def __init__(
        self, columns: pa.Schema, parts: Mapping[str, Decoder], metadata: Callable[[pa.RecordBatch], Decoded] | None
    ) -> None:
        self.parts = parts
        self._columns = columns
        steps = [_of_key(decode) if part == "key" else decode for part, decode in parts.items()]
        self._steps = [*steps, metadata] if metadata is not None else steps

    def __call__(self, records: pa.RecordBatch) -> Decoded:
        """Decode records; see `Decoder`. Each record that is bad in any part is bad once."""
        import pyarrow as pa

        parts = [decode(records) for decode in self._steps]
        bad: dict[int, BadRecord] = {}
        for part in parts:
            for record in part.bad:
                bad.setdefault(record.row, record)
        arrays: list[pa.Array] = []
        for rows, bad_of_part in parts:
            if len(bad_of_part) < len(bad):
                own = {record.row for record in bad_of_part}
                kept = [row not in bad for row in range(records.num_rows) if row not in own]
                rows = rows.filter(pa.array(kept, pa.bool_()))
            arrays += rows.columns
        return Decoded(pa.RecordBatch.from_arrays(arrays, schema=self._columns), [bad[row] for row in sorted(bad)])


def _type(source: str | Header) -> pa.DataType:
    import pyarrow as pa

    if isinstance(source, str):
        return pa.timestamp("us", "UTC")
    kind = pa.string() if source.type == "STRING" else pa.binary()
    return pa.list_(kind) if source.which == "all" else kind


def _of_key(decode: Decoder) -> Callable[[pa.RecordBatch], Decoded]:
    """Return a decoder of keys, made of one of values."""

    def decode_keys(records: pa.RecordBatch) -> Decoded:
        place = records.schema.get_field_index("value")
        rows, bad = decode(records.set_column(place, "value", records.column("key")))
        return Decoded(rows, [BadRecord(record.row, f"key: {record.reason}", "key") for record in bad])

    return decode_keys


def _of_metadata(columns: pa.Schema, headers: Mapping[str, Header]) -> Callable[[pa.RecordBatch], Decoded]:
    import pyarrow as pa

    def decode(records: pa.RecordBatch) -> Decoded:
        bad: dict[int, str] = {}
        values: dict[str, list[Any]] = {name: [] for name in headers}
        for row, found in enumerate(records.column("headers").to_pylist() if headers else ()):
            if found is None:
                # The reader has no headers for a record whose header keys cannot be read.
                bad[row] = "the key of a header is not UTF-8"
                continue
            # Each header is looked at once, however many columns there are: a record may have 100,000.
            by_name: dict[str, list[bytes | None]] = {header.name: [] for header in headers.values()}
            for item in found:
                if item["key"] in by_name:
                    by_name[item["key"]].append(item["value"])
            try:
                of_row = {name: _value(header, by_name[header.name]) for name, header in headers.items()}
            except UnicodeDecodeError:
                bad[row] = "the value of a header is not UTF-8; declare it as BINARY"
                continue
            for name, value in of_row.items():
                values[name].append(value)
        timestamps = records.column("timestamp")
        if bad:
            timestamps = timestamps.filter(pa.array([row not in bad for row in range(records.num_rows)], pa.bool_()))
        arrays = [
            pa.array(values[column.name], column.type) if column.name in headers else timestamps for column in columns
        ]
        rows = pa.RecordBatch.from_arrays(arrays, schema=columns)
        return Decoded(rows, [BadRecord(row, reason, "header") for row, reason in bad.items()])

    return decode


def _value(header: Header, found: list[bytes | None]) -> Any:
    """Return the value of a column.

    :param found: the values of the headers that have the name
    """
    values: list[Any] = found
    if header.which != "all":
        values = values[-1:] if header.which == "last" else values[:1]
    if header.type == "STRING":
        values = [None if value is None else value.decode() for value in values]
    if header.which == "all":
        return values
    return values[0] if values else None
