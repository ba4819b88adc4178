"""The format Avro, as a DAG author writes it. A DAG file imports this module: the decoder is in `avro_decoder`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_kafka_offsets.core.shared_docs import complete_docs
from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.formats.record_format import SchemaError
from airflow_kafka_offsets.formats.registry_format import RegistryFormat

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_kafka_offsets.formats.avro_decoder import AvroDecoder
    from airflow_kafka_offsets.formats.avro_schema import Type
    from airflow_kafka_offsets.formats.schema_limits import Budget
    from airflow_kafka_offsets.formats.schema_registry import RegisteredSchema

# What is before a value in Avro's single-object encoding: two bytes, and the fingerprint of its schema.
_SINGLE_OBJECT, _FINGERPRINT_LENGTH = b"\xc3\x01", 8


@complete_docs(RegistryFormat)
@dataclass(frozen=True, slots=True)
class Avro(RegistryFormat):
    """One Avro value a record: in Confluent's wire format with a schema registry, or plain, with a given schema.

    Avro's schema resolution turns a record into columns: numbers are promoted, fields that are not declared are
    ignored, and missing fields have the default of the reader's schema, or are null. The reader's schema is `schema`.
    Without `schema` and columns, it is the latest schema of the subject.

    As for `RegistryFormat`: `ddl`, `registry_conn_id`, `subject`, `columns_from`.

    :param schema: the reader's schema as JSON; without a registry, also the schema of the records (templated)
    :param single_object: whether the values have Avro's single-object encoding; without a registry only
    :param column: the name of the only column, if the schema is not a record (templated)
    :ivar schemas: the texts of schemas by id, each after those that it refers to
    """

    kind: ClassVar[str] = "avro"
    schema_name: ClassVar[str] = "Avro schema"
    schema_type: ClassVar[str] = "AVRO"
    libraries: ClassVar[Mapping[str, str]] = {name: name for name in ("datafusion", "fastavro", "httpx")}
    template_fields: ClassVar[tuple[str, ...]] = ("ddl", "registry_conn_id", "subject", "schema", "column")
    schema: str | None = None
    single_object: bool = False
    column: str = "value"

    def fingerprint(self) -> str:
        return json.dumps([self.kind, self.id_space, self.registry_host, self._reader_texts, self.single_object])

    def check_parameters(self) -> None:
        if self.registry_conn_id is None and self.schema is None:
            raise ConfigurationError("Avro needs registry_conn_id, or a schema; got neither")
        if self.registry_conn_id is not None and self.single_object:
            raise ConfigurationError(
                "Avro with a registry reads Confluent's wire format; single_object is for a schema without a registry"
            )

    def check_schema(self) -> None:
        self._reader()

    @property
    def takes_latest(self) -> bool:
        return self.ddl is None and self.schema is None

    @property
    def given_schema(self) -> list[str | None]:
        return [self.schema]

    @property
    def given_prefix_length(self) -> int:
        return len(_SINGLE_OBJECT) + _FINGERPRINT_LENGTH if self.single_object else 0

    def plain_schemas(self, registered: Mapping[str, RegisteredSchema]) -> Mapping[str, list[str] | SchemaError]:
        return {number: _usable_texts(schema) for number, schema in registered.items()}

    def latest_form(self) -> object:
        return self._reader()

    def slow_reason(self, schema: Any) -> str | None:
        from airflow_kafka_offsets.formats.avro_decoder import AvroReader
        from airflow_kafka_offsets.formats.avro_schema import as_record

        kind = as_record(_parsed(schema), self.column)
        if AvroReader(kind, kind.physical_fields).is_vectorized:
            return None
        return "it is recursive or large, or has a union of several types"

    def schema_columns(self) -> pa.Schema | None:
        from airflow_kafka_offsets.formats.avro_columns import columns_of
        from airflow_kafka_offsets.formats.avro_schema import as_record

        reader = self._reader()
        return None if reader is None else columns_of(as_record(reader, self.column))

    def field_types(self) -> Mapping[str, Callable[[Budget], pa.DataType]]:
        from airflow_kafka_offsets.formats.avro_columns import fields_with_values
        from airflow_kafka_offsets.formats.avro_schema import as_record

        reader = self._reader()
        kinds = (_parsed(texts) for texts in reversed(self.schemas.values()))
        # Fields of older schemas that a field of the reader's schema takes its values from.
        aliases = {alias for part in reader.fields for alias in part.aliases} if reader is not None else set()
        types: dict[str, Callable[[Budget], pa.DataType]] = {}
        for kind in kinds if reader is None else chain([reader], kinds):
            for part in fields_with_values(as_record(kind, self.column)):
                if part.name not in aliases:
                    types.setdefault(part.name, partial(_column_type, part.type, part.name))
        return types

    @property
    def _reader_texts(self) -> list[str] | None:
        if self.schema is not None:
            return [self.schema]
        return self.schemas[self.latest] if self.latest is not None else None

    def _reader(self) -> Type | None:
        """Return the reader's schema.

        :raises ConfigurationError: it is not a schema
        """
        try:
            return None if self._reader_texts is None else _parsed(self._reader_texts)
        except SchemaError as error:
            raise ConfigurationError(f"The reader's schema is not a usable Avro schema: {error}") from error

    def decoders(self, columns: pa.Schema) -> Callable[[bytes, Any], AvroDecoder]:
        from airflow_kafka_offsets.formats.avro_decoder import AvroDecoder

        reader, of_registry = self._reader(), self.registry_conn_id is not None
        single_object = _single_object_prefix(self.schema or "") if self.single_object else None

        def decoder_of(prefix: bytes, texts: Sequence[str]) -> AvroDecoder:
            if single_object is not None and prefix != single_object:
                raise SchemaError("it does not begin as the single-object encoding of the schema does")
            return AvroDecoder(_parsed(texts), columns, reader, of_registry=of_registry)

        return decoder_of


def _usable_texts(registered: RegisteredSchema) -> list[str] | SchemaError:
    texts = [*(reference.text for reference in registered.references), registered.text]
    try:
        _parsed(texts)
    except SchemaError as error:
        # Without its traceback, which would keep what was parsed.
        return SchemaError(str(error))
    return texts


def _parsed(texts: Sequence[str]) -> Type:
    """Return the last of some schemas, which may refer to the others."""
    from airflow_kafka_offsets.formats.avro_schema import parse

    return parse(texts[-1], texts[:-1])


def _column_type(kind: Type, name: str, _: Budget) -> pa.DataType:
    from airflow_kafka_offsets.formats.avro_columns import column_type

    # Its types were counted, as often as they are used, when the schema was read.
    return column_type(kind, name)


def _single_object_prefix(text: str) -> bytes:
    from fastavro.schema import fingerprint, to_parsing_canonical_form

    return _SINGLE_OBJECT + bytes.fromhex(fingerprint(to_parsing_canonical_form(json.loads(text)), "CRC-64-AVRO"))
