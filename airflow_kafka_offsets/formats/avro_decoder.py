"""The decoder of the format Avro: the values of one writer's schema, as the declared columns."""

from __future__ import annotations

import pyarrow as pa

from airflow_kafka_offsets.formats.avro_columns import (
    constant,
    converted,
    fields_with_values,
    sources,
)
from airflow_kafka_offsets.formats.avro_reader import AvroReader
from airflow_kafka_offsets.formats.avro_schema import Type, has_endless_lists
from airflow_kafka_offsets.formats.record_format import SchemaError
from airflow_kafka_offsets.formats.wire_format import MismatchError, TwoReaders, UnreadableError


class AvroDecoder(TwoReaders):
    """Decodes the values of one writer's schema.

    :param columns: the declared columns
    :param reader: the reader's schema, with aliases and defaults, if there is one

    :raises SchemaError: no value of the schema can become the columns
    """

    def __init__(self, kind: Type, columns: pa.Schema, reader: Type | None) -> None:
        if has_endless_lists(kind):
            raise SchemaError(
                "its schema has an array whose items take no bytes, so that a few bytes hold any number of them"
            )
        self._kinds = {f"f{place}": part.type for place, part in enumerate(kind.fields)}
        if kind.kind == "record":
            self._sources = sources(columns, kind, reader if reader is not None and reader.kind == "record" else None)
        elif len(columns) == 1:
            self._kinds, self._sources = {"f0": kind}, [(columns.field(0), 0, None)]
        else:
            raise SchemaError(
                f"its schema is of the type {kind.kind}, which is one column, and {len(columns)} are declared"
            )
        places = [place for _, place, _ in self._sources if place is not None]
        read = {kind.fields[place].name for place in places} if kind.kind == "record" else set()
        self._unread = [part.name for part in fields_with_values(kind) if part.name not in read]
        names = [f"f{place}" for place in places]
        for field, place, _ in self._sources:
            if place is not None and self._kinds[f"f{place}"].physical is None:
                raise SchemaError(f"column {field.name!r}: it is recursive, which no column can be")
        self._reader = AvroReader(kind, names)
        # Types that do not fit are found without values.
        nothing = {name: pa.array([], self._kinds[name].physical) for name in names}
        self._rows(nothing, 0)

    @property
    def unread(self) -> list[str]:
        return self._unread

    @property
    def is_vectorized(self) -> bool:
        return self._reader.is_vectorized

    def read(self, values: pa.Array) -> list[pa.Array]:
        return self._rows(self._reader.read(values), len(values))

    def read_each(self, values: pa.Array) -> tuple[list[pa.Array], dict[int, str]]:
        found, wrong = self._reader.read_each(values)
        return self._rows(found, len(values) - len(wrong)), wrong

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
