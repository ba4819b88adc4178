"""The origin columns, which say from which record a row came: `verify` and `upsert_key` use them, in tables of a
database and of files.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Sequence

import pyarrow as pa

from airflow_kafka_offsets.core.origin import BATCH_ID, RECORD
from airflow_kafka_offsets.exceptions import ConfigurationError, TargetError
from airflow_kafka_offsets.sinks.target_rows import Detail, TargetRows

PLACE = (BATCH_ID, *RECORD)
"""The columns that say where a row is from."""


class OriginRows(TargetRows):
    """The rows of a table whose origin columns decide the detail; see `TargetRows`.

    :ivar name: of the table, for messages
    :ivar replaced: whether later batches replace the rows of earlier ones
    """

    name: str
    replaced: bool

    @property
    @abstractmethod
    def columns(self) -> Collection[str] | None:
        """The columns of the table; None where there is no such table."""

    @property
    def exists(self) -> bool:
        return self.columns is not None

    @property
    def missing(self) -> list[str]:
        """The origin columns that the table lacks."""
        columns = self.columns or ()
        return [name for name in PLACE if name not in columns]

    @property
    def detail(self) -> Detail:
        missing = self.missing
        if self.columns is not None and (self.replaced or BATCH_ID in missing):
            return "nothing"
        return "batches" if missing else "offsets"

    @property
    def limit(self) -> str:
        if self.replaced:
            return f"Rows of table {self.name!r} are replaced by those of later batches (upsert_key)"
        missing = self.missing
        return f"Table {self.name!r} has no column {', '.join(missing)}" if missing else ""


def check_key_names(key: Sequence[str], columns: pa.Schema | None) -> None:
    """Check that a key identifies rows, and that the rows say which of them is the newest.

    :param columns: the columns of the rows, or None where a transform decides them
    :raises ConfigurationError: the key has other columns than the rows
    :raises TargetError: the transform drops the columns that say which row is newer
    """
    if columns is None:
        return
    if unknown := [name for name in key if name not in columns.names]:
        raise ConfigurationError(
            f"upsert_key names {quoted_names(unknown)}, which the rows do not hold; they hold "
            f"{quoted_names(columns.names)}"
        )
    if dropped := [name for name in RECORD if name not in columns.names]:
        raise TargetError(
            f"The transform drops {quoted_names(dropped)}: without them, the newest row of a key is unknown. Keep "
            "these columns, or append, without upsert_key"
        )


def quoted_names(names: Sequence[str]) -> str:
    """Return names for a message."""
    return ", ".join(map(repr, names))
