"""The staged rows as a sink reads them in the commit, the columns of its target, and the refused records.

Rows are record batches with the types of the target, always in the same order. A refused record becomes a dead letter,
or an error. A database refuses rows in the commit; if Spark's tasks write the files of the target, they stage rows that
cannot be written (`REASON`).

The rows of a fan-out are one record batch until they are written, with a column of structs for each branch. A branch
with fewer rows than another one is padded with nulls.
"""

from __future__ import annotations

import base64
import json
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from decimal import Decimal
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from airflow_kafka_offsets.core.bisection import Failure, split_at_failures
from airflow_kafka_offsets.core.origin import BATCH_ID, OFFSET, RECORD, RESERVED_PREFIX
from airflow_kafka_offsets.exceptions import RecordError, StagedFileError, TargetError
from airflow_kafka_offsets.formats.columns import OUT_OF_YEARS, as_decimals, out_of_years, type_name
from airflow_kafka_offsets.staging.arrow_files import record_batches
from airflow_kafka_offsets.staging.dead_letters import too_many
from airflow_kafka_offsets.staging.directory import StagingDirectory
from airflow_kafka_offsets.staging.manifest import MANIFEST, Manifest, SliceRead, StagedFile

REASON = f"{RESERVED_PREFIX}refused"
"""The column of staged rows that Spark's tasks could not write into a file of the target: why."""

DECLARED_TYPE = "declared type"
"""What the metadata of a target's field has its own name of the type as, for messages."""

# The digits of decimals that floating numbers tell apart.
_EXACT_SINGLE, _EXACT_DOUBLE = 6, 15

ValueCheck = Callable[[pa.Array], dict[int, str]]
"""Returns why which values of a column are refused, by their rows."""


class Record(NamedTuple):
    """The coordinates of a record."""

    topic: str
    partition: int
    offset: int


def null_key(names: Sequence[str]) -> str:
    """Return the reason for a refused row with a null in its key.

    :param names: the columns that are null
    """
    return f"{', '.join(map(repr, names))} is null, but upsert_key needs a value"


class RefusedRecords:
    """The records of a batch that the target refuses, with the reasons. A transform may make several rows of a record.

    :param are_dead_letters: whether they become dead letters; the first one is an error otherwise
    :param reads: of all slices of the batch; they must be of one of them
    :param undecoded: how many records of the batch are dead letters already
    :param max_dead_letters: of the batch; None for any number
    """

    def __init__(
        self,
        are_dead_letters: bool = False,
        *,
        reads: Iterable[SliceRead] = (),
        undecoded: int = 0,
        max_dead_letters: int | None = None,
    ) -> None:
        self.reasons: dict[Record, str] = {}
        self._are_dead_letters = are_dead_letters
        self._offsets: dict[tuple[str, int], range] = {}
        for read in reads:
            before = self._offsets.get((read.topic, read.partition), range(read.start, read.end))
            self._offsets[read.topic, read.partition] = range(min(before.start, read.start), max(before.stop, read.end))
        self._undecoded = undecoded
        self._max = max_dead_letters

    def add(self, record: Record, reason: str) -> None:
        """Add a record, once however many rows it has.

        :raises RecordError: this batch allows no dead letters
        :raises DeadLetterError: the batch has more dead letters than it may have
        :raises StagedFileError: the record is not of this batch
        """
        if not self._are_dead_letters:
            raise RecordError(reason, *record)
        topic, partition, offset = record
        if offset not in self._offsets.get((topic, partition), ()):
            raise StagedFileError(
                f"The target refuses a row that says that it is of topic {topic!r} partition {partition} offset "
                f"{offset}, which is not in this batch: {reason}. The transform must not change {', '.join(RECORD)}; "
                "if it does not, somebody else wrote the staged files"
            )
        self.reasons.setdefault(record, reason)
        if self._max is not None and self._undecoded + len(self.reasons) > self._max:
            first, why = next(iter(self.reasons.items()))
            cause = (
                f"{self._undecoded:,} records cannot be decoded, and at least {len(self.reasons):,} are refused "
                "by the target"
            )
            raise too_many(cause, self._max, *first, why)


_COLUMN = "_kafka_branch_{}"


def combined(branches: Mapping[int, pa.Schema | None]) -> pa.Schema:
    """Return the columns of branches as those of one batch.

    :param branches: the columns of each, by its number; None where they are not known
    """
    types = {number: pa.null() if columns is None else pa.struct(list(columns)) for number, columns in branches.items()}
    return pa.schema([(_COLUMN.format(number), type_) for number, type_ in types.items()])


