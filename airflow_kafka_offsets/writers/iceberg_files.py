"""Data files of Iceberg: what of a table its files depend on, and the entries that a commit adds to it."""

from __future__ import annotations

import base64
import hashlib
import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property
from typing import Any, BinaryIO, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.conversions import from_bytes, to_bytes
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.io.pyarrow import MetricModeTypes, StatisticsCollector, compute_statistics_plan, schema_to_pyarrow
from pyiceberg.manifest import DataFile as IcebergFile
from pyiceberg.manifest import DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField, PartitionSpec, partition_record_value
from pyiceberg.schema import Schema, sanitize_column_names
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.locations import LocationProvider, load_location_provider
from pyiceberg.transforms import Transform, TruncateTransform
from pyiceberg.typedef import Record
from pyiceberg.types import (
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    StructType,
)
from pyiceberg.utils.properties import property_as_bool, property_as_int
from pyiceberg.utils.truncate import truncate_upper_bound_binary_string, truncate_upper_bound_text_string

from airflow_kafka_offsets.core.addresses import is_local, local_path
from airflow_kafka_offsets.writers.data_files import (
    DICTIONARY_BYTES,
    DataFile,
    FileLayout,
    PartitionTerm,
    are_too_long,
)
from airflow_kafka_offsets.writers.object_files import refuse_link
from airflow_kafka_offsets.writers.statistics import ColumnStatistics, values_at

_COUNTS = ("column_sizes", "value_counts", "null_value_counts", "nan_value_counts")

_BOUNDS = ("lower_bounds", "upper_bounds")

# Properties of a table with whole numbers, and their default values, by what pyarrow has for them.
_OPTIONS = {
    "compression_level": (TableProperties.PARQUET_COMPRESSION_LEVEL, TableProperties.PARQUET_COMPRESSION_LEVEL_DEFAULT),
    "data_page_size": (TableProperties.PARQUET_PAGE_SIZE_BYTES, TableProperties.PARQUET_PAGE_SIZE_BYTES_DEFAULT),
    "dictionary_pagesize_limit": (TableProperties.PARQUET_DICT_SIZE_BYTES, DICTIONARY_BYTES),
    "write_batch_size": (TableProperties.PARQUET_PAGE_ROW_LIMIT, TableProperties.PARQUET_PAGE_ROW_LIMIT_DEFAULT),
    "row_group_rows": (TableProperties.PARQUET_ROW_GROUP_LIMIT, TableProperties.PARQUET_ROW_GROUP_LIMIT_DEFAULT),
}


# Of a text: as many characters as other writers keep; and more where a property wants it, of all columns together.
# Metadata must be quick to read, and compress to no less than `sinks.iceberg.checked_metadata` takes.
_USUAL_BOUND, _LONGEST_BOUNDS = 16, 4_096


@dataclass(frozen=True)
class IcebergStorage:
    """The files of a table, as its catalog reaches them; `Files` of addresses.

    :param place: the address that no link may lead out of
    """

    io: FileIO
    place: str

    @classmethod
    def of(cls, table: Table) -> IcebergStorage:
        """Return the storage of a table."""
        return cls(table.io, _place_of(table.location(), table.location_provider()))

    @contextmanager
    def create(self, path: str) -> Iterator[BinaryIO]:
        """Open a file for writing. Where the block raises, it does not exist afterwards.

        :raises TargetError: a link leads to somewhere else
        """
        if is_local(path):
            refuse_link(path, local_path(path), local_path(self.place))
        try:
            with self.io.new_output(path).create(overwrite=True) as stream:
                yield cast("BinaryIO", stream)
        except BaseException:
            self.remove(path)
            raise

    def remove(self, path: str) -> None:
        """Remove a file, if it exists."""
        if self.io.new_input(path).exists():
            self.io.delete(path)


def _place_of(location: str, locations: LocationProvider) -> str:
    """Return the address that data files are below: that of the table, unless a property says another."""
    return location if locations.data_path.startswith(f"{location.rstrip('/')}/") else locations.data_path


