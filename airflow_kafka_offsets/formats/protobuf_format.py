"""The format Protobuf, as a DAG author writes it. A DAG file imports this module: the decoder is in
`protobuf_decoder`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from airflow_kafka_offsets.core.templates import Templated
from airflow_kafka_offsets.exceptions import ConfigurationError, StagingError

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_kafka_offsets.formats.protobuf_schema import Message
    from airflow_kafka_offsets.formats.record_format import ColumnsFrom, Connections, Decoder, OnNewField
    from airflow_kafka_offsets.formats.schema_registry import RegisteredSchema

log = logging.getLogger(__name__)

_COMPILER = "grpcio-tools"

_LIBRARIES = {"ptars": "ptars", "google.protobuf": "protobuf", "httpx": "httpx", "grpc_tools": _COMPILER}

_GIVEN = "given"


@dataclass(frozen=True, slots=True)
class Protobuf(Templated):
    """One Protobuf message a record: in Confluent's wire format with a schema registry, or plain, of a given schema.

    A column is the field of its name in the schema that a record was written with. If no columns are given, they are
    all fields of the reader's message, and a column is the field with the number that it has there. The reader's
    message is that of the latest schema of the subject, or of the given one.

    :param ddl: the columns as Spark DDL, by the names of the fields; None for all fields of the reader's message
        (templated)
    :param registry_conn_id: an Airflow connection of type `http`; None if no record has the id of a schema (templated)
    :param subject: whose schemas are fetched before Spark starts; None is the name of the topic with `-value` or `-key`
        (templated)
    :param message: the name of the message, with or without its package; records of another one are bad. None is the
        first one of the file, and any one where columns are declared and each record says which it is (templated)
    :param proto: without a registry, the schema as the text of a `.proto` file, which imports no file of yours
        (templated)
    :param descriptor_file: without a registry, the path of a descriptor set on the worker, which `protoc
        --include_imports --descriptor_set_out` wrote (templated)
    :param columns_from: where no columns are declared, `schema` for all fields of the reader's message, or `target` for
        those that are columns of the target
    :param on_new_field: what becomes of fields that are no columns; the worker fills it in
    :param schemas: descriptor sets by id; the worker fills them in
    :param latest: the id of the reader's schema, if the columns are those of its message; the worker fills it in
    """

    kind: ClassVar[str] = "protobuf"
    template_fields: ClassVar[tuple[str, ...]] = (
        "ddl",
        "registry_conn_id",
        "subject",
        "message",
        "proto",
        "descriptor_file",
    )
    ddl: str | None = None
    registry_conn_id: str | None = None
    subject: str | None = None
    message: str | None = None
    proto: str | None = field(default=None, repr=False)
    descriptor_file: str | None = None
    columns_from: ColumnsFrom = "schema"
    on_new_field: OnNewField = field(default="ignore", repr=False)
    schemas: dict[str, str] = field(default_factory=dict, repr=False)
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
        texts = [self.schemas.get(number) for number in (self.latest, _GIVEN) if number is not None]
        return json.dumps([self.kind, self.registry_conn_id, self.message, *texts])

    def columns(self) -> pa.Schema:
        """Return the columns as an Arrow schema.

        :raises ConfigurationError: the DDL or the schema cannot be used, or nothing says what the columns are
        """
        from airflow_kafka_offsets.formats.protobuf_fields import columns_of
        from airflow_kafka_offsets.formats.schema_columns import check_columns_from
        from airflow_kafka_offsets.formats.spark_ddl import parse_ddl
        from airflow_kafka_offsets.formats.wire_format import SchemaError

        self._check_source()
        check_columns_from(self.columns_from, self.ddl)
        if self.ddl is not None:
            return parse_ddl(self.ddl, binary=True)
        try:
            reader = self._reader()
            if reader is None:
                raise ConfigurationError(
                    "Protobuf without columns needs a schema, which load and replay take from the registry or compile"
                )
            return columns_of(reader)
        except SchemaError as error:
            raise ConfigurationError(f"The columns cannot be taken from the Protobuf schema: {error}") from error

    def _check_source(self) -> None:
        given = [name for name in ("registry_conn_id", "proto", "descriptor_file") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ConfigurationError(
                "Protobuf needs registry_conn_id, or proto, or descriptor_file; got "
                f"{' and '.join(given) or 'none of them'}"
            )

    def prepared(self, topics: Sequence[str], part: str, connections: Connections) -> Protobuf:
        """Return the format with the schemas of the subjects, or with the given one; see `ConnectedFormat`."""
        from airflow_kafka_offsets.formats.schema_registry import RegisteredSchema
        from airflow_kafka_offsets.formats.subject_schemas import fetch_subjects, require_libraries, subjects_of

        self._check_source()
        require_libraries("Protobuf", "protobuf", _LIBRARIES, worker_only=_COMPILER)
        if self.registry_conn_id is None:
            if self.descriptor_file is not None:
                schemas = {_GIVEN: _read(self.descriptor_file)}
            else:
                schemas = _compiled({_GIVEN: RegisteredSchema("PROTOBUF", self.proto or "")})
            found = replace(self, schemas=schemas, latest=None if self.ddl is not None else _GIVEN)
        else:
            subjects = subjects_of(self.subject, topics, part)
            registered = fetch_subjects(self.registry_conn_id, connections, subjects, "PROTOBUF")
            found = replace(self, schemas=_compiled(registered.by_id))
            if self.ddl is None:
                latest = registered.common(subjects, lambda number, _: replace(found, latest=number).columns())
                found = replace(found, latest=latest)
        found._log_ways()
        return found

    def _log_ways(self) -> None:
        from airflow_kafka_offsets.formats.protobuf_decoder import ProtobufDecoder
        from airflow_kafka_offsets.formats.protobuf_schema import schema_of
        from airflow_kafka_offsets.formats.wire_format import SchemaError

        columns = self.columns()
        for number, encoded in self.schemas.items():
            try:
                is_vectorized = ProtobufDecoder(schema_of(encoded).named(self.message), columns, None).is_vectorized
            except SchemaError:
                continue  # its records will be bad, each with this reason
            if not is_vectorized:
                log.info(
                    "%s is decoded record by record, which takes longer: it has groups, or columns with field numbers "
                    "of more than 100,000",
                    "The Protobuf schema" if number == _GIVEN else f"Schema {number}",
                )

    def field_names(self) -> list[str]:
        """Return the fields of all schemas that are known; see `SchemaFormat`."""
        return list(self._fields())

    def with_columns(self, names: Sequence[str], on_new_field: OnNewField) -> Protobuf:
        """Return the format with columns; see `SchemaFormat`."""
        from airflow_kafka_offsets.formats.schema_columns import columns_ddl

        known = self._fields()
        ddl = columns_ddl(self.ddl, names, lambda name: known[name]())
        return replace(self, ddl=ddl, columns_from="schema", on_new_field=on_new_field)

    def _fields(self) -> dict[str, Callable[[], pa.DataType]]:
        """Return what returns the column's type of each field of the reader's message and, unless it has their numbers,
        of newer ones first.
        """
        from airflow_kafka_offsets.formats.protobuf_fields import column_type
        from airflow_kafka_offsets.formats.protobuf_schema import schema_of

        messages = [schema_of(encoded).named(self.message) for encoded in reversed(self.schemas.values())]
        reader = self._reader()
        fields: dict[str, Callable[[], pa.DataType]] = {}
        for message in messages if reader is None else [reader, *messages]:
            for field_ in message.fields:
                is_renamed = (
                    reader is not None and reader.fields_by_number.get(field_.number, field_).name != field_.name
                )
                if not is_renamed:
                    fields.setdefault(field_.name, partial(column_type, field_, message))
        return fields

    def _reader(self) -> Message | None:
        """Return the message from which the columns are taken.

        :raises SchemaError: the schema does not have it
        """
        from airflow_kafka_offsets.formats.protobuf_schema import schema_of

        return None if self.latest is None else schema_of(self.schemas[self.latest]).named(self.message)

    def decoder(self, columns: pa.Schema) -> Decoder:
        """Return a decoder of plain messages, or one that knows the schemas that were fetched, and asks for no
        other.
        """
        return self.connected_decoder(columns, {})

    def connected_decoder(self, columns: pa.Schema, connections: Connections) -> Decoder:
        """Return a decoder, which asks the registry for schemas that are not known."""
        from airflow_kafka_offsets.formats.protobuf_decoder import ProtobufDecoder
        from airflow_kafka_offsets.formats.protobuf_schema import has_name, index_path, schema_of, wire_prefix_length
        from airflow_kafka_offsets.formats.subject_schemas import TaskSchemas
        from airflow_kafka_offsets.formats.wire_format import PrefixedDecoder, SchemaError

        reader = self._reader()
        if self.registry_conn_id is None:
            given = schema_of(self.schemas[_GIVEN]).named(self.message)
            return PrefixedDecoder(
                columns,
                lambda _: ProtobufDecoder(given, columns, reader),
                lambda _: 0,
                has_ids=False,
                on_new_field=self.on_new_field,
            )
        config = connections.get(self.registry_conn_id)
        encoded_of = TaskSchemas(self.schemas, config, "PROTOBUF", _compiled_in_task)
        expected = self.message or (reader.full_name if reader is not None else None)

        def of_prefix(prefix: bytes) -> ProtobufDecoder:
            encoded = encoded_of(prefix)
            message = schema_of(encoded).at(index_path(prefix))
            if expected is not None and not has_name(message, expected):
                raise SchemaError(f"it is the message {message.full_name}, and not {expected}")
            return ProtobufDecoder(message, columns, reader)

        return PrefixedDecoder(
            columns, of_prefix, wire_prefix_length, on_new_field=self.on_new_field, schemas_read=encoded_of.read
        )


def _compiled(schemas: dict[str, RegisteredSchema]) -> dict[str, str]:
    """Return descriptor sets.

    :raises ConfigurationError: one of the texts is no schema
    """
    from airflow_kafka_offsets.formats.protobuf_compiler import compile_schemas

    found: dict[str, str] = {}
    for number, compiled in compile_schemas(schemas).items():
        if not isinstance(compiled, str):
            what = "The text" if number == _GIVEN else f"Schema {number}"
            raise ConfigurationError(f"{what} is no Protobuf schema that can be used: {compiled}") from compiled
        found[number] = compiled
    return found


def _compiled_in_task(number: int, schema: RegisteredSchema) -> str:
    from airflow_kafka_offsets.formats.protobuf_compiler import compile_schemas

    try:
        (compiled,) = compile_schemas({str(number): schema}).values()
    except ModuleNotFoundError as error:
        # No fault of the record. A retry fetches the newest schemas of the subject on the worker, where they are
        # compiled.
        raise StagingError(
            f"A record has schema {number}, which the worker did not fetch, and {_COMPILER}, which compiles it, is not "
            "installed where Spark's executors run: retry, which fetches the newest schemas of the subject, or "
            "install it there"
        ) from error
    if not isinstance(compiled, str):
        raise compiled
    return compiled


def _read(path: str) -> str:
    import base64
    from pathlib import Path

    from airflow_kafka_offsets.formats.protobuf_schema import schema_of
    from airflow_kafka_offsets.formats.wire_format import SchemaError

    try:
        encoded = base64.b64encode(Path(path).read_bytes()).decode("ascii")
        schema_of(encoded)
    except OSError as error:
        raise ConfigurationError(f"The descriptor set {path!r} cannot be read: {error.strerror}") from error
    except SchemaError as error:
        raise ConfigurationError(f"The descriptor set {path!r} cannot be used: {error}") from error
    return encoded
