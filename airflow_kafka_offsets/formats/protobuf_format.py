"""The format Protobuf, as a DAG author writes it. A DAG file imports this module: the decoder is in
`protobuf_decoder`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from airflow_kafka_offsets.core.shared_docs import complete_docs
from airflow_kafka_offsets.core.templates import with_values
from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.formats.record_format import SchemaError
from airflow_kafka_offsets.formats.registry_format import RegistryFormat

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_kafka_offsets.formats.protobuf_decoder import ProtobufDecoder
    from airflow_kafka_offsets.formats.protobuf_schema import Message
    from airflow_kafka_offsets.formats.schema_limits import Budget
    from airflow_kafka_offsets.formats.schema_registry import RegisteredSchema

_GIVEN = "given"

# Each may hold a schema.
_MOST_DECODERS = 16


@complete_docs(RegistryFormat)
@dataclass(frozen=True, slots=True)
class Protobuf(RegistryFormat):
    """One Protobuf message a record: in Confluent's wire format with a schema registry, or plain, with a given schema.

    A declared column takes the field with its name in the schema that a record was written with. Without declared
    columns, there is a column for each field of the reader's message, matched by field number. The reader's message is
    in the given schema, or in the latest schema of the subject.

    As for `RegistryFormat`: `ddl`, `registry_conn_id`, `subject`, `columns_from`.

    :param message: the name of the message, with or without its package; other messages are bad records. None is the
        first message of the file, or any message if columns are declared and each record names its message (templated)
    :param proto: without a registry, the schema as the text of a `.proto` file, which imports only Google's well-known
        files (templated)
    :param descriptor_file: without a registry, the path of a descriptor set on the worker, which `protoc
        --include_imports --descriptor_set_out` wrote (templated)
    :ivar schemas: descriptor sets by id
    """

    kind: ClassVar[str] = "protobuf"
    schema_name: ClassVar[str] = "Protobuf schema"
    schema_type: ClassVar[str] = "PROTOBUF"
    libraries: ClassVar[Mapping[str, str]] = {"ptars": "ptars", "google.protobuf": "protobuf", "httpx": "httpx"}
    worker_libraries: ClassVar[Mapping[str, str]] = {"grpc_tools": "grpcio-tools"}
    template_fields: ClassVar[tuple[str, ...]] = (
        "ddl",
        "registry_conn_id",
        "subject",
        "message",
        "proto",
        "descriptor_file",
    )
    message: str | None = None
    proto: str | None = field(default=None, repr=False)
    descriptor_file: str | None = None

    def fingerprint(self) -> str:
        texts = [self.schemas.get(number) for number in (self.latest, _GIVEN) if number is not None]
        return json.dumps([self.kind, self.id_space, self.registry_host, self.message, *texts])

    def check_parameters(self) -> None:
        given = [name for name in ("registry_conn_id", "proto", "descriptor_file") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ConfigurationError(
                "Protobuf needs registry_conn_id, or proto, or descriptor_file; got "
                f"{' and '.join(given) or 'none of them'}"
            )

    @property
    def given_schema(self) -> str:
        return str(self.schemas[_GIVEN])

    def with_given_schema(self) -> Self:
        from airflow_kafka_offsets.formats.schema_registry import RegisteredSchema

        if self.descriptor_file is not None:
            schemas = {_GIVEN: _read(self.descriptor_file)}
        else:
            schemas = self.usable_schemas({_GIVEN: RegisteredSchema("PROTOBUF", self.proto or "")}, [_GIVEN])
        return with_values(self, schemas=schemas, latest=_GIVEN if self.takes_latest else None)

    def prefix_length(self, head: bytes) -> int:
        from airflow_kafka_offsets.formats.protobuf_schema import wire_prefix_length

        return wire_prefix_length(head)

    def plain_schemas(self, registered: Mapping[str, RegisteredSchema]) -> Mapping[str, str | SchemaError]:
        from airflow_kafka_offsets.formats.protobuf_schema import compile_schemas

        return compile_schemas(registered)

    def slow_reason(self, schema: Any) -> str | None:
        from airflow_kafka_offsets.formats.protobuf_decoder import ProtobufDecoder

        try:
            if ProtobufDecoder(self._message(schema), self.columns(), None).is_vectorized:
                return None
        except SchemaError:
            return None  # its records will be bad, each with this reason
        return "it has groups, large field numbers or oneofs, or this ptars reads it otherwise than protobuf"

    def schema_columns(self) -> pa.Schema | None:
        from airflow_kafka_offsets.formats.protobuf_fields import columns_of

        reader = self._reader()
        return None if reader is None else columns_of(reader)

    def field_types(self) -> Mapping[str, Callable[[Budget], pa.DataType]]:
        """Return the fields of the reader's message and, unless it has their numbers, of newer ones first."""
        reader = self._reader()
        texts = [*reversed(self.schemas.values())]
        if self.latest is not None:
            texts.insert(0, self.schemas[self.latest])
        types: dict[str, Callable[[Budget], pa.DataType]] = {}
        for encoded in texts:
            try:
                message = self._message(encoded)
            except SchemaError:
                continue  # records with it are bad
            for part in message.fields:
                is_renamed = reader is not None and reader.fields_by_number.get(part.number, part).name != part.name
                if not is_renamed:
                    types.setdefault(part.name, partial(self._column_type, encoded, part.name))
        return types

    def _column_type(self, encoded: str, name: str, budget: Budget) -> pa.DataType:
        """Return the type of the column of a field, of which only the text is kept meanwhile."""
        from airflow_kafka_offsets.formats.protobuf_fields import column_type

        message = self._message(encoded)
        return column_type(message.fields_by_name[name], message, budget)

    def _message(self, encoded: str) -> Message:
        from airflow_kafka_offsets.formats.protobuf_schema import schema_of

        return schema_of(encoded).named(self.message)

    def _reader(self) -> Message | None:
        """Return the message from which the columns are taken.

        :raises SchemaError: the schema does not have it
        """
        return None if self.latest is None else self._message(self.schemas[self.latest])

    def decoders(self, columns: pa.Schema) -> Callable[[bytes, Any], ProtobufDecoder]:
        from airflow_kafka_offsets.formats.protobuf_decoder import ProtobufDecoder
        from airflow_kafka_offsets.formats.protobuf_schema import has_name, index_path, schema_of

        reader = self._reader()
        expected = self.message or (reader.full_name if reader is not None else None)

        # Two prefixes may have the same path.
        @lru_cache(_MOST_DECODERS)
        def decoder_at(encoded: str, path: tuple[int, ...]) -> ProtobufDecoder:
            found = schema_of(encoded).at(path)
            names = " or ".join(message.full_name for message in found)
            if expected is not None:
                found = [message for message in found if has_name(message, expected)]
            if not found:
                raise SchemaError(f"it is the message {names}, and not {expected}")
            if len(found) > 1:
                raise SchemaError(
                    f"it is the message {names}: clients number nested messages in different ways if there are maps "
                    "beside them; name the message with message="
                )
            return ProtobufDecoder(found[0], columns, reader)

        def decoder_of(prefix: bytes, encoded: str) -> ProtobufDecoder:
            if self.registry_conn_id is None:
                return ProtobufDecoder(self._message(encoded), columns, reader)
            return decoder_at(encoded, index_path(prefix))

        return decoder_of


def _read(path: str) -> str:
    from airflow_kafka_offsets.formats.protobuf_schema import schema_of

    try:
        encoded = base64.b64encode(Path(path).read_bytes()).decode("ascii")
        schema_of(encoded)
    except OSError as error:
        raise ConfigurationError(f"The descriptor set {path!r} cannot be read: {error.strerror}") from error
    except SchemaError as error:
        raise ConfigurationError(f"The descriptor set {path!r} cannot be used: {error}") from error
    return encoded
