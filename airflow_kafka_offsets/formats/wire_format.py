"""Batches of records of which each begins with a prefix that says what it was written with, as in Confluent's wire
format.

The records of each prefix are decoded together, and put back in the order of the records. A batch that cannot be
decoded is halved until the bad records are alone. What is between the prefix and the columns is for the decoder of each
format.

Avro and Protobuf have two readers each. The one of the format's own library decides what is right. The quick one reads
many values at once, and only of schemas and values of which it is certain.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from itertools import accumulate
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from airflow_kafka_offsets.core.bisection import Failure, Run, is_panic, split_at_failures
from airflow_kafka_offsets.core.text import first_few, shortened
from airflow_kafka_offsets.exceptions import NewFieldError, NewSchemaError, StagingError
from airflow_kafka_offsets.formats.record_format import BadRecord, Decoded, OnNewField, RefusedSchemasError, SchemaError
from airflow_kafka_offsets.formats.room import room_of_result

log = logging.getLogger(__name__)

MAGIC, WIRE_PREFIX = b"\0", 5
"""In Confluent's wire format, the byte before the id of a schema, and the length of both."""

NOT_NULL = "column {!r} is declared NOT NULL, and is missing or null"
"""The reason for a null, by the name of its column."""

# So many values are read one by one, which takes as long as a few passes of a quick reader.
_FEW_VALUES = 64

# So many bytes of values are read one by one until what was read becomes Arrow's: Python's objects may take 200 times
# as much.
_MOST_BYTES = 1 << 20

# Whoever writes records can give each another prefix, also one that means the same.
_MOST_DECODERS = 256

# Of the schemas of these decoders: parsed, they are many times as large. A type that is used takes as much as so many
# characters.
_MOST_CHARACTERS, _OF_TYPE = 8_000_000, 40


class MismatchError(SchemaError):
    """No value of a type can become the column."""


class UnreadableError(Exception):
    """At least one of the values is none of the schema, or does not fit a column; says why, without the value."""


class Part(NamedTuple):
    """Rows, and the indexes of their records in the batch."""

    indexes: pa.Array
    columns: list[pa.Array]


def schema_id(prefix: bytes) -> int:
    """Return the id of a schema in a prefix of Confluent's wire format.

    :raises SchemaError: it is none
    """
    if len(prefix) < WIRE_PREFIX or prefix[:1] != MAGIC:
        raise SchemaError("it does not begin with the byte 0 and the id of a schema, as Confluent's wire format does")
    number = int.from_bytes(prefix[1:WIRE_PREFIX], "big", signed=True)
    if number < 0:
        # Registries have Java's integers, and take others for no number.
        raise SchemaError("what should be the id of a schema is negative")
    return number


def schema_id_of(value: bytes | None) -> int | None:
    """Return the id at the beginning of a value; None where it has none."""
    try:
        return None if value is None else schema_id(value)
    except SchemaError:
        return None


class SchemaDecoder(Protocol):
    """Decodes the values of one writer's schema."""

    @property
    def unread(self) -> list[str]:
        """The fields of the schema without a column."""

    @property
    def types(self) -> int:
        """The number of types that the decoder keeps, each counted as it is used in the schema."""

    def parts(self, values: pa.Array, indexes: pa.Array) -> Iterator[Part | BadRecord]:
        """Decode values.

        :param values: without their prefixes, and without nulls
        :param indexes: those of the records in their batch
        """


