"""A directory of Parquet files as its manifests have it.

* `_manifests/<series>/<number>.json`: what a batch added and replaced; `<number>.retired.json`: that its rows were
  taken back. Each is written once, and only if it is not there.
* `_schemas/<number>.json`: the columns, and those of earlier versions.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any
from urllib.parse import quote

import pyarrow as pa

from airflow_kafka_offsets.core.origin import BATCH_ID, RECORD
from airflow_kafka_offsets.exceptions import TargetError
from airflow_kafka_offsets.sinks.lake.file_table import ActiveFile, FileTable, PublicationResult
from airflow_kafka_offsets.staging.rows import schema_of, schema_text
from airflow_kafka_offsets.writers.object_files import ObjectFiles

_MANIFESTS, _SCHEMAS = "_manifests", "_schemas"

MARKER = "_SUCCESS"
"""The file in a directory whose files are committed."""

_READS_AT_ONCE = 32

# File systems take 255 bytes, and some stores a thousand for the whole path. Names of groups have up to 250 characters.
_LONGEST_NAME = 160
_NAME = re.compile(r"(?P<number>\d{20})(?P<retired>\.retired)?\.json")


class ParquetSnapshot(FileTable):
    """A directory of Parquet files at one moment.

    :ivar manifests: the paths of the manifests
    """

    def __init__(self, name: str, files: ObjectFiles, version: int) -> None:
        self.name, self.files, self._version = name, files, version
        plain = json.loads(files.read(_schema_path(version)))
        self.columns = schema_of(plain["columns"])
        self.partition_by: list[str] = plain["partition_by"]
        found = (file.path for file in files.find(_MANIFESTS))
        self.manifests = [path for path in found if _NAME.fullmatch(path.rpartition("/")[2])]

    @classmethod
    def read(cls, name: str, uri: str, options: Mapping[str, Any]) -> ParquetSnapshot | None:
        """Return a dataset as it is now; None where there is none."""
        files = ObjectFiles(uri, options)
        version = _last_version(files)
        return None if version is None else cls(name, files, version)

    @classmethod
    def create(
        cls, name: str, uri: str, options: Mapping[str, Any], columns: pa.Schema, partition_by: Sequence[str]
    ) -> ParquetSnapshot:
        """Create a dataset, unless somebody else does at the same moment."""
        files = ObjectFiles(uri, options)
        files.put_new(_schema_path(0), _schema_json(columns, partition_by))
        return cls(name, files, _last_version(files) or 0)

    def grow(self, lacking: Sequence[pa.Field]) -> bool:
        """Add columns.

        :return: False where somebody else did so first
        """
        columns = pa.schema([*self.columns, *lacking])
        return self.files.put_new(_schema_path(self._version + 1), _schema_json(columns, self.partition_by))

    def refresh(self) -> ParquetSnapshot:
        """Return the dataset as it is now."""
        return ParquetSnapshot(self.name, self.files, _last_version(self.files) or 0)

    def check(self) -> None:
        """Nothing of a dataset hinders writing to it."""

    def check_removal(self) -> None:
        """Rows may be removed from any dataset."""

    def unnamed(self, paths: Collection[str]) -> set[str]:
        """Return which files no manifest names; a file that was replaced may still be read by somebody who has the
        list.
        """
        named = {add["path"] for path in self.manifests for add in self.manifest(path)["adds"]}
        directories = {path.partition("/")[0] for path in named}
        return {
            path for path in set(paths) - named if path.partition("/")[::2] not in {(d, MARKER) for d in directories}
        }

    def measured(self, columns: pa.Schema) -> list[str]:
        """Return the columns that say where a row is from."""
        return [name for name in (BATCH_ID, *RECORD) if name in columns.names]

    def last_number(self, series: str) -> int:
        """Return the number of the last publication of a series; -1 where there is none."""
        prefix = f"{_MANIFESTS}/{_directory(series)}/"
        return max((int(path[len(prefix) :][:20]) for path in self.manifests if path.startswith(prefix)), default=-1)

    def is_taken(self, series: str, batch_id: int) -> bool:
        """Return whether a batch has a manifest."""
        return manifest_path(series, batch_id) in self.manifests

    def find_published(self, series: str, batch_id: int) -> PublicationResult | None:
        """Return what the manifest of a batch says."""
        plain = self.manifest(manifest_path(series, batch_id))
        return PublicationResult(plain["rows"], tuple(map(tuple, plain["removed"])), tuple(plain["columns"]))

    def manifest(self, path: str) -> dict[str, Any]:
        """Return what a manifest says."""
        plain: dict[str, Any] = json.loads(self.files.read(path))
        return plain

    def active(self, ranges: Mapping[str, tuple[Any, Any]] | None = None) -> list[ActiveFile]:
        """Return the committed files that may hold rows within ranges; see `FileTable.active`."""
        return [
            ActiveFile(add["path"], add["path"], add["bytes"], self._partition(add["partition"]))
            for add in self._committed
            if all(_may_hold(add, name, bounds) for name, bounds in (ranges or {}).items())
        ]

    @cached_property
    def _committed(self) -> list[dict[str, Any]]:
        with ThreadPoolExecutor(_READS_AT_ONCE, thread_name_prefix="manifest-read") as pool:
            manifests = list(pool.map(self.manifest, self.manifests))
        replaced: dict[str, str] = {}
        for path, plain in zip(self.manifests, manifests, strict=True):
            for gone in plain["replaces"]:
                if gone in replaced:
                    raise TargetError(
                        f"{self.name!r} is not consistent: {replaced[gone]} and {path} both replace {gone}. Some of "
                        "its rows may be there twice; take one of the two manifests away, and verify the group"
                    )
                replaced[gone] = path
        return [add for plain in manifests for add in plain["adds"] if add["path"] not in replaced]

    def _partition(self, texts: Mapping[str, str | None]) -> dict[str, Any]:
        return {
            name: None if text is None else _value(text, self.columns.field(name).type) for name, text in texts.items()
        }


def manifest_path(series: str, number: int, *, retired: bool = False) -> str:
    """Return the path of the manifest of a batch."""
    return f"{_MANIFESTS}/{_directory(series)}/{number:020d}{'.retired' if retired else ''}.json"


def _directory(series: str) -> str:
    """Return the name of the directory of a series; its manifests hold the whole name."""
    name = quote(series, safe="")
    if len(name) <= _LONGEST_NAME:
        return name
    digest = hashlib.sha256(series.encode()).hexdigest()
    return f"{name[: _LONGEST_NAME - len(digest) - 1]}-{digest}"


def _schema_path(version: int) -> str:
    return f"{_SCHEMAS}/{version:020d}.json"


def _schema_json(columns: pa.Schema, partition_by: Sequence[str]) -> bytes:
    readable = {column.name: str(column.type) for column in columns}
    plain = {"types": readable, "partition_by": list(partition_by), "columns": schema_text(columns)}
    return json.dumps(plain, indent=1).encode()


def _last_version(files: ObjectFiles) -> int | None:
    names = (file.path.rpartition("/")[2] for file in files.find(_SCHEMAS))
    return max((int(found["number"]) for found in map(_NAME.fullmatch, names) if found), default=None)


def _may_hold(add: Mapping[str, Any], name: str, bounds: tuple[Any, Any]) -> bool:
    least, greatest = add["ranges"].get(name) or (None, None)
    return least is None or (least <= bounds[1] and greatest >= bounds[0])


def _value(text: str, kind: pa.DataType) -> Any:
    """Return the value that a manifest has as a text."""
    if pa.types.is_timestamp(kind):
        zoned = pa.array([text.removesuffix("Z")]).cast(pa.timestamp("us"))
        return (zoned.cast(pa.int64()).cast(kind))[0].as_py()
    return pa.array([text]).cast(kind)[0].as_py()
