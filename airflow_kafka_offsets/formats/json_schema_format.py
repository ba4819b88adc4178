"""The format JSON Schema, as a DAG author writes it: JSON in Confluent's wire format. A DAG file imports this module."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

from airflow_kafka_offsets.exceptions import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_kafka_offsets.formats.record_format import BadRecord, Connections, Decoder
    from airflow_kafka_offsets.formats.schema_registry import RegisteredSchema
    from airflow_kafka_offsets.formats.wire_format import Part

_LIBRARIES = {"httpx": "httpx"}


@dataclass(frozen=True, slots=True)
class JsonSchema:
    """One JSON object a record, with the id of its JSON Schema before it, decoded as `Json` does.

    Records are not validated against their schemas. What does not fit its column is bad, and so is a record whose id the registry does
    not know as that of a JSON Schema.

    :param ddl: the columns as Spark DDL; None for the properties of the subject's latest schema; the worker fills it in then
    :param registry_conn_id: an Airflow connection of type `http`
    :param subject: whose schemas are fetched before Spark starts; None is the name of the topic with `-value` or `-key`
    :param known: the ids that need not be asked for; the worker fills them in
    """

    kind: ClassVar[str] = "json_schema"
    ddl: str | None = None
    registry_conn_id: str | None = None
    subject: str | None = None
    known: list[str] = field(default_factory=list, repr=False)

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
        from airflow_kafka_offsets.formats.spark_ddl import parse_ddl

        if self.registry_conn_id is None:
            raise ConfigurationError(
                "JsonSchema needs registry_conn_id; JSON without the id of a schema is the format Json"
            )
        if self.ddl is None:
            raise ConfigurationError(
                "JsonSchema without columns needs a schema, which load and replay take from the registry"
            )
        return parse_ddl(self.ddl)

    def prepared(self, topics: Sequence[str], part: str, connections: Connections) -> JsonSchema:
        """Return the format with the schemas of the subjects; see `ConnectedFormat`."""
        from airflow_kafka_offsets.formats.spark_ddl import spark_ddl
        from airflow_kafka_offsets.formats.subject_schemas import fetch_subjects, require_libraries, subjects_of

        require_libraries("JsonSchema", "json-schema", _LIBRARIES)
        if self.registry_conn_id is None:
            return self
        subjects = subjects_of(self.subject, topics, part)
        found = fetch_subjects(self.registry_conn_id, connections, subjects, "JSON")
        with_ids = replace(self, known=list(found.by_id))
        if self.ddl is not None:
            return with_ids
        latest = found.common(subjects, _columns)
        return replace(with_ids, ddl=spark_ddl(_columns(latest, found.by_id[latest])))

    def decoder(self, columns: pa.Schema) -> Decoder:
        """Return a decoder that knows the ids that were fetched, and asks for no other."""
        return self.connected_decoder(columns, {})

    def connected_decoder(self, columns: pa.Schema, connections: Connections) -> Decoder:
        """Return a decoder, which asks the registry for ids that are not known."""
        from airflow_kafka_offsets.formats.subject_schemas import TaskSchemas
        from airflow_kafka_offsets.formats.wire_format import PrefixedDecoder

        config = connections.get(self.registry_conn_id or "")
        check = TaskSchemas(dict.fromkeys(self.known), config, "JSON", lambda *_: None)
        values = _JsonValues(columns)

        def of_id(prefix: bytes) -> _JsonValues:
            check(prefix)
            return values

        return PrefixedDecoder(columns, of_id)


class _JsonValues:
    """Decodes JSON of any schema; see `SchemaDecoder`."""

    def __init__(self, columns: pa.Schema) -> None:
        from airflow_kafka_offsets.formats.json_decoder import JsonDecoder

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


def _columns(number: str, registered: RegisteredSchema) -> pa.Schema:
    from airflow_kafka_offsets.formats.json_schema import columns_of
    from airflow_kafka_offsets.formats.wire_format import SchemaError

    try:
        return columns_of(registered)
    except SchemaError as error:
        raise ConfigurationError(f"The columns cannot be taken from the JSON Schema {number}: {error}") from error
