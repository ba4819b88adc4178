"""Which schema the values of a record batch were written with: by the id of the wire format, or the same one for all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

from airflow_kafka_offsets.formats.avro_decoder import MAGIC, WIRE_PREFIX, schema_id
from airflow_kafka_offsets.formats.avro_schema import SchemaError, Type, parse
from airflow_kafka_offsets.formats.schema_registry import NotFoundError, SchemaRegistry


class WireSchemas:
    """Schemas by their ids in Confluent's wire format.

    :param known: those that the worker has fetched
    :param config: of the registry, which is asked for others; None to ask for none
    """

    def __init__(self, known: Mapping[str, Sequence[str]], config: Mapping[str, Any] | None) -> None:
        self._known, self._config = known, config
        self.read: dict[int, Sequence[str]] = {}

    def __call__(self, prefix: bytes) -> Type:
        """Return the schema of values with a prefix.

        :raises SchemaError: the prefix is that of no schema
        :raises RegistryUnavailableError: the registry does not answer, so that nothing is known of the record
        """
        if len(prefix) < WIRE_PREFIX or prefix[:1] != MAGIC:
            raise SchemaError(
                "it does not begin with the byte 0 and the id of a schema, as Confluent's wire format does"
            )
        number = schema_id(prefix)
        if (texts := self._known.get(str(number))) is None:
            texts = self._fetched(number)
        self.read[number] = texts
        return parse(texts[-1], texts[:-1])

    def _fetched(self, number: int) -> Sequence[str]:
        if self._config is None:
            raise SchemaError("it is not among the schemas that are known")
        with closing(SchemaRegistry(self._config)) as registry:
            try:
                found = registry.by_id(number)
            except NotFoundError:
                raise SchemaError(f"the schema registry at {registry.host} has none with this id") from None
        if found.type != "AVRO":
            raise SchemaError(f"it is of the type {found.type}")
        return [*found.references, found.text]


class GivenSchema:
    """The schema of all values.

    :param text: the schema as JSON
    :param single_object: whether values begin with its fingerprint
    """

    def __init__(self, kind: Type, text: str, *, single_object: bool) -> None:
        self._kind = kind
        self._prefix = _single_object_prefix(text) if single_object else b""

    def __call__(self, prefix: bytes) -> Type:
        """Return the schema of values with a prefix.

        :raises SchemaError: the prefix is another
        """
        if prefix != self._prefix:
            raise SchemaError("it does not begin as the single-object encoding of the schema does")
        return self._kind


def _single_object_prefix(text: str) -> bytes:
    import json

    from fastavro.schema import fingerprint, to_parsing_canonical_form

    digest = fingerprint(to_parsing_canonical_form(json.loads(text)), "CRC-64-AVRO")
    return b"\xc3\x01" + bytes.fromhex(digest)
