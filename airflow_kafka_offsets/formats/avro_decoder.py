"""The decoder of the format Avro: the records of each writer's schema in one pass, in the order of the records."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from airflow_kafka_offsets.core.text import shortened
from airflow_kafka_offsets.formats.avro_columns import MismatchError, constant, converted, sources
from airflow_kafka_offsets.formats.avro_reader import UNKNOWN_BRANCH, AvroReader, UnreadableError
from airflow_kafka_offsets.formats.avro_schema import SchemaError, Type, has_endless_lists
from airflow_kafka_offsets.formats.record_format import BadRecord, Decoded

MAGIC, WIRE_PREFIX = b"\0", 5
"""In Confluent's wire format, the byte before the id of a schema, and the length of both."""

SINGLE_OBJECT_PREFIX = 10
"""The length of what is before a value in Avro's single-object encoding."""

# So many values are read one by one, which takes as long as a few passes of the quick reader.
_FEW_VALUES = 64


def schema_id(prefix: bytes) -> int:
    """Return the id of a schema in the prefix of Confluent's wire format."""
    return int.from_bytes(prefix[1:], "big")


class _Part(NamedTuple):
    """Rows, and the indexes of their records in the batch."""

    indexes: pa.Array
    columns: list[pa.Array]


Lookup = Callable[[bytes], Type]
"""Returns the schema of the values with a prefix; raises a SchemaError where there is none."""


class AvroDecoder:
    """Decodes one Avro value a record.

    :param columns: the declared columns
    :param reader: the reader's schema, with aliases and defaults, if there is one
    :param prefix: the number of bytes before a value, which identify its schema
    :param lookup: is asked once for each prefix
    """

    def __init__(self, columns: pa.Schema, reader: Type | None, prefix: int, lookup: Lookup) -> None:
        self._columns, self._reader, self._prefix, self._lookup = columns, reader, prefix, lookup
        self._schemas: dict[bytes, _OfSchema | str] = {}

    @property
    def schemas_read(self) -> Mapping[int, Sequence[str]]:
        """The schemas of the values, by id; see `SchemaReading`."""
        # A schema that is given has no id.
        read: Mapping[int, Sequence[str]] = getattr(self._lookup, "read", {})
        return read

    def __call__(self, records: pa.RecordBatch) -> Decoded:
        """Decode records; see `Decoder`."""
        parts: list[_Part] = []
        bad: list[BadRecord] = []
        for part in self._parts(records.column("value")):
            (bad if isinstance(part, BadRecord) else parts).append(part)  # type: ignore[arg-type]
        return Decoded(self._joined(parts, records.num_rows), sorted(bad))

    def _parts(self, values: pa.Array) -> Iterator[_Part | BadRecord]:
        indexes = pa.array(range(len(values)), pa.int64())
        if values.null_count:
            yield from self._tombstones(indexes.filter(values.is_null()))
            indexes = indexes.filter(values.is_valid())
            values = values.drop_null()
        prefixes = pc.binary_slice(values, 0, self._prefix).dictionary_encode()
        for number, prefix in enumerate(prefixes.dictionary.to_pylist()):
            mask = pc.equal(prefixes.indices, number)
            whole = len(prefixes.dictionary) == 1
            own, own_indexes = (values, indexes) if whole else (values.filter(mask), indexes.filter(mask))
            schema = self._schema(prefix)
            if isinstance(schema, str):
                yield from (BadRecord(index, schema) for index in own_indexes.to_pylist())
            else:
                # Without an end, pyarrow 26.0 fails.
                own = pc.binary_slice(own, self._prefix, 1 << 30) if self._prefix else own
                yield from schema.parts(own, own_indexes)

    def _schema(self, prefix: bytes) -> _OfSchema | str:
        """Return what decodes the values with a prefix, or why none of them can be."""
        if prefix not in self._schemas:
            try:
                self._schemas[prefix] = _OfSchema(self._lookup(prefix), self._columns, self._reader, _label(prefix))
            except SchemaError as error:
                self._schemas[prefix] = shortened(f"{_label(prefix)}{error}")
        return self._schemas[prefix]

    def _tombstones(self, indexes: pa.Array) -> Iterator[_Part | BadRecord]:
        required = [field.name for field in self._columns if not field.nullable]
        if required:
            reason = f"column {required[0]!r} is declared NOT NULL, and is missing or null"
            yield from (BadRecord(index, reason) for index in indexes.to_pylist())
        else:
            yield _Part(indexes, [pa.nulls(len(indexes), field.type) for field in self._columns])

    def _joined(self, parts: Sequence[_Part], count: int) -> pa.RecordBatch:
        if not parts:
            return pa.RecordBatch.from_pylist([], schema=self._columns)
        columns = [pa.concat_arrays(arrays) for arrays in zip(*(part.columns for part in parts), strict=True)]
        if len(parts) > 1:
            order = pc.sort_indices(pa.concat_arrays([part.indexes for part in parts]))
            columns = [column.take(order) for column in columns]
        return pa.RecordBatch.from_arrays(columns, schema=self._columns)


