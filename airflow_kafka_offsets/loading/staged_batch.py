"""A batch whose files are complete, and whether files of an earlier attempt can be committed."""

from __future__ import annotations

import hashlib
import logging
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa

from airflow_kafka_offsets.core.offsets import TopicPartition
from airflow_kafka_offsets.exceptions import StagingError
from airflow_kafka_offsets.formats.spark_ddl import spark_ddl
from airflow_kafka_offsets.ledger.batch_rows import Batch
from airflow_kafka_offsets.ledger.positions import RangeRead
from airflow_kafka_offsets.loading.pipeline import Pipeline
from airflow_kafka_offsets.spark.transforms import load_transform, transform_code
from airflow_kafka_offsets.staging.directory import StagingDirectory
from airflow_kafka_offsets.staging.manifest import MANIFEST, Manifest, SliceRead

log = logging.getLogger(__name__)


_UNREADABLE = (
    OSError,  # the store does not answer, or not to this user
    pa.ArrowException,  # a scheme that pyarrow does not know, or was built without
    ValueError,  # half a manifest, or one that names files elsewhere
    KeyError,  # a manifest of another version of this package
    TypeError,  # the same
    StagingError,  # a manifest of another batch, or of other offsets
)
"""What reading an earlier attempt's files raises where they cannot be used."""


@dataclass(frozen=True, slots=True)
class Staged:
    """A batch whose rows are complete in a directory."""

    directory: StagingDirectory
    manifest: Manifest
    reads: Mapping[TopicPartition, RangeRead]

    @property
    def records(self) -> int:
        return sum(read.records or 0 for read in self.reads.values())

    @property
    def dead_letters(self) -> int:
        return sum(read.dead_letters for read in self.reads.values())


def find_staged(batch: Batch, wanted: str) -> Staged | None:
    """Return what an earlier try staged, where it can be committed as it is.

    :param wanted: the fingerprint of the pipeline as it is now
    """
    if batch.state != "staged" or batch.staging_uri is None:
        return None
    try:
        return _found(batch, StagingDirectory(batch.staging_uri), wanted)
    except _UNREADABLE as error:
        log.warning(
            "What an earlier try staged of batch %d in %s cannot be read: staging it anew: %s: %s",
            batch.batch_id,
            batch.staging_uri,
            type(error).__name__,
            error,
        )
        return None


def _found(batch: Batch, directory: StagingDirectory, wanted: str) -> Staged | None:
    if not directory.exists(MANIFEST):  # staged on another machine, or tidied away
        return None
    found = read_staged(directory, batch)
    if found.manifest.fingerprint != wanted:
        log.warning("Batch %d was staged with other columns, or another transform: staging it anew", batch.batch_id)
        return None
    if not _holds_files(directory, found.manifest):
        log.warning("Files of batch %d are missing in %s: staging it anew", batch.batch_id, directory.uri)
        return None
    return found


def _holds_files(directory: StagingDirectory, manifest: Manifest) -> bool:
    dead_letters = (read.dead_letters_file for read in manifest.reads)
    return all(directory.holds(file.name, file.bytes) for file in manifest.files) and all(
        directory.exists(name) for name in dead_letters if name is not None
    )


def fingerprint(pipeline: Pipeline, columns: pa.Schema) -> str:
    """Of everything in a pipeline that decides what the rows of a range are, the transform's code included."""
    decides = [
        pipeline.value_format.kind,
        spark_ddl(columns),
        pipeline.isolation_level,
        pipeline.transform,
        pipeline.on_bad_record,
    ]
    digest = hashlib.sha256(repr(decides).encode())
    if pipeline.transform is not None:
        for source in _source_files(pipeline.transform):
            digest.update(source.read_bytes())
    return digest.hexdigest()


def _source_files(transform: str) -> list[Path]:
    """Return the files with the code of a transform: where it is defined, and where its name is if that is another module.

    :param transform: its import path
    """
    code = transform_code(load_transform(transform))
    modules = dict.fromkeys([getattr(code, "__module__", None), transform.rpartition(".")[0]])
    found = [getattr(sys.modules.get(name), "__file__", None) for name in modules if name is not None]
    # A module of an extension is no text, but its bytes decide as much. One that is built in has no file.
    return [Path(file) for file in found if file is not None]


def read_staged(directory: StagingDirectory, batch: Batch) -> Staged:
    """Read the manifest of a batch, and check that the planned ranges were staged.

    :raises StagingError: the directory holds another batch, or other offsets
    """
    manifest = Manifest.from_json(directory.read_text(MANIFEST))
    if manifest.batch_id != batch.batch_id:
        raise StagingError(f"{directory.uri} holds batch {manifest.batch_id}, not batch {batch.batch_id}")
    return Staged(directory, manifest, _range_reads(manifest, batch))


def _range_reads(manifest: Manifest, batch: Batch) -> dict[TopicPartition, RangeRead]:
    """What the slices of each range showed together.

    :raises StagingError: the slices that were read are not exactly the planned ranges
    """
    slices: dict[TopicPartition, list[SliceRead]] = {}
    for read in sorted(manifest.reads, key=lambda read: (read.topic, read.partition, read.start)):
        slices.setdefault(TopicPartition(read.topic, read.partition), []).append(read)
    reads: dict[TopicPartition, RangeRead] = {}
    for one in batch.ranges:
        if not len(one):
            continue
        of_range = slices.pop(one.topic_partition, [])
        bounds = [one.start, *(read.end for read in of_range)]
        if [read.start for read in of_range] != bounds[:-1] or bounds[-1] != one.end:
            raise StagingError(f"Batch {batch.batch_id}: {one} was planned, other offsets were staged: {of_range}")
        counts = [read.records for read in of_range]
        firsts = [read.first_timestamp_ms for read in of_range if read.first_timestamp_ms is not None]
        lasts = [read.last_timestamp_ms for read in of_range if read.last_timestamp_ms is not None]
        reads[one.topic_partition] = RangeRead(
            None if None in counts else sum(count or 0 for count in counts),
            _instant(min(firsts)) if firsts else None,
            _instant(max(lasts)) if lasts else None,
            bytes=sum(read.bytes for read in of_range),
            dead_letters=sum(read.dead_letters for read in of_range),
        )
    if slices:
        raise StagingError(f"Batch {batch.batch_id}: partitions were staged that were not planned: {sorted(slices)}")
    return reads


def _instant(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)
