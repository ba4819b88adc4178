"""The columns that say which record a row came from: what `verify` can learn by them, and that `upsert_key` needs them.
The same for tables of a database and of files.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import pyarrow as pa

from airflow_kafka_offsets.core.origin import BATCH_ID, RECORD
from airflow_kafka_offsets.exceptions import ConfigurationError, TargetError
from airflow_kafka_offsets.sinks.target_rows import Detail

PLACE = (BATCH_ID, *RECORD)
"""The columns that say where a row is from."""


class RowDetail(NamedTuple):
    """What can be learned of the rows of a table.

    :param name: of the table, for messages
    :param columns: of the table; None where there is no such table
    :param replaced: whether later batches replace the rows of earlier ones
    """

    name: str
    columns: Collection[str] | None
    replaced: bool

    @property
    def missing(self) -> list[str]:
        """The columns that would say where a row is from, and that the table lacks."""
        return [name for name in PLACE if self.columns is None or name not in self.columns]

    @property
    def detail(self) -> Detail:
        """What the rows say; see `TargetRows.detail`."""
        missing = self.missing
        if self.columns is not None and (self.replaced or BATCH_ID in missing):
            return "nothing"
        return "batches" if missing else "offsets"

    @property
    def limit(self) -> str:
        """Why they do not say more; see `TargetRows.limit`."""
        if self.replaced:
            return f"Rows of table {self.name!r} are replaced by those of later batches (upsert_key)"
        missing = self.missing
        return f"Table {self.name!r} has no column {', '.join(missing)}" if missing else ""


def check_key_names(key: Sequence[str], columns: pa.Schema | None) -> None:
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
