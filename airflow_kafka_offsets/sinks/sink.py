"""The protocol of a sink, and the values that sinks and their callers exchange.

A sink is a class that has the members of `Sink`; `sql/` has the first one. What a load, a replay, a rewind and a
verification ask of their target goes through this protocol. DAG files import it: SQLAlchemy and Arrow are named in
annotations only.

There are two kinds. One writes over the connection of the transaction that moves the positions: there is one commit.
The other one commits elsewhere (`ElsewhereSink`), within that transaction and before its COMMIT. What happens if the
process dies between the two commits is decided by a look-up: each publication has a number, and the target keeps the
number of the last one with its rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, runtime_checkable

from airflow_kafka_offsets.core.instants import TimeSpan
from airflow_kafka_offsets.core.offsets import OffsetRange, Slice, TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa
    import sqlalchemy as sa
    from sqlalchemy.engine import Connection, Engine

    from airflow_kafka_offsets.staging.rows import StagedRows, TargetColumns
    from airflow_kafka_offsets.writers.row_writer import RowWriter

Detail = Literal["offsets", "batches", "nothing"]
"""What the rows of a target say of their origin: topic, partition, offset and batch; the batch alone; nothing."""


class Output(NamedTuple):
    """The output of a batch that a sink writes, or takes back.

    :param batch_id: what the rows have as `_batch_id`
    :param group_id: the group that the batch is of
    :param ranges: that it reads
    :param series: the name of the publications that this one follows; nobody else's publications have it. A load of a
        group has the name of its group, anything else a name of its own
    :param attempt: the name of the attempt that staged it, for the names of files; no other attempt has it
    """

    batch_id: int
    group_id: str
    ranges: tuple[OffsetRange, ...]
    series: str
    attempt: str = ""


class Target(Protocol):
    """The target of a sink in one transaction, as `Sink.open` yields it. A class that inherits from it is one target,
    and not several.
    """

    @property
    def written(self) -> Mapping[str, BranchOutput]:
        """What `write` wrote last into each of several targets, by their names; empty where there is one."""
        return {}

    @property
    def removed(self) -> Mapping[tuple[int, str], int]:
        """How many rows `remove` removed of each batch from each of several targets, by their names; empty where there
        is one.
        """
        return {}

    def add_columns(self, columns: pa.Schema) -> list[str]:
        """Add the columns that the target lacks, nullable.

        :param columns: of the rows that are about to be written
        :return: the names of those that were added
        :raises TargetError: the target cannot have such a column, or the user may not add one
        """

    def remove(self, replaced: ReplacedOffsets) -> list[Removed]:
        """Delete the rows of replaced offsets.

        :raises ConfigurationError: the target, or a row, does not say where it is from, or of which time: some rows
            would be duplicated
        """

    def write(self, rows: StagedRows) -> int:
        """Write rows.

        Rows come in chunks. A row that the target refuses for one of its values goes to the chunk's `refuse`, and is
        left out: it becomes a dead letter, or `refuse` raises. A row that is refused for any other reason is the
        chunk's `error`. Where the tasks of Spark wrote final files, the target gets these.

        :return: the number of rows written
        :raises TargetError: the target does not fit the rows
        :raises StagedFileError: a file is missing or altered, or does not fit the target any more; staging again helps
        :raises RecordError: the target refuses a row, which is not to be a dead letter; names the record it came from
        """


@runtime_checkable
class Sink(Protocol):
    """A target that takes the rows of a batch within the transaction that moves the positions.

    A sink is plain data, and pickled with the DAG. Its methods get the connection, or the engine, of the database that
    holds the positions.
    """

    @property
    def name(self) -> str:
        """The name in messages and in the history. A target that is no table has a name like `kind://name`."""

    @property
    def conn_id(self) -> str | None:
        """The Airflow connection of the database that holds the positions."""

    @property
    def replaces_rows(self) -> bool:
        """Whether a record that is written again replaces its row, so that it is never duplicated."""

    def prepare(self, engine: Engine, columns: pa.Schema | None, *, may_grow: bool = False) -> TargetColumns:
        """Check, before Spark starts and before the commit, that rows can be written; create the target where it is
        missing.

        Called when a load begins, and before its first commit; of a sink that commits elsewhere, or has files, before
        each.

        :param columns: the columns of the rows, or None where a transform decides them
        :param may_grow: whether columns that the target lacks are added by the commit
        :return: the columns that a transform's result is checked against
        :raises TargetError: the target does not fit, cannot be created, or may not be written to
        :raises ConfigurationError: the sink's own parameters cannot work
        """

    def refuse_unknown_rows(self, conn: Connection, batches: sa.Table, batch_id: int) -> None:
        """Raise if the target holds rows of a batch that the state tables do not know, as after a restored backup.

        Called once a load; of a sink that commits elsewhere, or has files, for each batch.

        :param batches: the state table `offset_batches`
        :param batch_id: the batch that is about to be written
        :raises OlderLedgerError: the target holds rows of this batch, or of a later one that the state tables do not
            know
        """

    def writer(self, engine: Engine, columns: pa.Schema | None, output: Output) -> RowWriter:
        """Return what writes the rows in Spark's tasks. Called after `prepare`, for each attempt to stage a batch.

        :param columns: of the rows, or None where a transform decides them
        :raises ConfigurationError: the tasks write final files, and would have to know the columns
        """

    def open(self, conn: Connection, output: Output) -> AbstractContextManager[Target]:
        """Open the target within the transaction of a commit or of a rewind, which may be repeated.

        What the block does to the target is committed with the transaction, or elsewhere at the end of the block. Where
        the block raises, nothing of it is.
        """

    def rows(self, conn: Connection) -> TargetRows:
        """Return what `verify` can learn of the rows, in the snapshot of the connection."""


@runtime_checkable
class ElsewhereSink(Sink, Protocol):
    """A sink that commits elsewhere than in the database of the positions: first there, then here.

    Before the block of `open`, the state tables say that the batch is being published. At the end of the block one
    commit does all of it, and stores the number of the batch as that of the last publication of its series: a block for
    a batch that is published already does nothing, and its methods return what they returned then. It fails where
    somebody else committed since it began.
    """

    def is_published(self, engine: Engine, output: Output) -> bool:
        """Return whether the target has the rows of a batch.

        :raises TargetError: the target cannot be asked
        """

    def retire(self, engine: Engine, output: Output) -> list[Removed]:
        """Take the rows of an abandoned batch back, if it was published, and see to it that it never will be.

        An attempt that still runs, or a request on its way, cannot publish it afterwards.

        :return: what was removed
        """

    def removable(self, conn: Connection, replaced: ReplacedOffsets) -> list[Removed]:
        """Return what `Target.remove` would delete now."""


@runtime_checkable
class FileSink(Sink, Protocol):
    """A sink whose files Spark's tasks write. What they write and no commit names stays in the storage until it is
    removed.
    """

    def remove_leftovers(self, engine: Engine, batch_id: int, before: datetime) -> int:
        """Remove what attempts to stage a batch left: files that are theirs by their names, and that no snapshot names.

        :param batch_id: of a batch that is closed
        :param before: only files that were last written before this are removed
        :return: how many were removed
        :raises OSError: the storage does not answer
        """


@runtime_checkable
class ConnectedSink(Sink, Protocol):
    """A sink that needs more than the database of the positions, such as a catalog or an object store."""

    @property
    def conn_ids(self) -> tuple[str, ...]:
        """The connections that it names, beside `conn_id`."""

    def connected(self, connections: Mapping[str, Mapping[str, Any]]) -> Sink:
        """Return the sink with what these connections hold, which no `repr` shows."""

    def storage_options(self) -> Mapping[str, Any]:
        """Return what Spark's tasks need to reach the storage; may hold secrets. Called after `connected`."""


