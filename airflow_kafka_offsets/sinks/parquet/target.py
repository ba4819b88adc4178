"""The commit of a batch to a directory of Parquet files: one manifest, which is written only if it is not there."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from obstore.exceptions import BaseError

from airflow_kafka_offsets.core.text import shortened
from airflow_kafka_offsets.sinks.lake.target import LakeTarget
from airflow_kafka_offsets.sinks.parquet.snapshot import MARKER, ParquetSnapshot, manifest_path
from airflow_kafka_offsets.sinks.target_rows import Removed
from airflow_kafka_offsets.writers.data_files import DataFile
from airflow_kafka_offsets.writers.delta_files import delta_path, described

log = logging.getLogger(__name__)


class ParquetTarget(LakeTarget[ParquetSnapshot]):
    """A directory of Parquet files, and what is done to it; see `Target`."""

    def grow(self, snapshot: ParquetSnapshot, lacking: Sequence[pa.Field]) -> ParquetSnapshot | None:
        """Add columns, before the commit: if nothing follows it, they are there and null."""
        return snapshot.refresh() if snapshot.grow(lacking) else None

    def publish(self, snapshot: ParquetSnapshot, number: int) -> bool:
        """Write the manifest; see `LakeTarget.publish`. Each batch has one of its own, whatever number the series
        has.
        """
        if self.removal is not None and not self.removal.paths <= {file.path for file in snapshot.refresh().active()}:
            return False
        output = self.output
        # Only a batch that is retired can have one: the second one takes its rows back.
        is_published = snapshot.is_taken(output.series, output.batch_id)
        manifest = {
            "series": output.series,
            "batch": output.batch_id,
            "group": output.group_id,
            "ranges": [[read.topic, read.partition, read.start, read.end] for read in output.ranges],
            **self.did._asdict(),
            "adds": [*self.adds, *self.rewritten],
            "replaces": sorted(self.removal.paths) if self.removal is not None else [],
        }
        path = manifest_path(output.series, output.batch_id, retired=is_published)
        return snapshot.files.put_new(path, json.dumps(manifest, indent=1).encode())

    def commit(self) -> None:
        """Commit what was done; then set and remove the markers for those who list files."""
        super().commit()
        self._mark()

    def retire(self) -> list[Removed]:
        """Take the rows of the batch back; then remove the marker, also where an earlier call died before it came
        there.
        """
        removed = super().retire()
        self._mark()
        return removed

    def _mark(self) -> None:
        snapshot = self.snapshot.refresh() if self.snapshot is not None else None
        if snapshot is None or not snapshot.is_taken(self.output.series, self.output.batch_id):
            return
        # Also of a batch that an earlier attempt published: it may have died before it came here.
        manifest = snapshot.manifest(manifest_path(self.output.series, self.output.batch_id))
        active = {_attempt(file.path) for file in snapshot.active()}
        touched = {_attempt(add["path"]) for add in manifest["adds"]} | set(map(_attempt, manifest["replaces"]))
        for directory in sorted(touched):
            marker = f"{directory}/{MARKER}"
            try:
                if directory in active:
                    snapshot.files.put(marker, b"")
                else:
                    snapshot.files.remove(marker)
            except BaseError as error:  # such as a user who may write files, and not delete them
                # The manifest is what counts, and it is there.
                reason = f"{type(error).__name__}: {shortened(str(error))}"
                log.warning("Marker %s of %s could not be set or removed: %s", marker, self.sink.name, reason)

    def path(self, directory: str, partition: Mapping[str, Any]) -> str:
        """Return the path of a new file."""
        return delta_path(f"attempt={directory}", partition)

    def plain(self, file: DataFile) -> dict[str, Any]:
        """Return what a manifest says of a new file."""
        return described(file)


def _attempt(path: str) -> str:
    return path.partition("/")[0]
