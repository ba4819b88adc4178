"""The schema of plain Avro values, without a registry."""

from __future__ import annotations

from airflow_kafka_offsets.formats.avro_schema import Type
from airflow_kafka_offsets.formats.wire_format import SchemaError

SINGLE_OBJECT_PREFIX = 10
"""The length of what is before a value in Avro's single-object encoding."""


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
