"""A connected target, and one batch on its way into it: what a load, a replay, a rewind and `verify` talk to.

A target takes the rows of a batch in one of two ways.

* It writes over the connection of the transaction that moves the positions: there is one commit.
* It commits externally (`Sink.commits_externally`): `Table.publish` commits at the end of its block, within that
  transaction and before its COMMIT. Each publication has a number, and the target keeps the number of the last one of
  its series with its rows. If the process dies between the two commits, `Table.last_number` tells the next attempt.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from airflow_kafka_offsets.core.offsets import OffsetRange
from airflow_kafka_offsets.exceptions import OlderLedgerError
from airflow_kafka_offsets.sinks.target_names import TargetNames
from airflow_kafka_offsets.sinks.target_rows import BranchOutput, Removed, ReplacedOffsets, TargetRows

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
    :param series: the name of the publications that this one follows; nobody else's publications have it. A load of a
        group has the name of its group, anything else has its own name
    :param attempt: the name of the attempt that staged it, for the names of files; no other attempt has it
    """

    batch_id: int
    group_id: str
    ranges: tuple[OffsetRange, ...]
    series: str
    attempt: str = ""


class LastBatch(NamedTuple):
    """The last batch whose rows a target has.

    :param group_id: of its group; None where the rows do not say
    """

    number: int
    group_id: str | None = None


class Target(Protocol):
    """The target of a sink in one transaction, as `Table.publish` yields it. A class that inherits from it is one
    target, and not several.
    """

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

        :raises ConfigurationError: the target, or a row, does not say where it is from, or of which time: some rows
            would be duplicated
        """

    def write(self, rows: StagedRows) -> int:
        """Write rows.

        Rows come in chunks. A row that the target refuses for one of its values goes to the chunk's `refuse`, and is
        left out: it becomes a dead letter, or `refuse` raises. A row that is refused for any other reason is the
        chunk's `error`. Where the tasks of Spark wrote final files, the target gets these.

        May be called again in the same block: with a transform, all rows are written once more without those of a
        record that was refused. The caller rolls back what the connection of the positions wrote. A target that commits
        externally takes back what it wrote itself, so that the last call decides.

        :return: the number of rows written
        :raises TargetError: the target does not fit the rows
        :raises StagedFileError: a file is missing or altered, or does not fit the target any more; staging again helps
        :raises RecordError: the target refuses a row, which is not to be a dead letter; names the record it came from
        """


class PublishedTarget(Target):
    """A target that has the batch already: it does nothing, and returns what it returned when the batch was published.

    :param rows: how many were written
    :param gone: what was removed
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
    also implements `last_number` and `retire`.

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

    def refuse_unknown_rows(self, conn: Connection, batches: sa.Table, output: Output) -> None:
        """Raise if the target holds rows of a batch that the state tables do not know, as after a restored backup.

        The last batch of the target is looked up: while it is not known, nobody writes another one after it.

        Called once a load; where the target commits externally, or has files, for each batch, before Spark starts and
        again within the block of `publish`.

        :param batches: the state table `offset_batches`
        :param output: of the batch that is about to be written
        :raises OlderLedgerError: the target holds rows of this batch, or of a later one that the state tables do not
            know
        """
        last = self.last_batch(conn, output)
        if last is None:
            return
        written = conn.execute(batches.select().where(batches.c.batch_id == last.number)).one_or_none()
        if written is None:
            known = "which the state tables do not know"
        # It may be there once it began to be published; of one that was taken back, the number of rows is noted.
        elif written.state != "committed" and written.publish_started_at is None and written.row_count is None:
            known = f"which is {written.state} by the state tables"
        elif last.group_id in (None, written.consumer_group) and TargetNames(conn).may_hold(
            self.sink.name, written.target_table
        ):
            return
        else:
            known = f"which is of group {written.consumer_group!r} into {written.target_table!r} by the state tables"
        raise OlderLedgerError(
            f"Table {self.sink.name!r} holds rows of batch {last.number}, {known}; the next batch would be "
            f"{output.batch_id}. The state tables were restored from an older backup than the table, or created again, "
            "or somebody copied the rows from another table. Nothing was written: records would be loaded again. "
            f"{self.way_out(conn, batches, output)}"
        )

    def last_batch(self, conn: Connection, output: Output) -> LastBatch | None:
        """Return the last batch whose rows the target has; None where it has none, or does not say.

        By default, the last publication of the series, of a target that commits externally, unless it is of an earlier
        batch than that of the output.
        """
        number = self.last_number(output) if self.sink.commits_externally else -1
        return LastBatch(number, output.group_id) if number >= output.batch_id else None

    def way_out(self, conn: Connection, batches: sa.Table, output: Output) -> str:
        """Return what to do where the target holds rows that the state tables do not know."""
        return "Restore both to the same moment, or load the group into another table."

    def check_removal(self) -> None:  # noqa: B027
        """Check that rows may be removed. Called before a replay that replaces rows is planned.

        :raises TargetError: no row may be
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

        What the block does is committed with the transaction. A target that commits externally makes one commit of it
        at the end of the block, with the number of the batch as that of the last publication of the series; it fails
        where another writer committed to the same rows since the block began. If the batch is published already, the
        block does nothing, and the methods of the target return what they returned then. Where the block raises,
        nothing of it is committed: by that a rewind counts the rows that it will remove, and removes them in another
        block, without rows to write, once the positions are committed.

        :raises OlderLedgerError: the last publication of the series is that of a later batch
        """

    def last_number(self, output: Output) -> int:
        """Return the number of the last publication of a series; -1 where there is none. The target has the rows of a
        batch where that is its number. Called only where the target commits externally.

        :raises TargetError: the target does not answer
        """
        return -1

    def retire(self, output: Output) -> list[Removed]:
        """Remove the rows of an abandoned batch if it was published, and see to it that it never will be.

        An attempt that still runs, or a request on its way, cannot publish the batch afterwards. Called only where the
        target commits externally.

        :return: what was removed
        """
        return []

    @abstractmethod
    def rows(self, conn: Connection) -> TargetRows:
        """Return what `verify` can learn of the rows, in the snapshot of the connection."""

    def remove_leftovers(self, batch_id: int, before: datetime) -> int:
        """Remove the files that attempts to stage a closed batch left, and that no version of the target names.

        :param before: only files that were last written before this
        :return: how many were removed
        :raises OSError: the storage does not answer
        """
        return 0

    def datasets(self) -> Sequence[Dataset]:
        """Return the tables as OpenLineage names them, with their columns as they are now."""
        return ()
