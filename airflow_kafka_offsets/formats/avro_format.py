"""The format Avro, as a DAG author writes it. A DAG file imports this module: the decoder is in `avro_decoder`."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

from airflow_kafka_offsets.core.templates import Templated
from airflow_kafka_offsets.exceptions import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_kafka_offsets.formats.avro_schema import Type
    from airflow_kafka_offsets.formats.record_format import ColumnsFrom, Connections, Decoder, OnNewField
    from airflow_kafka_offsets.formats.schema_registry import RegisteredSchema

log = logging.getLogger(__name__)

_LIBRARIES = {name: name for name in ("datafusion", "fastavro", "httpx")}


@dataclass(frozen=True, slots=True)
class Avro(Templated):
    """One Avro value a record: in Confluent's wire format with a schema registry, or plain, with a given schema.

    What a record was written with becomes the columns by Avro's rules: numbers are promoted, fields that are not
    declared are ignored, and missing ones have the default of the reader's schema, or are null. The reader's schema is
    `schema`; if neither it nor columns are given, it is the latest of the subject.

    :param ddl: the columns as Spark DDL, by the names of the fields; None for all fields of the reader's schema
        (templated)
    :param registry_conn_id: an Airflow connection of type `http`; None if no record has the id of a schema (templated)
    :param subject: whose schemas are fetched before Spark starts; None is the name of the topic with `-value` or `-key`
        (templated)
    :param schema: a schema as JSON; without a registry the records are written with it, too (templated)
    :param single_object: whether the values have Avro's single-object encoding; without a registry only
    :param column: the name of the only column, if the schema is no record (templated)
    :param columns_from: where no columns are declared, `schema` for all fields of the reader's schema, or `target` for
        those that are columns of the target
    :param on_new_field: what becomes of fields that are no columns; the worker fills it in
    :param schemas: schemas by id, each after those that it refers to; the worker fills them in
    :param latest: the id of the reader's schema, if it is the latest of the subject; the worker fills it in
    """

    kind: ClassVar[str] = "avro"
    template_fields: ClassVar[tuple[str, ...]] = ("ddl", "registry_conn_id", "subject", "schema", "column")
    ddl: str | None = None
    registry_conn_id: str | None = None
    subject: str | None = None
    schema: str | None = None
    single_object: bool = False
    column: str = "value"
    columns_from: ColumnsFrom = "schema"
    on_new_field: OnNewField = field(default="ignore", repr=False)
    schemas: dict[str, list[str]] = field(default_factory=dict, repr=False)
    latest: str | None = field(default=None, repr=False)

    @property
    def reads_headers(self) -> bool:
        return False

    @property
    def conn_ids(self) -> tuple[str, ...]:
        """The connections that the worker and the tasks need."""
        return (self.registry_conn_id,) if self.registry_conn_id is not None else ()

    def fingerprint(self) -> str:
        # An id means the same schema forever: which of them are known decides nothing.
        return json.dumps([self.kind, self.registry_conn_id, self._reader_texts, self.single_object])

    def columns(self) -> pa.Schema:
        """Return the columns as an Arrow schema.

        :raises ConfigurationError: the DDL or the schema cannot be used, or nothing says what the columns are
        """
        from airflow_kafka_offsets.formats.avro_columns import columns_of
        from airflow_kafka_offsets.formats.schema_columns import check_columns_from
        from airflow_kafka_offsets.formats.spark_ddl import parse_ddl
        from airflow_kafka_offsets.formats.wire_format import SchemaError

        if self.registry_conn_id is None and self.schema is None:
            raise ConfigurationError("Avro needs registry_conn_id, or a schema; got neither")
        if self.registry_conn_id is not None and self.single_object:
            raise ConfigurationError(
                "Avro with a registry reads Confluent's wire format; single_object is for a schema without a registry"
            )
        check_columns_from(self.columns_from, self.ddl)
        reader = self._reader()
        if self.ddl is not None:
            return parse_ddl(self.ddl, binary=True)
        if reader is None:
            raise ConfigurationError(
                "Avro without columns needs a schema, which load and replay take from the registry"
            )
        try:
            return columns_of(reader, self.column)
        except SchemaError as error:
            raise ConfigurationError(f"The columns cannot be taken from the Avro schema: {error}") from error

    def prepared(self, topics: Sequence[str], part: str, connections: Connections) -> Avro:
        """Return the format with the schemas of the subjects; see `ConnectedFormat`."""
        from airflow_kafka_offsets.formats.subject_schemas import fetch_subjects, require_libraries, subjects_of

        require_libraries("Avro", "avro", _LIBRARIES)
        if self.registry_conn_id is None:
            if self.schema is not None:
                _log_way("The Avro schema", self._reader())
            return self
        subjects = subjects_of(self.subject, topics, part)
        found = fetch_subjects(self.registry_conn_id, connections, subjects, "AVRO")
        schemas = {number: _texts(registered) for number, registered in found.by_id.items()}
        for number, texts in schemas.items():
            _log_way(f"Schema {number}", _parsed(texts, f"Schema {number}"))
        if self.ddl is not None or self.schema is not None:
            return replace(self, schemas=schemas)
        latest = found.common(subjects, lambda number, _: _parsed(schemas[number], f"Schema {number}"))
        return replace(self, schemas=schemas, latest=latest)

    def field_names(self) -> list[str]:
        """Return the fields of all schemas that are known; see `SchemaFormat`."""
        reader = self._reader()
        # Fields of older schemas that a field of the reader's schema takes its values from.
        aliases = {alias for part in reader.fields for alias in part.aliases} if reader is not None else set()
        return [name for name in self._fields() if name not in aliases]

    def with_columns(self, names: Sequence[str], on_new_field: OnNewField) -> Avro:
        """Return the format with columns; see `SchemaFormat`."""
        from airflow_kafka_offsets.formats.avro_columns import column_type
        from airflow_kafka_offsets.formats.schema_columns import columns_ddl

        known = self._fields()
        ddl = columns_ddl(self.ddl, names, lambda name: column_type(known[name], name))
        return replace(self, ddl=ddl, columns_from="schema", on_new_field=on_new_field)

    def _fields(self) -> dict[str, Type]:
        """Return the fields of all schemas that are known, those of the reader's schema and of newer ones first."""
        from airflow_kafka_offsets.formats.avro_columns import fields_with_values

        kinds = [_parsed(texts, f"Schema {number}") for number, texts in reversed(self.schemas.items())]
        reader = self._reader()
        fields: dict[str, Type] = {}
        for kind in kinds if reader is None else [reader, *kinds]:
            own = (
                {self.column: kind}
                if kind.kind != "record"
                else {part.name: part.type for part in fields_with_values(kind)}
            )
            fields = fields | {name: part for name, part in own.items() if name not in fields}
        return fields

    @property
    def _reader_texts(self) -> list[str] | None:
        if self.schema is not None:
            return [self.schema]
        return self.schemas[self.latest] if self.latest is not None else None

    def _reader(self) -> Type | None:
        """Return the reader's schema.

        :raises ConfigurationError: it is no schema
        """
        return None if self._reader_texts is None else _parsed(self._reader_texts, "The reader's schema")

    def decoder(self, columns: pa.Schema) -> Decoder:
        """Return a decoder of plain values, or one that knows the schemas that were fetched, and asks for no other."""
        return self.connected_decoder(columns, {})

    def connected_decoder(self, columns: pa.Schema, connections: Connections) -> Decoder:
        """Return a decoder, which asks the registry for schemas that are not known."""
        from airflow_kafka_offsets.formats.avro_decoder import AvroDecoder
        from airflow_kafka_offsets.formats.avro_schema import parse
        from airflow_kafka_offsets.formats.avro_schemas import SINGLE_OBJECT_PREFIX, GivenSchema
        from airflow_kafka_offsets.formats.subject_schemas import TaskSchemas
        from airflow_kafka_offsets.formats.wire_format import PrefixedDecoder

        reader = self._reader()
        if self.registry_conn_id is not None:
            config = connections.get(self.registry_conn_id)
            texts_of = TaskSchemas(self.schemas, config, "AVRO", lambda _, registered: _texts(registered))

            def of_id(prefix: bytes) -> AvroDecoder:
                *references, text = texts_of(prefix)
                return AvroDecoder(parse(text, references), columns, reader)

            return PrefixedDecoder(columns, of_id, on_new_field=self.on_new_field, schemas_read=texts_of.read)
        assert reader is not None  # see `columns`
        given = GivenSchema(reader, self.schema or "", single_object=self.single_object)
        length = SINGLE_OBJECT_PREFIX if self.single_object else 0
        return PrefixedDecoder(
            columns,
            lambda prefix: AvroDecoder(given(prefix), columns, reader),
            lambda _: length,
            has_ids=False,
            on_new_field=self.on_new_field,
        )


def _texts(registered: RegisteredSchema) -> list[str]:
    return [*(reference.text for reference in registered.references), registered.text]


def _parsed(texts: Sequence[str], what: str) -> Type:
    """Return the last of some schemas, which may refer to the others.

    :raises ConfigurationError: it is no schema
    """
    from airflow_kafka_offsets.formats.avro_schema import parse
    from airflow_kafka_offsets.formats.wire_format import SchemaError

    try:
        return parse(texts[-1], texts[:-1])
    except SchemaError as error:
        raise ConfigurationError(f"{what} is no Avro schema that can be used: {error}") from error


def _log_way(what: str, kind: Type | None) -> None:
    from airflow_kafka_offsets.formats.avro_reader import AvroReader

    if kind is None:
        return
    fields = [f"f{place}" for place, part in enumerate(kind.fields) if part.type.physical is not None]
    if not AvroReader(kind, fields if kind.kind == "record" else ["f0"]).is_vectorized:
        log.info(
            "%s is decoded record by record, which takes longer: it is recursive, or has a union of several types", what
        )