def _label(prefix: bytes) -> str:
    """Return the beginning of a reason: which schema it is about, of several."""
    return f"schema {schema_id(prefix)}: " if len(prefix) == WIRE_PREFIX and prefix[:1] == MAGIC else ""


class _OfSchema:
    """Decodes the values of one writer's schema.

    :param label: begins the reasons of bad records

    :raises SchemaError: no value of the schema can become the columns
    """

    def __init__(self, kind: Type, columns: pa.Schema, reader: Type | None, label: str) -> None:
        if has_endless_lists(kind):
            raise SchemaError(
                "its schema has an array whose items take no bytes, so that a few bytes hold any number of them"
            )
        self._label = label
        self._kinds = {f"f{place}": part.type for place, part in enumerate(kind.fields)}
        if kind.kind == "record":
            self._sources = sources(columns, kind, reader if reader is not None and reader.kind == "record" else None)
        elif len(columns) == 1:
            self._kinds, self._sources = {"f0": kind}, [(columns.field(0), 0, None)]
        else:
            raise SchemaError(
                f"its schema is of the type {kind.kind}, which is one column, and {len(columns)} are declared"
            )
        names = [f"f{place}" for _, place, _ in self._sources if place is not None]
        for field, place, _ in self._sources:
            if place is not None and self._kinds[f"f{place}"].physical is None:
                raise SchemaError(f"column {field.name!r}: it is recursive, which no column can be")
        self._reader = AvroReader(kind, names)
        # Types that do not fit are found without values.
        nothing = {name: pa.array([], self._kinds[name].physical) for name in names}
        self._rows(nothing, 0)

    def parts(self, values: pa.Array, indexes: pa.Array, *, sifted: bool = False) -> Iterator[_Part | BadRecord]:
        """Decode values in as few parts as the bad ones among them allow.

        A value is bad only if it cannot be decoded alone, so that no record depends on its neighbours.

        :param indexes: those of the records in their batch
        :param sifted: whether the values that cannot be read are removed, but for those that only trying can tell
        """
        if not len(values):
            return
        quick = self._reader.is_vectorized
        try:
            yield _Part(indexes, self._rows(self._read(values), len(values)))
        except UnreadableError as error:
            if len(values) == 1:
                yield BadRecord(indexes[0].as_py(), shortened(f"{self._label}{error}"))
            elif not sifted and (len(values) <= _FEW_VALUES or not quick):
                _, wrong = self._reader.read_each(values)
                surely = {place: reason for place, reason in wrong.items() if reason != UNKNOWN_BRANCH or not quick}
                yield from (
                    BadRecord(indexes[place].as_py(), f"{self._label}{reason}") for place, reason in surely.items()
                )
                good = pa.array([place not in surely for place in range(len(values))], pa.bool_())
                yield from self.parts(values.filter(good), indexes.filter(good), sifted=True)
            else:
                half = len(values) // 2
                for start, end in ((0, half), (half, len(values))):
                    yield from self.parts(values[start:end], indexes[start:end], sifted=sifted)

    def _read(self, values: pa.Array) -> dict[str, pa.Array]:
        if self._reader.is_vectorized:
            return self._reader.read(values)
        columns, wrong = self._reader.read_each(values)
        if wrong:
            raise UnreadableError(next(iter(wrong.values())))
        return columns

    def _rows(self, found: dict[str, pa.Array], count: int) -> list[pa.Array]:
        """Return the declared columns.

        :param found: columns of the writer's schema, by their names in the reader
        """
        rows = []
        for field, place, part in self._sources:
            try:
                if place is None:
                    array = constant(field.type, part, count)
                else:
                    name, reader = f"f{place}", part.type if part is not None else None
                    array = converted(found[name], self._kinds[name], field.type, reader)
            except MismatchError as error:
                raise SchemaError(f"column {field.name!r}: {error}") from None
            except UnreadableError as error:
                raise UnreadableError(f"column {field.name!r}: {error}") from None
            if not field.nullable and array.null_count:
                raise UnreadableError(f"column {field.name!r} is declared NOT NULL, and is missing or null")
            rows.append(array)
        return rows
