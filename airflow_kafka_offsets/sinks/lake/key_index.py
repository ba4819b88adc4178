"""Keys as numbers: each key of a batch has one, and rows of the table are found by it without a join."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc


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

    def bounds(self) -> dict[str, tuple[Any, Any]]:
        """Return the least and the greatest value of each column whose values have an order in all statistics."""
        ends = {name: pc.min_max(values) for name, values in zip(self.names, self.values, strict=True)}
        return {
            name: (found["min"].as_py(), found["max"].as_py())
            for name, found in ends.items()
            if is_ordered(found["min"].type)
        }


def is_ordered(kind: pa.DataType) -> bool:
    """Return whether Arrow and the statistics of files order the values of a type alike."""
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
