"""Keys as numbers: each key of a batch has one, and rows of the table are found by it without a join."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.conversions import from_bytes
from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, GreaterThanOrEqual, LessThanOrEqual
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import PrimitiveType


class KeyIndex:
    """The keys of a batch.

    :param keys: each of them once
    """

    def __init__(self, keys: pa.Table) -> None:
        self.names: list[str] = keys.column_names
        self.values = [pc.unique(keys.column(name)) for name in self.names]
        self._steps: list[pa.Array] = []
        codes = self._of_column(keys, 0)
        for number in range(1, len(self.names)):
            joined = self._joined(codes, keys, number)
            self._steps.append(pc.unique(joined))
            codes = pc.index_in(joined, value_set=self._steps[-1])
        self.count = keys.num_rows

    def numbers(self, rows: pa.Table) -> pa.ChunkedArray:
        """Return the number of the key of each row; null where the batch has no such key."""
        codes = self._of_column(rows, 0)
        for number, step in enumerate(self._steps, start=1):
            codes = pc.index_in(self._joined(codes, rows, number), value_set=step, skip_nulls=True)
        return codes

    def _of_column(self, rows: pa.Table, number: int) -> pa.ChunkedArray:
        return pc.index_in(rows.column(self.names[number]), value_set=self.values[number], skip_nulls=True)

    def _joined(self, codes: pa.ChunkedArray, rows: pa.Table, number: int) -> pa.ChunkedArray:
        """Return one number for a key so far and the value of one more column. Both numbers are those of rows, and
        small.
        """
        shifted = pc.multiply(codes.cast(pa.int64()), len(self.values[number]))
        return pc.add(shifted, self._of_column(rows, number).cast(pa.int64()))

    def condition(self) -> BooleanExpression:
        """Return the condition that a row has one of the keys, as far as the least and the greatest value of each
        column tell.
        """
        condition: BooleanExpression = AlwaysTrue()
        for name, values in zip(self.names, self.values, strict=True):
            if _is_ordered(values.type):
                ends = pc.min_max(values).as_py()
                # pyiceberg's annotations have the arguments of pydantic's constructor, which is not the one that is
                # there.
                least = GreaterThanOrEqual(name, ends["min"])  # type: ignore[call-arg,arg-type]
                greatest = LessThanOrEqual(name, ends["max"])  # type: ignore[call-arg,arg-type]
                condition = And(condition, least, greatest)
        return condition


class KeyPruning:
    """Which files may hold a key, by what the table knows of each: bounds of its columns, and its partition.

    A condition of pyiceberg knows the span of many keys; this looks whether any of them is within the bounds of a file.
    """

    def __init__(self, table: Table, index: KeyIndex) -> None:
        schema = table.schema()
        self._values = {
            schema.find_field(name).field_id: _comparable(values)
            for name, values in zip(index.names, index.values, strict=True)
            if _is_ordered(values.type)
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


def _is_ordered(kind: pa.DataType) -> bool:
    """Return whether Arrow and Iceberg order the values of a type alike, and its bounds can be compared here."""
    if pa.types.is_timestamp(kind):
        return bool(kind.unit == "us")
    return any(
        is_kind(kind)
        for is_kind in (
            pa.types.is_int32,
            pa.types.is_int64,
            pa.types.is_date32,
            pa.types.is_large_string,
            pa.types.is_string,
        )
    )


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
