"""A table of Delta Lake in one version: its columns, its active files, and the numbers of what was published in it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any
from urllib.parse import unquote

import deltalake
import pyarrow as pa
import pyarrow.compute as pc
from deltalake.exceptions import TableNotFoundError

from airflow_kafka_offsets.exceptions import TargetError
from airflow_kafka_offsets.sinks.delta.columns import arrow_columns, measured, unusable
from airflow_kafka_offsets.sinks.delta.published import published_by
from airflow_kafka_offsets.sinks.lake.file_table import ActiveFile, FileTable, PublicationResult
from airflow_kafka_offsets.writers.object_files import ObjectFiles, is_local, local_path

_HISTORY_AT_ONCE = 16


class DeltaSnapshot(FileTable):
    """A table in one version.

    :ivar columns: with Arrow's types
    :ivar required: the columns that may not be null
    """

    def __init__(self, name: str, table: deltalake.DeltaTable, files: ObjectFiles) -> None:
        self.name, self.table, self.files = name, table, files
        self.columns = arrow_columns(table.schema())
        self.partition_by: list[str] = list(table.metadata().partition_columns)
        self.configuration = dict(table.metadata().configuration)

    @classmethod
    def read(cls, name: str, uri: str, options: Mapping[str, Any]) -> DeltaSnapshot | None:
        """Return a table as it is now; None where there is none."""
        location = local_path(uri) if is_local(uri) else uri
        try:
            table = deltalake.DeltaTable(location, storage_options=dict(options) or None)
        except TableNotFoundError:
            return None
        return cls(name, table, ObjectFiles(uri, options))

    def refresh(self) -> DeltaSnapshot:
        """Return the table as it is now."""
        self.table.update_incremental()
        return DeltaSnapshot(self.name, self.table, self.files)

    @property
    def version(self) -> int:
        return self.table.version()

    def check(self) -> None:
        """Check that this package can write to the table.

        :raises TargetError: it has a feature that is not known here
        """
        if reasons := unusable(self.table):
            raise TargetError(
                f"Table {self.name!r} cannot be written to: {'; '.join(reasons)}. Drop the feature, or load into "
                "another table"
            )

    def last_number(self, series: str) -> int:
        """Return the number of the last publication of a series; -1 where there is none."""
        number = self.table.transaction_version(series)
        return -1 if number is None else number

    def find_published(self, series: str, batch_id: int) -> PublicationResult | None:
        """Return what the commit of a batch did; None where the log is cleaned up."""
        found = map(published_by, self.history())
        return next((each.did for each in found if each and (each.series, each.batch_id) == (series, batch_id)), None)

    def history(self) -> Iterator[dict[str, Any]]:
        """Yield the commits, the last one first, as far as the log has them."""
        seen, limit = 0, _HISTORY_AT_ONCE
        while True:
            commits = self.table.history(limit)
            yield from commits[seen:]
            if len(commits) < limit:
                return
            seen, limit = len(commits), limit * 8

    def active(self, ranges: Mapping[str, tuple[Any, Any]] | None = None) -> list[ActiveFile]:
        """Return the data files that may hold rows within ranges; those whose statistics do not tell may.

        :param ranges: by column, the lowest and the highest value
        """
        actions = pa.table(self.table.get_add_actions())
        chosen = pa.repeat(pa.scalar(True), actions.num_rows)
        for name, (lowest, highest) in (ranges or {}).items():
            bounds = ("partition", "partition") if name in self.partition_by else ("min", "max")
            least, greatest = (_inner(actions, side, name) for side in bounds)
            if least is not None and greatest is not None:
                is_below = pc.greater(least, pa.scalar(highest))
                is_above = pc.less(greatest, pa.scalar(lowest))
                chosen = pc.and_not(chosen, pc.fill_null(pc.or_(is_below, is_above), False))
        found = actions.filter(chosen)
        partitions = found["partition"].to_pylist() if "partition" in found.schema.names else [{}] * found.num_rows
        rows = zip(found["path"].to_pylist(), found["size_bytes"].to_pylist(), partitions, strict=True)
        return [ActiveFile(path, _file_name(path), size, partition or {}) for path, size, partition in rows]

    def check_removal(self) -> None:
        """Check that rows may be removed; see `FileTable.check_removal`."""
        if self.configuration.get("delta.appendOnly", "false").lower() == "true":
            raise TargetError(f"Rows of table {self.name!r} cannot be removed: it has delta.appendOnly=true")

    def unnamed(self, paths: Collection[str]) -> set[str]:
        """Return which files VACUUM would remove: no version names them that the table's retention keeps."""
        return set(self.table.vacuum(dry_run=True, full=True)).intersection(paths)

    def measured(self, columns: pa.Schema) -> list[str]:
        """Return as many columns as the table says, and those that say where a row is from."""
        return measured(self.configuration, columns)


def _file_name(path: str) -> str:
    if "://" in path:
        raise TargetError(f"The table names the file {path!r}, which is outside its location, as a shallow clone does")
    return unquote(path)


def _inner(actions: pa.Table, side: str, name: str) -> pa.ChunkedArray | None:
    if side not in actions.schema.names:
        return None
    kind = actions.schema.field(side).type
    return pc.struct_field(actions[side], name) if kind.get_field_index(name) >= 0 else None
