"""What the functions of a `FunctionSink` are given, besides the connection and rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from airflow_kafka_offsets.core.offsets import OffsetRange


class WrittenBatch(NamedTuple):
    """The batch whose rows a function writes.

    :param batch_id: its number in the history, and what the rows have as `_batch_id`
    :param group_id: the group that it is of
    :param ranges: the offsets that it reads: `topic`, `partition`, `start` and `end` (exclusive) of each; none where
        dead letters are replayed
    """

    batch_id: int
    group_id: str
    ranges: tuple[OffsetRange, ...]


class ReplacedRange(NamedTuple):
    """Offsets of a batch whose rows a function removes.

    :param batch_id: the batch that wrote the rows
    :param end: exclusive
    """

    batch_id: int
    topic: str
    partition: int
    start: int
    end: int
