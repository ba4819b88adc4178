"""A table in one block of `open`: what is asked of it is collected, and committed at the end as one snapshot."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile
from pyiceberg.table import FileScanTask, Table, Transaction
from pyiceberg.table.update import AssertTableUUID
from sqlalchemy.engine import Connection

from airflow_kafka_offsets.core.text import first_few
from airflow_kafka_offsets.exceptions import StagedFileError, TargetError
from airflow_kafka_offsets.sinks.iceberg.newest import NewestRows
from airflow_kafka_offsets.sinks.iceberg.publication import Publication, removed_rows, series_of, summary
from airflow_kafka_offsets.sinks.iceberg.removal import Kept, Removal, Search, name_of, rewrite, without
from airflow_kafka_offsets.sinks.iceberg.shapes import add_columns, arrow_columns, lacking, shape_of
from airflow_kafka_offsets.sinks.lake.replaced import ReplacedRows, as_removed
from airflow_kafka_offsets.sinks.table import Output, Target
from airflow_kafka_offsets.sinks.target_rows import Removed, ReplacedOffsets
from airflow_kafka_offsets.staging.rows import StagedRows
from airflow_kafka_offsets.writers.iceberg_files import TableShape, table_of

# An object store answers a request in tens of milliseconds, and many at once just as quickly.
_LOOKED_AT_ONCE = 32


@dataclass
class Changes:
    """What one commit does to a table.

    :ivar columns: of rows, which are added where the table lacks them
    :ivar search: for rows that are taken back, or replaced by key
    :ivar removal: what it found
    :ivar rows: whose files are added
    :ivar kept: a later publication of the series, which stays the last one
    """

    output: Output
    columns: pa.Schema | None = None
    search: Search = field(default_factory=Search)
    removal: Removal | None = None
    rows: StagedRows | None = None
    added: list[str] = field(default_factory=list)
    number: int = 0
    kept: Publication | None = None
    _rewritten: tuple[Any, list[DataFile]] = (None, [])

    @property
    def is_empty(self) -> bool:
        return not self.added and (self.removal is None or self.removal.is_empty) and not self.number

    def publication(self) -> Publication:
        """Return what the table keeps of it."""
        counts = self.removal.counts if self.removal is not None else {}
        output = self.output
        return Publication(output.group_id, output.batch_id, self.number, tuple(self.added), removed_rows(counts))

    def find(self, table: Table) -> Removal:
        """Find the rows that go, and count those of the batch that are written."""
        self.removal = self.search.find(table)
        if self.rows is not None:
            newest = self.search.newest
            self.number = len(self.rows) if newest is None else len(newest) - len(self.removal.outdated)
        return self.removal

    def commit(self, table: Table, *, always: bool = False) -> int:
        """Commit all of it, without the retries of pyiceberg: they would go past what was looked at before.

        :param always: whether a commit without rows makes a snapshot, too: then no other commit can be based on what
            was before
        :return: the id of the snapshot
        :raises StagedFileError: the files do not fit the table any more
        :raises CommitFailedException: somebody else committed meanwhile
        """
        transaction = table.transaction()
        if self.columns is not None:
            add_columns(transaction, self.columns)
        shape = shape_of(table, self.columns)
        files = self._files(table, shape)
        snapshot_id = self._stage(transaction, shape, files, always)
        metadata = transaction.table_metadata
        # The first version of the format does not number snapshots.
        sequence = getattr(metadata, "last_sequence_number", 0)
        publication = replace(self.kept or self.publication(), snapshot=snapshot_id, sequence=sequence)
        transaction.set_properties({series_of(self.output): publication.to_json()})
        requirements = (*transaction._requirements, AssertTableUUID(uuid=metadata.table_uuid))
        table._do_commit(transaction._updates, requirements)
        return snapshot_id or 0

    def _stage(self, transaction: Transaction, shape: TableShape, files: list[DataFile], always: bool) -> int | None:
        update = transaction.update_snapshot(summary(self.output))
        removal = self.removal
        files = self._written_again(transaction, shape, files)
        if removal is not None and not removal.is_empty:
            with update.overwrite() as overwrite:
                removal.apply(overwrite)
                for file in files:
                    overwrite.append_data_file(file)
            return overwrite.snapshot_id
        if files or always:
            with update.fast_append() as append:
                for file in files:
                    append.append_data_file(file)
            return append.snapshot_id
        snapshot = transaction._table.current_snapshot()
        return snapshot.snapshot_id if snapshot is not None else None

    def _written_again(self, transaction: Transaction, shape: TableShape, files: list[DataFile]) -> list[DataFile]:
        """Return the files of the batch whose rows all stay, and new files with the rows that stay of all others."""
        removal, newest = self.removal, self.search.newest
        if removal is None:
            return files
        whole, mixed = files, list(removal.mixed)
        if newest is not None:
            stays = [(file, newest.kept(number, removal.outdated)) for number, file in enumerate(files)]
            whole = [file for file, rows in stays if len(rows) == file.record_count]
            mixed += [
                Kept(FileScanTask(file), pc.invert(without(file.record_count, rows)))
                for file, rows in stays
                if 0 < len(rows) < file.record_count
            ]
        # Where somebody else committed to other files meanwhile, nothing is written once more.
        found = (shape.digest, tuple((name_of(kept.file), kept.stay) for kept in mixed))
        if self._rewritten[0] != found:
            prefix = self.output.attempt or f"batch-{self.output.batch_id}-{uuid.uuid4().hex}"
            written = rewrite(transaction._table, transaction.table_metadata.schema(), shape, prefix, mixed)
            self._rewritten = found, list(written)
        return [*whole, *self._rewritten[1]]

    def _files(self, table: Table, shape: TableShape) -> list[DataFile]:
        """Return the files of the rows, as the table now wants them."""
        if self.rows is None:
            return []
        if any(table_of(file.data) != shape.uuid for file in self.rows.files):
            name = ".".join(table.name())
            raise TargetError(
                f"Iceberg table {name!r} was dropped and created again after the files of batch {self.output.batch_id} "
                "were written: it is another table, without the rows of earlier batches. Nothing was written, and no "
                "position moved. If the earlier table was dropped by mistake, restore it (register_table of its last "
                "metadata file, under this name), and run the task again. If the new one is meant: abandon batch "
                f"{self.output.batch_id}, and rewind the group to where the new table is to begin."
            )
        files = [(file, shape.from_json(file.data)) for file in self.rows.files]
        if unfit := [file.name for file, entry in files if entry is None]:
            raise StagedFileError(
                f"{len(unfit)} files were written for other columns or partitions than Iceberg table "
                f"{'.'.join(table.name())!r} has now: {first_few(unfit, most=3)}"
            )
        return [entry for _, entry in files if entry is not None]


@dataclass
class IcebergTarget(Target):
    """A table, and what is to be done to it; see `Target`.

    :ivar table: None where there is none
    :ivar upsert_key: the columns by which rows are replaced; without them all are appended
    """

    conn: Connection
    name: str
    table: Table | None
    changes: Changes
    upsert_key: tuple[str, ...] = ()

    def add_columns(self, columns: pa.Schema) -> list[str]:
        """Note the columns that the table lacks; see `Target.add_columns`."""
        if self.table is None:
            return []
        self.changes.columns = columns
        self.changes.added = [field.name for field in lacking(self.table.schema(), columns)]
        return self.changes.added

    def remove(self, replaced: ReplacedOffsets) -> list[Removed]:
        """Find the rows of replaced offsets; see `Target.remove`."""
        if self.table is None:  # a table that was dropped holds no duplicates
            return []
        self.changes.search = Search(replaced_rows(self.conn, self.name, self.table, replaced))
        return as_removed(self.changes.find(self.table).counts)

    def write(self, rows: StagedRows) -> int:
        """Look at the files; see `Target.write`."""
        if not rows.files:
            return 0
        if self.table is None:
            raise TargetError(f"{self.name} disappeared between staging and commit; nothing was written")
        changes, shape = self.changes, shape_of(self.table, self.changes.columns)
        changes.rows, changes.number = rows, len(rows)
        files = changes._files(self.table, shape)
        prove_files(self.table.io, rows)
        if self.upsert_key:
            changes.search = Search(changes.search.rows, NewestRows(self.table, files, self.upsert_key))
            changes.find(self.table)
        return changes.number


@dataclass
class PublishedTarget(Target):
    """A table that has a batch already: nothing is done again, and each method returns what it did then."""

    publication: Publication

    def add_columns(self, columns: pa.Schema) -> list[str]:
        return list(self.publication.added)

    def remove(self, replaced: ReplacedOffsets) -> list[Removed]:
        return as_removed(self.publication.counts())

    def write(self, rows: StagedRows) -> int:
        return self.publication.rows


def replaced_rows(conn: Connection, name: str, table: Table, replaced: ReplacedOffsets) -> ReplacedRows:
    """Return the rows of replaced offsets.

    :raises ConfigurationError: the table does not say where its rows are from
    """
    rows = ReplacedRows.read(conn, name, replaced)
    rows.check_columns(arrow_columns(table.schema()))
    return rows


def prove_files(io: FileIO, rows: StagedRows) -> None:
    """Check that the files of a batch are there, with the sizes they were written with.

    :raises StagedFileError: one is not
    """

    def look(file: Any) -> str | None:
        found = io.new_input(file.name)
        if not found.exists():
            return f"{file.name} is missing"
        size = len(found)
        return None if size == file.bytes else f"{file.name} has {size:,} bytes, and was written with {file.bytes:,}"

    with ThreadPoolExecutor(_LOOKED_AT_ONCE, thread_name_prefix="iceberg-files") as pool:
        faults = [fault for fault in pool.map(look, rows.files) if fault is not None]
    if faults:
        raise StagedFileError(first_few(faults, most=3))
