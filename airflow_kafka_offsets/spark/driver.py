"""The driver of the Spark application: have Spark stage the slices of a job, and write the manifest.

What a task does is in `tasks`, and what a submitted application does to start sooner is in `main`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_kafka_offsets.core.text import count
from airflow_kafka_offsets.exceptions import StagingError, TransformError
from airflow_kafka_offsets.formats.columns import spark_ddl
from airflow_kafka_offsets.formats.read_schemas import with_texts
from airflow_kafka_offsets.spark.display import Display
from airflow_kafka_offsets.spark.job import StageJob
from airflow_kafka_offsets.spark.row_by_row import advice
from airflow_kafka_offsets.spark.slice_notes import Progress, SliceNotes
from airflow_kafka_offsets.spark.split_config import split_config
from airflow_kafka_offsets.spark.tasks import RESULT_DDL, read_arrow, stage_slices, write_arrow
from airflow_kafka_offsets.staging.directory import StagingDirectory
from airflow_kafka_offsets.staging.manifest import MANIFEST, Manifest, SliceRead, StagedFile
from airflow_kafka_offsets.transforms.columns import check_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def run(spark: SparkSession, job: StageJob, display: Display) -> Manifest:
    """Stage a batch: read and decode each slice, apply the transform, write files, and name them in the manifest.

    Only DataFrames are used, so that any session will do, also one of Spark Connect.

    :raises TransformError: the transform cannot be imported, raised, did not return a DataFrame, or did not read all
        records
    :raises TargetError: the columns of the transform do not fit the target; no record was read
    """
    job = split_config(job)
    tasks = spark.range(0, len(job.tasks), 1, len(job.tasks))
    if job.dataframe_transform is None:
        staged = tasks.mapInArrow(lambda numbers: write_arrow(job, read_arrow(job, numbers)), RESULT_DDL)
    else:
        staged = _transformed(job, tasks, display)
    return stage_files(job, lambda: (StagedFile(*row) for row in staged.collect()), display)


def _transformed(job: StageJob, tasks: DataFrame, display: Display) -> DataFrame:
    """Return the files of a job with a transform of DataFrames. Spark writes them when they are collected.

    :param tasks: their numbers
    """
    transform = job.dataframe_transform
    assert transform is not None
    decoded = tasks.mapInArrow(lambda numbers: read_arrow(job, numbers), spark_ddl(job.columns))
    transformed = transform.apply(decoded)
    check_columns(transformed.columns, job.target, transform.name)
    staged = transformed.mapInArrow(lambda rows: write_arrow(job, rows), RESULT_DDL)
    if (text := advice(staged, transform.name)) is not None:
        display.line(text)
    return staged


def stage_files(job: StageJob, collect: Callable[[], Iterable[StagedFile]], display: Display) -> Manifest:
    """Have Spark write the files of a job, show progress meanwhile, and write the manifest.

    :param collect: runs the Spark job; returns the files of the task attempts that Spark accepted
    :raises TransformError: the transform did not read all records
    """
    staging = StagingDirectory(job.staging_uri)
    notes = SliceNotes(staging)
    with Progress(job, notes, display).printed():
        files = tuple(collect())
    return write_manifest(job, staging, files, notes)


def stage_here(job: StageJob) -> Manifest:
    """Stage a job without a transform of DataFrames in this process: few records need no Spark."""
    files = (file for number in range(len(job.tasks)) for file in stage_slices(job, [number]))
    return write_manifest(job, StagingDirectory(job.staging_uri), tuple(files))


def write_manifest(
    job: StageJob, staging: StagingDirectory, files: tuple[StagedFile, ...], notes: SliceNotes | None = None
) -> Manifest:
    """Write the manifest: from then on the batch can be committed. It has what reading each slice showed, also of
    slices that Spark did not need to read.

    :param files: those of the accepted task attempts
    :param notes: those of the directory, if some are read already
    :raises TransformError: the transform read some of the records, and not all
    """
    found = (notes or SliceNotes(staging)).find()
    unread = [slice_ for slice_ in job.slices if slice_.index not in found.finished]
    if unread and found.started and job.dataframe_transform is not None:
        raise TransformError(
            f"Transform {job.dataframe_transform.name!r} stops reading early (limit, head, take): "
            f"{unread[0].topic}[{unread[0].partition}] {unread[0].start}..{unread[0].end} was not read, or not to its "
            "end. The positions would move over records that were never read; choose rows by a condition instead."
        )
    if unread and job.dataframe_transform is None:
        raise StagingError(
            f"{len(unread)} of {count(len(job.slices), 'slice')} {'was' if len(unread) == 1 else 'were'} not read, "
            "although all tasks succeeded"
        )
    # Spark skips reading altogether where the result does not depend on it: a condition that is always false, or a join
    # with an empty table.
    reads = tuple(
        found.finished.get(slice_.index)
        or SliceRead(slice_.index, slice_.topic, slice_.partition, slice_.start, slice_.end, None)
        for slice_ in job.slices
    )
    schemas = with_texts(job.record_format, (schema for read in reads for schema in read.schemas))
    plain_reads = tuple(replace(read, schemas=()) for read in reads)
    manifest = Manifest(job.batch_id, job.fingerprint, files, plain_reads, schemas, job.writer.columns)
    staging.write_text(MANIFEST, manifest.to_json())
    return manifest
