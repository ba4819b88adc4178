"""The format JSON Schema, as a DAG author writes it: JSON in Confluent's wire format. A DAG file imports this
module.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_kafka_offsets.core.templates import Templated
from airflow_kafka_offsets.exceptions import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_kafka_offsets.formats.record_format import BadRecord, ColumnsFrom, Connections, Decoder, OnNewField
    from airflow_kafka_offsets.formats.schema_registry import RegisteredSchema
    from airflow_kafka_offsets.formats.wire_format import Part

_LIBRARIES = {"httpx": "httpx"}

_Plain = dict[str, Any]
"""A schema as JSON can hold it: its `text`, and the `references` with their names and texts."""


@dataclass(frozen=True, slots=True)
class JsonSchema(Templated):
    """One JSON object a record, with the id of its JSON Schema before it, decoded as `Json` does.

    Records are not validated against their schemas. What does not fit its column is bad, and so is a record whose id
    the registry does not know as that of a JSON Schema.

    :param ddl: the columns as Spark DDL; None for the properties of the subject's latest schema (templated)
    :param registry_conn_id: an Airflow connection of type `http` (templated)
    :param subject: whose schemas are fetched before Spark starts; None is the name of the topic with `-value` or `-key`
        (templated)
    :param columns_from: where no columns are declared, `schema` for all properties of the latest schema, or `target`
        for those that are columns of the target
    :param on_new_field: what becomes of properties that are no columns; the worker fills it in
    :param schemas: schemas by id, with those that they refer to by name; the worker fills them in
    :param latest: the id of the schema that has the columns, if they are not declared; the worker fills it in
    """

    kind: ClassVar[str] = "json_schema"
    template_fields: ClassVar[tuple[str, ...]] = ("ddl", "registry_conn_id", "subject")
    ddl: str | None = None
    registry_conn_id: str | None = None
    subject: str | None = None
    columns_from: ColumnsFrom = "schema"
    on_new_field: OnNewField = field(default="ignore", repr=False)
    schemas: dict[str, _Plain] = field(default_factory=dict, repr=False)
    latest: str | None = field(default=None, repr=False)

    @property
    def reads_headers(self) -> bool:
        return False

    @property
    def conn_ids(self) -> tuple[str, ...]:
        """The connections that the worker and the tasks need."""
        return (self.registry_conn_id,) if self.registry_conn_id is not None else ()

    def fingerprint(self) -> str:
        return json.dumps([self.kind, self.registry_conn_id])

    def columns(self) -> pa.Schema:
        """Return the columns as an Arrow schema.

        :raises ConfigurationError: the DDL cannot be used, or nothing says what the columns are
        """
        from airflow_kafka_offsets.formats.schema_columns import check_columns_from
        from airflow_kafka_offsets.formats.spark_ddl import parse_ddl

        if self.registry_conn_id is None:
            raise ConfigurationError(
                "JsonSchema needs registry_conn_id; JSON without the id of a schema is the format Json"
            )
        check_columns_from(self.columns_from, self.ddl)
        if self.ddl is not None:
            return parse_ddl(self.ddl)
        if self.latest is None:
            raise ConfigurationError(
                "JsonSchema without columns needs a schema, which load and replay take from the registry"
            )
        return _columns(self.latest, _registered(self.schemas[self.latest]))

    def prepared(self, topics: Sequence[str], part: str, connections: Connections) -> JsonSchema:
        """Return the format with the schemas of the subjects; see `ConnectedFormat`."""
        from airflow_kafka_offsets.formats.subject_schemas import fetch_subjects, require_libraries, subjects_of

        require_libraries("JsonSchema", "json-schema", _LIBRARIES)
        if self.registry_conn_id is None:
            return self
        subjects = subjects_of(self.subject, topics, part)
        found = fetch_subjects(self.registry_conn_id, connections, subjects, "JSON")
        with_schemas = replace(self, schemas={number: _plain(schema) for number, schema in found.by_id.items()})
        return with_schemas if self.ddl is not None else replace(with_schemas, latest=found.common(subjects, _columns))

    def field_names(self) -> list[str]:
        """Return the properties of all schemas that are known; see `SchemaFormat`."""
        return list(self._properties())

    def with_columns(self, names: Sequence[str], on_new_field: OnNewField) -> JsonSchema:
        """Return the format with columns; see `SchemaFormat`."""
        from airflow_kafka_offsets.formats.json_schema import column_type
        from airflow_kafka_offsets.formats.schema_columns import columns_ddl

        known = self._properties()
        ddl = columns_ddl(self.ddl, names, lambda name: column_type(known[name], name))
        return replace(self, ddl=ddl, columns_from="schema", on_new_field=on_new_field)

    def _properties(self) -> dict[str, RegisteredSchema]:
        """Return the newest schema with each property, those of the latest schema first."""
        from airflow_kafka_offsets.formats.json_schema import property_names
        from airflow_kafka_offsets.formats.wire_format import SchemaError

        properties: dict[str, RegisteredSchema] = {}
        for number, plain in reversed(self.schemas.items()):
            registered = _registered(plain)
            try:
                names = property_names(registered)
            except SchemaError as error:
                raise ConfigurationError(
                    f"The properties of the JSON Schema {number} are not known: {error}"
                ) from error
            properties = properties | {name: registered for name in names if name not in properties}
        return properties

    def decoder(self, columns: pa.Schema) -> Decoder:
        """Return a decoder that knows the ids that were fetched, and asks for no other."""
        return self.connected_decoder(columns, {})

    def connected_decoder(self, columns: pa.Schema, connections: Connections) -> Decoder:
        """Return a decoder, which asks the registry for ids that are not known."""
        from airflow_kafka_offsets.formats.subject_schemas import TaskSchemas
        from airflow_kafka_offsets.formats.wire_format import PrefixedDecoder

        config = connections.get(self.registry_conn_id or "")
        schema_of = TaskSchemas(self.schemas, config, "JSON", lambda _, registered: _plain(registered))
        values = _JsonValues(columns, [])

        def of_id(prefix: bytes) -> _JsonValues:
            plain = schema_of(prefix)
            return values if self.on_new_field == "ignore" else _JsonValues(columns, _unread(plain, columns))

        return PrefixedDecoder(columns, of_id, on_new_field=self.on_new_field, schemas_read=schema_of.read)


class _JsonValues:
    """Decodes JSON of any schema; see `SchemaDecoder`."""

    def __init__(self, columns: pa.Schema, unread: list[str]) -> None:
        from airflow_kafka_offsets.formats.json_decoder import JsonDecoder

        self.unread = unread
        self._decode = JsonDecoder(columns)

    def parts(self, values: pa.Array, indexes: pa.Array) -> Iterator[Part | BadRecord]:
        import pyarrow as pa

        from airflow_kafka_offsets.formats.wire_format import Part

        rows, bad = self._decode(pa.RecordBatch.from_arrays([values], ["value"]))
        if bad:
            places = indexes.to_pylist()
            yield from (record._replace(row=places[record.row]) for record in bad)
            refused = {record.row for record in bad}
            indexes = indexes.filter(pa.array([place not in refused for place in range(len(values))], pa.bool_()))
        yield Part(indexes, rows.columns)


def _unread(plain: _Plain, columns: pa.Schema) -> list[str]:
    from airflow_kafka_offsets.formats.json_schema import property_names

    return [name for name in property_names(_registered(plain)) if name not in columns.names]


def _plain(registered: RegisteredSchema) -> _Plain:
    return {"text": registered.text, "references": [list(reference) for reference in registered.references]}


def _registered(plain: _Plain) -> RegisteredSchema:
    from airflow_kafka_offsets.formats.schema_registry import Reference, RegisteredSchema

    return RegisteredSchema("JSON", plain["text"], tuple(Reference(*reference) for reference in plain["references"]))


def _columns(number: str, registered: RegisteredSchema) -> pa.Schema:
    from airflow_kafka_offsets.formats.json_schema import columns_of
    from airflow_kafka_offsets.formats.wire_format import SchemaError

    try:
        return columns_of(registered)
    except SchemaError as error:
        raise ConfigurationError(f"The columns cannot be taken from the JSON Schema {number}: {error}") from error
