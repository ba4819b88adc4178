"""A table of Delta Lake at a URI: a version of it, and one commit to it.

delta-rs would rebase a commit onto those of other writers, and lose a removal: if OPTIMIZE has replaced a file
meanwhile, its removal has no effect, and its rows stay. Here, a commit must be the next version of the table, or it
fails.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast
from urllib.parse import quote, unquote, urlsplit

import deltalake
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, Transaction
from deltalake.exceptions import (
    CommitFailedError,
    DeltaError,
    DeltaProtocolError,
    SchemaMismatchError,
    TableNotFoundError,
)
from deltalake.schema import Field
from deltalake.transaction import AddAction, RemoveAction
from sqlalchemy.engine import Connection

from airflow_kafka_offsets.core.addresses import is_local, local_path
from airflow_kafka_offsets.core.bisection import is_panic
from airflow_kafka_offsets.core.origin import BATCH_ID
from airflow_kafka_offsets.core.text import shortened
from airflow_kafka_offsets.exceptions import DatabaseUnavailableError, StagedFileError, TargetError
from airflow_kafka_offsets.sinks.delta.columns import (
    arrow_columns,
    delta_schema,
    measured,
    skipping_columns,
    text_lengths,
    unreadable,
    unusable,
)
from airflow_kafka_offsets.sinks.delta.history import (
    Log,
    commit_metadata,
    last_published,
    publications,
    refuse_restored,
)
from airflow_kafka_offsets.sinks.delta.log_files import refuse_foreign_lists
from airflow_kafka_offsets.sinks.lake.columns import (
    check_parameters,
    check_partitions,
    created_columns,
    lacking,
)
from airflow_kafka_offsets.sinks.lake.left_files import has_plain_path, left_below, remove_left
from airflow_kafka_offsets.sinks.lake.sink import DirectorySink, dataset_name, fields_of
from airflow_kafka_offsets.sinks.lake.snapshot import (
    Bounds,
    Change,
    KnownRollbacks,
    LakeFile,
    LastPublication,
    PublicationResult,
    Snapshot,
    UnknownOutcomeError,
    read_parquet,
)
from airflow_kafka_offsets.sinks.lake.table import LakeTable
from airflow_kafka_offsets.sinks.table import Dataset
from airflow_kafka_offsets.staging.manifest import StagedFile
from airflow_kafka_offsets.staging.rows import schema_text
from airflow_kafka_offsets.writers.delta_files import DeltaShape, delta_value, read_written
from airflow_kafka_offsets.writers.lake_writer import FileFormat
from airflow_kafka_offsets.writers.object_files import ObjectFiles
from airflow_kafka_offsets.writers.table_rows import file_columns, is_added

if TYPE_CHECKING:
    from airflow_kafka_offsets.sinks.delta.table import DeltaTable

# What delta-rs leaves as it is in the path of an action, besides letters and digits.
_PLAIN = "!$&'()+,/:;=@"


@contextmanager
def _reading(name: str) -> Iterator[None]:
    """Read the log of a table.

    :raises DatabaseUnavailableError: delta-rs cannot, or its code in Rust panics
    """
    try:
        yield
    except TableNotFoundError:
        raise
    except BaseException as error:
        if not (isinstance(error, DeltaError) or is_panic(error)):
            raise
        reason = shortened(str(error).partition("\n")[0])  # without the stack of Rust
        # Another process may have cleaned the log up meanwhile.
        raise DatabaseUnavailableError(f"Table {name!r} cannot be read: {reason}. Nothing was written") from None


def _location(sink: DirectorySink) -> str:
    return local_path(sink.uri) if is_local(sink.uri) else sink.uri


class DeltaSnapshot(Snapshot):
    """A table in one version; see `Snapshot`.

    :raises TableNotFoundError: there is none
    :raises DatabaseUnavailableError: it cannot be read
    """

    storage: ObjectFiles

    def __init__(self, sink: DirectorySink) -> None:
        if is_local(sink.uri) and not Path(_location(sink)).exists():
            raise TableNotFoundError(sink.name)  # else `ObjectFiles` would make the directory
        self.sink, self.name, self.storage = sink, sink.name, ObjectFiles(sink.uri, sink.storage)
        refuse_foreign_lists(self.name, self.storage)
        with _reading(sink.name):
            self.table = table = deltalake.DeltaTable(_location(sink), storage_options=dict(sink.storage) or None)
            self.columns, metadata = arrow_columns(table.schema()), table.metadata()
            self._version = table.version()
        self.required = [column.name for column in self.columns if not column.nullable]
        self.partition_by: list[str] = list(metadata.partition_columns)
        self.configuration = dict(metadata.configuration)

    @property
    def version(self) -> int:
        return self._version

    def refresh(self) -> DeltaSnapshot:
        # Opened anew: delta-rs would lead this version on to the current one, and a commit that goes on from it.
        try:
            return DeltaSnapshot(self.sink)
        except TableNotFoundError:
            raise TargetError(f"Table {self.name!r} disappeared; nothing was written") from None

    def check(self) -> None:
        if reasons := unusable(self.table):
            raise TargetError(
                f"Table {self.name!r} cannot be written to: {'; '.join(reasons)}. Drop the feature, or load into "
                "another table"
            )
        check_partitions(self.name, self.columns, self.partition_by, self.sink.partition_by)

    @property
    def _log(self) -> Log:
        return Log(self.version, self.storage)

    def check_history(self, group_id: str, known: KnownRollbacks) -> None:
        refuse_restored(self.name, self._log, group_id, known)

    def check_removal(self, files: Sequence[LakeFile] = ()) -> None:
        for file in files:
            if quote(file.native[0], safe=_PLAIN) != file.key:
                raise TargetError(
                    f"File {file.key!r} of table {self.name!r} cannot be replaced: in the log its path is spelled as "
                    "Spark spells characters that are not ASCII, and delta-rs would remove another spelling. Nothing "
                    "was changed; delete the rows with Spark, or partition by another column"
                )
        if self.configuration.get("delta.appendOnly", "false").lower() == "true":
            raise TargetError(
                f"Rows of table {self.name!r} cannot be removed: it has delta.appendOnly=true. Nothing was changed; "
                "set the property to false, or do not replace rows"
            )

    def last_number(self, series: str) -> int:
        with _reading(self.name):
            number = self.table.transaction_version(series)
        return -1 if number is None else number

    def last_publication(self, group_id: str) -> LastPublication | None:
        found = last_published(self._log, group_id)
        return None if found is None else LastPublication(found.series, found.batch_id, found.result.rows)

    def result(self, series: str, number: int) -> PublicationResult | None:
        found = (each for each in publications(self._log) if (each.series, each.batch_id) == (series, number))
        return next((each.result for each in found), None)

    @cached_property
    def _actions(self) -> pa.Table:
        if reasons := unreadable(self.table):
            raise TargetError(f"Table {self.name!r} cannot be read: {'; '.join(reasons)}. Drop the feature")
        with _reading(self.name):
            return pa.table(self.table.get_add_actions())

    def files(self, any_of: Sequence[Bounds] = ({},)) -> list[LakeFile]:
        actions, chosen = self._actions, pa.repeat(pa.scalar(False), self._actions.num_rows)
        for bounds in any_of:
            chosen = pc.or_(chosen, self._within(actions, bounds))
        found = actions.filter(chosen)
        partitions = found["partition"].to_pylist() if "partition" in found.schema.names else [{}] * found.num_rows
        least, greatest = (_inner(found, side, BATCH_ID) for side in ("min", "max"))
        batches: list[Any] = [None] * found.num_rows
        if least is not None and greatest is not None:
            pairs = zip(least.to_pylist(), greatest.to_pylist(), strict=True)
            batches = [None if None in pair else pair for pair in pairs]
        rows = zip(found["path"].to_pylist(), found["size_bytes"].to_pylist(), partitions, batches, strict=True)
        return [
            LakeFile(path, (self._below(path), size, partition or {}), batch) for path, size, partition, batch in rows
        ]

    def _below(self, path: str) -> str:
        """Return the path of a file below the location of the table."""
        if path.startswith("/") or urlsplit(path).scheme:
            raise TargetError(
                f"Table {self.name!r} cannot be read: it names the file {path!r}, which is outside its location, as a "
                "shallow clone does. Make a deep clone"
            )
        return unquote(path)

    def _within(self, actions: pa.Table, bounds: Bounds) -> pa.ChunkedArray:
        chosen = pa.repeat(pa.scalar(True), actions.num_rows)
        for name, (lowest, highest) in bounds.items():
            sides = ("partition", "partition") if name in self.partition_by else ("min", "max")
            least, greatest = (_inner(actions, side, name) for side in sides)
            if least is not None and greatest is not None:
                is_below = pc.greater(least, pa.scalar(highest))
                is_above = pc.less(greatest, pa.scalar(lowest))
                chosen = pc.and_not(chosen, pc.fill_null(pc.or_(is_below, is_above), False))
        return chosen

    def _read(self, file: LakeFile, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        path, _, partition = file.native
        schema = pa.schema([self.columns.field(name).with_nullable(True) for name in columns])
        yield from read_parquet(self.storage, path, schema, partition)

    def shape(self, rows: pa.Schema | None = None) -> DeltaShape:
        new = [] if rows is None else lacking(self.columns, file_columns(rows))
        columns = pa.schema([*self.columns, *(column.with_nullable(True) for column in new)])
        names = {*(rows.names if rows is not None else columns.names), BATCH_ID}
        types = [
            (column.name, str(column.type)) for column in columns if column.name in names or not is_added(column.name)
        ]
        digest = hashlib.sha256(repr((sorted(types), self.partition_by)).encode()).hexdigest()
        return DeltaShape(
            self.sink.uri,
            schema_text(columns),
            tuple(self.partition_by),
            tuple(self.sink.sort_by),
            tuple(measured(self.configuration, columns)),
            self.sink.file_bytes,
            digest,
            text_lengths(self.table.schema()),
        )

    def entry(self, file: StagedFile, shape: FileFormat) -> tuple[AddAction, LakeFile]:
        layout, add = read_written(self.name, file)
        partition = add["partition_values"]
        if partition.keys() != set(self.partition_by) or not all(
            value is None or isinstance(value, str) for value in partition.values()
        ):
            raise ValueError("partition_values")
        if layout != cast("DeltaShape", shape).digest:
            raise StagedFileError(
                f"Table {self.name!r} was altered: it has other columns or partitions than the files of the batch"
            )
        return AddAction(**add), LakeFile(file.name, (file.name, file.bytes, add["partition_values"]))

    def is_own(self, path: str, attempt: str) -> bool:
        return has_plain_path(path, attempt)

    def size(self, path: str) -> int | None:
        return self.storage.size(path)

    def commit(self, change: Change) -> bool:
        version = self.version
        new = [] if change.columns is None else lacking(self.columns, file_columns(change.columns))
        try:
            if new:
                self._add_columns(new)
                return False  # the table is another one by now
            # With the commit, delta-rs may write a checkpoint of what it reads then.
            refuse_foreign_lists(self.name, self.storage)
            self.table.create_write_transaction(
                [*change.adds, *map(remove_action, change.removes)],
                mode="append",
                schema=self.table.schema(),
                partition_by=self.partition_by,
                commit_properties=CommitProperties(
                    max_commit_retries=0,
                    app_transactions=[Transaction(change.output.series, change.number)],
                    custom_metadata=commit_metadata(change),
                ),
            )
        except CommitFailedError as error:
            if self.refresh().version == version:  # no other writer is the reason
                raise TargetError(f"Table {self.name!r} cannot be written to: {error}. Nothing was written") from error
            return False
        except (DeltaProtocolError, SchemaMismatchError, ValueError, TypeError, NotImplementedError) as error:
            raise TargetError(f"Table {self.name!r} cannot be written to: {error}. Nothing was written") from error
        except (DeltaError, OSError) as error:
            raise UnknownOutcomeError(f"{type(error).__name__}: {error}") from error
        return True

    def _add_columns(self, columns: Sequence[pa.Field]) -> None:
        """Add columns, in a separate commit: if no other follows, they exist and are null."""
        nullable = pa.schema([column.with_nullable(True) for column in columns])
        fields: list[Field] = list(delta_schema(nullable).fields)
        self.table.alter.add_columns(fields, commit_properties=CommitProperties(max_commit_retries=0))

    def remove_leftovers(self, batch_id: int, before: datetime, installation: str) -> int:
        left = left_below(self.storage, batch_id, installation, before)
        if left:
            left.difference_update(file.native[0] for file in self.files())
        if left:
            # VACUUM removes what no version names that the table's retention keeps.
            left.intersection_update(self.table.vacuum(dry_run=True, full=True))
        return remove_left(self.storage, left)


def remove_action(file: LakeFile) -> RemoveAction:
    """Return the action that removes a file from the log. It URL-encodes the path, as `AddAction` does."""
    path, size, partition = file.native
    values = {name: delta_value(value) for name, value in partition.items()}
    return RemoveAction(path, True, int(time.time() * 1000), size, values)


def _inner(actions: pa.Table, side: str, name: str) -> pa.ChunkedArray | None:
    if side not in actions.schema.names:
        return None
    kind = actions.schema.field(side).type
    return pc.struct_field(actions[side], name) if kind.get_field_index(name) >= 0 else None


@dataclass(frozen=True)
class ConnectedDeltaTable(LakeTable):
    """A Delta table; see `LakeTable`.

    :param sink: with the options of its object store
    """

    kind: ClassVar[str] = "delta"

    sink: DeltaTable

    def check_parameters(self) -> pa.Schema | None:
        return check_parameters(self.sink)

    def check_types(self, columns: pa.Schema) -> None:
        delta_schema(columns)

    def snapshot(self, conn: Connection | None = None, *, lock: bool = False) -> DeltaSnapshot | None:
        try:
            return DeltaSnapshot(self.sink)
        except TableNotFoundError:
            return None

    def create(self, columns: pa.Schema) -> DeltaSnapshot:
        sink, failure = self.sink, None
        schema, properties = created_columns(sink, columns), dict(sink.properties)
        if "delta.dataSkippingNumIndexedCols" not in properties and (chosen := skipping_columns(schema)):
            properties.setdefault("delta.dataSkippingStatsColumns", chosen)
        try:
            deltalake.DeltaTable.create(
                _location(sink),
                delta_schema(schema),
                mode="ignore",
                partition_by=list(sink.partition_by),
                configuration=properties,
                storage_options=dict(sink.storage) or None,
            )
        except (DeltaError, OSError) as error:  # perhaps because another process was first
            failure = error
        snapshot = self.snapshot()
        if snapshot is None:
            raise TargetError(f"Table {sink.name!r} does not exist, and cannot be created: {failure}") from failure
        return snapshot

    def storage_options(self) -> Mapping[str, str]:
        return self.sink.storage

    def datasets(self) -> list[Dataset]:
        snapshot = self.snapshot()
        return [Dataset(*dataset_name(self.sink.uri), None if snapshot is None else fields_of(snapshot.columns))]
