"""A lake table in one version: its files, their rows, and one attempt to commit to it.

`LakeTable` decides what to commit, and how to handle concurrent commits. A format implements `Snapshot`, which reads
and writes its metadata.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from airflow_kafka_offsets.core.offsets import Slice
from airflow_kafka_offsets.core.origin import BATCH_ID, OFFSET, PARTITION, TOPIC
from airflow_kafka_offsets.core.text import is_unsigned, shortened
from airflow_kafka_offsets.exceptions import DatabaseUnavailableError, KafkaOffsetsError, TargetError
from airflow_kafka_offsets.sinks.table import Output
from airflow_kafka_offsets.staging.manifest import StagedFile
from airflow_kafka_offsets.writers.data_files import Files
from airflow_kafka_offsets.writers.lake_writer import FileFormat
from airflow_kafka_offsets.writers.object_files import ObjectFiles
from airflow_kafka_offsets.writers.table_rows import with_columns

if TYPE_CHECKING:
    from airflow_kafka_offsets.sinks.lake.newest import KeyIndex

Bounds = Mapping[str, tuple[Any, Any]]
"""By column, the lowest and the highest value of the rows that are looked for."""


class LakeFile(NamedTuple):
    """A data file of a table.

    :param key: equal for files with the same rows, without those that are marked as deleted
    :param native: the file in the format
    :param batches: the lowest and the highest batch of its rows; None if its statistics lack them
    :param shape: how a file of the batch was written, which may have columns that the table lacks; None for the others
    """

    key: Hashable
    native: Any
    batches: tuple[int, int] | None = None
    shape: FileFormat | None = None


class PublicationResult(NamedTuple):
    """The result of a publication.

    :param removed: the number of removed rows, by batch, topic and partition
    :param columns: the added columns
    """

    rows: int = 0
    removed: tuple[tuple[int, str, int, int], ...] = ()
    columns: tuple[str, ...] = ()

    @classmethod
    def parsed(cls, rows: Any, removed: Any, columns: Any) -> Self:
        """Return what a table says.

        :raises ValueError: it is not what a publication writes
        :raises TypeError: it is no list where one is written
        """
        found = cls(rows, tuple((batch, topic, part, gone) for batch, topic, part, gone in removed), tuple(columns))
        numbers = (number for batch, _, part, gone in found.removed for number in (batch, part, gone))
        names = (topic for _, topic, _, _ in found.removed)
        check_said((rows, *numbers), (*columns, *names))
        return found


def check_said(numbers: Iterable[object], texts: Iterable[object]) -> None:
    """Check the types of what a table says.

    :raises ValueError: one is no number that a database can hold, or no text
    """
    if not (all(map(is_unsigned, numbers)) and all(isinstance(text, str) for text in texts)):
        raise ValueError("not what a publication writes")


class LastPublication(NamedTuple):
    """The last publication of a group."""

    series: str
    number: int
    rows: int


class Change(NamedTuple):
    """All that one commit does to a table.

    :param output: that is published or retired
    :param number: the number of the last publication of the series from now on
    :param result: of that publication
    :param columns: of the rows; the table gets those that it lacks
    :param adds: the new files, as `Snapshot.entry` returns them
    :param removes: the files that are dropped
    :param within: bounds by which the dropped files were found; each is within one of them
    """

    output: Output
    number: int
    result: PublicationResult
    columns: pa.Schema | None = None
    adds: Sequence[Any] = ()
    removes: Sequence[LakeFile] = ()
    within: Sequence[Bounds] = ()


class UnknownOutcomeError(Exception):
    """A commit was sent, and its outcome is unknown."""


class RowSource(ABC):
    """The files of a table in one version, and the rows in them.

    :ivar name: of the table, for messages
    :ivar columns: with the types of Arrow that files have
    """

    name: str
    columns: pa.Schema

    @property
    def version(self) -> Hashable:
        """The name of this version."""
        return None

    def refresh(self) -> Self:
        """Return the table as it is now.

        :raises TargetError: it disappeared, or does not answer
        """
        return self

    def check_removal(self, files: Sequence[LakeFile] = ()) -> None:  # noqa: B027
        """Check that rows may be removed.

        :param files: that are dropped for it
        :raises TargetError: they may not
        """

    @abstractmethod
    def files(self, any_of: Sequence[Bounds] = ({},)) -> Sequence[LakeFile]:
        """Return the data files that may hold rows within bounds.

        :raises TargetError: the table cannot be read
        """

    def may_hold(self, file: LakeFile, keys: KeyIndex) -> bool:
        """Return whether a file that is within the bounds of keys may hold one of them."""
        return True

    def read(self, file: LakeFile, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file in their order, with the types of the table; columns that it lacks are null.

        :raises FileNotFoundError: others removed it
        :raises DatabaseUnavailableError: the storage does not answer, or the file is damaged
        :raises TargetError: the file has something that cannot be read
        """
        try:
            return (yield from self._read(file, columns))
        except (FileNotFoundError, KafkaOffsetsError, MemoryError):
            raise
        except Exception as error:
            # For a damaged file Arrow raises what it raises for a storage that does not answer.
            is_final = isinstance(error, (pa.ArrowException, ValueError, TypeError, LookupError, NotImplementedError))
            # After these characters Arrow quotes values of rows.
            words = re.split(r"[:'\"\d]", str(error))[0] if is_final else shortened(str(error))
            reason = f"{type(error).__name__}: {' '.join(words.split())}"
            failure: type[KafkaOffsetsError] = TargetError if is_final else DatabaseUnavailableError
        # Outside of the handler: its error may hold secrets, and values of rows.
        raise failure(
            f"File {file.key!r} of table {self.name!r} cannot be read: {reason}. If that stays so, have its writer "
            "write the rows again, for example by a compaction"
        )

    @abstractmethod
    def _read(self, file: LakeFile, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file, and raise what the reader of its format raises; see `read`."""

    def scan(
        self, columns: Sequence[str], batches: tuple[int, int] | None = None, within: Slice | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield rows, perhaps more than asked for, because statistics of files are not exact.

        :param columns: the columns to read
        :param batches: the lowest and the highest batch to read
        :param within: the offsets to read
        :raises DatabaseUnavailableError: others removed a file meanwhile
        """
        bounds: dict[str, tuple[Any, Any]] = {}
        if batches is not None:
            bounds[BATCH_ID] = batches
        if within is not None:
            bounds |= {TOPIC: (within.topic,) * 2, PARTITION: (within.partition,) * 2}
            bounds[OFFSET] = (within.start, within.end - 1)
        for file in self.files([bounds]):
            try:
                yield from self.read(file, columns)
            except FileNotFoundError:
                raise DatabaseUnavailableError(
                    f"File {file.key!r} of table {self.name!r} is not there any more: another program compacts the "
                    "table, or cleans it up. Read it again; if that stays so, restore the file, or have the table's "
                    "engine remove it from the table"
                ) from None


class KnownRollbacks(NamedTuple):
    """Rollbacks of a table that the positions of a group allow for.

    :param at: when the group was rewound, or the table was checked; None if neither. Later rollbacks are not known
    :param abandoned: batches of the group whose rows may be gone
    :param are_of_rows_after: returns whether the positions allow for the loss of all rows after a batch
    """

    at: datetime | None
    abandoned: Collection[int] = ()
    are_of_rows_after: Callable[[int], bool] = lambda last: True

    def has(self, milliseconds: int, last: int) -> bool:
        """Return whether a rollback is one of them.

        :param milliseconds: when it was made, since 1970
        :param last: the number of the group's last publication that the table has; -1 where it has none
        """
        return self.at is not None and milliseconds <= self.at.timestamp() * 1000 and self.are_of_rows_after(last)


class Snapshot(RowSource):
    """A table in one version.

    :ivar required: the columns that may not be null
    :ivar storage: where the commit writes files
    """

    required: Sequence[str]
    storage: Files

    @abstractmethod
    def check(self) -> None:
        """Check that this package can write to the table.

        :raises TargetError: it cannot
        """

    @abstractmethod
    def check_history(self, group_id: str, known: KnownRollbacks) -> None:
        """Check that the table was not rolled back to before the last publication of a group.

        :raises TargetError: rows of the group may be gone
        """

    @abstractmethod
    def last_number(self, series: str) -> int:
        """Return the number of the last publication of a series; -1 where there is none."""

    @abstractmethod
    def last_publication(self, group_id: str) -> LastPublication | None:
        """Return the last publication of a group, if the table has it."""

    @abstractmethod
    def result(self, series: str, number: int) -> PublicationResult | None:
        """Return the result of the last publication of a series; None if the table no longer has it."""

    @abstractmethod
    def shape(self, rows: pa.Schema | None = None) -> FileFormat:
        """Return how files of the table are written.

        :param rows: the columns of the rows; the files have those that the table lacks
        """

    @abstractmethod
    def entry(self, file: StagedFile, shape: FileFormat) -> tuple[Any, LakeFile]:
        """Return a new file as a commit adds it, and as it is read.

        :raises StagedFileError: it was written for other columns or partitions; staging again helps
        """

    @abstractmethod
    def is_own(self, path: str, attempt: str) -> bool:
        """Return whether a path is that of a file which an attempt may write."""

    @abstractmethod
    def size(self, path: str) -> int | None:
        """Return the size of a file; None where there is none."""

    @abstractmethod
    def commit(self, change: Change) -> bool:
        """Make one attempt to commit a change as the next version after this one.

        :return: False if nothing was committed, because the table has changed
        :raises UnknownOutcomeError: it may be committed
        :raises TargetError: the table cannot be written to; nothing was sent
        """

    @abstractmethod
    def remove_leftovers(self, batch_id: int, before: datetime, installation: str) -> int:
        """Remove the files of attempts to stage a batch that no version names; see `Table.remove_leftovers`."""


def open_parquet(file: pa.NativeFile) -> pq.ParquetFile:
    """Open a Parquet file, whoever wrote it."""
    # Spark writes INT96 unless it is told otherwise. As nanoseconds these begin in 1677 and end in 2262.
    return pq.ParquetFile(file, coerce_int96_timestamp_unit="us")


_ROWS_AT_ONCE, _BYTES_AT_ONCE = 1 << 16, 64 << 20

_LEGACY = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")


def refuse_julian(rows: pa.RecordBatch) -> None:
    """Raise if Spark wrote dates or instants of a file by the calendar of before 1582.

    https://spark.apache.org/docs/latest/sql-data-sources-parquet.html (datetimeRebaseModeInWrite)

    :param rows: with the metadata of the file
    :raises ValueError: a value is so old that the calendar, or its zone, matters
    """
    known = rows.schema.metadata or {}
    if not known.get(b"org.apache.spark.version", b"").startswith(b"2.") and known.keys().isdisjoint(_LEGACY):
        return
    for column in rows.columns:
        kind = column.type
        if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
            first = date(1582, 10, 15) if pa.types.is_date(kind) else datetime(1900, 1, 1)
            is_old = pc.any(pc.less(column, pa.scalar(first, kind))).as_py()
        else:
            is_old = kind.num_fields and any(word in str(kind) for word in ("date", "timestamp"))
        if is_old:
            raise ValueError("it holds old dates or timestamps by the Julian calendar, by Spark's rebase mode LEGACY")


def rows_at_once(rows: int, size: int) -> int:
    """Return how many rows of a row group are read at once: records choose how long their texts are.

    A dictionary is not counted for each row, so no record batch has rows of several row groups. The writer makes them
    of 32 MiB in Arrow.

    :param size: in bytes, not compressed
    """
    return max(1, min(_ROWS_AT_ONCE, _BYTES_AT_ONCE * rows // max(size, 1)))


def read_parquet(
    files: ObjectFiles, path: str, columns: pa.Schema, partition: Mapping[str, Any]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a Parquet file in their order.

    :param columns: that are read; those that the file lacks are null
    :param partition: the value of each column that the file does not hold
    """
    with files.open(path) as opened, open_parquet(opened) as parquet:
        stored = parquet.schema_arrow.names
        in_file = set(stored).difference(partition)
        held = [name for name in columns.names if name in in_file]
        for number in range(parquet.num_row_groups):
            group = parquet.metadata.row_group(number)
            at_once = rows_at_once(group.num_rows, group.total_byte_size)
            # Without a column there are still rows.
            for rows in parquet.iter_batches(at_once, [number], held or stored[:1]):
                refuse_julian(rows)
                yield with_columns(rows.select(held), columns, partition)
