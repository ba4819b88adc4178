"""The first record at or after an instant, proved by a look at the record that lies there.

A broker searches everything that a log holds. What it finds may be the marker that ends a transaction, whose timestamp
is the broker's clock, or a record of an aborted transaction: no reader gets these, and the first record that a reader
gets may lie far behind them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from airflow_kafka_offsets.core.instants import milliseconds
from airflow_kafka_offsets.core.offsets import Slice, TopicPartition
from airflow_kafka_offsets.exceptions import DataLossError
from airflow_kafka_offsets.kafka.cluster import Cluster, TimedOffset

if TYPE_CHECKING:
    import pyarrow as pa

Found = TypeVar("Found")

# A look takes some milliseconds, most of which is waiting for a broker.
_THREADS = 8


@dataclass(frozen=True, slots=True)
class TimeSearch:
    """Searches logs for instants, and reads what lies at the offsets that the brokers report.

    :param group_id: under which records are read, for ACLs and quotas
    """

    cluster: Cluster
    group_id: str

    def first_records(
        self, timestamps_ms: Mapping[TopicPartition, int], begins: Mapping[TopicPartition, int] | None = None
    ) -> dict[TopicPartition, TimedOffset]:
        """Return the first record of each partition whose timestamp is at or after an instant; partitions without one
        are left out.

        Where the broker's answer is no record, the log is read from there to the first record that is not older. That
        takes as long as reading these records does.

        :param timestamps_ms: milliseconds since 1970 in UTC
        :param begins: offsets before which no record is looked for
        :raises KafkaOffsetsError: what `Cluster.offsets_for_times` and `kafka.reader.read` raise
        """
        reported = {tp: record.offset for tp, record in self.cluster.offsets_for_times(timestamps_ms).items()}
        first = {tp: max(offset, (begins or {}).get(tp, 0)) for tp, offset in reported.items()}
        # The log ends after what the broker found, but perhaps not after another offset.
        later = [tp for tp in first if first[tp] > reported[tp]]
        ends = self._ends(later)
        first = {tp: offset for tp, offset in first.items() if tp not in ends or offset < ends[tp]}
        found = self._of_each(first, lambda tp: self._first(tp, timestamps_ms[tp], first[tp], first[tp] + 1))
        unproved = [tp for tp, record in found.items() if record is None]
        ends = self._ends(unproved)
        found |= self._of_each(unproved, lambda tp: self._first(tp, timestamps_ms[tp], first[tp] + 1, ends[tp]))
        return {tp: record for tp, record in found.items() if record is not None}

    def count_within(
        self, since_ms: int, until_ms: int, slices: Mapping[TopicPartition, tuple[int, int]]
    ) -> dict[TopicPartition, int]:
        """Return how many records within offsets of each partition have a timestamp at or after an instant, and before
        another.
        """

        from airflow_kafka_offsets.kafka.reader import within

        def count(tp: TopicPartition) -> int:
            return sum(within(batch, since_ms, until_ms).num_rows for batch in self._read(tp, *slices[tp]))

        return self._of_each(slices, count)

    def _ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        wanted = set(partitions)
        logs = self.cluster.logs(sorted({tp.topic for tp in wanted})) if wanted else {}
        return {tp: log.end for tp, log in logs.items() if tp in wanted}

    def _first(self, tp: TopicPartition, timestamp_ms: int, start: int, end: int) -> TimedOffset | None:
        """Return the first record within offsets at or after an instant."""
        from airflow_kafka_offsets.kafka.reader import within

        for batch in self._read(tp, start, end):
            records = within(batch, timestamp_ms, None)
            if records.num_rows:
                return TimedOffset(
                    records.column("offset")[0].as_py(), milliseconds(records.column("timestamp")[0].as_py())
                )
        return None

    def _read(self, tp: TopicPartition, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """Read the records within offsets that the log still has."""
        # Only what reads records pays for Arrow: lag seldom does, and is measured often.
        from airflow_kafka_offsets.kafka.reader import consumer_config, read

        config = consumer_config(self.cluster.config, self.group_id, self.cluster.isolation_level)
        while start < end:
            try:
                yield from read(Slice(0, *tp, start, end), config, clip_timestamps=True)
                return
            except DataLossError:
                # Records expire meanwhile.
                beginning = self.cluster.logs([tp.topic])[tp].beginning
                if beginning <= start:
                    raise
                start = beginning

    def _of_each(
        self, partitions: Iterable[TopicPartition], look: Callable[[TopicPartition], Found]
    ) -> dict[TopicPartition, Found]:
        wanted = list(partitions)
        with ThreadPoolExecutor(_THREADS) as threads:
            return dict(zip(wanted, threads.map(look, wanted), strict=True))
