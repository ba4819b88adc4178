"""Which files of an Iceberg table may hold a key, by the bounds of their columns and by their partition."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import PrimitiveType

from airflow_kafka_offsets.sinks.lake.key_index import KeyIndex, is_ordered


class KeyPruning:
    """Which files may hold a key, by what the table knows of each: bounds of its columns, and its partition.

    A condition of pyiceberg knows the span of many keys; this looks whether any of them is within the bounds of a file.
    """

    def __init__(self, table: Table, index: KeyIndex) -> None:
        schema = table.schema()
        self._values = {
            schema.find_field(name).field_id: _comparable(values)
            for name, values in zip(index.names, index.values, strict=True)
            if is_ordered(values.type)
        }
        self._types = {field_id: _primitive(schema, field_id) for field_id in self._values}
        self._buckets = {
            spec_id: [
                (position, _buckets(schema, part.transform, part.source_id, index))
                for position, part in enumerate(spec.fields)
                if isinstance(part.transform, BucketTransform)
                and schema.find_column_name(part.source_id) in index.names
            ]
            for spec_id, spec in table.specs().items()
        }

    def may_hold(self, file: DataFile) -> bool:
        """Return whether a file may hold one of the keys."""
        for position, buckets in self._buckets.get(file.spec_id, ()):
            if file.partition[position] not in buckets:
                return False
        return all(self._is_within(file, field_id, values) for field_id, values in self._values.items())

    def _is_within(self, file: DataFile, field_id: int, values: pa.Array) -> bool:
        lower, upper = ((bounds or {}).get(field_id) for bounds in (file.lower_bounds, file.upper_bounds))
        if lower is None or upper is None:
            return True
        low, high = (pa.scalar(from_bytes(self._types[field_id], end), values.type) for end in (lower, upper))
        is_within = pc.and_(pc.greater_equal(values, low), pc.less_equal(values, high))
        return bool(pc.any(is_within).as_py())


def _comparable(values: pa.Array) -> pa.Array:
    """Return values as Iceberg has them in bounds: dates and times are numbers there."""
    if pa.types.is_date32(values.type):
        return values.cast(pa.int32())
    return values.cast(pa.int64()) if pa.types.is_timestamp(values.type) else values


def _primitive(schema: Schema, field_id: int) -> PrimitiveType:
    kind = schema.find_field(field_id).field_type
    assert isinstance(kind, PrimitiveType)
    return kind


def _buckets(schema: Schema, transform: BucketTransform, source_id: int, index: KeyIndex) -> set[int]:  # type: ignore[type-arg]
    values = index.values[index.names.index(schema.find_column_name(source_id) or "")]
    found = transform.pyarrow_transform(schema.find_field(source_id).field_type)(values)
    return set(pc.unique(found).to_pylist())
