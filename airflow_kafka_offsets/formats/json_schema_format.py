"""The format JSON Schema, as a DAG author writes it: JSON in Confluent's wire format. A DAG file imports this
module.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_kafka_offsets.core.shared_docs import complete_docs
from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.formats.record_format import ColumnsFrom, SchemaError
from airflow_kafka_offsets.formats.registry_format import RegistryFormat

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_kafka_offsets.formats.record_format import BadRecord
    from airflow_kafka_offsets.formats.schema_limits import Budget
    from airflow_kafka_offsets.formats.schema_registry import RegisteredSchema
    from airflow_kafka_offsets.formats.wire_format import Part

_Plain = dict[str, Any]
"""A schema as JSON can hold it: its `text`, and the `references` with their names and texts."""


@complete_docs(RegistryFormat)
@dataclass(frozen=True, slots=True)
class JsonSchema(RegistryFormat):
    """One JSON object a record, with the id of its JSON Schema before it, decoded as `Json` does.

    Records are not validated against their schemas. A record is bad if a value does not fit its column, or if the
    registry has no JSON Schema with its id. The reader's schema is the latest of the subject.

    As for `RegistryFormat`: `ddl`, `registry_conn_id`, `subject`, `columns_from`.
    """

    kind: ClassVar[str] = "json_schema"
    schema_name: ClassVar[str] = "JSON Schema"
    schema_type: ClassVar[str] = "JSON"
    libraries: ClassVar[Mapping[str, str]] = {"httpx": "httpx"}
    template_fields: ClassVar[tuple[str, ...]] = ("ddl", "registry_conn_id", "subject")
    columns_from: ColumnsFrom = "schema"

    def fingerprint(self) -> str:
        return json.dumps([self.kind, self.id_space, self.registry_host])

    def check_parameters(self) -> None:
        if self.registry_conn_id is None:
            raise ConfigurationError(
                "JsonSchema needs registry_conn_id; JSON without the id of a schema is the format Json"
            )

    def plain_schemas(self, registered: Mapping[str, RegisteredSchema]) -> Mapping[str, _Plain]:
        return {
            number: {"text": schema.text, "references": [list(reference) for reference in schema.references]}
            for number, schema in registered.items()
        }

    def schema_columns(self) -> pa.Schema | None:
        from airflow_kafka_offsets.formats.json_schema import columns_of

        return None if self.latest is None else columns_of(_registered(self.schemas[self.latest]))

    def field_types(self) -> Mapping[str, Callable[[Budget], pa.DataType]]:
        from airflow_kafka_offsets.formats.json_schema import property_names, property_type

        types: dict[str, Callable[[Budget], pa.DataType]] = {}
        for plain in reversed(self.schemas.values()):
            registered = _registered(plain)
            # Of a version without properties, such as `true`, no field is new.
            with suppress(SchemaError):
                for name in property_names(registered):
                    types.setdefault(name, partial(property_type, registered, name))
        return types

    def decoders(self, columns: pa.Schema) -> Callable[[bytes, Any], _JsonValues]:
        are_ignored = self.on_new_field == "ignore" and not self.left_out
        return lambda _, plain: _JsonValues(columns, [] if are_ignored else _unread(plain, columns))


class _JsonValues:
    """Decodes JSON of any schema; see `SchemaDecoder`."""

    def __init__(self, columns: pa.Schema, unread: list[str]) -> None:
        from airflow_kafka_offsets.formats.json_decoder import JsonDecoder

        self.unread, self.types = unread, 0
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

    known = set(columns.names)
    return [name for name in property_names(_registered(plain)) if name not in known]


def _registered(plain: _Plain) -> RegisteredSchema:
    from airflow_kafka_offsets.formats.schema_registry import Reference, RegisteredSchema

    return RegisteredSchema("JSON", plain["text"], tuple(Reference(*reference) for reference in plain["references"]))