class PrefixedDecoder:
    """Decodes one value a record.

    :param columns: the declared columns
    :param decoder_of: returns what decodes the values with a prefix; raises a SchemaError where nothing does; is asked
        once for each
    :param prefix_length: the number of bytes before a value, by the first bytes of the record: at least so many as
        these are, if more have to be seen
    :param has_ids: whether a prefix begins with the id of a schema, which begins the reasons of bad records
    :param on_new_field: what to do with fields of a schema without a column
    :param left_out: the fields that make the values of a schema bad instead, with reasons
    :param schemas_read: filled by `decoder_of`; the schemas of the values that were seen, by id
    :param is_new: returns whether another load knows the schema with an id, whose fields it adds
    """

    def __init__(
        self,
        columns: pa.Schema,
        decoder_of: Callable[[bytes], SchemaDecoder],
        prefix_length: Callable[[bytes], int] = lambda _: WIRE_PREFIX,
        *,
        has_ids: bool = True,
        on_new_field: OnNewField = "ignore",
        left_out: Mapping[str, str] = MappingProxyType({}),
        schemas_read: Mapping[int, Any] | None = None,
        is_new: Callable[[int], bool] = lambda _: True,
    ) -> None:
        self._is_new = is_new
        self._columns, self._decoder_of, self._prefix_length = columns, decoder_of, prefix_length
        self.schemas_read = schemas_read if schemas_read is not None else {}
        self._has_ids, self._on_new_field, self._left_out = has_ids, on_new_field, left_out
        self._decoders: dict[bytes, SchemaDecoder | str] = {}
        self._characters = 0

    def __call__(self, records: pa.RecordBatch) -> Decoded:
        """Decode records; see `Decoder`."""
        parts: list[Part] = []
        bad: list[BadRecord] = []
        for part in self._parts(records.column("value")):
            if isinstance(part, BadRecord):
                number = schema_id_of(records.column("value")[part.row].as_py()) if self._has_ids else None
                label = "" if number is None else f"schema {number}: "
                bad.append(part._replace(reason=shortened(f"{label}{part.reason}")))
            else:
                parts.append(part)
        return Decoded(self._joined(parts, records.num_rows), sorted(bad))

    def _parts(self, values: pa.Array) -> Iterator[Part | BadRecord]:
        indexes = pa.array(range(len(values)), pa.int64())
        if values.null_count:
            yield from self._tombstones(indexes.filter(values.is_null()))
            indexes = indexes.filter(values.is_valid())
            values = values.drop_null()
        for prefix, own, own_indexes in self._groups(values, indexes, self._prefix_length(b"")):
            try:
                decoder = self._decoder(prefix)
            except RefusedSchemasError as error:
                error.row = own_indexes[0].as_py()
                raise
            if isinstance(decoder, str):
                yield from (BadRecord(index, decoder) for index in own_indexes.to_pylist())
            else:
                # Without an end, pyarrow 26.0 fails.
                own = pc.binary_slice(own, len(prefix), 1 << 30) if prefix else own
                yield from decoder.parts(own, own_indexes)

    def _groups(self, values: pa.Array, indexes: pa.Array, length: int) -> Iterator[tuple[bytes, pa.Array, pa.Array]]:
        """Yield each prefix, with its values and their indexes.

        :param length: the number of bytes by which the values are told apart; some prefixes may be longer
        """
        heads = pc.binary_slice(values, 0, length).dictionary_encode()
        for head, places in zip(heads.dictionary.to_pylist(), _places(heads), strict=True):
            own, own_indexes = (values, indexes) if places is None else (values.take(places), indexes.take(places))
            needed = self._prefix_length(head)
            if needed > length and len(head) == length:
                yield from self._groups(own, own_indexes, needed)
            else:
                yield head, own, own_indexes

    def _decoder(self, prefix: bytes) -> SchemaDecoder | str:
        """Return what decodes the values with a prefix, or why none of them can be.

        :raises RefusedSchemasError: too many others cannot be
        """
        if prefix not in self._decoders:
            if len(self._decoders) == _MOST_DECODERS or self._characters > _MOST_CHARACTERS:
                self._decoders.clear()
                self._characters = 0
            try:
                decoder = self._decoder_of(prefix)
                self._check_unread(decoder.unread, prefix)
            except SchemaError as error:
                self._decoders[prefix] = str(error)
            except (RecursionError, MemoryError) as error:
                self._decoders[prefix] = f"its schema cannot be used: {type(error).__name__}"
            else:
                self._decoders[prefix] = decoder
                self._characters += _OF_TYPE * decoder.types
                if self._has_ids:
                    self._characters += len(str(self.schemas_read.get(schema_id(prefix))))
        return self._decoders[prefix]

    def _check_unread(self, names: Sequence[str], prefix: bytes) -> None:
        """Check the fields of a schema without a column.

        :raises SchemaError: one of them was left out, or will never be added
        :raises NewFieldError: there are some, which are not ignored
        """
        for name in names:
            if name in self._left_out:
                raise SchemaError(f"its field {name!r} cannot become a column: {self._left_out[name]}")
        is_added = names and self._on_new_field == "add"
        if is_added and self._has_ids and not self._is_new(schema_id(prefix)):
            raise SchemaError(
                f"its field {names[0]!r} is no column, and on_new_field='add' does not add it: the schema is none of "
                "the newest versions of the subject; declare the field"
            )
        if names and self._on_new_field != "ignore":
            schema = f"Schema {schema_id(prefix)}" if self._has_ids else "The schema"
            raise new_field_error(schema, names, self._on_new_field)

    def _tombstones(self, indexes: pa.Array) -> Iterator[Part | BadRecord]:
        required = [field.name for field in self._columns if not field.nullable]
        if required:
            reason = NOT_NULL.format(required[0])
            yield from (BadRecord(index, reason) for index in indexes.to_pylist())
        else:
            yield Part(indexes, [pa.nulls(len(indexes), field.type) for field in self._columns])

    def _joined(self, parts: Sequence[Part], count: int) -> pa.RecordBatch:
        if not parts:
            return pa.RecordBatch.from_pylist([], schema=self._columns)
        columns = [pa.concat_arrays(arrays) for arrays in zip(*(part.columns for part in parts), strict=True)]
        if len(parts) > 1:
            order = pc.sort_indices(pa.concat_arrays([part.indexes for part in parts]))
            columns = [column.take(order) for column in columns]
        return pa.RecordBatch.from_arrays(columns, schema=self._columns)


