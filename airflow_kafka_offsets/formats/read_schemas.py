"""Which schemas of a registry records were read with: by ids that mean something only as long as the registry does.

Decoders report the ids, the manifest of a batch and the state tables (`ledger.batch_schemas`) hold what they meant.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from airflow_kafka_offsets.core.templates import with_values
from airflow_kafka_offsets.formats.extra_columns import WholeRecord
from airflow_kafka_offsets.formats.record_format import Decoder, RecordFormat
from airflow_kafka_offsets.formats.registry_format import RegistryFormat
from airflow_kafka_offsets.formats.wire_format import PrefixedDecoder


@dataclass(frozen=True, slots=True)
class ReadSchema:
    """A schema that records of a batch were read with.

    :param part: of the records: `value` or `key`
    :param type: the kind of the format, and where its id means something, see `RegistryFormat.stored_kind`
    :param text: the schema, as its format keeps it, in a form that JSON can hold; None where the format of the job has
        it
    """

    part: str
    schema_id: int
    type: str
    text: Any = None


def has_schema_ids(record_format: RecordFormat) -> bool:
    """Return whether values begin with the id of a schema, in Confluent's wire format."""
    value = formats_of(record_format)["value"]
    return isinstance(value, RegistryFormat) and value.registry_conn_id is not None


def formats_of(record_format: RecordFormat) -> dict[str, RecordFormat]:
    """Return the formats of the parts of records."""
    return record_format.formats if isinstance(record_format, WholeRecord) else {"value": record_format}


def schemas_read(record_format: RecordFormat, decode: Decoder) -> tuple[ReadSchema, ...]:
    """Return the schemas of the records that a decoder has seen; without the text where the format has it.

    :param decode: the decoder of the format
    """
    decoders: Mapping[str, Decoder] = getattr(decode, "parts", {"value": decode})
    read = []
    for part, part_format in formats_of(record_format).items():
        decoder = decoders[part]
        if isinstance(decoder, PrefixedDecoder) and isinstance(part_format, RegistryFormat):
            for number, text in decoder.schemas_read.items():
                known = str(number) in part_format.schemas
                read.append(ReadSchema(part, number, part_format.stored_kind, None if known else text))
    return tuple(read)


def with_texts(record_format: RecordFormat, read: Iterable[ReadSchema]) -> tuple[ReadSchema, ...]:
    """Return each of some schemas once, with its text.

    :param record_format: that of the job
    """
    parts = formats_of(record_format)
    found: dict[tuple[str, int], ReadSchema] = {}
    for schema in read:
        if schema.text is None:
            known = cast("RegistryFormat", parts[schema.part]).schemas
            schema = replace(schema, text=known[str(schema.schema_id)])
        found.setdefault((schema.part, schema.schema_id), schema)
    return tuple(found[key] for key in sorted(found))


def with_stored(record_format: RecordFormat, part: str, stored: Iterable[ReadSchema]) -> RecordFormat:
    """Return the format of a part that also knows stored schemas, for ids that the registry no longer knows."""
    if not isinstance(record_format, RegistryFormat) or record_format.registry_conn_id is None:
        return record_format
    known = {
        str(schema.schema_id): schema.text
        for schema in stored
        if schema.part == part and schema.type == record_format.stored_kind
    }
    return with_values(record_format, stored=known)
