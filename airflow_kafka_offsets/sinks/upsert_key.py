"""What an `upsert_key` needs of itself and of the rows, whatever the target is."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from airflow_kafka_offsets.core.origin import RECORD
from airflow_kafka_offsets.exceptions import ConfigurationError, TargetError


def check_names(key: Sequence[str], columns: pa.Schema | None) -> None:
    """Check that a key identifies rows, and that the rows say which of them is the newest.

    :param columns: the columns of the rows, or None where a transform decides them
    :raises ConfigurationError: the key is no tuple of columns of the rows
    :raises TargetError: the transform drops the columns that say which row is newer
    """
    if isinstance(key, str) or len(set(key)) != len(key):
        raise ConfigurationError(f"upsert_key must be a tuple of different column names; got upsert_key={key!r}")
    if columns is None:
        return
    if unknown := [name for name in key if name not in columns.names]:
        raise ConfigurationError(
            f"upsert_key names {quoted_names(unknown)}, which the rows do not hold; they hold "
            f"{quoted_names(columns.names)}"
        )
    if dropped := [name for name in RECORD if name not in columns.names]:
        raise TargetError(
            f"The transform drops {quoted_names(dropped)}: which row of a key is the newest could not be known. Keep "
            "these columns, or append, without upsert_key"
        )


def quoted_names(names: Sequence[str]) -> str:
    """Return names for a message."""
    return ", ".join(map(repr, names))