def connect(sink: Sink, connections: Mapping[str, Mapping[str, Any]]) -> Sink:
    """Return a sink with what its connections hold.

    :param connections: by their ids; may hold those of others, too
    """
    return sink.connected(connections) if isinstance(sink, ConnectedSink) else sink


class TargetRows(Protocol):
    """The rows of a target in one snapshot, as far as they say where they are from."""

    @property
    def exists(self) -> bool:
        """Whether there is a target. One that is missing has no rows, and can say what it has lost."""

    @property
    def detail(self) -> Detail:
        """What the rows say. With "nothing", no method is called; with "batches", only `counts` is."""

    @property
    def limit(self) -> str:
        """Why the detail is not "offsets", as the beginning of a sentence; empty where it is."""

    def counts(self, other_groups: sa.Select[int]) -> Iterator[tuple[int, RowCount]]:
        """Return how many rows there are of each batch and partition, in the order of the batches.

        :param other_groups: selects the batches whose rows are not counted; those of unknown batches are
        """

    def duplicates(self, dead_letters: sa.Select[int, str, int, int]) -> Iterable[DuplicatedOffsets]:
        """Return the dead letters that have a row of the same batch too, in the order of partitions and batches.

        :param dead_letters: selects `batch_id`, `topic`, `partition` and `offset_value`
        """

    def offsets(self, of_batches: Batches, within: Slice) -> Iterator[int]:
        """Return the offset of each row of some batches within a slice of a log, in ascending order."""


class Origin(NamedTuple):
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
    :param ranges: selects `batch_id`, `topic`, `partition`, `start_offset` and `end_offset`
    :param span: of time, if only the output of records is removed whose timestamps in Kafka are within it
    """

    batches: Batches
    ranges: sa.Select[int, str, int, int, int]
    span: TimeSpan | None = None

    def include(self, origin: Origin) -> sa.ColumnElement[bool]:
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


class BranchOutput(NamedTuple):
    """The rows of a batch in one of several targets.

    :param rows: how many
    :param is_each: whether each record that is no dead letter is one row, as without a transform
    """

    rows: int
    is_each: bool


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


class DuplicatedOffsets(NamedTuple):
    """Offsets of a partition that a batch loaded as rows and as dead letters.

    :param first: the lowest of them
    """

    topic: str
    partition: int
    batch_id: int
    first: int
    offsets: int
