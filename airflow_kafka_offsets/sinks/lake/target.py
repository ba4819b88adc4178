"""A table of files while a batch is published: what is done to it is collected, and committed at the end of the
block.
"""

from __future__ import annotations

import logging
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Generic, Self, TypeVar

import pyarrow as pa
from sqlalchemy.engine import Connection

from airflow_kafka_offsets.core.offsets import TopicPartition
from airflow_kafka_offsets.exceptions import DatabaseBusyError, OlderLedgerError, TargetError
from airflow_kafka_offsets.sinks.lake.columns import match
from airflow_kafka_offsets.sinks.lake.file_table import FileTable, PublicationResult
from airflow_kafka_offsets.sinks.lake.removal import Removal, of_output, plan_removal, rewrite
from airflow_kafka_offsets.sinks.lake.replaced import ReplacedRows
from airflow_kafka_offsets.sinks.lake.staged import LakeSink, check_files
from airflow_kafka_offsets.sinks.table import Output, Target
from airflow_kafka_offsets.sinks.target_rows import Removed, ReplacedOffsets
from airflow_kafka_offsets.staging.manifest import StagedFile
from airflow_kafka_offsets.staging.rows import StagedRows
from airflow_kafka_offsets.writers.data_files import DataFile
from airflow_kafka_offsets.writers.table_rows import file_columns

log = logging.getLogger(__name__)

# How often a commit is tried anew because somebody else committed first.
TRIES = 50

Table = TypeVar("Table", bound=FileTable)


