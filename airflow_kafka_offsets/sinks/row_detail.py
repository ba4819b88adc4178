"""What the rows of a table say of their origin, decided from the names of its columns: for tables of a database and of
files alike.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from airflow_kafka_offsets.core.origin import BATCH_ID, RECORD
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
