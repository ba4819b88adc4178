"""Whether the offsets of records are those of the log.

A record says its offset itself, relative to its record batch. Brokers store most batches without a look at that, and
the client passes it on, and reads on after it: such a record may pretend to be behind others that come after it. A
whole range of offsets with a record each proves that nothing was left out. Where there are gaps, as after compaction
and transactions, the lies are found that contradict each other, the end of the log, or what another client finds.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import methodcaller

from confluent_kafka import Message

from airflow_kafka_offsets.core.offsets import Slice
from airflow_kafka_offsets.exceptions import OffsetOrderError

_offset = methodcaller("offset")


class OffsetOrder:
    """Follows the offsets of a slice.

    :param every_offset: whether a gap is an error
    :ivar name: of the partition, for messages
    :ivar next: the offset after the last record
    :ivar gap: the first offset that was left out, as by compaction and transactions, or by a lie; None without one
    """

    def __init__(self, slice_: Slice, every_offset: bool = False) -> None:
        self.name = f"{slice_.topic}[{slice_.partition}]"
        self.next = self._start = slice_.start
        self.gap: int | None = None
        self._end, self._every_offset = slice_.end, every_offset

    def follow(self, records: Sequence[Message], log_end: int | None) -> list[int]:
        """Return the offsets of the next records.

        :param log_end: the end of the log, if it was reached after them
        :raises OffsetOrderError: one is not after the one before, or every offset is wanted, and one was left out
        """
        offsets = list(map(_offset, records))
        if offsets != list(range(self.next, self.next + len(offsets))):
            for offset in offsets:
                if offset < self.next:
                    raise self.contradiction(f"there is one at offset {offset}")
                if offset > self.next:
                    self._leave_out(offset)
                self.next = offset + 1
        else:
            self.next += len(offsets)
        if log_end is not None and log_end < self.next:
            raise self.contradiction(f"the log ends at offset {log_end}")
        return offsets

    def end(self) -> None:
        """Take the offsets up to the end of the slice as left out.

        :raises OffsetOrderError: every offset is wanted
        """
        self._leave_out(self._end)

    def _leave_out(self, end: int) -> None:
        if self.next >= self._end:
            return
        if self._every_offset:
            raise OffsetOrderError(
                f"{self.name}: the log has no record from offset {self.next} to {min(end, self._end) - 1}, and "
                "Reading.every_offset wants one at each. The topic is compacted, or written in transactions, or a "
                "producer has made a record batch by hand. Nothing of this batch was loaded, and a retry does not help"
            )
        if self.gap is None:
            self.gap = self.next

    def contradiction(self, reason: str) -> OffsetOrderError:
        """Return the error for records that are not where they say.

        :param reason: what contradicts the last one, as the end of a sentence
        """
        first = max(self.next - 1, self._start) if self.gap is None else self.gap
        return OffsetOrderError(
            f"{self.name}: the offsets of the log contradict each other from {first} on: after a record that says that "
            f"its offset is {self.next - 1}, {reason}. A producer has made a record batch by hand, with offsets that "
            "hide the records of others, and the broker has stored it; or the log was truncated meanwhile. Nothing of "
            "this batch was loaded. If another try ends here, too, rewind the group to "
            "an offset after these records, and replay those before them"
        )
