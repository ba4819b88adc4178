"""The records that the client has returned, as Arrow record batches."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from operator import methodcaller

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Message

from airflow_kafka_offsets.core.offsets import Slice
from airflow_kafka_offsets.exceptions import RecordError

# Records with more bytes become several batches, one after another: a batch is held several times while it is decoded.
# After large records, fewer of them are polled at once.
_MOST_BYTES = 32 << 20

# What a header counts beside its bytes: so much Python's objects take.
_HEADER_BYTES = 200

_Headers = list[tuple[str, bytes | None]]

# If the key of a header is not UTF-8, the client sets an exception and returns a list with NULL items; an access to one
# of them crashes the process. A call from C, as methodcaller makes it, checks for the exception and raises SystemError;
# specialized bytecode checks the result only.
_client_headers = methodcaller("headers")

# The year 10000: neither Python nor every database has so late an instant.
_TOO_LATE_MS = 253_402_300_800_000


class Polled:
    """The records of a slice that were polled and are in no batch yet, without the client's messages."""

    def __init__(self, slice_: Slice, with_headers: bool, clip_timestamps: bool) -> None:
        self._slice, self._clip_timestamps = slice_, clip_timestamps
        self._keys: list[bytes | None] = []
        self._values: list[bytes | None] = []
        self._offsets: list[int] = []
        self._milliseconds: list[int] = []
        self._headers: list[_Headers | None] | None = [] if with_headers else None
        self._bytes = 0

    def add(self, records: list[Message], offsets: list[int]) -> int:
        """Add records, and return how many more of their size to poll at once."""
        keys, values = [record.key() for record in records], [record.value() for record in records]
        self._keys += keys
        self._values += values
        self._offsets += offsets
        self._milliseconds += [record.timestamp()[1] for record in records]
        size = _bytes(keys) + _bytes(values)
        if self._headers is not None:
            headers = list(map(_headers, records))
            self._headers += headers
            size += _header_bytes(headers)
        self._bytes += size
        if self._headers is None:
            # The client has those, too; to ask each record for them would take longer than all else.
            size += len(records) * _header_bytes([_headers(records[-1])])
        return max(len(records) * _MOST_BYTES // max(size, 1), 1)

    def is_batch(self, at_least: int) -> bool:
        """Return whether there are records enough for a batch, by their number or their bytes."""
        return len(self._keys) >= at_least or self._bytes > _MOST_BYTES

    def take(self) -> pa.RecordBatch:
        """Take the first records, as a batch of at most `_MOST_BYTES`; a single record may have more."""
        count = len(self._keys) if self._bytes <= _MOST_BYTES else self._fitting()
        keys, values, headers = self._keys[:count], self._values[:count], (self._headers or [])[:count]
        columns = {
            "key": pa.array(keys, pa.binary()),
            "value": pa.array(values, pa.binary()),
            "offset": pa.array(self._offsets[:count], pa.int64()),
            "timestamp": self._timestamps(count),
        }
        if self._headers is not None:
            kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
            columns["headers"] = pa.array(headers, kind)
            del self._headers[:count]
        del self._keys[:count], self._values[:count], self._offsets[:count], self._milliseconds[:count]
        self._bytes = self._bytes - _bytes(keys) - _bytes(values) - _header_bytes(headers) if self._keys else 0
        return pa.RecordBatch.from_pydict(columns)

    def _fitting(self) -> int:
        """Return how many of the first records have at most `_MOST_BYTES`, and at least one."""
        size = 0
        parts = zip(self._keys, self._values, self._headers or repeat(None), strict=False)
        for count, (key, value, headers) in enumerate(parts):
            size += len(key or b"") + len(value or b"") + _header_bytes([headers])
            if size > _MOST_BYTES and count:
                return count
        return len(self._keys)

    def _timestamps(self, count: int) -> pa.Array:
        milliseconds = pa.array(self._milliseconds[:count], pa.int64())
        if pc.max(milliseconds).as_py() >= _TOO_LATE_MS:
            if not self._clip_timestamps:
                raise self._too_late()
            milliseconds = pc.min_element_wise(milliseconds, _TOO_LATE_MS - 1)
        # Records without a timestamp report -1.
        timestamps = pc.if_else(pc.less(milliseconds, 0), None, milliseconds).cast(pa.timestamp("ms", "UTC"))
        return timestamps.cast(pa.timestamp("us", "UTC"))

    def _too_late(self) -> RecordError:
        index = next(index for index, instant in enumerate(self._milliseconds) if instant >= _TOO_LATE_MS)
        return RecordError(
            f"its timestamp of {self._milliseconds[index]} ms is after the year 9999; its producer may have written "
            "microseconds or nanoseconds",
            topic=self._slice.topic,
            partition=self._slice.partition,
            offset=self._offsets[index],
        )


def _bytes(contents: list[bytes | None]) -> int:
    try:
        return sum(map(len, contents))  # type: ignore[arg-type]
    except TypeError:  # there is a null among them
        return sum(map(len, filter(None, contents)))


def _header_bytes(headers: Sequence[_Headers | None]) -> int:
    return sum(
        _HEADER_BYTES + len(key.encode()) + len(value or b"") for own in filter(None, headers) for key, value in own
    )


def _headers(record: Message) -> _Headers | None:
    """Return the headers of a record, or None if a key is not UTF-8."""
    try:
        return _client_headers(record) or []
    except (SystemError, UnicodeDecodeError):
        return None
