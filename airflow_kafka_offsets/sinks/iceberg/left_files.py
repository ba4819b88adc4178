"""Data files that failed attempts left, and that no snapshot names."""

from __future__ import annotations

from datetime import datetime
from functools import lru_cache

from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import Table

from airflow_kafka_offsets.sinks.lake.left_files import left_files, remove_files


def remove_leftovers(table: Table, batch_id: int, before: datetime) -> int:
    """Remove the files that attempts to stage a batch left; see `Table.remove_leftovers`.

    Files are found where Iceberg puts them by default. Where `write.object-storage.enabled` spreads them, they stay.
    """
    io = table.io
    if not isinstance(io, PyArrowFileIO):
        return 0
    scheme, host, root = io.parse_location(f"{table.location().rstrip('/')}/data", table.io.properties)
    filesystem = io.fs_by_scheme(scheme, host)
    # Of most batches there are none, and what snapshots name is looked up for those that are there.
    if not any(left_files(filesystem, root, batch_id, (), before)):
        return 0
    key = _Metadata(table)
    return remove_files(filesystem, list(left_files(filesystem, root, batch_id, _named(key), before)))


class _Metadata:
    """A table in one version of its metadata, which the location of these tells."""

    def __init__(self, table: Table) -> None:
        self.table = table

    def __hash__(self) -> int:
        return hash(self.table.metadata_location)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Metadata) and other.table.metadata_location == self.table.metadata_location


@lru_cache(maxsize=1)
def _named(version: _Metadata) -> frozenset[str]:
    """Return the paths of the files that a snapshot names, whichever it is; a load asks for one batch after the
    other.
    """
    table = version.table
    manifests = {each.manifest_path: each for snapshot in table.snapshots() for each in snapshot.manifests(table.io)}
    return frozenset(
        PyArrowFileIO.parse_location(entry.data_file.file_path, table.io.properties)[2]
        for manifest in manifests.values()
        for entry in manifest.fetch_manifest_entry(table.io)
    )
