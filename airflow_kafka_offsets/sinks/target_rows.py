"""The rows of a target by their origin: what `verify` reads, and which rows a rewind or a replay removes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from airflow_kafka_offsets.core.instants import TimeSpan
from airflow_kafka_offsets.core.offsets import Slice, TopicPartition

if TYPE_CHECKING:
    import sqlalchemy as sa
    from sqlalchemy.engine import Connection

Detail = Literal["offsets", "batches", "nothing"]
"""What the rows of a target say of their origin: topic, partition, offset and batch; the batch alone; nothing."""


class OtherLogs(NamedTuple):
    """For each topic the batches whose rows are of another topic of its name: an earlier one, or a later one."""

    older: Mapping[str, list[int]]
    newer: Mapping[str, list[int]]


def _no_other_logs(conn: Connection, batch_ids: Collection[int]) -> OtherLogs:
    return OtherLogs({}, {})


class LogOrder(NamedTuple):
    """What says which row of a key is newer where offsets do not.

    :param others: finds batches of other topics among some, over a connection to the state tables
    :param is_outdated: whether the records of the batch may be of an earlier topic than rows of the target
    """

    others: Callable[[Connection, Collection[int]], OtherLogs] = _no_other_logs
    is_outdated: bool = False


BY_OFFSETS = LogOrder()
"""They always do."""


class TargetRows(Protocol):
    """The rows of a target in one snapshot, as far as their origin is known."""

    @property
    def branches(self) -> Mapping[str, TargetRows]:
        """The rows of each target by its name where there are several targets; empty where there is one."""
        return {}

    @property
    def exists(self) -> bool:
        """Whether the target exists. A missing one has no rows; the history shows which rows are lost."""
        return True

    @property
    def detail(self) -> Detail:
        """How much origin the rows have. For "nothing", no method is called; for "batches", only `counts`."""
        return "nothing"

    @property
    def limit(self) -> str:
        """Why the detail is not "offsets", as the beginning of a sentence; empty where it is."""
        return ""

    def counts(self, other_groups: sa.Select[int]) -> Iterator[tuple[int, RowCount]]:
        """Return how many rows there are of each batch and partition, in the order of the batches. Rows without a
        batch are left out.

        :param other_groups: selects the batches whose rows are not counted; those of unknown batches are
        """
        raise AssertionError("rows that say nothing are not counted")

    def duplicates(self, dead_letters: sa.Select[int, str, int, int]) -> Iterable[DuplicatedOffsets]:
        """Return the dead letters that have a row of the same batch too, in the order of partitions and batches.

        :param dead_letters: selects `batch_id`, `topic`, `partition` and `offset_value`
        """
        raise AssertionError("rows that do not say their offsets are not compared")

    def offsets(self, of_batches: Batches, within: Slice) -> Iterator[int]:
        """Return the offset of each row of some batches within a slice of a log, in ascending order."""
        raise AssertionError("rows that do not say their offsets are not compared")


class OriginColumns(NamedTuple):
    """The columns that say where a row is from."""

    batch_id: sa.ColumnElement[int]
    topic: sa.ColumnElement[str]
    partition: sa.ColumnElement[int]
    offset: sa.ColumnElement[int]


class Batches(NamedTuple):
    """Batches whose rows are concerned.

    :param first: the lowest number of these
    :param last: the highest
    :param ids: their numbers, or a query that selects them
    """

    first: int
    last: int
    ids: Sequence[int] | sa.Select[int]

    def include(self, column: sa.ColumnElement[int]) -> sa.ColumnElement[bool]:
        """Return the condition that a column names one of them; an index on the column can be used."""
        return column.between(self.first, self.last) & column.in_(self.ids)

    def read_ids(self, conn: Connection) -> frozenset[int]:
        """Return their numbers, for a sink that cannot use a condition."""
        return frozenset(self.ids if isinstance(self.ids, Sequence) else conn.scalars(self.ids))


class ReplacedOffsets(NamedTuple):
    """Offsets of earlier batches whose output is removed.

    :param batches: the batches that wrote some of it; rows of no other batch have to be looked at
    :param ranges: selects `batch_id`, `topic`, `partition`, `start_offset` and `end_offset`, in the database of the
        positions
    :param span: of time, if only the output of records is removed whose timestamps in Kafka are within it
    """

    batches: Batches
    ranges: sa.Select[int, str, int, int, int]
    span: TimeSpan | None = None

    def include(self, origin: OriginColumns) -> sa.ColumnElement[bool]:
        """Return the condition that a row is of one of the offsets, whatever its timestamp is."""
        # A name that is the package's, as those of its columns are: a target may have any other.
        ranges = self.ranges.subquery("_kafka_replaced")
        of_row = [
            ranges.c.batch_id == origin.batch_id,
            ranges.c.topic == origin.topic,
            ranges.c.partition == origin.partition,
        ]
        within = [origin.offset >= ranges.c.start_offset, origin.offset < ranges.c.end_offset]
        return self.batches.include(origin.batch_id) & ranges.select().where(*of_row, *within).exists()


class Removed(NamedTuple):
    """The number of rows of a batch that were removed from one partition."""

    batch_id: int
    topic_partition: TopicPartition
    rows: int


@dataclass(frozen=True, slots=True)
class RowCount:
    """The rows, or the dead letters, of a batch in one partition.

    :param topic: None, like the partition, where the rows do not say
    :param distinct: the number of different offsets
    :param first: the lowest offset
    :param last: the highest offset
    """

    topic: str | None
    partition: int | None
    count: int
    distinct: int = 0
    first: int | None = None
    last: int | None = None

    @property
    def topic_partition(self) -> TopicPartition | None:
        """The partition; None where the rows do not say where they come from."""
        if self.topic is None or self.partition is None or self.first is None:
            return None
        return TopicPartition(self.topic, self.partition)

    def followed_by(self, later: RowCount) -> RowCount:
        """Return the rows of this batch and of a later one, whose offsets come after those of this one.

        Where they do not, the two have an offset in common, or may have.
        """
        if self.first is None or self.last is None or later.first is None or later.last is None:
            return RowCount(None, None, self.count + later.count)
        distinct = self.distinct + later.distinct - (later.first <= self.last)
        first, last = min(self.first, later.first), max(self.last, later.last)
        return RowCount(self.topic, self.partition, self.count + later.count, distinct, first, last)

    def rows_from(self, offset: int) -> int:
        """Return how many of the rows are of this offset or a later one; if that is unknown, the most there can be."""
        if self.first is None or self.last is None or self.last < offset:
            return 0
        # A transform may make several rows of an offset.
        several = self.first >= offset or self.distinct < self.count
        return self.count if several else min(self.count, self.last - offset + 1)


class DuplicatedOffsets(NamedTuple):
    """Offsets of a partition that a batch loaded as rows and as dead letters.

    :param first: the lowest of them
    """

    topic: str
    partition: int
    batch_id: int
    first: int
    offsets: int


class BranchOutput(NamedTuple):
    """The rows of a batch in one of several targets.

    :param rows: how many
    :param is_each: whether each record is one row or one dead letter, as without a transform
    """

    rows: int
    is_each: bool
