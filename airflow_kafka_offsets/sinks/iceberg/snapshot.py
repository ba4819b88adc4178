"""An Iceberg table in one version: the files that may hold certain rows, and one commit to it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, datetime
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.conversions import from_bytes
from pyiceberg.exceptions import CommitFailedException, ResolveError, ValidationError
from pyiceberg.expressions import (
    AlwaysFalse,
    AlwaysTrue,
    And,
    BooleanExpression,
    GreaterThanOrEqual,
    LessThanOrEqual,
    Or,
)
from pyiceberg.manifest import DataFile, DataFileContent, ManifestContent, ManifestFile
from pyiceberg.manifest import FileFormat as FileFormats
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask, Table, Transaction
from pyiceberg.table.update import AssertCurrentSchemaId, AssertDefaultSpecId, AssertTableUUID
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import NestedField

from airflow_kafka_offsets.core.origin import BATCH_ID
from airflow_kafka_offsets.exceptions import KafkaOffsetsError, StagedFileError, TargetError
from airflow_kafka_offsets.sinks.iceberg.left_files import remove_leftovers
from airflow_kafka_offsets.sinks.iceberg.places import (
    check_manifest_list,
    check_metadata_file,
    check_places,
    is_in_place,
    is_whole,
)
from airflow_kafka_offsets.sinks.iceberg.private import commit_once, find_by_predicate, read_file
from airflow_kafka_offsets.sinks.iceberg.publication import (
    PREFIX,
    Publication,
    last_published,
    published,
    refuse_rollback,
    summary,
)
from airflow_kafka_offsets.sinks.iceberg.shapes import (
    NO_DOUBLES,
    add_columns,
    arrow_columns,
    doubles_of,
    of_dropped_columns,
    shape_of,
)
from airflow_kafka_offsets.sinks.lake.left_files import has_plain_path
from airflow_kafka_offsets.sinks.lake.newest import KeyIndex, is_ordered
from airflow_kafka_offsets.sinks.lake.snapshot import (
    Bounds,
    Change,
    KnownRollbacks,
    LakeFile,
    LastPublication,
    PublicationResult,
    Snapshot,
    UnknownOutcomeError,
)
from airflow_kafka_offsets.staging.manifest import StagedFile
from airflow_kafka_offsets.writers.iceberg_files import IcebergStorage, TableShape, partition_of, table_of
from airflow_kafka_offsets.writers.lake_writer import FileFormat
from airflow_kafka_offsets.writers.table_rows import optional_columns

# pyiceberg writes manifests of these versions of the format.
_WRITABLE_VERSIONS = (1, 2)

# What pyiceberg raises where metadata is not as its format wants it.
_UNREADABLE = (
    *(ValueError, TypeError, NotImplementedError, LookupError, AttributeError, EOFError, RecursionError),
    *(ResolveError, ValidationError),
)


class KeyPruning:
    """Which files may hold a key, by what the table knows of each: bounds of its columns, and its partition.

    A condition of pyiceberg knows the span of many keys; this looks whether any of them is within the bounds of a file.
    """

    def __init__(self, table: Table, index: KeyIndex) -> None:
        self.index, schema = index, table.schema()
        columns = index.exact
        self._ordered = [
            (schema.find_field(name), _comparable(values))
            for name, values in columns.items()
            if is_ordered(values.type)
        ]
        self._buckets = {spec_id: list(_buckets(schema, spec, columns)) for spec_id, spec in table.specs().items()}

    def may_hold(self, file: DataFile) -> bool:
        """Return whether a file may hold one of the keys."""
        for position, buckets in self._buckets.get(file.spec_id, ()):
            if file.partition[position] not in buckets:
                return False
        return all(_is_within(_bounds(file, field), values) for field, values in self._ordered)


def _is_within(bounds: tuple[Any, Any] | None, values: pa.Array) -> bool:
    """Return whether one of some values is within bounds, or these are not known."""
    if bounds is None:
        return True
    low, high = (pa.scalar(end, values.type) for end in bounds)
    is_within = pc.and_(pc.greater_equal(values, low), pc.less_equal(values, high))
    return bool(pc.any(is_within).as_py())


def _bounds(file: DataFile, field: NestedField) -> tuple[Any, Any] | None:
    """Return the bounds of a column in a file; None where the table does not know them."""
    ends = [(each or {}).get(field.field_id) for each in (file.lower_bounds, file.upper_bounds)]
    least, greatest = (None if end is None else from_bytes(field.field_type, end) for end in ends)  # type: ignore[arg-type]
    return None if least is None or greatest is None else (least, greatest)


def _comparable(values: pa.Array) -> pa.Array:
    """Return values as Iceberg has them in bounds: dates and times are numbers there."""
    if pa.types.is_date32(values.type):
        return values.cast(pa.int32())
    return values.cast(pa.int64()) if pa.types.is_timestamp(values.type) else values


def _buckets(schema: Schema, spec: PartitionSpec, columns: Mapping[str, pa.Array]) -> Iterator[tuple[int, set[int]]]:
    """Yield the positions of the fields of a partition that are buckets of keys, with the buckets of some keys."""
    for position, part in enumerate(spec.fields):
        values = columns.get(schema.find_column_name(part.source_id) or "")
        if values is not None and isinstance(part.transform, BucketTransform):
            yield position, set(pc.unique(partition_of(part, schema)(values)).to_pylist())


class IcebergSnapshot(Snapshot):
    """A table in one version; see `Snapshot`.

    :param reload: returns the table as it is now; None where it disappeared
    :param is_external: whether it commits externally, so that the answer to a commit can get lost
    :param may_be_local: whether its files may be those of this machine
    """

    def __init__(
        self, name: str, table: Table, reload: Callable[[], Table | None], *, is_external: bool, may_be_local: bool
    ) -> None:
        check_places(name, table, may_be_local=may_be_local)
        self.name, self.table, self._reload = name, table, reload
        self._is_external, self._may_be_local = is_external, may_be_local
        self.columns, self.storage = arrow_columns(table.schema()), IcebergStorage.of(table)
        self.required = [field.name for field in table.schema().fields if field.required]
        self._batch_id = table.schema().find_field(BATCH_ID) if BATCH_ID in self.columns.names else None

    @property
    def version(self) -> str:
        return self.table.metadata_location

    def refresh(self) -> IcebergSnapshot:
        table = self._reload()
        if table is None:
            raise TargetError(f"{self.name} disappeared; nothing was written")
        return IcebergSnapshot(
            self.name, table, self._reload, is_external=self._is_external, may_be_local=self._may_be_local
        )

    def check(self) -> None:
        if (version := self.table.format_version) not in _WRITABLE_VERSIONS:
            raise TargetError(
                f"{self.name} has version {version} of Iceberg's format, which pyiceberg cannot write: load into a "
                "table of version 2"
            )
        check_manifest_list(self.name, self.table, may_be_local=self._may_be_local)
        metadata = self.table.metadata
        if names := of_dropped_columns(metadata.spec(), metadata.schema()):
            raise TargetError(
                f"{self.name} is partitioned by {', '.join(names)}, whose columns were dropped, and no engine can "
                "write it: load into another table"
            )
        if names := self._partitioned(lambda spec: doubles_of(spec, metadata.schemas)):
            raise TargetError(
                f"{self.name} is partitioned by {', '.join(names)}: {NO_DOUBLES}. Nothing was written; load into "
                "another table, or have an engine partition it otherwise and rewrite its files"
            )

    def check_removal(self, files: Sequence[LakeFile] = ()) -> None:
        if names := self._partitioned(lambda spec: of_dropped_columns(spec, self.table.schema())):
            raise TargetError(
                f"Rows of {self.name} cannot be removed: it has files that are partitioned by {', '.join(names)}, "
                "whose columns were dropped. Nothing was changed; have an engine rewrite all files of the table, as "
                "rewrite_data_files of Spark does with the option rewrite-all"
            )

    def _partitioned(self, unfit: Callable[[PartitionSpec], list[str]]) -> list[str]:
        """Return the names of unfit partitions that the table or some of its files have.

        :param unfit: returns those of a spec
        """
        found = {spec.spec_id: names for spec in self.table.metadata.partition_specs if (names := unfit(spec))}
        snapshot = self.table.current_snapshot()
        manifests = snapshot.manifests(self.table.io) if found and snapshot is not None else []
        used = {self.table.metadata.default_spec_id, *(manifest.partition_spec_id for manifest in manifests)}
        return sorted({name for number in used for name in found.get(number, ())})

    def check_history(self, group_id: str, known: KnownRollbacks) -> None:
        refuse_rollback(self.table, group_id, known)

    def last_number(self, series: str) -> int:
        last = published(self.table, series)
        return -1 if last is None else last.batch

    def last_publication(self, group_id: str) -> LastPublication | None:
        if (found := last_published(self.table, group_id)) is None:
            return None
        name, last = found
        return LastPublication(name.removeprefix(PREFIX), last.batch, last.result.rows)

    def result(self, series: str, number: int) -> PublicationResult | None:
        last = published(self.table, series, with_removed=True)
        return None if last is None or last.batch != number else last.result

    def files(self, any_of: Sequence[Bounds] = ({},)) -> list[LakeFile]:
        try:
            snapshot = self.table.current_snapshot()
            manifests = snapshot.manifests(self.table.io) if snapshot is not None else []
            for manifest in manifests:
                check_metadata_file(
                    self.name, self.table, "manifest", manifest.manifest_path, may_be_local=self._may_be_local
                )
            if _has_deletes_by_value(self.table, manifests):
                raise ValueError("it has equality deletes, which pyiceberg does not support")
            tasks = list(self.table.scan(condition(any_of)).plan_files())
            for file in (file for task in tasks for file in (task.file, *task.delete_files)):
                # Arrow's reader of ORC trusts lengths, and opens the file that a time zone names.
                if file.file_format != FileFormats.PARQUET:
                    raise ValueError(f"file {file.file_path} is no Parquet, and only that is read")
                if not is_in_place(file.file_path, self._place, may_be_local=self._may_be_local):
                    raise ValueError(
                        f"file {file.file_path} is not below {self._place}, where the table has its files, and only "
                        "those are read"
                    )
            return list(map(self._lake_file, tasks))
        except _UNREADABLE as error:
            raise TargetError(
                f"{self.name} cannot be read: {error}. Have the engine that writes it compact it"
            ) from error

    @property
    def _place(self) -> str:
        """The place of the data files, below which rows that stay are written again: rows are never copied from a place
        that the table's readers perhaps cannot read.
        """
        return self.table.properties.get("write.data.path", self.table.location()).rstrip("/")

    def _lake_file(self, task: FileScanTask) -> LakeFile:
        # The deletes of other engines change the rows of a file.
        key = " with ".join([task.file.file_path, *sorted(each.file_path for each in task.delete_files)])
        return LakeFile(key, task, None if self._batch_id is None else _bounds(task.file, self._batch_id))

    def may_hold(self, file: LakeFile, keys: KeyIndex) -> bool:
        if self._pruning is None or self._pruning.index is not keys:
            self._pruning = KeyPruning(self.table, keys)
        return self._pruning.may_hold(file.native.file)

    _pruning: KeyPruning | None = None

    def _read(self, file: LakeFile, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        schema = self.table.schema() if file.shape is None else cast("TableShape", file.shape).iceberg_schema
        schema = schema.select(*columns)
        types = optional_columns(arrow_columns(schema))
        for rows in read_file(self.table, schema, file.native):
            # Other engines write files whose texts are read as another type than those of pyarrow.
            yield rows.cast(types).select(list(columns))

    def shape(self, rows: pa.Schema | None = None) -> TableShape:
        return shape_of(self.table, rows)

    def entry(self, file: StagedFile, shape: FileFormat) -> tuple[DataFile, LakeFile]:
        assert isinstance(shape, TableShape)
        if table_of(file.data) != shape.uuid:
            raise TargetError(
                f"{self.name} was recreated after the files of the batch were written: the new table lacks the rows "
                "of earlier batches. Nothing was written, and no position moved. If the earlier table was dropped by "
                "mistake, restore it (register_table of its last metadata file, under this name), and run the task "
                "again. Otherwise, abandon the batch, and rewind the group to the first offset for the new table."
            )
        plain, entry = json.loads(file.data), shape.from_json(file.data)
        if entry is None:
            raise StagedFileError(
                f"File {file.name} was written for other columns or partitions than {self.name} has now"
            )
        if (plain["path"], plain["bytes"], plain["rows"]) != (file.name, file.bytes, file.rows):
            raise StagedFileError(f"The manifest contradicts itself about file {file.name} of {self.name}")
        return entry, self._lake_file(FileScanTask(entry))._replace(shape=shape)

    def is_own(self, path: str, attempt: str) -> bool:
        root = self.table.properties.get("write.data.path", f"{self.table.location().rstrip('/')}/data").rstrip("/")
        within = path.removeprefix(f"{root}/")
        return has_plain_path(path, root) and is_whole(within) and attempt in within.split("/")

    def size(self, path: str) -> int | None:
        found = self.table.io.new_input(path)
        return len(found) if found.exists() else None

    def commit(self, change: Change) -> bool:
        check_manifest_list(self.name, self.table, may_be_local=self._may_be_local)
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
        except _UNREADABLE as error:
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
                find_by_predicate(overwrite, condition(change.within))
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
        sequence = getattr(after, "last_sequence_number", 0)
        publication = Publication(change.output.group_id, change.number, change.result, current, sequence)
        series = change.output.series or change.output.group_id
        transaction.set_properties({PREFIX + series: publication.to_json()})

    def remove_leftovers(self, batch_id: int, before: datetime, installation: str) -> int:
        return remove_leftovers(self.table, batch_id, before, installation)


def _is_end(value: object) -> bool:
    """Return whether a value is an end of Python's calendar, which pyiceberg would leave to find partitions of years
    and months.
    """
    plain = value.replace(tzinfo=None) if isinstance(value, datetime) else value
    return plain in (date.min, date.max, datetime.min, datetime.max)


def condition(any_of: Sequence[Bounds]) -> BooleanExpression:
    """Return the condition that a row is within one of some bounds, as far as there is one."""
    found: BooleanExpression = AlwaysFalse()
    for bounds in any_of:
        within: BooleanExpression = AlwaysTrue()
        for name, (least, greatest) in bounds.items():
            # pyiceberg's annotations have the arguments of pydantic's constructor, which is another one.
            if not _is_end(least):
                within = And(within, GreaterThanOrEqual(name, least))  # type: ignore[call-arg,arg-type]
            if not _is_end(greatest):
                within = And(within, LessThanOrEqual(name, greatest))  # type: ignore[call-arg,arg-type]
        found = Or(found, within)
    return found


def _has_deletes_by_value(table: Table, manifests: Sequence[ManifestFile]) -> bool:
    """Return whether rows are deleted by value, which some engines write into files of their own.

    pyiceberg finds this out itself, except for deletes whose values do not match the condition of a scan. Their rows
    would come back in a file that is rewritten for other rows.
    """
    data = [each.min_sequence_number or 0 for each in manifests if each.content == ManifestContent.DATA]
    # Deletes concern older files. Those of files that were compacted stay for a while, and delete nothing.
    return any(
        entry.data_file.content == DataFileContent.EQUALITY_DELETES
        and (entry.sequence_number or 0) > min(data, default=0)
        for manifest in manifests
        if manifest.content == ManifestContent.DELETES
        for entry in manifest.fetch_manifest_entry(table.io)
    )
