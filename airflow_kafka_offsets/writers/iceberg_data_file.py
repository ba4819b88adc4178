"""The entry of a data file of Iceberg as JSON, and what of a table its files depend on."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pyiceberg.conversions import from_bytes, to_bytes
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record
from pyiceberg.types import NestedField

_COUNTS = ("column_sizes", "value_counts", "null_value_counts", "nan_value_counts")

_BOUNDS = ("lower_bounds", "upper_bounds")


@dataclass(frozen=True)
class TableShape:
    """What of a table decides how its files are written.

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
    properties: Mapping[str, str]
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

    def to_json(self, file: DataFile) -> str:
        """Return the entry of a file as a text."""
        partition = [
            None if value is None else _text(to_bytes(field.field_type, value))  # type: ignore[arg-type]
            for field, value in zip(self.partition_types, file.partition._data, strict=True)
        ]
        return json.dumps(
            {
                "shape": self.digest,
                "table": self.uuid,
                "path": file.file_path,
                "partition": partition,
                "rows": file.record_count,
                "bytes": file.file_size_in_bytes,
                "split_offsets": file.split_offsets,
                **{name: getattr(file, name) for name in _COUNTS},
                **{name: {key: _text(value) for key, value in getattr(file, name).items()} for name in _BOUNDS},
            }
        )

    def from_json(self, text: str) -> DataFile | None:
        """Return the entry of a file that `to_json` wrote; None where the file was written for another shape."""
        plain = json.loads(text)
        if plain["shape"] != self.digest:
            return None
        partition = [
            None if value is None else from_bytes(field.field_type, base64.b64decode(value))  # type: ignore[arg-type]
            for field, value in zip(self.partition_types, plain["partition"], strict=True)
        ]
        return data_file(
            self,
            plain["path"],
            Record(*partition),
            plain["bytes"],
            {
                "record_count": plain["rows"],
                "split_offsets": plain["split_offsets"],
                **{name: {int(key): value for key, value in plain[name].items()} for name in _COUNTS},
                **{name: {int(key): base64.b64decode(value) for key, value in plain[name].items()} for name in _BOUNDS},
            },
        )


def table_of(text: str) -> str:
    """Return the UUID of the table for which a file was written, from what `to_json` wrote."""
    return str(json.loads(text)["table"])


def data_file(shape: TableShape, path: str, partition: Record, size: int, statistics: Mapping[str, Any]) -> DataFile:
    """Return the entry of a Parquet file."""
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=partition,
        file_size_in_bytes=size,
        sort_order_id=None,
        spec_id=shape.partition_spec.spec_id,
        equality_ids=None,
        key_metadata=None,
        **statistics,
    )
    file.spec_id = shape.partition_spec.spec_id
    return file


def _text(value: bytes) -> str:
    return base64.b64encode(value).decode()
