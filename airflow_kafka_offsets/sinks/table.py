"""A connected target, and the publication of one batch in it. Loads, replays, rewinds and `verify` use it.

A target takes the rows of a batch in one of two ways.

* It writes over the connection of the transaction that moves the positions: there is one commit.
* It commits externally (`Sink.commits_externally`): `Table.publish` commits at the end of its block, within that
  transaction and before its COMMIT. Each publication has a number, and the target keeps the number of the last one of
  its series with its rows. If the process dies between the two commits, `Table.last_number` tells the next attempt.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from airflow_kafka_offsets.core.history import OUTPUT_KINDS
from airflow_kafka_offsets.core.offsets import OffsetRange
from airflow_kafka_offsets.exceptions import OlderLedgerError
from airflow_kafka_offsets.sinks.target_names import TargetNames
from airflow_kafka_offsets.sinks.target_rows import (
    BY_OFFSETS,
    BranchOutput,
    LogOrder,
    Removed,
    ReplacedOffsets,
    TargetRows,
)

if TYPE_CHECKING:
    import pyarrow as pa
    import sqlalchemy as sa
    from sqlalchemy.engine import Connection

    from airflow_kafka_offsets.sinks.sink import Sink
    from airflow_kafka_offsets.staging.rows import StagedRows, TargetColumns
    from airflow_kafka_offsets.writers.row_writer import RowWriter


class Output(NamedTuple):
    """The output of a batch that a sink writes, or takes back.

    :param batch_id: what the rows have as `_batch_id`
    :param group_id: the group that the batch is of
    :param ranges: that it reads
    :param series: the unique name of the series of publications that this one belongs to. All loads of a group are one
        series, any other batch is a series of its own
    :param attempt: the unique name of the attempt that staged it, for the names of files
    :param log_order: says which row of a key is newer where offsets do not
    """

    batch_id: int
    group_id: str
    ranges: tuple[OffsetRange, ...]
    series: str
    attempt: str = ""
    log_order: LogOrder = BY_OFFSETS


class LastBatch(NamedTuple):
    """The last batch whose rows a target has.

    :param group_id: of its group; None where the rows do not say
    :param kinds: of batches, one of which it is. Its number may be that of another batch of the group since
    """

    number: int
    group_id: str | None = None
    kinds: Collection[str] = OUTPUT_KINDS


REWIND_AFTER = (
    "If a replay or a rewind wrote some of them, of offsets before the group's position, then rewind to the lowest of "
    "these, with replace."
)
"""What to do after the rows of unknown batches were deleted: a load does not load these offsets again."""


class Target(Protocol):
    """The target of a sink in one transaction, as `Table.publish` yields it."""

    written: Mapping[str, BranchOutput] = MappingProxyType({})
    """What `write` wrote last into each of several targets, by their names; empty where there is one."""

    removed: Mapping[tuple[int, str], int] = MappingProxyType({})
    """How many rows `remove` removed of each batch from each of several targets, by their names; empty where there is
    one.
    """

    def add_columns(self, columns: pa.Schema) -> list[str]:
        """Add the columns that the target lacks, nullable; by default none.

        :param columns: of the rows that are about to be written
        :return: the names of those that were added
        :raises TargetError: the target cannot have such a column, or the user may not add one
        """
        return []

    def remove(self, replaced: ReplacedOffsets) -> list[Removed]:
        """Delete the rows of replaced offsets.

        :raises ConfigurationError: the target has no origin columns, or a row has no origin or timestamp: some rows
            would be duplicated
        """

    def check_removed(self) -> None:
        """Check that the rows that `remove` found can be removed. A rewind of a target that commits externally calls
        this before the positions move, and removes the rows afterwards.

        :raises TargetError: they cannot
        """
        return

    def write(self, rows: StagedRows) -> int:
        """Write rows.

        Rows come in chunks. If the target refuses a row for one of its values, call the chunk's `refuse` and leave the
        row out: it becomes a dead letter, or `refuse` raises. If it refuses a row for any other reason, raise the
        chunk's `error`. If Spark's tasks wrote final files, the target gets these.

        May be called again in the same block: with a transform, all rows are written once more without those of a
        refused record. The caller rolls back the connection of the positions. A target that commits externally discards
        what it wrote itself, so that the last call decides.

        :return: the number of rows written
        :raises TargetError: the target does not fit the rows
        :raises StagedFileError: a file is missing or altered, or does not fit the target any more; staging again helps
        :raises RecordError: the target refuses a row, which is not to be a dead letter; names the record it came from
        """


class PublishedTarget(Target):
    """A target that has the batch already: it does nothing, and returns what it returned when the batch was published.

    :param rows: the number of written rows
    :param gone: the removed rows
    """

    def __init__(self, rows: int, gone: list[Removed]) -> None:
        self._rows, self._gone = rows, gone

    def remove(self, replaced: ReplacedOffsets) -> list[Removed]:
        return self._gone

    def write(self, rows: StagedRows) -> int:
        return self._rows


class Dataset(NamedTuple):
    """A table as OpenLineage names it.

    :param fields: names and types of its columns; None where they are not known
    :param symlink: another namespace and name of it, such as those in a catalog
    """

    namespace: str
    name: str
    fields: Sequence[tuple[str, str]] | None = None
    symlink: tuple[str, str] | None = None


class Table(ABC):
    """A target with its connections: what `Sink.connect` returns.

    A target in the database of the positions implements `prepare`, `publish` and `rows`. One that commits externally
    also implements `last_number`, `retire` and `last_batch`: if the state tables are created again, its series are new,
    and only its rows show that it is older than they are.

    :ivar sink: that was connected
    """

    sink: Sink

    @abstractmethod
    def prepare(self, columns: pa.Schema | None, *, may_grow: bool = False) -> TargetColumns:
        """Check that rows can be written; create the target where it is missing.

        Called when a load begins, and before its first commit; where the target commits externally, or Spark's tasks
        write its files, before each.

        :param columns: the columns of the rows, or None where a transform decides them
        :param may_grow: whether columns that the target lacks are added by the commit
        :return: the columns that a transform's result is checked against
        :raises TargetError: the target does not fit, cannot be created, or may not be written to
        :raises ConfigurationError: the sink's own parameters cannot work
        """

    def added_check(self) -> Callable[[pa.Field], None]:
        """Return a check that the target could get a column, by its name and type, or has one that takes its values.

        The check raises a TargetError, or a ConfigurationError where the name is too long.
        """
        return lambda column: None

    def drop_unused(self) -> bool:
        """Drop the target if an earlier load created it, and it has no rows; return whether it did. The state tables
        know no batch of it.
        """
        return False

    def refuse_lost(self, conn: Connection, batches: sa.Table, group_id: str) -> None:  # noqa: B027
        """Raise if the target is missing although a group has rows in it. Called before `prepare` would create it, if
        Spark's tasks write its files.

        :param batches: the state table `offset_batches`; its metadata has the others
        :raises TargetError: the target was dropped, or is looked for in another place
        """

    def refuse_unknown_rows(self, conn: Connection, batches: sa.Table, output: Output) -> None:
        """Raise if the target holds rows of a batch that the state tables do not know, as after a restored backup.

        Only the last batch of the target is looked up: while it is unknown, no load writes another one after it.

        Called once a load; where the target commits externally, or has files, for each batch, before Spark starts and
        again within the block of `publish`. Also called by a rewind that removes rows.

        :param batches: the state table `offset_batches`; its metadata has the others
        :param output: of the batch that is about to be written; of a rewind, with the ranges whose rows it removes
        :raises OlderLedgerError: the target holds rows of this batch, or of a later one that the state tables do not
            know
        """
        last = self.last_batch(conn, output)
        if last is not None:
            self.refuse_unknown(conn, batches, output, last)

    def refuse_unknown(self, conn: Connection, batches: sa.Table, output: Output, last: LastBatch) -> None:
        """Raise if the state tables do not know the last batch of the target; see `refuse_unknown_rows`."""
        written = conn.execute(batches.select().where(batches.c.batch_id == last.number)).one_or_none()
        if written is None:
            known = "which the state tables do not know"
        # It may be there once it began to be published; of one that was taken back, the number of rows is noted.
        elif written.state != "committed" and written.publish_started_at is None and written.row_count is None:
            known = f"which is {written.state} and not committed by the state tables"
        elif written.kind not in last.kinds:
            known = f"which is of kind {written.kind!r} by the state tables"
        elif last.group_id in (None, written.consumer_group) and self._may_have(conn, batches, written.target_table):
            return
        else:
            known = f"which is of group {written.consumer_group!r} into {written.target_table!r} by the state tables"
        raise OlderLedgerError(
            f"Table {self.sink.name!r} holds rows of batch {last.number}, {known}. The state tables were restored from "
            "an older backup than the table, or created again, or the rows were copied from another table, or another "
            "table was renamed to it. Nothing was "
            f"written: records would be loaded again. {self.way_out(conn, batches, output)}"
        )

    def _may_have(self, conn: Connection, batches: sa.Table, name: str | None) -> bool:
        """Return whether the target may have rows that were written into a name. One of its tables may have been
        renamed to the target, if the history does not have its new name yet: the next load writes it.
        """
        names, target = TargetNames(conn, batches), self.sink.name
        if name is None or names.shared(name, target) is not None:
            return True
        column = batches.c.target_table
        known = conn.scalars(batches.select().with_only_columns(column).where(column.is_not(None)).distinct())
        return names.is_renamed(name, target, known.all())

    def last_batch(self, conn: Connection, output: Output) -> LastBatch | None:
        """Return the last batch whose rows the target has; None where it has none, or does not say.

        By default, this is the last publication of the series, if the target commits externally.
        """
        number = self.last_number(output) if self.sink.commits_externally else -1
        return LastBatch(number, output.group_id) if number >= 0 else None

    def way_out(self, conn: Connection, batches: sa.Table, output: Output) -> str:
        """Return the advice for a target with rows that the state tables do not know."""
        return "Restore both to the same moment, or load the group into another table."

    def check_removal(self) -> None:  # noqa: B027
        """Check that rows may be removed. Called before a replay that replaces rows is planned.

        :raises TargetError: no row may be
        """

    def check_replaced(self, conn: Connection, replaced: ReplacedOffsets) -> None:  # noqa: B027
        """Check that the rows of some offsets may be removed. Called before the batch that replaces them is staged.

        :raises TargetError: some may not
        """

    def writer(self, columns: pa.Schema | None, output: Output) -> RowWriter:
        """Return what writes the rows in Spark's tasks: by default Arrow files, which the commit reads.

        Called after `prepare`, for each attempt to stage a batch.

        :param columns: of the rows, or None where a transform decides them
        :raises ConfigurationError: the tasks write final files, and would have to know the columns
        """
        from airflow_kafka_offsets.writers.row_writer import ArrowWriter

        return ArrowWriter()

    def storage_options(self) -> Mapping[str, Any]:
        """Return what Spark's tasks need to reach the storage of final files. May hold secrets."""
        return {}

    @abstractmethod
    def publish(self, conn: Connection, output: Output) -> AbstractContextManager[Target]:
        """Open the target within the transaction of a commit or of a rewind, which may be repeated.

        The changes of the block are committed with the transaction. A target that commits externally makes one commit
        at the end of the block, which also stores the batch id as the last number of the series; it fails if another
        writer has committed to the same rows since the block began. If the batch is published already, the block does
        nothing, and the methods of the target return what they returned then. If the block raises, nothing is
        committed. A rewind uses this to count the rows that it will remove; it removes them in another block, without
        rows to write, after the positions are committed.

        :raises OlderLedgerError: the last publication of the series is that of a later batch
        """

    def last_number(self, output: Output) -> int:
        """Return the number of the last publication of a series; -1 if there is none. If it is the id of a batch, the
        target has the rows of this batch. Called only if the target commits externally.

        :raises DatabaseUnavailableError: the target does not answer
        """
        return -1

    def retire(self, output: Output) -> list[Removed]:
        """Remove the rows of an abandoned batch if it was published, and make sure that it never is.

        An attempt that still runs, or a pending request, cannot publish the batch afterwards. Called only if the target
        commits externally, and not of a batch that replaces rows, which can only be continued. Called again after a
        crash, it returns what it finds then.

        :return: what was removed, of the rows that name their partition
        """
        return []

    @abstractmethod
    def rows(self, conn: Connection) -> TargetRows:
        """Return what `verify` can learn of the rows, in the snapshot of the connection.

        The rows of a target that commits externally are read when a method is called, after that snapshot. Nothing
        closes the object.
        """

    def remove_leftovers(self, batch_id: int, before: datetime, installation: str) -> int:
        """Remove the files that attempts to stage a closed batch left, and that no version of the target names.

        :param before: only files that were last written before this
        :param installation: only files in a directory whose name is of an attempt of these state tables; see
            `core.attempts`
        :return: how many were removed
        :raises OSError: the storage does not answer
        :raises TargetError: the target does not say which files it names
        """
        return 0

    def datasets(self) -> Sequence[Dataset]:
        """Return the tables as OpenLineage names them, with their columns as they are now."""
        return ()
