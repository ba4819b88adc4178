"""Starts and ends that the user gave as instants, durations or consumer groups, resolved to offsets by the cluster.

The result goes to `core.planning`, which decides the ranges. What a broker finds at or after an instant is proved by a
look at the record that lies there. A broker searches everything that a log holds: it may find the marker that ends a
transaction, whose timestamp is the broker's clock, or a record of an aborted transaction. No reader gets these, and the
first record that a reader gets may lie far behind them. And it may find nothing where there is a record: it looks into
the first segment only that ever had one as new (Kafka 4.2), which may have been deleted or compacted away.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, TypeVar

from airflow_kafka_offsets.core import planning
from airflow_kafka_offsets.core.instants import (
    CommittedBy,
    Start,
    format_instant,
    from_milliseconds,
    instant,
    milliseconds,
)
from airflow_kafka_offsets.core.offsets import PartitionLog, Position, Slice, TopicPartition
from airflow_kafka_offsets.core.planning import First
from airflow_kafka_offsets.core.text import first_few
from airflow_kafka_offsets.exceptions import KAFKA, DataLossError, NoPositionError, about
from airflow_kafka_offsets.kafka.cluster import Cluster, TimedOffset

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

Found = TypeVar("Found")

# A look takes some milliseconds, most of which is waiting for a broker. Each may decompress a whole batch of a
# producer, in the same process.
_THREADS = 2


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

        Where the broker's answer is no record, the log is read from there to the first record that is not older; and
        from its beginning where the broker finds nothing, but knows of a newer timestamp. That takes as long as reading
        these records does.

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
        missing = {tp: timestamp for tp, timestamp in timestamps_ms.items() if tp not in reported}
        found |= self.not_found(missing, begins)
        return {tp: record for tp, record in found.items() if record is not None}

    def not_found(
        self, timestamps_ms: Mapping[TopicPartition, int], begins: Mapping[TopicPartition, int] | None = None
    ) -> dict[TopicPartition, TimedOffset]:
        """Return the first record at or after an instant of partitions in which their broker found none; those without
        one are left out.

        :param timestamps_ms: of these partitions, as for `first_records`
        :param begins: as for `first_records`
        """
        if not timestamps_ms:
            return {}
        # In this order: a record that arrives between the requests is found by the second one. So is one of an open
        # transaction, which is behind the end.
        newest = self.cluster.newest_timestamps(timestamps_ms)
        missing = {tp: timestamp for tp, timestamp in timestamps_ms.items() if newest.get(tp, -1) >= timestamp}
        hidden = missing.keys() - self.cluster.offsets_for_times(missing, uncommitted=True).keys()
        logs = self.cluster.logs_of_partitions(hidden)

        def first(tp: TopicPartition) -> TimedOffset | None:
            begin = max(logs[tp].beginning, (begins or {}).get(tp, 0))
            return self._first(tp, missing[tp], begin, logs[tp].end)

        found = self._of_each(logs, first)
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
        return {tp: log.end for tp, log in self.cluster.logs_of_partitions(partitions).items()}

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
        from airflow_kafka_offsets.kafka.consumer import consumer_config
        from airflow_kafka_offsets.kafka.reader import read

        config = consumer_config(self.cluster.config, self.group_id, self.cluster.isolation_level)
        while start < end:
            try:
                yield from read(Slice(0, *tp, start, end), config, clip_timestamps=True)
                return
            except DataLossError:
                # Records expire meanwhile.
                beginning = self.cluster.logs_of_partitions([tp])[tp].beginning
                if beginning <= start:
                    raise
                start = beginning

    def _of_each(
        self, partitions: Iterable[TopicPartition], look: Callable[[TopicPartition], Found]
    ) -> dict[TopicPartition, Found]:
        wanted = list(partitions)
        with ThreadPoolExecutor(_THREADS) as threads:
            return dict(zip(wanted, threads.map(look, wanted), strict=True))


# Clocks of producers differ by seconds; a timestamp that lies further in the future is wrong.
_CLOCK_TOLERANCE = timedelta(hours=1)


Find = Callable[[Mapping[TopicPartition, int]], dict[TopicPartition, TimedOffset]]


def first_offsets(
    cluster: Cluster,
    start: Start,
    now: Callable[[], datetime],
    logs: Mapping[TopicPartition, PartitionLog],
    positions: Mapping[TopicPartition, Position],
    *,
    find: Find,
) -> planning.Start:
    """Return where the topics that have no position yet begin.

    :param find: looks an instant up, as `TimeSearch.first_records` or `Cluster.offsets_for_times` does
    :param now: returns the database's time, from which a duration counts back
    :raises NoPositionError: the other group has committed nothing
    """
    known = {tp.topic for tp in positions}
    new = [tp for tp in logs if tp.topic not in known]
    if not new:
        return "earliest"
    if isinstance(start, CommittedBy):
        return _committed(cluster, start.group_id, new, logs)
    if start == "earliest" or start == "latest" or start == "none":
        return start  # type: ignore[return-value]
    present = now()
    since = present - start if isinstance(start, timedelta) else instant("start", start)
    if since > present + _CLOCK_TOLERANCE:
        log.warning(
            "start is %s, which is in the future: the load begins at the end of the log, and loads what is written "
            "from now on",
            format_instant(since),
        )
    first = find(dict.fromkeys(new, milliseconds(since)))
    _warn_of_future(
        first,
        since,
        present,
        "Records at or after that instant may be before it: a search by time does not find them",
    )
    if without := sorted(set(new) - set(first)):
        log.info(
            "No record at or after %s in %s: beginning at the end offset", format_instant(since), first_few(without)
        )
    # Without such a record, the first one will be written at the end of the log.
    return {tp: First(logs[tp].end, "timestamp") for tp in new} | {
        tp: First(record.offset, "timestamp", record.timestamp_ms) for tp, record in first.items()
    }


def _warn_of_future(
    first: Mapping[TopicPartition, TimedOffset], since: datetime, present: datetime, meaning: str
) -> None:
    for tp, record in sorted(first.items()):
        if record.timestamp_ms > milliseconds(present + _CLOCK_TOLERANCE):
            log.warning(
                "%s: the first record at or after %s is at offset %d, and its timestamp %s is in the future. %s",
                tp,
                format_instant(since),
                record.offset,
                format_instant(from_milliseconds(record.timestamp_ms)),
                meaning,
            )


def extend_to_positions(
    cluster: Cluster,
    logs: Mapping[TopicPartition, PartitionLog],
    positions: Mapping[TopicPartition, Position],
    start: planning.Start,
) -> dict[TopicPartition, PartitionLog]:
    """Return the logs, with their ends at or after the positions and first offsets, see `Cluster.extended`.

    :param start: the result of `first_offsets`
    """
    offsets = {tp: first.offset for tp, first in start.items()} if isinstance(start, Mapping) else {}
    return cluster.extended(logs, offsets | {tp: position.offset for tp, position in positions.items()})


def targets_until(
    search: TimeSearch,
    until: datetime,
    now: Callable[[], datetime],
    logs: Mapping[TopicPartition, PartitionLog],
    positions: Mapping[TopicPartition, Position],
) -> dict[TopicPartition, int]:
    """Return the offset up to which each partition is loaded: that of the first unread record at or after an instant,
    or the log's end.

    Records do not arrive in the order of their timestamps: an older record that arrives after that offset is left to a
    later run.

    :param now: returns the database's time
    """
    unread = {tp: position.offset for tp, position in positions.items()}
    first = search.first_records(dict.fromkeys(logs, milliseconds(until)), unread)
    if first:
        _warn_of_future(
            first,
            until,
            now(),
            "Each load with until stops before it, and leaves what is after it, until one without until loads it",
        )
    return {tp: min(first[tp].offset, log.end) if tp in first else log.end for tp, log in logs.items()}


@about(KAFKA)
def _committed(
    cluster: Cluster, group_id: str, new: list[TopicPartition], logs: Mapping[TopicPartition, PartitionLog]
) -> dict[TopicPartition, First]:
    committed = cluster.committed(group_id, new)
    if not committed:
        raise NoPositionError(
            f"Consumer group {group_id!r} has committed nothing of {first_few(sorted({tp.topic for tp in new}))}: "
            "check the name (kafka-consumer-groups --list), and whether its commits have expired"
        )
    if missing := sorted(set(new) - set(committed)):
        log.warning(
            "Consumer group %r has committed nothing of %s: beginning at their beginning offsets",
            group_id,
            first_few(missing),
        )
    return {
        tp: First(committed[tp], "group") if tp in committed else First(logs[tp].beginning, "earliest") for tp in new
    }
