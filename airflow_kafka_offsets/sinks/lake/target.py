"""The publication of a batch in a lake table: changes are planned, and committed at the end of the block.

A commit must be the next version after the planned one, or it fails. Then the table is read again, because another
attempt may have published the batch, and other rows may have to be removed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy.engine import Connection

from airflow_kafka_offsets.core.text import shortened
from airflow_kafka_offsets.exceptions import CommitUnknownError, DatabaseBusyError, OlderLedgerError, TargetError
from airflow_kafka_offsets.sinks.lake.attempts import attempts
from airflow_kafka_offsets.sinks.lake.columns import lacking, match_new
from airflow_kafka_offsets.sinks.lake.left_files import prove_files, read_entries
from airflow_kafka_offsets.sinks.lake.newest import NewestRows
from airflow_kafka_offsets.sinks.lake.removal import (
    BatchRows,
    KeptRows,
    Removal,
    ReplacedRows,
    Search,
    as_removed,
    missing_file,
    of_output,
    rewrite,
    try_rewrite,
    without,
)
from airflow_kafka_offsets.sinks.lake.snapshot import (
    Change,
    KnownRollbacks,
    PublicationResult,
    Snapshot,
    UnknownOutcomeError,
)
from airflow_kafka_offsets.sinks.table import Output, Target
from airflow_kafka_offsets.sinks.target_rows import Removed, ReplacedOffsets
from airflow_kafka_offsets.staging.manifest import StagedFile
from airflow_kafka_offsets.staging.rows import StagedRows
from airflow_kafka_offsets.writers.lake_writer import FileFormat

log = logging.getLogger(__name__)


class LakeTarget(Target):
    """A lake table, and what is planned for it. Where the batch is published already, each method returns what it
    returned then.

    :param snapshot: the table as it is now; None where there is none
    :param upsert_key: the columns by which rows are replaced
    """

    def __init__(self, name: str, snapshot: Snapshot | None, output: Output, upsert_key: tuple[str, ...] = ()) -> None:
        self.name, self.snapshot, self.output, self._key = name, snapshot, output, upsert_key
        self.result = PublicationResult()
        self._is_published = self._is_counted = self._is_written = False
        self._columns: pa.Schema | None = None
        self._files: Sequence[StagedFile] = ()
        self._search, self._removal = Search(), Removal()
        self._rewritten: tuple[Any, list[StagedFile]] = (None, [])

    def open(self, conn: Connection) -> None:
        """Look whether the batch is published.

        :param conn: of the database with the state tables
        :raises OlderLedgerError: the last publication of the series is that of a later batch
        :raises TargetError: it was published, and the table was rolled back since
        """
        self._conn, self._opened_at = conn, datetime.now(UTC)
        if self.snapshot is None:
            return
        self.snapshot.check()
        if (result := self.published(self.snapshot)) is not None:
            self.result, self._is_published = result, True
            if result.rows and not self._key and not self._count(self.snapshot):
                raise self._set_back(result.rows)

    def add_columns(self, columns: pa.Schema) -> list[str]:
        if not self._is_published:
            snapshot = self._existing()
            match_new(snapshot.name, snapshot.columns, columns)
            self._columns = columns
            added = tuple(column.name for column in lacking(snapshot.columns, columns))
            self.result = self.result._replace(columns=added)
        return list(self.result.columns)

    def remove(self, replaced: ReplacedOffsets) -> list[Removed]:
        # A table that was dropped holds no rows.
        if not self._is_published and self.snapshot is not None:
            rows = ReplacedRows.read(self._conn, self.name, replaced)
            rows.check_columns(self.snapshot.columns)
            self._search = Search(rows)
            self._plan(self.snapshot)
        return as_removed(self.result.removed)

    def check_removed(self) -> None:
        """Read the rows that stay of the files with removed rows, and write them for a trial."""
        if self.snapshot is not None:
            try_rewrite(self.snapshot, self._removal.mixed)

    def write(self, rows: StagedRows) -> int:
        self._is_written = True
        if not rows.files:
            return self.result.rows
        snapshot = self._existing()
        if self._is_published:
            if self._is_counted and not self.result.rows:
                raise self._set_back(len(rows))
            return self.result.rows
        prove_files(self.name, rows.files, self.output.attempt, snapshot.is_own, snapshot.size)
        self._files, shape = rows.files, snapshot.shape(self._columns)
        added = [file for _, file in read_entries(self.name, rows.files, lambda file: snapshot.entry(file, shape))]
        if self._key:
            newest = NewestRows(snapshot, added, self._key, self.output.log_order, self._conn)
            self._search = Search(self._search.rows, newest)
        self._plan(snapshot)
        return self.result.rows

    def commit(self) -> None:
        """Commit the planned changes, if there are any. A batch without rows also stores its number, so that no earlier
        attempt with rows can publish it afterwards.

        :raises StagedFileError: the files do not fit the table any more; staging again helps
        :raises DatabaseBusyError: other writers commit all the time, or changed rows to remove
        :raises CommitUnknownError: the outcome is unknown, and the table does not show the batch
        """
        snapshot = self.snapshot
        takes_number = self._is_written and bool(self.output.series)
        if self._is_published or snapshot is None or (self.result == PublicationResult() and not takes_number):
            return
        expected = self.result
        for _ in attempts(self.name):
            if self._commit(snapshot) or self._is_done(snapshot := snapshot.refresh()):
                return
            snapshot.check_history(self.output.group_id, KnownRollbacks(self._opened_at))
            # Others may have removed what no version of the table names.
            prove_files(self.name, self._files, self.output.attempt, snapshot.is_own, snapshot.size)
            prove_files(self.name, self._rewritten[1], self.output.attempt, snapshot.is_own, snapshot.size)
            self._plan(snapshot)
            if self.result != expected:
                raise DatabaseBusyError(
                    f"At the same time, another writer changed rows of {self.name!r} that this batch replaces, or "
                    "wrote newer rows of the same keys. Nothing of the batch was written; run the task again"
                )

    def retire(self) -> list[Removed]:
        """Remove the rows of the batch, if it was published, and store its number; see `Table.retire`."""
        snapshot, output = self.snapshot, self.output
        if snapshot is None:
            return []
        for _ in attempts(self.name):
            # A row that another one of its key was replaced by would be gone without a trace: it stays, until a load of
            # its record replaces it.
            self._search = Search(None if self._key else of_output(snapshot, output))
            self._plan(snapshot)
            last = snapshot.last_number(output.series)
            if last >= output.batch_id and not self._removal.files:
                return []
            if self._commit(snapshot, max(last, output.batch_id)):
                return as_removed(self.result.removed)
            snapshot = snapshot.refresh()
        return []

    def published(self, snapshot: Snapshot) -> PublicationResult | None:
        """Return the result of a commit that published the batch; None where there is none.

        :raises OlderLedgerError: a later batch of the series is published
        """
        output = self.output
        if not output.series:  # one commit with the positions
            return None
        number = snapshot.last_number(output.series)
        if number > output.batch_id:
            raise OlderLedgerError(
                f"Table {self.name!r} has batch {number} of group {output.group_id!r}, and batch {output.batch_id} is "
                "to be committed: the state tables were restored from an older backup than the table. Nothing was "
                "written: restore both to the same moment"
            )
        if number < output.batch_id:
            return None
        result = snapshot.result(output.series, number)
        if result is None:
            log.warning("The log of %s does not name batch %d any more: its rows are counted", self.name, number)
            self._is_counted = True
            result = PublicationResult(self._count(snapshot))
        return result

    def _existing(self) -> Snapshot:
        if self.snapshot is None:
            raise TargetError(f"Table {self.name!r} disappeared between staging and commit; nothing was written")
        return self.snapshot

    def _count(self, snapshot: Snapshot) -> int:
        return Search(BatchRows(self.output.batch_id)).count(snapshot)

    def _set_back(self, rows: int) -> TargetError:
        return TargetError(
            f"Table {self.name!r} was rolled back: batch {self.output.batch_id} of group {self.output.group_id!r} was "
            f"published in it with {rows:,} rows, and none of them is there. No position moved. Restore the later "
            "version of the table, or rewind the group, with replace, to where its rows end now, abandon the batch "
            "with the rewind, and load again"
        )

    def _plan(self, snapshot: Snapshot) -> None:
        """Find the rows that are removed, and count those of the batch that are written."""
        self._removal, newest = self._search.find(snapshot), self._search.newest
        written = sum(file.rows for file in self._files)
        if newest is not None:
            written = len(newest) - len(self._removal.outdated)
        removed = tuple((*key, rows) for key, rows in sorted(self._removal.counts.items()))
        self.result = self.result._replace(rows=written, removed=removed)

    def _commit(self, snapshot: Snapshot, number: int | None = None) -> bool:
        """Make one attempt to commit; return whether the batch is published."""
        snapshot.check()
        try:
            return snapshot.commit(self._change(snapshot, number))
        except FileNotFoundError as error:
            # Nothing was sent yet. Others removed files of the version that the commit goes on from.
            if snapshot.refresh().version == snapshot.version:
                raise missing_file(self.name, error) from None
            return False
        except UnknownOutcomeError as error:
            reason = shortened(str(error))
            log.warning("Whether batch %d is published in %s is not known: %s", self.output.batch_id, self.name, reason)
        # Outside of the handler: its error may hold secrets.
        if number is None and self._is_done(snapshot.refresh()):
            return True
        raise CommitUnknownError(
            f"The outcome of a commit to {self.name!r} is unknown ({reason}), and the table does not show it. Nothing "
            "is committed twice: the next attempt checks the table first"
        )

    def _change(self, snapshot: Snapshot, number: int | None) -> Change:
        output, removal = self.output, self._removal
        shape, result = snapshot.shape(self._columns), self.result
        if number is not None and number > output.batch_id:  # a later batch stays the last one of the series
            result = snapshot.result(output.series, number) or PublicationResult()
        number = output.batch_id if number is None else number
        kept = list(self._kept(snapshot, shape))
        return Change(output, number, result, self._columns, kept, removal.files, removal.within)

    def _kept(self, snapshot: Snapshot, shape: FileFormat) -> Iterator[Any]:
        """Yield the files of the batch whose rows all stay, and new files with the remaining rows of the others."""
        mixed, newest = list(self._removal.mixed), self._search.newest
        for number, file in enumerate(self._files):
            entry, added = snapshot.entry(file, shape)
            places = None if newest is None else newest.kept(number, self._removal.outdated)
            if places is None or len(places) == file.rows:
                yield entry
            elif len(places):
                mixed.append(KeptRows(added, pc.invert(without(file.rows, places))))
        # Where others committed to other files meanwhile, nothing is written once more.
        found = (shape, tuple((kept.file.key, kept.stay) for kept in mixed))
        if self._rewritten[0] != found:
            self._rewritten = found, list(rewrite(snapshot, shape, self.output.attempt, mixed)) if mixed else []
        for file in self._rewritten[1]:
            yield snapshot.entry(file, shape)[0]

    def _is_done(self, snapshot: Snapshot) -> bool:
        """Return whether the batch is published by now, by this attempt or by another one.

        :raises DatabaseBusyError: by another one, with other rows; the next attempt finds them
        """
        snapshot.check()
        result = self.published(snapshot)
        if result is not None and (result.rows, result.removed) != (self.result.rows, self.result.removed):
            raise DatabaseBusyError(
                f"At the same time, another attempt published batch {self.output.batch_id} in {self.name!r}, with "
                f"{result.rows:,} rows, but this one has {self.result.rows:,}. Run the task again: it continues from "
                "there"
            )
        return result is not None
