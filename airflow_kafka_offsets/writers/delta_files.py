"""Final data files of a Delta table, and the actions that add them to its log.

Statistics of floats and late timestamps
========================================
Readers in Rust and Python (delta-rs, and what is made with it) take a file for empty that has no bounds of a column
where other files have some. So each column with values has bounds:

* A file with infinities has them as bounds, in the form in which Delta on Spark writes them: `"Infinity"`.
* A file with NaN has the bounds `"-Infinity"` and `"Infinity"`, so that no reader skips it. Delta on Spark writes the
  upper bound `"NaN"`, as NaN is the greatest of all to Spark. To Arrow it is not comparable: it would skip the file for
  every filter. With narrower bounds it would take NaN for a number within them. The price: a filter `x = NaN` finds no
  rows; use `isnan(x)`.
* Bounds of timestamps are in milliseconds: the lower one is rounded down, the upper one up. In the last millisecond of
  the year 9999 it stays as it is, and its microseconds are written.
"""

from __future__ import annotations

import json
import math
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta
from decimal import Decimal
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_kafka_offsets.exceptions import StagedFileError
from airflow_kafka_offsets.staging.manifest import StagedFile
from airflow_kafka_offsets.staging.rows import schema_of
from airflow_kafka_offsets.writers.data_files import (
    FILE_BYTES,
    DataFile,
    FileLayout,
    PartitionTerm,
    are_too_long,
    room_for_directories,
)
from airflow_kafka_offsets.writers.object_files import ObjectFiles
from airflow_kafka_offsets.writers.statistics import ColumnStatistics
from airflow_kafka_offsets.writers.table_rows import file_type

# Hive's name of the directory whose rows have no value.
_NULL = "__HIVE_DEFAULT_PARTITION__"

# What Hive and Spark escape in the names of directories, and NUL, which no name can have; they take other characters as
# they are, and no bytes of UTF-8.
_SPECIAL = {*map(chr, range(32)), *"\"#%'*/:=?\\\x7f{[]^"}


def hive_directories(partition: Mapping[str, Any]) -> str:
    """Return the path of Hive's directories, as Spark writes it: some readers take the values of partition columns from
    these.

    :param partition: the value of each partition column
    """
    texts = {name: delta_value(value) for name, value in partition.items()}
    return "/".join(f"{_escaped(name)}={_NULL if text is None else _escaped(text)}" for name, text in texts.items())


def _new_path(directory: str, directories: str, ending: str = "parquet") -> str:
    return "/".join(filter(None, [directory, directories, f"part-{uuid.uuid4().hex}.{ending}"]))


def _escaped(text: str) -> str:
    return "".join(f"%{ord(character):02X}" if character in _SPECIAL else character for character in text)


# Texts of so many bytes always fit into the name of a directory.
_SHORT_NAME = 32

# More than the characters of any other value.
_LONGEST_NUMBER = 48

# Longer texts are cut, as other writers do.
_TEXT_LENGTH = 32

_GREATEST = "\U0010ffff"