class LakeTarget(Target, ABC, Generic[Table]):
    """A table, and what is done to it; see `Target`. Of a batch that is published already, all is done.

    :param conn: of the database with the state tables; None where a batch is retired
    """

    def __init__(self, sink: LakeSink, snapshot: Table | None, conn: Connection | None, output: Output) -> None:
        self.sink, self.output = sink, output
        self.snapshot, self._conn = snapshot, conn
        self._is_published = False
        self._columns: pa.Schema | None = None
        self._staged: tuple[tuple[StagedFile, ...], pa.Schema] | None = None
        self._is_written = False
        self.adds: list[dict[str, Any]] = []
        self.removal: Removal | None = None
        self.rewritten: list[dict[str, Any]] = []
        self.did = PublicationResult()
        if snapshot is not None:
            snapshot.check()

    @contextmanager
    def opened(self) -> Iterator[Self]:
        """Open the table, and commit at the end of the block; see `Table.publish`."""
        published = self.look(self.snapshot) if self.snapshot is not None else None
        if published is not None:
            self.did, self._is_published = published, True
        yield self
        self.commit()

    @abstractmethod
    def grow(self, snapshot: Table, lacking: Sequence[pa.Field]) -> Table | None:
        """Add columns to the table.

        :return: the table with them; None where somebody else committed first
        """

    @abstractmethod
    def publish(self, snapshot: Table, number: int) -> bool:
        """Make one commit of all that was done.

        :param number: the last one of the series from now on
        :return: False where nothing was committed, because somebody else committed first
        """

    @abstractmethod
    def path(self, directory: str, partition: Mapping[str, Any]) -> str:
        """Return the path of a new file."""

    @abstractmethod
    def plain(self, file: DataFile) -> dict[str, Any]:
        """Return what a commit has to know of a new file, as the writer has it."""

    def add_columns(self, columns: pa.Schema) -> list[str]:
        """Take note of the columns that the table lacks; see `Target.add_columns`."""
        if not self._is_published:
            snapshot = self._existing()
            match(snapshot.name, snapshot.columns, (), columns, may_grow=True)
            self._columns = columns
            self.did = self.did._replace(columns=tuple(column.name for column in self._lacking(snapshot)))
        return list(self.did.columns)

    def remove(self, replaced: ReplacedOffsets) -> list[Removed]:
        """Take note of the rows of replaced offsets, and write those again that share a file with them; see
        `Target.remove`.
        """
        if not self._is_published and self.snapshot is not None:
            assert self._conn is not None
            rows = ReplacedRows.read(self._conn, self.sink.name, replaced)
            rows.check_columns(self.snapshot.columns)
            self._plan(self.snapshot, plan_removal(self.snapshot, rows))
        return as_removed(self.did)

    def write(self, rows: StagedRows) -> int:
        """Take note of the files that Spark's tasks wrote; see `Target.write`."""
        schema, self._is_written = rows.schema(), True
        if not self._is_published and schema is not None:
            self._staged = rows.files, schema
            self.adds = check_files(self._existing(), *self._staged)
            self.did = self.did._replace(rows=sum(file.rows for file in rows.files))
        return self.did.rows

    def commit(self) -> None:
        """Commit what was done, if it is anything. A batch without rows takes its number: no earlier attempt, which had
        some, may publish it afterwards.

        :raises TargetError: the table does not fit any more
        :raises StagedFileError: the files do not fit any more; staging again helps
        :raises DatabaseBusyError: others commit all the time, or have changed what was to be removed
        """
        snapshot = self.snapshot
        if self._is_published or snapshot is None or (self.did == PublicationResult() and not self._is_written):
            return
        for _ in range(TRIES):
            try:
                if self._commit_once(snapshot):
                    return
            except Exception:
                # The answer may be lost: only the table says whether it was committed, and nothing is committed a
                # second time.
                if self._is_done(snapshot.refresh()):
                    return
                raise
            snapshot = snapshot.refresh()
            if self._is_done(snapshot):
                return
            self._rebase(snapshot)
        raise DatabaseBusyError(f"Others committed to {self.sink.name!r} {TRIES} times in a row, each time first")

    def retire(self) -> list[Removed]:
        """Remove the rows of the batch, if it was published, and take its number; see `Table.retire`."""
        snapshot = self.snapshot
        for _ in range(TRIES):
            if snapshot is None:
                return []
            last = snapshot.last_number(self.output.series)
            removal = plan_removal(snapshot, of_output(snapshot, self.output))
            if not removal.counts and snapshot.is_taken(self.output.series, self.output.batch_id):
                return []
            self._plan(snapshot, removal)
            if self.publish(snapshot, max(last, self.output.batch_id)):
                return as_removed(self.did, self.output)
            snapshot = snapshot.refresh()
        raise DatabaseBusyError(f"Others committed to {self.sink.name!r} {TRIES} times in a row, each time first")

    def look(self, snapshot: Table) -> PublicationResult | None:
        """Return what a commit did that published the batch; None where none has.

        :raises OlderLedgerError: a later batch is published
        """
        output = self.output
        number = snapshot.last_number(output.series)
        if number > output.batch_id:
            raise OlderLedgerError(
                f"Table {snapshot.name!r} has batch {number} of group {output.group_id!r} already, and the batch to be "
                f"committed is {output.batch_id}: the state tables were restored from an older backup than the table. "
                "Nothing was written: restore both to the same moment"
            )
        if not snapshot.is_taken(output.series, output.batch_id):
            return None
        did = snapshot.find_published(output.series, output.batch_id)
        if did is not None:
            return did
        log.warning("Batch %d is in %s, whose log is cleaned up: its rows are counted", output.batch_id, snapshot.name)
        return PublicationResult(plan_removal(snapshot, of_output(snapshot, output)).counts.total())

    def _existing(self) -> Table:
        if self.snapshot is None:
            raise TargetError(f"Table {self.sink.name!r} disappeared between staging and commit; nothing was written")
        return self.snapshot

    def _commit_once(self, snapshot: Table) -> bool:
        lacking = self._lacking(snapshot)
        if lacking:
            grown = self.grow(snapshot, lacking)
            if grown is None:
                return False
            # Others may have committed after it: what was looked at and planned was in the snapshot before.
            if self._is_done(grown):
                return True
            self._rebase(grown)
            snapshot = grown
        return self.publish(snapshot, self.output.batch_id)

    def _is_done(self, snapshot: Table) -> bool:
        """Return whether the batch was published meanwhile, by this attempt or by another one.

        :raises DatabaseBusyError: by another one, with other rows; the next attempt finds them
        """
        snapshot.check()
        did = self.look(snapshot)
        if did is not None and (did.rows, sorted(did.removed)) != (self.did.rows, sorted(self.did.removed)):
            raise DatabaseBusyError(
                f"Another attempt published batch {self.output.batch_id} in {snapshot.name!r} at this moment, with "
                f"{did.rows:,} rows where this one has {self.did.rows:,}. Run the task again: it goes on from there"
            )
        return did is not None

    def _lacking(self, snapshot: Table) -> list[pa.Field]:
        columns = file_columns(self._columns) if self._columns is not None else ()
        return [column.with_nullable(True) for column in columns if column.name not in snapshot.columns.names]

    def _plan(self, snapshot: Table, removal: Removal) -> None:
        directory = self.output.attempt or f"batch-{self.output.batch_id}-{uuid.uuid4().hex}"
        self.removal = removal
        written = rewrite(snapshot, removal, lambda partition: self.path(directory, partition), self.sink.file_bytes)
        self.rewritten = [self.plain(file) for file in written]
        self.did = self.did._replace(removed=tuple((*key, rows) for key, rows in removal.counts.items()))

    def _rebase(self, snapshot: Table) -> None:
        """See to it that what was planned is right for the table as others left it."""
        if self._staged is not None:
            self.adds = check_files(snapshot, *self._staged)
        if self.removal is None or self.removal.paths <= {file.path for file in snapshot.active()}:
            return
        removal = plan_removal(snapshot, self.removal.goes)
        if removal.counts != self.removal.counts:
            raise DatabaseBusyError(
                f"Somebody else changed rows of {snapshot.name!r} that were about to be removed. Nothing was written; "
                "run the task again"
            )
        self._plan(snapshot, removal)


def as_removed(did: PublicationResult, output: Output | None = None) -> list[Removed]:
    """Return what was removed, in the form in which a sink reports it.

    :param output: whose first partition stands for all where the table does not name partitions
    """
    return [
        Removed(
            batch,
            TopicPartition(topic, partition) if topic or output is None else output.ranges[0].topic_partition,
            rows,
        )
        for batch, topic, partition, rows in did.removed
    ]
