"""The format Avro, as a DAG author writes it. A DAG file imports this module: the decoder is in `avro_decoder`."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, ClassVar

from airflow_kafka_offsets.exceptions import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_kafka_offsets.formats.avro_schema import Type
    from airflow_kafka_offsets.formats.record_format import ColumnsFrom, Connections, Decoder, OnNewField
    from airflow_kafka_offsets.formats.schema_registry import SchemaRegistry

log = logging.getLogger(__name__)

_LIBRARIES = ("datafusion", "fastavro", "httpx")

# Of each subject; tasks ask for older ones where a record has one.
_VERSIONS = 50


@dataclass(frozen=True, slots=True)
class Avro:
    """One Avro value a record: in Confluent's wire format with a schema registry, or plain, with a given schema.

    What a record was written with becomes the columns by Avro's rules: numbers are promoted, fields that are not declared are
    ignored, and missing ones have the default of the reader's schema, or are null. The reader's schema is `schema`; if neither it nor
    columns are given, it is the latest of the subject.

    :param ddl: the columns as Spark DDL, by the names of the fields; None for all fields of the reader's schema
    :param registry_conn_id: an Airflow connection of type `http`; None if no record has the id of a schema
    :param subject: whose schemas are fetched before Spark starts; None is the name of the topic with `-value` or `-key`
    :param schema: a schema as JSON; without a registry the records are written with it, too
    :param single_object: whether the values have Avro's single-object encoding; without a registry only
    :param column: the name of the only column, if the schema is no record
    :param columns_from: where no columns are declared, `schema` for all fields of the reader's schema, or `target` for those that are
        columns of the target
    :param on_new_field: what becomes of fields that are no columns; the worker fills it in
    :param schemas: schemas by id, each after those that it refers to; the worker fills them in
    :param latest: the id of the reader's schema, if it is the latest of the subject; the worker fills it in
    """

    kind: ClassVar[str] = "avro"
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
        from airflow_kafka_offsets.formats.avro_schema import SchemaError
        from airflow_kafka_offsets.formats.spark_ddl import parse_ddl

        if self.registry_conn_id is None and self.schema is None:
            raise ConfigurationError("Avro needs registry_conn_id, or a schema; got neither")
        if self.registry_conn_id is not None and self.single_object:
            raise ConfigurationError(
                "Avro with a registry reads Confluent's wire format; single_object is for a schema without a registry"
            )
        if self.columns_from not in ("schema", "target") or (self.columns_from == "target" and self.ddl is not None):
            raise ConfigurationError(
                "Avro has the columns that are declared, or columns_from='schema' or 'target'; got "
                f"columns_from={self.columns_from!r}{' with declared columns' if self.ddl is not None else ''}"
            )
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
        for library in _LIBRARIES:
            if find_spec(library) is None:
                raise ConfigurationError(
                    f"The format Avro needs {library}: install the extra 'airflow-kafka-offsets[avro]' on the worker, and "
                    f"{', '.join(_LIBRARIES)} where Spark's executors run"
                )
        if self.registry_conn_id is None:
            if self.schema is not None:
                _log_way("The Avro schema", self._reader())
            return self
        registry = _registry(self.registry_conn_id, connections)
        try:
            return self._with_schemas(
                registry, [self.subject] if self.subject else [f"{topic}-{part}" for topic in topics]
            )
        finally:
            registry.close()

    def _with_schemas(self, registry: SchemaRegistry, subjects: Sequence[str]) -> Avro:
        from airflow_kafka_offsets.formats.schema_registry import NotFoundError

        schemas: dict[str, list[str]] = {}
        latest: dict[str, str] = {}
        for subject in subjects:
            try:
                versions = registry.versions(subject)[-_VERSIONS:]
            except NotFoundError:
                versions = []
            for version in versions:
                found, registered = registry.version(subject, version)
                if registered.type == "AVRO":
                    schemas[str(found)] = [*registered.references, registered.text]
                    latest[subject] = str(found)
        for number, texts in schemas.items():
            _log_way(f"Schema {number}", _parsed(texts, f"Schema {number}"))
        if self.ddl is not None or self.schema is not None:
            return replace(self, schemas=schemas)
        if missing := [subject for subject in subjects if subject not in latest]:
            raise ConfigurationError(
                f"The schema registry at {registry.host} has no Avro schema of subject {missing[0]!r}, from which the columns would be "
                "taken: declare the columns, or name another subject"
            )
        kinds = {subject: _parsed(schemas[number], f"Schema {number}") for subject, number in latest.items()}
        first, *others = kinds.values()
        if any(other != first for other in others):
            raise ConfigurationError(
                f"The latest schemas of {', '.join(kinds)} differ: declare the columns, or name one subject, of which all topics "
                "have the columns then"
            )
        return replace(self, schemas=schemas, latest=latest[subjects[0]])

    def field_names(self) -> list[str]:
        """Return the fields of all schemas that are known; see `SchemaFormat`."""
        reader = self._reader()
        # Fields of older schemas that a field of the reader's schema takes its values from.
        aliases = {alias for part in reader.fields for alias in part.aliases} if reader is not None else set()
        return [name for name in self._fields() if name not in aliases]

    def with_columns(self, names: Sequence[str], on_new_field: OnNewField) -> Avro:
        """Return the format with columns; see `SchemaFormat`."""
        import pyarrow as pa

        from airflow_kafka_offsets.formats.avro_columns import column_type
        from airflow_kafka_offsets.formats.avro_schema import SchemaError
        from airflow_kafka_offsets.formats.spark_ddl import parse_ddl, spark_ddl

        declared = parse_ddl(self.ddl, binary=True) if self.ddl is not None else pa.schema([])
        known = self._fields()
        try:
            columns = [
                declared.field(name) if name in declared.names else pa.field(name, column_type(known[name], name))
                for name in names
            ]
        except SchemaError as error:
            raise ConfigurationError(
                f"A field of the Avro schemas cannot become a column: {error}, or leave it out with on_new_field='ignore'"
            ) from error
        return replace(self, ddl=spark_ddl(pa.schema(columns)), columns_from="schema", on_new_field=on_new_field)

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
        from airflow_kafka_offsets.formats.avro_decoder import SINGLE_OBJECT_PREFIX, WIRE_PREFIX, AvroDecoder
        from airflow_kafka_offsets.formats.avro_schemas import GivenSchema, WireSchemas

        reader = self._reader()
        if self.registry_conn_id is not None:
            schemas = WireSchemas(self.schemas, connections.get(self.registry_conn_id))
            return AvroDecoder(columns, reader, WIRE_PREFIX, schemas, self.on_new_field)
        assert reader is not None  # see `columns`
        given = GivenSchema(reader, self.schema or "", single_object=self.single_object)
        prefix = SINGLE_OBJECT_PREFIX if self.single_object else 0
        return AvroDecoder(columns, reader, prefix, given, self.on_new_field)


def _parsed(texts: Sequence[str], what: str) -> Type:
    """Return the last of some schemas, which may refer to the others.

    :raises ConfigurationError: it is no schema
    """
    from airflow_kafka_offsets.formats.avro_schema import SchemaError, parse

    try:
        return parse(texts[-1], texts[:-1])
    except SchemaError as error:
        raise ConfigurationError(f"{what} is no Avro schema that can be used: {error}") from error


def _registry(conn_id: str, connections: Connections) -> SchemaRegistry:
    from airflow_kafka_offsets.formats.schema_registry import SchemaRegistry

    if conn_id not in connections:
        raise ConfigurationError(
            f"The schema registry {conn_id!r} has no configuration: give load or replay connections={{{conn_id!r}: {{'url': …}}}}"
        )
    return SchemaRegistry(connections[conn_id])


def _log_way(what: str, kind: Type | None) -> None:
    from airflow_kafka_offsets.formats.avro_reader import AvroReader

    if kind is None:
        return
    fields = [f"f{place}" for place, part in enumerate(kind.fields) if part.type.physical is not None]
    if not AvroReader(kind, fields if kind.kind == "record" else ["f0"]).is_vectorized:
        log.info("%s is decoded record by record, which takes longer: it is recursive, or has unusual unions", what)
