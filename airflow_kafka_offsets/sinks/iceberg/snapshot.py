"""An Iceberg table in one version, and one commit to it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from functools import cached_property

import pyarrow as pa
from pyiceberg.conversions import from_bytes
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.expressions import (
    AlwaysFalse,
    AlwaysTrue,
    And,
    BooleanExpression,
    GreaterThanOrEqual,
    LessThanOrEqual,
    Or,
)
from pyiceberg.manifest import DataFile, DataFileContent, ManifestContent
from pyiceberg.table import FileScanTask, Table, Transaction
from pyiceberg.table.update import AssertCurrentSchemaId, AssertDefaultSpecId, AssertTableUUID
from pyiceberg.types import LongType, PrimitiveType

from airflow_kafka_offsets.core.origin import BATCH_ID
from airflow_kafka_offsets.exceptions import KafkaOffsetsError, StagedFileError, TargetError
from airflow_kafka_offsets.sinks.iceberg.key_pruning import KeyPruning
from airflow_kafka_offsets.sinks.iceberg.left_files import remove_leftovers
from airflow_kafka_offsets.sinks.iceberg.private import commit_once, read_file
from airflow_kafka_offsets.sinks.iceberg.publication import (
    PREFIX,
    Publication,
    last_published,
    published,
    refuse_rollback,
    summary,
)
from airflow_kafka_offsets.sinks.iceberg.shapes import add_columns, arrow_columns, shape_of
from airflow_kafka_offsets.sinks.lake.key_index import KeyIndex
from airflow_kafka_offsets.sinks.lake.table_format import (
    Bounds,
    Change,
    LakeFile,
    PublicationResult,
    Snapshot,
    UnknownOutcomeError,
)
from airflow_kafka_offsets.staging.manifest import StagedFile
from airflow_kafka_offsets.writers.iceberg_files import IcebergStorage, TableShape, table_of
from airflow_kafka_offsets.writers.lake_writer import TableFormat as FileFormat

# pyiceberg writes manifests of these versions of the format.
_WRITABLE_VERSIONS = (1, 2)


class IcebergSnapshot(Snapshot):
    """A table in one version; see `Snapshot`.

    :param reload: returns the table as it is now; None where it disappeared
    :param is_external: whether it commits externally, so that the answer to a commit can get lost
    """

    def __init__(self, name: str, table: Table, reload: Callable[[], Table | None], *, is_external: bool) -> None:
        self.name, self.table, self._reload, self._is_external = name, table, reload, is_external
        self.columns = arrow_columns(table.schema())
        self.required = [field.name for field in table.schema().fields if field.required]

    @property
    def version(self) -> str:
        return self.table.metadata_location

    def refresh(self) -> IcebergSnapshot:
        table = self._reload()
        if table is None:
            raise TargetError(f"{self.name} disappeared; nothing was written")
        return IcebergSnapshot(self.name, table, self._reload, is_external=self._is_external)

    def check(self) -> None:
        if (version := self.table.format_version) not in _WRITABLE_VERSIONS:
            raise TargetError(
                f"{self.name} has version {version} of Iceberg's format, which pyiceberg cannot write: load into a "
                "table of version 2"
            )

    def check_history(self, group_id: str, last_rewind: datetime | None) -> None:
        refuse_rollback(self.table, group_id)

    def check_removal(self) -> None:
        """Rows may be removed from any table."""

    def last_number(self, series: str) -> int:
        last = published(self.table, series)
        return -1 if last is None else last.batch

    def last_series(self, group_id: str) -> tuple[str, int] | None:
        found = last_published(self.table, group_id)
        return None if found is None else (found[0].removeprefix(PREFIX), found[1].batch)

    def result(self, series: str, number: int) -> PublicationResult | None:
        last = published(self.table, series)
        return None if last is None or last.batch != number else last.result

    def files(self, any_of: Sequence[Bounds] = ({},)) -> list[LakeFile]:
        try:
            if _has_deletes_by_value(self.table):
                raise ValueError("it has equality deletes, which pyiceberg does not support")
            return [self._lake_file(task) for task in self.table.scan(condition(any_of)).plan_files()]
        except ValueError as error:
            raise TargetError(
                f"{self.name} cannot be read: {error}. Have the engine that writes it compact it"
            ) from error

    def _lake_file(self, task: FileScanTask) -> LakeFile:
        # The deletes of other engines change the rows of a file.
        key = task.file.file_path, *sorted(each.file_path for each in task.delete_files)
        return LakeFile(key, task, self._batches(task.file))

    def _batches(self, file: DataFile) -> tuple[int, int] | None:
        if self._batch_column is None:
            return None
        field_id, kind = self._batch_column
        least, greatest = ((each or {}).get(field_id) for each in (file.lower_bounds, file.upper_bounds))
        if least is None or greatest is None:
            return None
        return int(from_bytes(kind, least)), int(from_bytes(kind, greatest))

    @cached_property
    def _batch_column(self) -> tuple[int, PrimitiveType] | None:
        if BATCH_ID not in self.columns.names:
            return None
        field = self.table.schema().find_field(BATCH_ID)
        return field.field_id, field.field_type if isinstance(field.field_type, PrimitiveType) else LongType()

    def may_hold(self, file: LakeFile, keys: KeyIndex) -> bool:
        if self._pruning is None or self._pruning[0] is not keys:
            self._pruning = keys, KeyPruning(self.table, keys)
        return self._pruning[1].may_hold(file.native.file)

    _pruning: tuple[KeyIndex, KeyPruning] | None = None

    def read(self, file: LakeFile, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        schema = self.table.schema().select(*columns)
        types = arrow_columns(schema)
        for rows in read_file(self.table, schema, file.native):
            # Other engines write files whose texts are read as another type than those of pyarrow.
            yield rows.cast(types).select(list(columns))

    def shape(self, rows: pa.Schema | None = None) -> TableShape:
        return shape_of(self.table, rows)

    def entry(self, file: StagedFile, shape: FileFormat) -> tuple[DataFile, LakeFile]:
        assert isinstance(shape, TableShape)
        if table_of(file.data) != shape.uuid:
            raise TargetError(
                f"{self.name} was dropped and created again after the files of the batch were written: it is another "
                "table, without the rows of earlier batches. Nothing was written, and no position moved. If the "
                "earlier table was dropped by mistake, restore it (register_table of its last metadata file, under "
                "this name), and run the task again. If the new one is meant: abandon the batch, and rewind the group "
                "to where the new table is to begin."
            )
        plain, entry = json.loads(file.data), shape.from_json(file.data)
        if entry is None:
            raise StagedFileError(
                f"File {file.name} was written for other columns or partitions than {self.name} has now"
            )
        if (plain["path"], plain["bytes"], plain["rows"]) != (file.name, file.bytes, file.rows):
            raise StagedFileError(f"The manifest contradicts itself about file {file.name} of {self.name}")
        return entry, self._lake_file(FileScanTask(entry))

    def is_own(self, path: str, attempt: str) -> bool:
        root = self.table.properties.get("write.data.path", f"{self.table.location().rstrip('/')}/data").rstrip("/")
        below = path.removeprefix(f"{root}/").split("/")
        return path.startswith(f"{root}/") and attempt in below and ".." not in below

    def size(self, path: str) -> int | None:
        found = self.table.io.new_input(path)
        return len(found) if found.exists() else None

    def storage(self) -> IcebergStorage:
        return IcebergStorage(self.table.io)

    def commit(self, change: Change) -> bool:
        transaction = self.table.transaction()
        metadata = self.table.metadata
        # A change of columns or partitions makes no snapshot: the files would not fit any more.
        requirements = (
            AssertTableUUID(uuid=metadata.table_uuid),
            AssertCurrentSchemaId.model_validate({"current-schema-id": metadata.current_schema_id}),
            AssertDefaultSpecId.model_validate({"default-spec-id": metadata.default_spec_id}),
        )
        try:
            self._stage(transaction, change)
        except (ValueError, NotImplementedError) as error:
            raise TargetError(f"{self.name} cannot be written to: {error}. Nothing was written") from error
        try:
            commit_once(self.table, transaction, requirements)
        except CommitFailedException:
            return False
        except Exception as error:
            if not self._is_external or isinstance(error, KafkaOffsetsError):
                raise
            raise UnknownOutcomeError(f"{type(error).__name__}: {error}") from None
        return True

    def _stage(self, transaction: Transaction, change: Change) -> None:
        if change.columns is not None:
            add_columns(".".join(self.table.name()), transaction, change.columns)
        update = transaction.update_snapshot(summary(change.output))
        if change.removes:
            with update.overwrite() as overwrite:
                # By this pyiceberg finds the manifests that name the files.
                overwrite.delete_by_predicate(condition(change.within))
                for file in change.removes:
                    overwrite.delete_data_file(file.native.file)
                for entry in change.adds:
                    overwrite.append_data_file(entry)
        else:
            # Also without files: a commit that is on its way goes on from the snapshot before, and fails.
            with update.fast_append() as append:
                for entry in change.adds:
                    append.append_data_file(entry)
        after = transaction.table_metadata
        current = after.current_snapshot_id
        # The first version of the format does not number snapshots.
        publication = Publication.of(change, current, getattr(after, "last_sequence_number", 0))
        series = change.output.series or change.output.group_id
        transaction.set_properties({PREFIX + series: publication.to_json()})

    def remove_leftovers(self, batch_id: int, before: datetime) -> int:
        return remove_leftovers(self.table, batch_id, before)


def condition(any_of: Sequence[Bounds]) -> BooleanExpression:
    """Return the condition that a row is within one of some bounds."""
    found: BooleanExpression = AlwaysFalse()
    for bounds in any_of:
        within: BooleanExpression = AlwaysTrue()
        for name, (least, greatest) in bounds.items():
            # pyiceberg's annotations have the arguments of pydantic's constructor, which is another one.
            at_least = GreaterThanOrEqual(name, least)  # type: ignore[call-arg,arg-type]
            at_most = LessThanOrEqual(name, greatest)  # type: ignore[call-arg,arg-type]
            within = And(within, at_least, at_most)
        found = Or(found, within)
    return found


def _has_deletes_by_value(table: Table) -> bool:
    """Return whether rows are deleted by value, which some engines write into files of their own.

    pyiceberg finds this out itself, but for deletes whose values are ruled out by the condition of a scan. Their rows
    would be back in a file that is written again for other rows.
    """
    snapshot = table.current_snapshot()
    manifests = snapshot.manifests(table.io) if snapshot is not None else []
    data = [each.min_sequence_number or 0 for each in manifests if each.content == ManifestContent.DATA]
    # Deletes concern older files. Those of files that were compacted stay for a while, and delete nothing.
    return any(
        entry.data_file.content == DataFileContent.EQUALITY_DELETES
        and (entry.sequence_number or 0) > min(data, default=0)
        for manifest in manifests
        if manifest.content == ManifestContent.DELETES
        for entry in manifest.fetch_manifest_entry(table.io)
    )
