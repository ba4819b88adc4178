"""Paths with Hive's directories, `column=value/`, which readers such as polars, DuckDB and Athena take for columns."""

from __future__ import annotations

import uuid
from collections.abc import Mapping

# Hive's name of the directory whose rows have no value.
_NULL = "__HIVE_DEFAULT_PARTITION__"

# What Hive and Spark escape in the names of directories; they take other characters as they are, and no bytes of UTF-8.
_SPECIAL = {*map(chr, range(1, 32)), *"\"#%'*/:=?\\\x7f{[]^"}


def hive_path(directory: str, partition: Mapping[str, str | None]) -> str:
    """Return the path of a new file.

    :param partition: the text of each partition column
    """
    parts = [f"{_escaped(name)}={_NULL if text is None else _escaped(text)}" for name, text in partition.items()]
    return "/".join([directory, *parts, f"part-{uuid.uuid4().hex}.parquet"])


def _escaped(text: str) -> str:
    return "".join(f"%{ord(character):02X}" if character in _SPECIAL else character for character in text)
