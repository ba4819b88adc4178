"""A Delta table while a batch is committed: what is done to it is collected, and committed at the end of the block."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.schema import Field
from deltalake.transaction import AddAction, RemoveAction
from sqlalchemy.engine import Connection

from airflow_kafka_offsets.exceptions import DatabaseBusyError, OlderLedgerError, TargetError
from airflow_kafka_offsets.sinks.delta.columns import delta_schema
from airflow_kafka_offsets.sinks.delta.commits import Did, commit, find_published, next_version
from airflow_kafka_offsets.sinks.delta.files import check_files
from airflow_kafka_offsets.sinks.delta.removal import Removal, of_output, plan_removal, rewrite
from airflow_kafka_offsets.sinks.delta.snapshot import DeltaSnapshot
from airflow_kafka_offsets.sinks.lake.columns import match
from airflow_kafka_offsets.sinks.lake.replaced import ReplacedRows, as_removed
from airflow_kafka_offsets.sinks.sink import Output, Removed, ReplacedOffsets
from airflow_kafka_offsets.staging.manifest import StagedFile
from airflow_kafka_offsets.staging.rows import StagedRows
from airflow_kafka_offsets.writers.table_rows import file_columns

if TYPE_CHECKING:
    from airflow_kafka_offsets.sinks.delta.table import DeltaTable

log = logging.getLogger(__name__)

# How often a commit is tried anew because somebody else committed first.
_TRIES = 50


@contextmanager
def open_target(sink: DeltaTable, conn: Connection, output: Output) -> Iterator[DeltaTarget]:
    """Open the table, and commit at the end of the block; see `Sink.open`."""
    target = DeltaTarget(sink, conn, output)
    yield target
    target.commit()


class DeltaTarget:
    """A table, and what is done to it; see `Target`. Of a batch that is published already, all is done."""

    def __init__(self, sink: DeltaTable, conn: Connection, output: Output) -> None:
        self._sink, self._conn, self._output = sink, conn, output
        self._snapshot = sink.snapshot()
        self._columns: pa.Schema | None = None
        self._staged: tuple[tuple[StagedFile, ...], pa.Schema] | None = None
        self._removal: Removal | None = None
        self._adds: list[AddAction] = []
        self._rewritten: list[AddAction] = []
        self._did = Did()
        self._published = self._look(self._snapshot) if self._snapshot is not None else None

    def add_columns(self, columns: pa.Schema) -> list[str]:
        """Take note of the columns that the table lacks; see `Target.add_columns`."""
        if self._published is not None:
            return list(self._published.columns)
        snapshot = self._existing()
        match(snapshot.name, snapshot.columns, (), columns, may_grow=True)
        self._columns = columns
        self._did = self._did._replace(columns=tuple(column.name for column in self._lacking(snapshot)))
        return list(self._did.columns)

    def remove(self, replaced: ReplacedOffsets) -> list[Removed]:
        """Take note of the rows of replaced offsets, and write those again that share a file with them; see `Target.remove`."""
        if self._published is not None:
            return list(self._published.removed)
        if self._snapshot is None:
            return []
        rows = ReplacedRows.read(self._conn, self._sink.name, replaced)
        rows.check_columns(self._snapshot.columns)
        self._plan(self._snapshot, plan_removal(self._snapshot, rows))
        self._did = self._did._replace(removed=tuple(as_removed(self._removal.counts if self._removal else {})))
        return list(self._did.removed)

    def write(self, rows: StagedRows) -> int:
        """Take note of the files that Spark's tasks wrote; see `Target.write`."""
        if self._published is not None:
            return self._published.rows
        schema = rows.schema()
        if schema is None:
            return 0
        self._staged = rows.files, schema
        self._adds = check_files(self._existing(), *self._staged)
        self._did = self._did._replace(rows=sum(file.rows for file in rows.files))
        return self._did.rows

    def commit(self) -> None:
        """Commit what was done, if it is anything.

        :raises TargetError: the table does not fit any more
        :raises StagedFileError: the files do not fit any more; staging again helps
        :raises DatabaseBusyError: others commit all the time, or have changed what was to be removed
        """
        snapshot, output = self._snapshot, self._output
        if self._published is not None or snapshot is None or self._did == Did():
            return
        for _ in range(_TRIES):
            try:
                snapshot = self._grow(snapshot)
                removes = self._removal.actions() if self._removal is not None else []
                actions: list[AddAction | RemoveAction] = [*self._adds, *self._rewritten, *removes]
                if commit(snapshot, actions, output, output.batch_id, self._did):
                    return
            except (DeltaError, OSError) as error:
                # The answer may be lost: only the log says whether it was committed, and nothing is committed a second time.
                if self._is_done(snapshot.again()):
                    return
                if not isinstance(error, CommitFailedError):
                    raise
            snapshot = snapshot.again()
            if self._is_done(snapshot):
                return
            self._rebase(snapshot)
        raise DatabaseBusyError(f"Others committed to {self._sink.name!r} {_TRIES} times in a row, each time first")

    def _existing(self) -> DeltaSnapshot:
        if self._snapshot is None:
            raise TargetError(f"Table {self._sink.name!r} disappeared between staging and commit; nothing was written")
        return self._snapshot

    def _look(self, snapshot: DeltaSnapshot) -> Did | None:
        """Return what a commit did that published the batch; None where none has."""
        output = self._output
        snapshot.check()
        number = snapshot.last_number(output.series)
        if number > output.batch_id:
            raise OlderLedgerError(
                f"Table {snapshot.name!r} has batch {number} of group {output.group_id!r} already, and the batch to be committed is "
                f"{output.batch_id}: the state tables were restored from an older backup than the table. Nothing was written: restore "
                "both to the same moment"
            )
        if number < output.batch_id:
            return None
        published = find_published(snapshot, output)
        if published is not None:
            return published.did
        log.warning("Batch %d is in %s, whose log is cleaned up: its rows are counted", output.batch_id, snapshot.name)
        return Did(plan_removal(snapshot, of_output(snapshot, output)).counts.total())

    def _is_done(self, snapshot: DeltaSnapshot) -> bool:
        """Return whether the batch was published meanwhile, by this attempt or by another one.

        :raises DatabaseBusyError: by another one, with other rows; the next attempt finds them
        """
        did = self._look(snapshot)
        if did is not None and (did.rows, sorted(did.removed)) != (self._did.rows, sorted(self._did.removed)):
            raise DatabaseBusyError(
                f"Another attempt published batch {self._output.batch_id} in {snapshot.name!r} at this moment, with {did.rows:,} rows "
                f"where this one has {self._did.rows:,}. Run the task again: it goes on from there"
            )
        return did is not None

    def _lacking(self, snapshot: DeltaSnapshot) -> list[pa.Field]:
        columns = file_columns(self._columns) if self._columns is not None else ()
        return [column.with_nullable(True) for column in columns if column.name not in snapshot.columns.names]

    def _grow(self, snapshot: DeltaSnapshot) -> DeltaSnapshot:
        """Add the columns that the table lacks, in a commit of their own: if nothing follows it, they are there and null."""
        lacking = self._lacking(snapshot)
        if not lacking:
            return snapshot
        fields: list[Field] = list(delta_schema(pa.schema(lacking)).fields)
        snapshot.table.alter.add_columns(fields, commit_properties=next_version())
        return snapshot.again()

    def _plan(self, snapshot: DeltaSnapshot, removal: Removal) -> None:
        directory = self._output.attempt or f"batch-{self._output.batch_id}-{uuid.uuid4().hex}"
        self._removal = removal
        self._rewritten = list(rewrite(snapshot, removal, directory, self._sink.file_bytes))

    def _rebase(self, snapshot: DeltaSnapshot) -> None:
        """See to it that what was planned is right for the table as others left it."""
        if self._staged is not None:
            self._adds = check_files(snapshot, *self._staged)
        if self._removal is None or self._removal.paths <= {file.path for file in snapshot.active()}:
            return
        removal = plan_removal(snapshot, self._removal.goes)
        if removal.counts != self._removal.counts:
            raise DatabaseBusyError(
                f"Somebody else changed rows of {snapshot.name!r} that were about to be removed. Nothing was written; run the task again"
            )
        self._plan(snapshot, removal)


def retire(sink: DeltaTable, output: Output) -> list[Removed]:
    """Remove the rows of an abandoned batch, if it was published, and take its number; see `ElsewhereSink.retire`."""
    snapshot = sink.snapshot()
    if snapshot is None:
        return []
    snapshot.check()
    for _ in range(_TRIES):
        number = max(snapshot.last_number(output.series), output.batch_id)
        removal = plan_removal(snapshot, of_output(snapshot, output))
        if not removal.counts and snapshot.last_number(output.series) >= output.batch_id:
            return []
        # Where the table does not name partitions, the first one stands for all.
        counts = {
            (batch, topic or output.ranges[0].topic, partition): rows
            for (batch, topic, partition), rows in removal.counts.items()
        }
        removed = as_removed(counts)
        directory = f"batch-{output.batch_id}-{uuid.uuid4().hex}"
        actions: list[AddAction | RemoveAction] = [*rewrite(snapshot, removal, directory, sink.file_bytes)]
        actions += removal.actions()
        if commit(snapshot, actions, output, number, Did(removed=tuple(removed))):
            return removed
        snapshot = snapshot.again()
    raise DatabaseBusyError(f"Others committed to {sink.name!r} {_TRIES} times in a row, each time first")