def new_field_error(schema: str, fields: Sequence[str], on_new_field: OnNewField) -> NewFieldError:
    """Return the error for records with fields without a column.

    :param schema: theirs, for the message
    """
    names = first_few(map(repr, fields))
    if on_new_field == "add":
        return NewSchemaError(
            f"{schema} has fields without a column: {names}. The schema was not known when the load was planned: run "
            "the task again, to fetch new schemas of the subject. If the subject has none at all, name the one of the "
            "schema, or declare the fields"
        )
    return NewFieldError(
        f"{schema} has fields without a column: {names}. Nothing of this batch was written and no position moved; "
        "declare them, or leave such fields out with on_new_field='ignore'"
    )


def _places(heads: pa.DictionaryArray) -> list[pa.Array | None]:
    """Return the places of each item of a dictionary; None for all places."""
    if len(heads.dictionary) == 1:
        return [None]
    order = pc.sort_indices(heads.indices)
    # A dictionary has its items in the order of their first places, and so have the counts.
    counts = pc.value_counts(heads.indices).field("counts").to_pylist()
    return [order.slice(end - count, count) for count, end in zip(counts, accumulate(counts), strict=True)]


class ValueReader(ABC):
    """Reads values of one writer's schema into Arrow arrays, by names.

    :ivar alike: `read_each` takes all values of at most so many bytes that `read` takes
    """

    alike: int = -1

    @cached_property
    def is_vectorized(self) -> bool:
        """Whether `read` can be used for the schema: it reads values of it as `read_each` does."""
        values = pa.array(self.certain_values(), pa.binary())
        if not values:
            return False
        try:
            agree = self.read(values) == self.read_each(values)[0]
        except (UnreadableError, StagingError):
            agree = False
        if not agree:
            log.warning(
                "%s decodes one by one: the library that reads many values together differs", type(self).__name__
            )
        return agree

    @abstractmethod
    def certain_values(self) -> list[bytes]:
        """Return values of the schema; none if the quick reader is not certain of the schema."""

    @abstractmethod
    def read(self, values: pa.Array) -> dict[str, pa.Array]:
        """Return the arrays of values that are all readable, by the quick reader.

        :param values: binary, without nulls
        :raises UnreadableError: it is not certain of one of them
        """

    @abstractmethod
    def read_each(self, values: pa.Array) -> tuple[dict[str, pa.Array], dict[int, str]]:
        """Return the arrays of the values that the deciding reader takes, and the places of others, with reasons.

        :raises UnreadableError: it cannot be said of which value this is true
        """


@contextmanager
def refusals(name: str, reason: str, is_of_values: Callable[[BaseException], bool]) -> Iterator[None]:
    """Raise what a quick reader means: whatever has another cause than the values must not make records bad.

    :param name: of the format
    :param reason: what is wrong with a value that it does not take
    :param is_of_values: returns whether an error is about the values
    """
    try:
        yield
    except BaseException as error:
        if is_panic(error) or is_of_values(error):
            raise UnreadableError(reason) from None
        if not isinstance(error, Exception):
            raise
        raise StagingError(f"The reader of {name} failed: {shortened(str(error))}") from error


