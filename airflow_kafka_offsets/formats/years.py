"""The years of dates and timestamps: 1 to 9999, in UTC.

ISO 8601 reaches further with an offset, and Arrow has a year 0. Postgres stores such an instant, and then clients fail
that read it, Python's drivers for one.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

OUT_OF_YEARS = "it lies outside of the years 1 to 9999"

_DAYS = (-719_162, 2_932_896)
_MICROSECONDS = (_DAYS[0] * 86_400_000_000, (_DAYS[1] + 1) * 86_400_000_000 - 1)


def out_of_years(array: pa.Array) -> list[int]:
    """Return the indexes of dates and timestamps outside of the years 1 to 9999; none for an array of another type.

    :param array: dates of 32 bits or timestamps in microseconds; of a list or a struct, the indexes are those of its
        items
    """
    kind = array.type
    if pa.types.is_list(kind):
        return out_of_years(array.flatten())
    if pa.types.is_struct(kind):
        return [index for child in array.flatten() for index in out_of_years(child)]
    if pa.types.is_date32(kind):
        numbers, (first, last) = array.cast(pa.int32()), _DAYS
    elif pa.types.is_timestamp(kind) and kind.unit == "us":
        numbers, (first, last) = array.cast(pa.int64()), _MICROSECONDS
    else:
        return []
    found = pc.min_max(numbers).as_py()
    if found["min"] is None or (found["min"] >= first and found["max"] <= last):
        return []
    indexes: list[int] = pc.indices_nonzero(pc.or_(pc.less(numbers, first), pc.greater(numbers, last))).to_pylist()
    return indexes