@dataclass(frozen=True)
class DeltaShape:
    """What of a Delta table decides how its files are written; a `FileFormat`.

    :param uri: of the table
    :param columns: of the table, with those that the commit adds, as a text
    :param measured: columns of which statistics are kept
    :param lengths: how many characters a text of a column may have
    :param digest: of all that the files depend on, by which the commit finds that the table changed
    """

    uri: str
    columns: str
    partition_by: Sequence[str] = ()
    sort_by: Sequence[str] = ()
    measured: Sequence[str] | None = None
    file_bytes: int = FILE_BYTES
    digest: str = ""
    lengths: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def layout(self) -> FileLayout:
        """What the files are like. Partition columns are in the table's log, and not in the files."""
        return FileLayout(
            columns=schema_of(self.columns),
            partition_by=[PartitionTerm(name, (name,)) for name in self.partition_by],
            left_out=self.partition_by,
            sort_by=[(name, "ascending") for name in self.sort_by],
            file_bytes=self.file_bytes,
            measured=self.measured,
            unfit=self._unfit if self.lengths else None,
        )

    def _unfit(self, rows: pa.RecordBatch) -> dict[int, str]:
        reasons: dict[int, str] = {}
        held = set(rows.schema.names)
        for name, most in self.lengths.items():
            if name in held and file_type(rows.column(name).type) == pa.string():
                is_long = pc.greater(pc.utf8_length(rows.column(name).cast(pa.string())), most)
                reason = f"column {name!r} has texts of {most:,} characters at most"
                reasons |= dict.fromkeys(pc.indices_nonzero(is_long).to_pylist(), reason)
        return reasons

    def files(self, storage: Mapping[str, Any]) -> ObjectFiles:
        """Return where files are written."""
        return ObjectFiles(self.uri, storage)

    def path(self, attempt: str, partition: Mapping[str, Any]) -> str:
        """Return the path of a new file. In the log it is URL-encoded, as `AddAction` does.

        Values that are too long for the names of directories have none: by Delta's protocol, paths have no meaning.
        """
        directories = hive_directories(partition)
        return _new_path(attempt, "" if are_too_long(directories, self.uri) else directories)

    def to_json(self, file: DataFile) -> str:
        """Return what the commit has to know of a file."""
        return json.dumps({"layout": self.digest, "add": add_action(file)})


@dataclass(frozen=True)
class ParquetShape(DeltaShape):
    """The same of plain Parquet files: only their directories say the values of partition columns."""

    @cached_property
    def layout(self) -> FileLayout:
        """What the files are like."""
        return replace(super().layout, unfit=self._unfit)

    def path(self, attempt: str, partition: Mapping[str, Any]) -> str:
        """Return the path of a new file."""
        # Not that of a published file: DuckDB and polars also read directories whose names begin with an underscore.
        return _new_path(attempt, hive_directories(partition), "staged")

    def _unfit(self, rows: pa.RecordBatch) -> dict[int, str]:
        reasons: dict[int, str] = {}
        columns = {name: rows.column(name) for name in self.partition_by}
        texts = {name: of.cast(pa.string()) for name, of in columns.items() if file_type(of.type) == pa.string()}
        for name, text in texts.items():
            for row in pc.indices_nonzero(pc.equal(text, _NULL)).to_pylist():
                reasons[row] = f"column {name!r} is the name of a directory, which readers take for null"
        for row in self._perhaps_long(texts):
            partition = {name: of[row].as_py() for name, of in columns.items()}
            long = [name for name in texts if are_too_long(hive_directories({name: partition[name]}), "")]
            if long:
                reasons[row] = f"column {long[0]!r} is the name of a directory, which has 255 bytes at most"
            elif are_too_long(hive_directories(partition), self.uri):
                names = ", ".join(map(repr, self.partition_by))
                reasons[row] = f"columns {names} are names of directories, whose path is too long for an object store"
        return reasons

    def _perhaps_long(self, texts: Mapping[str, pa.Array]) -> list[int]:
        """Return the rows whose directories may be too long."""
        others = sum(len(_escaped(name).encode()) + 2 for name in self.partition_by)
        others += _LONGEST_NUMBER * (len(self.partition_by) - len(texts))
        # Each byte of a text may become three.
        each = (room_for_directories(self.uri) - others) // (3 * max(len(texts), 1))
        most = max(min(each, _SHORT_NAME), 0)
        long = {row for of in texts.values() for row in pc.indices_nonzero(_is_longer(of, most)).to_pylist()}
        return sorted(long)


def _is_longer(texts: pa.Array, most: int) -> pa.Array:
    return pc.greater(pc.binary_length(texts), most)


def read_written(table: str, file: StagedFile) -> tuple[str, dict[str, Any]]:
    """Return the digest with which a file was written, and the fields of the action that adds it.

    :param table: its name, for messages
    :raises StagedFileError: the manifest contradicts itself about the file
    """
    written = json.loads(file.data)
    add: dict[str, Any] = written["add"]
    if (add["path"], add["size"], json.loads(add["stats"])["numRecords"]) != (file.name, file.bytes, file.rows):
        raise StagedFileError(f"The manifest contradicts itself about file {file.name} of table {table!r}")
    return written["layout"], add