def columns_of(columns: pa.Schema | None, number: int) -> pa.Schema | None:
    """Return the columns of a branch; None where they are not known.

    :param columns: what `combined` returned, or None
    """
    index = -1 if columns is None else columns.get_field_index(_COLUMN.format(number))
    if columns is None or index < 0 or pa.types.is_null(columns.field(index).type):
        return None
    return pa.schema(columns.field(index).type.fields)


def join(branches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Return the rows of branches in one batch."""
    longest = max(rows.num_rows for rows in branches)
    arrays = []
    for rows in branches:
        structs = pa.StructArray.from_arrays(rows.columns, fields=list(rows.schema))
        missing = longest - rows.num_rows
        arrays.append(pa.concat_arrays([structs, pa.nulls(missing, structs.type)]) if missing else structs)
    return pa.RecordBatch.from_arrays(arrays, names=[_COLUMN.format(number) for number in range(len(arrays))])


def split(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the number and the rows of each branch that has some."""
    for number, structs in enumerate(batch.columns):
        count = len(structs) - structs.null_count
        if count:
            arrays = structs.slice(0, count).flatten()
            yield number, pa.RecordBatch.from_arrays(arrays, schema=pa.schema(structs.type.fields))


REFUSED = "refused.json"

# What a writer holds at once in addition to one record batch.
_CHUNK_BYTES = 64 << 20


class TargetColumns(NamedTuple):
    """The columns that a transform may return, and those that it must return.

    :param table: the target's name, for messages
    :param known: every column of the target, or None if the target does not exist yet
    :param required: columns that the target cannot fill by itself
    :param may_grow: whether the commit adds columns that the target lacks
    """

    table: str
    known: tuple[str, ...] | None
    required: tuple[str, ...] = ()
    may_grow: bool = False


class StagedRows:
    """The rows that a manifest names, without those of refused records.

    :param staging: the directory of the attempt that the ledger names
    :param refused: takes what the target refuses; the first such record is an error by default
    :ivar checks: of values that fit the types of the target, by the names of columns
    :ivar left_out: the number of rows that the last call of `chunks` did not yield, or that were refused
    """

    left_out = 0

    def __init__(self, staging: StagingDirectory, manifest: Manifest, refused: RefusedRecords | None = None) -> None:
        self._staging = staging
        self._manifest = manifest
        self.refused = refused or RefusedRecords()
        self.checks: Mapping[str, ValueCheck] = {}

    @classmethod
    def none(cls, batch_id: int) -> StagedRows:
        """Return no rows, for a target that is only queried, or publishes a batch without rows."""
        return cls(StagingDirectory("/"), Manifest(batch_id, "", (), ()))

    def __len__(self) -> int:
        return self._manifest.rows

    @property
    def batch_id(self) -> int:
        """The batch of the rows."""
        return self._manifest.batch_id

    @property
    def files(self) -> tuple[StagedFile, ...]:
        """The files, for a sink whose tasks write final ones."""
        return self._manifest.row_files

    def schema(self) -> pa.Schema | None:
        """Return the columns without the batch id (of a fan-out, those of all branches); None if there are no rows."""
        branches = sorted({file.branch for file in self._manifest.files if file.branch is not None})
        if branches:
            return combined({number: self.of_branch(number).schema() for number in branches})
        if self._manifest.columns is not None:
            try:
                return schema_of(self._manifest.columns) if self._manifest.row_files else None
            except (pa.ArrowException, OSError, ValueError) as error:
                raise StagedFileError(f"{MANIFEST} has columns that cannot be read: {type(error).__name__}") from error
        return next((batch.schema for batch in self._batches()), None)

    def of_branch(self, number: int) -> StagedRows:
        """Return the rows of a branch of a fan-out."""
        files = tuple(replace(file, branch=None) for file in self._manifest.files if file.branch == number)
        return StagedRows(self._staging, replace(self._manifest, files=files), self.refused)

    def chunks(self, columns: pa.Schema, at_least: int = 1) -> Iterator[RowChunk]:
        """Yield the rows, cast to the types of the target. A value that cannot be cast is refused.

        :param columns: the columns to write, with the types in which the writer wants them
        :param at_least: the number of rows of a chunk, but for the last one, and for one of very large rows
        :raises RecordError: a value is outside the range of its column, and the batch allows no dead letters; names
            the record
        """
        self.left_out = 0
        cast: list[pa.RecordBatch] = []
        staged: list[pa.RecordBatch] = []
        rows = size = 0
        for batch in self._batches():
            kept = self._without_refused(batch)
            fitting, arrays = self._cast(kept, columns)
            if not fitting.num_rows:
                continue
            cast.append(pa.RecordBatch.from_arrays(arrays, schema=columns))
            staged.append(fitting.select([name for name in RECORD if name in fitting.schema.names]))
            rows += fitting.num_rows
            size += fitting.nbytes
            if rows >= at_least or size >= _CHUNK_BYTES:
                yield RowChunk(pa.Table.from_batches(cast), pa.Table.from_batches(staged), self)
                cast, staged, rows, size = [], [], 0, 0
        if cast:
            yield RowChunk(pa.Table.from_batches(cast), pa.Table.from_batches(staged), self)

    def refuse(self, record: Record, reason: str) -> None:
        """Leave out a row, and note its record."""
        self.refused.add(record, reason)
        self.left_out += 1

    def refuse_staged(self) -> None:
        """Note the records whose rows Spark's tasks could not write into final files; `files` lack them.

        :raises DeadLetterError: the batch has more dead letters than it may have
        """
        for file in self._manifest.refused_files:
            for batch in record_batches(self._staging, file):
                if REASON not in batch.schema.names:
                    raise StagedFileError(f"Staged file {self._staging.file(file.name)} is of another kind")
                for row, reason in enumerate(batch.column(REASON).to_pylist()):
                    self.refused.add(record_of(batch, row, reason), reason)

    def keep_refused(self) -> None:
        """Write down the refused records: the target may commit externally, and the transaction that makes them dead
        letters may fail after that.
        """
        if self.refused.reasons:
            plain = [[*record, reason] for record, reason in self.refused.reasons.items()]
            self._staging.write_again(REFUSED, json.dumps(plain))

    def refuse_kept(self) -> None:
        """Take note of the records that an earlier attempt to commit these rows wrote down.

        :raises DeadLetterError: the batch has more dead letters than it may have
        :raises StagedFileError: somebody else wrote it
        """
        with suppress(FileNotFoundError):
            try:
                kept = json.loads(self._staging.read_text(REFUSED))
                records = [
                    (Record(str(topic), int(partition), int(at)), str(why)) for topic, partition, at, why in kept
                ]
            except (OverflowError, RecursionError, TypeError, ValueError) as error:
                raise StagedFileError(
                    f"{self._staging.file(REFUSED)} cannot be read: {type(error).__name__}"
                ) from error
            for record, reason in records:
                self.refused.add(record, reason)

    def wrote_refused(self) -> bool:
        """Return whether rows of refused records were written: a transform may make several rows of a record."""
        if self._manifest.columns is not None:
            return False  # the task that refused one of them left out all
        refused = self.refused.reasons
        return bool(refused) and sum(rows.num_rows for rows in self.of_records(refused)) > self.left_out

    def of_records(self, records: Collection[Record]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some records, as they were staged: their values may be of no year that Python has."""
        for batch in self._batches():
            yield batch.filter(are_of(batch, records))

    def _batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows that are staged; with final files these are those that were refused."""
        manifest = self._manifest
        for file in manifest.files if manifest.columns is None else manifest.refused_files:
            yield from record_batches(self._staging, file)

    def _without_refused(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        reasons = self.refused.reasons
        if not reasons:
            return batch
        kept = batch.filter(pc.invert(are_of(batch, reasons)))
        self.left_out += batch.num_rows - kept.num_rows
        return kept

    def _cast(self, batch: pa.RecordBatch, columns: pa.Schema) -> tuple[pa.RecordBatch, list[pa.Array]]:
        """Return the rows whose values all fit, as they are and in the types of the target; the others are refused."""
        while True:
            arrays: list[pa.Array] = []
            unfit: dict[int, str] = {}
            for column in columns:
                if column.name == BATCH_ID:
                    arrays.append(_repeated(self._manifest.batch_id, batch.num_rows).cast(column.type))
                    continue
                array, reasons = _fitting(batch.column(column.name), column)
                if not reasons and column.name in self.checks:
                    reasons = self.checks[column.name](array)
                for row, reason in reasons.items():
                    unfit.setdefault(row, f"column {column.name!r}: {reason}")
                arrays.append(array)
            if not unfit:
                return batch, arrays
            for row, reason in unfit.items():
                self.refuse(record_of(batch, row, reason), reason)
            batch = batch.filter(pa.array([row not in unfit for row in range(batch.num_rows)], pa.bool_()))


class RowChunk(NamedTuple):
    """Some of the staged rows, and which records they are of.

    :param rows: the columns to write, in the types of the target
    :param staged: of the same rows, the columns that name the record, as far as there are any
    """

    rows: pa.Table
    staged: pa.Table
    source: StagedRows

    def refuse(self, row: int, reason: str) -> None:
        """Note that the target refuses a row for one of its values, and that the sink leaves it out.

        :param row: its index in the chunk
        :raises RecordError: this batch allows no dead letters
        :raises DeadLetterError: the batch has more dead letters than it may have
        :raises TargetError: the rows do not say which record they are of
        """
        self.source.refuse(record_of(self.staged, row, reason), reason)

    def error(self, row: int, reason: str) -> RecordError:
        """Return the error for a row that cannot be written for another reason than its values.

        :raises TargetError: the rows do not say which record they are of
        """
        return RecordError(reason, *record_of(self.staged, row, reason), may_be_kept=False)


def schema_text(columns: pa.Schema) -> str:
    """Return columns as a text, for a manifest."""
    return base64.b64encode(columns.serialize().to_pybytes()).decode()


def schema_of(text: str) -> pa.Schema:
    """Return the columns that `schema_text` wrote."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


def record_of(rows: pa.RecordBatch | pa.Table, row: int, reason: str) -> Record:
    """Return the record of a row.

    :param reason: why it is asked, for the message
    :raises TargetError: the rows do not say which record they are of
    """
    if not set(RECORD) <= set(rows.schema.names):
        raise TargetError(f"The target refuses a row: {reason}. The transform drops the columns that say which record")
    record = Record(*(rows.column(name)[row].as_py() for name in RECORD))
    if None in record:
        raise TargetError(
            f"The target refuses a row: {reason}. The transform returns a row without its origin (topic, partition, "
            "offset)"
        )
    return record


def are_of(batch: pa.RecordBatch, records: Collection[Record]) -> pa.Array:
    """Return for each row whether it is of one of some records.

    :raises TargetError: the rows do not say which record they are of
    """
    if not set(RECORD) <= set(batch.schema.names):
        raise TargetError(
            "A record is refused, and rows without an origin may be its rows: have the transform keep the columns "
            f"{', '.join(RECORD)}"
        )
    offsets = pa.array(sorted({record.offset for record in records}), pa.int64())
    found = pc.is_in(batch.column(OFFSET).cast(pa.int64()), value_set=offsets)
    rows = set(pc.indices_nonzero(found).to_pylist())
    return pa.array([row in rows and record_of(batch, row, "") in records for row in range(batch.num_rows)], pa.bool_())


def _fitting(values: pa.Array, column: pa.Field) -> tuple[pa.Array, dict[int, str]]:
    """Return values in the type of a column, and the reasons for those that do not fit. If there are any, the values
    are not usable.
    """
    # Those of a transform; a format knows its own.
    if not pa.types.is_nested(values.type) and (late := out_of_years(values)):
        return values, dict.fromkeys(late, OUT_OF_YEARS)
    if values.type == column.type:
        return values, {}
    # Arrow's messages quote values.
    target = (column.metadata or {}).get(DECLARED_TYPE.encode(), b"").decode() or type_name(column.type)
    misfit = f"a value of type {type_name(values.type)} does not fit into {target}"
    if pa.types.is_decimal(values.type) and pa.types.is_floating(column.type):
        # By their digits: Arrow rounds many decimals to another number than the nearest.
        cast = values.cast(pa.string()).cast(column.type)
        if values.type.precision <= (_EXACT_SINGLE if pa.types.is_float32(column.type) else _EXACT_DOUBLE):
            return cast, {}
        pairs = enumerate(zip(values.to_pylist(), cast.cast(pa.string()).to_pylist(), strict=True))
        return cast, {row: misfit for row, (value, text) in pairs if value is not None and Decimal(text) != value}
    is_exact = pa.types.is_integer(values.type) or pa.types.is_decimal(values.type)
    convert = as_decimals if is_exact and pa.types.is_decimal(column.type) else pa.Array.cast
    try:
        cast = convert(values, column.type)
    except pa.ArrowInvalid:
        found = split_at_failures(
            len(values), lambda first, end: convert(values.slice(first, end - first), column.type), pa.ArrowInvalid
        )
        unfit = [part.position for part in found if isinstance(part, Failure)]
        if not unfit:
            raise TargetError(f"Column {column.name!r}: {misfit}") from None
        return values, dict.fromkeys(unfit, misfit)
    if pa.types.is_float32(column.type) and pa.types.is_float64(values.type):
        # Arrow silently casts a number that is too large to infinity, and one that is too small to zero.
        lost = pc.or_(pc.and_not(pc.is_inf(cast), pc.is_inf(values)), pc.and_not(_is_zero(cast), _is_zero(values)))
        return cast, dict.fromkeys(pc.indices_nonzero(lost).to_pylist(), misfit)
    return cast, {}


def _is_zero(numbers: pa.Array) -> pa.Array:
    return pc.equal(numbers, 0)


def _repeated(number: int, count: int) -> pa.Array:
    """Return an array that holds a number `count` times.

    The array is made from bytes: the first time that pyarrow converts a Python value in a process, it imports pandas to
    recognize its types. That takes most of a second, here inside the transaction of the commit.
    """
    return pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(array("q", [number]) * count)])