@dataclass(frozen=True)
class TableShape:
    """What of an Iceberg table decides how its files are written; a `FileFormat`.

    :param schema: as JSON
    :param spec: the partition spec, as JSON
    :param location: of the table
    :param properties: of the table, as far as they concern writing
    :param sort_by: the columns by which the rows of a file are sorted, each with `asc` or `desc`, as JSON
    :param uuid: of the table: another one may have its name later
    """

    schema: str
    spec: str
    location: str
    properties: Mapping[str, str] = field(hash=False)
    sort_by: str = "[]"
    uuid: str = ""

    @cached_property
    def iceberg_schema(self) -> Schema:
        """The columns, with their ids."""
        return Schema.model_validate_json(self.schema)

    @cached_property
    def partition_spec(self) -> PartitionSpec:
        """How rows are partitioned."""
        return PartitionSpec.model_validate_json(self.spec)

    @cached_property
    def partition_types(self) -> tuple[NestedField, ...]:
        """The columns of a partition."""
        return self.partition_spec.partition_type(self.iceberg_schema).fields

    @cached_property
    def digest(self) -> str:
        """What differs where files that were written for one shape do not fit another: columns with ids and types,
        partitions.
        """
        fields = [field.model_dump(mode="json", exclude={"doc"}) for field in self.iceberg_schema.fields]
        text = json.dumps([fields, self.partition_spec.model_dump(mode="json")], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    @cached_property
    def layout(self) -> FileLayout:
        """What the files are like: columns that Avro could not name have other names in them, and all have ids."""
        schema, properties = self.iceberg_schema, dict(self.properties)
        terms = [
            PartitionTerm(
                part.name,
                tuple(_names(schema.fields, part.source_id)),
                partition_of(part, schema),
            )
            for part in self.partition_spec.fields
        ]
        directions = {"asc": "ascending", "desc": "descending"}
        codec = properties.get(TableProperties.PARQUET_COMPRESSION, TableProperties.PARQUET_COMPRESSION_DEFAULT)
        options = {name: property_as_int(properties, key, default) for name, (key, default) in _OPTIONS.items()}
        target = TableProperties.WRITE_TARGET_FILE_SIZE_BYTES
        default = TableProperties.WRITE_TARGET_FILE_SIZE_BYTES_DEFAULT
        return FileLayout(
            columns=schema_to_pyarrow(schema, include_field_ids=False),
            file_columns=schema_to_pyarrow(sanitize_column_names(schema)),
            partition_by=terms,
            sort_by=[(name, directions[direction]) for name, direction in json.loads(self.sort_by)],
            file_bytes=property_as_int(properties, target, default) or default,
            unfit=self._without_partition,
            options={"compression": "none" if codec == "uncompressed" else codec, **options},
        )

    def _without_partition(self, rows: pa.RecordBatch) -> dict[int, str]:
        """Return the rows whose number would have a partition below the least value of its type: `truncate(10, c)` is
        the next multiple of 10 towards minus infinity.
        """
        reasons: dict[int, str] = {}
        for part in self.partition_spec.fields:
            source = tuple(_names(self.iceberg_schema.fields, part.source_id))
            kind = self.iceberg_schema.find_type(part.source_id)
            least = _least_truncated(part.transform, kind)
            if least is None:
                continue
            try:
                values = values_at(rows, source)
            except (KeyError, pa.ArrowException):
                continue  # the rows do not have it
            if not (pa.types.is_integer(values.type) or pa.types.is_decimal(values.type)):
                continue  # nor do they fit
            reason = f"column {'.'.join(source)!r}: {part.transform} of its value is below the least value of {kind}"
            reasons |= dict.fromkeys(_less(values, least), reason)
        return reasons

    @cached_property
    def _metrics(self) -> dict[int, StatisticsCollector]:
        return compute_statistics_plan(self.iceberg_schema, dict(self.properties))

    @property
    def _has_partitioned_paths(self) -> bool:
        name = TableProperties.WRITE_OBJECT_STORE_PARTITIONED_PATHS
        default = TableProperties.WRITE_OBJECT_STORE_PARTITIONED_PATHS_DEFAULT
        return property_as_bool(dict(self.properties), name, default)

    def check_properties(self) -> None:
        """Check that files can be written as the properties say.

        :raises ValueError: they cannot
        :raises pyarrow.ArrowException: they cannot
        """
        options = dict(self.layout.options)
        if options.pop("row_group_rows") < 1:
            raise ValueError(f"{TableProperties.PARQUET_ROW_GROUP_LIMIT} is less than 1")
        pq.ParquetWriter(pa.BufferOutputStream(), pa.schema([]), **options).close()
        _ = self._metrics, self._has_partitioned_paths

    def files(self, storage: Mapping[str, Any]) -> IcebergStorage:
        """Return where files are written."""
        return IcebergStorage(load_file_io(dict(storage), self.location), _place_of(self.location, self._locations))

    @property
    def _locations(self) -> LocationProvider:
        return load_location_provider(self.location, dict(self.properties))

    def path(self, attempt: str, partition: Mapping[str, Any]) -> str:
        """Return the address of a new file."""
        directories = self.partition_spec.partition_to_path(self._record(partition), self.iceberg_schema)
        # Paths have no meaning: a value that is too long for the name of a directory has none.
        is_in_path = self._has_partitioned_paths and not are_too_long(directories, self._locations.data_path)
        parts = [attempt, directories if is_in_path else "", f"{uuid.uuid4().hex}.parquet"]
        return self._locations.new_data_location("/".join(filter(None, parts)))

    def to_json(self, file: DataFile) -> str:
        """Return the entry of a file in a manifest as a text."""
        found: dict[str, dict[int, Any]] = {name: {} for name in (*_COUNTS, *_BOUNDS)}
        most = max(_USUAL_BOUND, _LONGEST_BOUNDS // max(len(file.columns), 1))
        for column in file.columns:
            assert column.field_id is not None
            values = {"column_sizes": column.bytes, **_metrics_of(column, self._metrics[column.field_id], most)}
            for name, value in values.items():
                if value is not None:
                    found[name][column.field_id] = _text(value) if name in _BOUNDS else value
        record = self._record(file.partition)
        partition = [
            None if record[index] is None else _text(to_bytes(part.field_type, record[index]))  # type: ignore[arg-type]
            for index, part in enumerate(self.partition_types)
        ]
        return json.dumps(
            {
                "shape": self.digest,
                "table": self.uuid,
                "path": file.path,
                "partition": partition,
                "rows": file.rows,
                "bytes": file.bytes,
                "split_offsets": list(file.split_offsets),
                **found,
            }
        )

    def from_json(self, text: str) -> IcebergFile | None:
        """Return the entry of a file that `to_json` wrote; None where the file was written for another shape."""
        plain = json.loads(text)
        if plain["shape"] != self.digest:
            return None
        partition = [
            None if value is None else from_bytes(part.field_type, base64.b64decode(value))  # type: ignore[arg-type]
            for part, value in zip(self.partition_types, plain["partition"], strict=True)
        ]
        counts: dict[str, Any] = {name: {int(key): value for key, value in plain[name].items()} for name in _COUNTS}
        bounds: dict[str, Any] = {
            name: {int(key): base64.b64decode(value) for key, value in plain[name].items()} for name in _BOUNDS
        }
        file = IcebergFile.from_args(
            content=DataFileContent.DATA,
            file_path=plain["path"],
            file_format=FileFormat.PARQUET,
            partition=Record(*partition),
            file_size_in_bytes=plain["bytes"],
            record_count=plain["rows"],
            split_offsets=plain["split_offsets"],
            sort_order_id=None,
            spec_id=self.partition_spec.spec_id,
            equality_ids=None,
            key_metadata=None,
            **counts,
            **bounds,
        )
        file.spec_id = self.partition_spec.spec_id
        return file

    def _record(self, partition: Mapping[str, Any]) -> Record:
        spec, schema = self.partition_spec, self.iceberg_schema
        return Record(*(partition_record_value(part, partition[part.name], schema) for part in spec.fields))


def partition_of(part: PartitionField, schema: Schema) -> Callable[[pa.Array], pa.Array]:
    """Return the function from the values of a column to those of a partition."""
    transform = part.transform.pyarrow_transform(schema.find_type(part.source_id))

    def values_of(values: pa.Array) -> pa.Array:
        # pyiceberg cannot truncate bytes in the form with 64-bit offsets, which its own schemas have.
        values = values.cast(pa.binary()) if pa.types.is_large_binary(values.type) else values
        # A copy: what was read from a file or a socket may begin anywhere in memory, where pyiceberg's Rust panics.
        return transform(pa.concat_arrays([values, values.slice(0, 0)]))

    return values_of


def _least_truncated(transform: Transform[Any, Any], kind: IcebergType) -> Decimal | None:
    """Return the least number of a type that has a truncated one; None where all have, or it is no such transform."""
    if not isinstance(transform, TruncateTransform) or not isinstance(kind, (IntegerType, LongType, DecimalType)):
        return None
    if isinstance(kind, DecimalType):
        lowest, scale = 10**kind.precision - 1, kind.scale
    else:
        lowest, scale = 2 ** (31 if isinstance(kind, IntegerType) else 63), 0
    return Decimal((1, tuple(map(int, str(lowest - lowest % transform.width))), -scale))


def _less(values: pa.Array, least: Decimal) -> list[int]:
    """Return the indexes of numbers that are less than another."""
    smallest = pc.min(values).as_py()
    if smallest is None or smallest >= least:
        return []
    return [index for index, value in enumerate(values.to_pylist()) if value is not None and value < least]


def table_of(text: str) -> str:
    """Return the UUID of the table for which a file was written, from what `to_json` wrote."""
    return str(json.loads(text)["table"])


def _metrics_of(column: ColumnStatistics, metrics: StatisticsCollector, most: int) -> dict[str, Any]:
    """Return what an entry says of a column, as the table's properties want it.

    :param most: how many characters or bytes a bound has at most
    """
    if metrics.mode.type == MetricModeTypes.NONE:
        return {}
    counts_nans = isinstance(metrics.iceberg_type, (FloatType, DoubleType))
    counts = {
        "value_counts": column.values,
        "null_value_counts": column.nulls,
        "nan_value_counts": column.nans if counts_nans and not column.is_repeated else None,
    }
    if metrics.mode.type == MetricModeTypes.COUNTS or column.least is None:
        return counts
    lower, upper = column.least, column.greatest
    if isinstance(lower, (str, bytes)):
        length = most if metrics.mode.length is None else min(metrics.mode.length, most)
        is_text = isinstance(lower, str)
        cut = truncate_upper_bound_text_string if is_text else truncate_upper_bound_binary_string
        lower, upper = lower[:length], cut(upper, length)
    try:
        upper = None if upper is None else to_bytes(metrics.iceberg_type, upper)
    except UnicodeEncodeError:  # the character after U+D7FF is a surrogate
        upper = None
    return {**counts, "lower_bounds": to_bytes(metrics.iceberg_type, lower), "upper_bounds": upper}


def _names(fields: Sequence[NestedField], field_id: int) -> list[str]:
    """Return the names that lead to a field; none where it is not there."""
    for each in fields:
        if each.field_id == field_id:
            return [each.name]
        if isinstance(each.field_type, StructType) and (names := _names(each.field_type.fields, field_id)):
            return [each.name, *names]
    return []


def _text(value: bytes) -> str:
    return base64.b64encode(value).decode()