def add_action(file: DataFile) -> dict[str, Any]:
    """Return the fields of the action that adds a file, for deltalake's `AddAction`."""
    return {
        "path": file.path,
        "size": file.bytes,
        "partition_values": {name: delta_value(value) for name, value in file.partition.items()},
        "modification_time": int(time.time() * 1000),
        "data_change": True,
        "stats": delta_statistics(file.rows, file.columns),
    }


def delta_statistics(rows: int, columns: Sequence[ColumnStatistics]) -> str:
    """Return the statistics of a file in the JSON of an `add` action.

    https://github.com/delta-io/delta/blob/master/PROTOCOL.md#per-file-statistics
    """
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    nulls: dict[str, Any] = {}
    for column in columns:
        _put(nulls, column.path, column.null_lists if column.is_repeated else column.nulls)
        lower, upper = (None, None) if column.is_repeated else _bounds(column)
        if lower is not None and upper is not None:
            _put(least, column.path, lower)
            _put(greatest, column.path, upper)
    return _json({"numRecords": rows, "minValues": least, "maxValues": greatest, "nullCount": nulls})


def delta_value(value: Any) -> str | None:
    """Return the value of a partition column as an `add` action has it.

    https://github.com/delta-io/delta/blob/master/PROTOCOL.md#partition-value-serialization
    """
    if value is None or value == "":  # the protocol knows no difference
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, datetime):
        # Without the Z, readers take an instant for one of their own zone.
        is_instant = value.tzinfo is not None
        return value.replace(tzinfo=None).isoformat("T" if is_instant else " ", "microseconds") + (
            "Z" if is_instant else ""
        )
    return value.isoformat() if isinstance(value, date) else str(value)


def _bounds(column: ColumnStatistics) -> tuple[Any, Any]:
    """Return the bounds of a column; None where there are no values, or none that the protocol has bounds of."""
    least, greatest = column.least, column.greatest
    if column.nans:
        return -math.inf, math.inf
    if least is None or isinstance(least, bytes):
        return None, None
    if isinstance(least, datetime):
        return _instant(least - timedelta(microseconds=least.microsecond % 1000)), _instant(_rounded_up(greatest))
    return (least[:_TEXT_LENGTH], _upper(greatest)) if isinstance(least, str) else (least, greatest)


def _rounded_up(value: datetime) -> datetime:
    try:
        return value + timedelta(microseconds=-value.microsecond % 1000)
    except OverflowError:  # the year 10000
        return value


def _upper(text: str) -> str:
    """Return a text that is not less. Readers of delta-rs skip a file without it, so that there is always one."""
    rest = text[_TEXT_LENGTH:]
    if not rest.strip(_GREATEST):
        return text
    # Greater than any text that begins as this one does, as the next character is not the greatest of all.
    length = len(text) - len(rest.lstrip(_GREATEST))
    return text[:length] + _GREATEST


def _put(values: dict[str, Any], path: Sequence[str], value: Any) -> None:
    *parents, name = path
    for parent in parents:
        values = values.setdefault(parent, {})
    values[name] = value


def _instant(value: datetime) -> str:
    timespec = "microseconds" if value.microsecond % 1000 else "milliseconds"
    return value.replace(tzinfo=None).isoformat(timespec=timespec) + ("Z" if value.tzinfo is not None else "")


def _json(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(name)}:{_json(each)}" for name, each in value.items()) + "}"
    if isinstance(value, Decimal):
        return format(value, "f")  # as a number, with all of its digits
    if isinstance(value, date):
        return json.dumps(value.isoformat())
    if isinstance(value, float) and math.isinf(value):
        return '"Infinity"' if value > 0 else '"-Infinity"'
    return json.dumps(value, ensure_ascii=False)
