"""Final data files of a directory of Parquet files, and what its manifests say of them."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from airflow_kafka_offsets.writers.data_files import DataFile
from airflow_kafka_offsets.writers.statistics import delta_value
from airflow_kafka_offsets.writers.table_writer import TableWriter

# Hive's name of the directory whose rows have no value.
_NULL = "__HIVE_DEFAULT_PARTITION__"

# What Hive and Spark escape in the names of directories; they take other characters as they are, and no bytes of UTF-8.
_SPECIAL = {*map(chr, range(1, 32)), *"\"#%'*/:=?\\\x7f{[]^"}


@dataclass(frozen=True)
class ParquetWriter(TableWriter):
    """Write the rows of a Spark partition into a directory of Parquet files."""

    kind: ClassVar[str] = "parquet"

    def path(self, partition: Mapping[str, Any]) -> str:
        """Return the path of a new file."""
        return new_path(self.directory, partition)

    def plain(self, file: DataFile) -> dict[str, Any]:
        """Return what a manifest says of a file."""
        return described(file)


def attempt_directory(attempt: str) -> str:
    """Return the path of the directory of an attempt. Readers of Hive's directories see a column in it."""
    return f"attempt={attempt}"


def new_path(attempt: str, partition: Mapping[str, Any]) -> str:
    """Return the path of a new file: the directory of the attempt, and in it one for each partition column."""
    texts = {name: delta_value(value) for name, value in partition.items()}
    parts = [f"{_escaped(name)}={_NULL if text is None else _escaped(text)}" for name, text in texts.items()]
    return "/".join([attempt_directory(attempt), *parts, f"part-{uuid.uuid4().hex}.parquet"])


def described(file: DataFile) -> dict[str, Any]:
    """Return what a manifest says of a file: where it is, and the least and the greatest value of some columns."""
    ranges = {path[0]: [found.least, found.greatest] for path, found in file.ranges.items() if found.is_known}
    partition = {name: delta_value(value) for name, value in file.partition.items()}
    return {"path": file.path, "rows": file.rows, "bytes": file.bytes, "partition": partition, "ranges": ranges}


def _escaped(text: str) -> str:
    return "".join(f"%{ord(character):02X}" if character in _SPECIAL else character for character in text)