class TwoReaders(ABC):
    """Decodes the values of one writer's schema.

    A value is good if the deciding reader takes it, or the quick one alone: so no record depends on its neighbours.

    :param columns: the declared columns
    :param unread: the fields of the schema without a column
    :param types: see `SchemaDecoder`
    """

    def __init__(self, columns: pa.Schema, reader: ValueReader, unread: list[str], types: int = 0) -> None:
        self._columns, self._reader, self.unread, self.types = columns, reader, unread, types

    @property
    def is_vectorized(self) -> bool:
        """Whether the quick reader is certain of the schema."""
        return self._reader.is_vectorized

    @abstractmethod
    def column(self, place: int, found: Mapping[str, pa.Array], count: int) -> pa.Array:
        """Return the values of a declared column.

        :param place: of the column
        :param found: what was read
        :param count: the number of values
        :raises MismatchError: no value can become a value of the column
        :raises UnreadableError: one of them does not fit the column
        """

    def rows(self, found: Mapping[str, pa.Array], count: int) -> tuple[list[pa.Array], dict[int, str]]:
        """Return the declared columns of the values that fit them, and the places of the others, with reasons.

        Each column is converted once, and by halves where a value does not fit: thousands of these would take as many
        times as long as all columns.
        """
        rows: list[pa.Array] = []
        wrong: dict[int, str] = {}
        places = pa.array(range(count), pa.int64())
        for place in range(len(self._columns)):
            try:
                rows.append(self._column(place, found, len(places)))
            except UnreadableError:
                row, unfit = self._by_halves(place, found, len(places))
                wrong |= {places[each].as_py(): reason for each, reason in unfit.items()}
                kept = _without(unfit, len(places))
                places, rows = places.filter(kept), [*(row.filter(kept) for row in rows), row]
                found = {name: array.filter(kept) for name, array in found.items()}
        return rows, wrong

    def _by_halves(self, place: int, found: Mapping[str, pa.Array], count: int) -> tuple[pa.Array, dict[int, str]]:
        def column(first: int, end: int) -> pa.Array:
            return self._column(place, _Slices(found, first, end), end - first)

        parts = [*split_at_failures(count, column, UnreadableError)]
        arrays = [
            pa.array([], self._columns.field(place).type),
            *(part.result for part in parts if isinstance(part, Run)),
        ]
        return pa.concat_arrays(arrays), {part.position: str(part.error) for part in parts if isinstance(part, Failure)}

    @room_of_result(UnreadableError)
    def _column(self, place: int, found: Mapping[str, pa.Array], count: int) -> pa.Array:
        field = self._columns.field(place)
        try:
            array = self.column(place, found, count)
        except MismatchError as error:
            raise SchemaError(f"column {field.name!r}: {error}") from None
        except UnreadableError as error:
            raise UnreadableError(f"column {field.name!r}: {error}") from None
        if not field.nullable and array.null_count:
            raise UnreadableError(NOT_NULL.format(field.name))
        return array

    def read(self, values: pa.Array) -> tuple[list[pa.Array], dict[int, str]]:
        """Return the columns of values, by the quick reader; see `rows`.

        :raises UnreadableError: it is not certain of one of them
        """
        return self.rows(self._reader.read(values), len(values))

    def parts(self, values: pa.Array, indexes: pa.Array) -> Iterator[Part | BadRecord]:
        """Decode values in as few parts as the bad ones among them allow; see `SchemaDecoder`."""

        @room_of_result(UnreadableError)
        def decode(first: int, end: int) -> list[Part | BadRecord]:
            return self._parts(values[first:end], indexes[first:end])

        for found in split_at_failures(len(values), decode, UnreadableError):
            if isinstance(found, Run):
                yield from found.result
            else:
                yield BadRecord(indexes[found.position].as_py(), str(found.error))

    def _parts(self, values: pa.Array, indexes: pa.Array) -> list[Part | BadRecord]:
        if not self.is_vectorized:
            return self._parts_each(values, indexes)
        try:
            columns, wrong = self.read(values)
        except UnreadableError:
            if len(values) > _FEW_VALUES:
                raise
            return self._parts_each(values, indexes)
        return _judged(indexes, columns, wrong)

    def _parts_each(self, values: pa.Array, indexes: pa.Array) -> list[Part | BadRecord]:
        """Decode values by the deciding reader first."""
        if len(values) > 1 and values.nbytes > _MOST_BYTES:
            half = len(values) // 2
            return [*self._parts_each(values[:half], indexes[:half]), *self._parts_each(values[half:], indexes[half:])]
        found, wrong = self._reader.read_each(values)
        columns, unfit = self.rows(found, len(values) - len(wrong))
        parts = _judged(indexes.filter(_without(wrong, len(values))), columns, unfit)
        for place, reason in wrong.items():
            parts += self._parts_alone(values[place : place + 1], indexes[place : place + 1], reason)
        return parts

    def _parts_alone(self, value: pa.Array, index: pa.Array, reason: str) -> list[Part | BadRecord]:
        """Return what becomes of a value that the deciding reader does not take."""
        if self.is_vectorized and len(value[0].as_buffer()) > self._reader.alike:
            with suppress(UnreadableError):
                return _judged(index, *self.read(value))
        return [BadRecord(index[0].as_py(), reason)]


def _judged(indexes: pa.Array, columns: list[pa.Array], wrong: Mapping[int, str]) -> list[Part | BadRecord]:
    """Return the rows of values that fit their columns, and the others.

    :param indexes: of all of them
    """
    bad = [BadRecord(indexes[place].as_py(), reason) for place, reason in wrong.items()]
    return [Part(indexes.filter(_without(wrong, len(indexes))) if wrong else indexes, columns), *bad]


class _Slices(dict[str, pa.Array]):
    """Slices of arrays, of which few are asked for."""

    def __init__(self, arrays: Mapping[str, pa.Array], first: int, end: int) -> None:
        self._arrays, self._first, self._end = arrays, first, end

    def __missing__(self, name: str) -> pa.Array:
        return self._arrays[name][self._first : self._end]


def _without(places: Collection[int], count: int) -> pa.Array:
    """Return a mask of all places but some."""
    return pa.array([place not in places for place in range(count)], pa.bool_())
