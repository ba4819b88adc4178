"""The driver: plan the Spark side, run it, write the manifest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from airflow_kafka_offsets.exceptions import StagingError, TransformError
from airflow_kafka_offsets.spark.job import StageJob
from airflow_kafka_offsets.spark.progress import Progress
from airflow_kafka_offsets.spark.slice_notes import SliceNotes
from airflow_kafka_offsets.spark.tasks import RESULT_DDL, OnePass, SliceReader, Stager
from airflow_kafka_offsets.spark.transforms import apply_transform, check_columns, load_transform
from airflow_kafka_offsets.spark.without_pandas import do_without_pandas
from airflow_kafka_offsets.staging.directory import StagingDirectory
from airflow_kafka_offsets.staging.manifest import MANIFEST, Manifest, SliceRead, StagedFile

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession


def run(spark: SparkSession, job: StageJob) -> Manifest:
    """Stage a batch: read every slice, decode, transform, write files, and name the accepted ones in the manifest.

    DataFrames only, so that any session will do, Spark Connect's too.

    :raises TransformError: the transform cannot be imported, raised, or did not return a DataFrame
    :raises TargetError: the transform's columns are not those of the target; nothing was read then
    """
    count = len(job.tasks)
    tasks = spark.range(0, count, 1, count)
    if job.transform is None:
        staged = tasks.mapInArrow(OnePass(job).in_arrow, RESULT_DDL)
    else:
        transformed = apply_transform(
            load_transform(job.transform), tasks.mapInArrow(SliceReader(job), job.columns_ddl), job
        )
        check_columns(transformed.columns, job.target, job.transform)
        staged = transformed.mapInArrow(Stager(job.staging_uri), RESULT_DDL)
    staging = StagingDirectory(job.staging_uri)
    notes = SliceNotes(staging)
    with Progress(job, notes):
        files = tuple(StagedFile(row.name, row.row_count, row.byte_count) for row in staged.collect())
    return write_manifest(job, staging, files, notes)


def run_without_sql(spark: SparkContext, job: StageJob) -> Manifest:
    """Stage a batch that has no transform, as `run` does.

    Without a session, a query plan and pandas a small batch takes half the time. For an application that does nothing else.
    """
    one_pass, count = OnePass(job), len(job.tasks)

    def stage(numbers: Iterable[int]) -> Iterator[StagedFile]:
        do_without_pandas()
        return one_pass(numbers)

    staged = spark.parallelize(range(count), count).mapPartitions(stage)
    staging = StagingDirectory(job.staging_uri)
    notes = SliceNotes(staging)
    with Progress(job, notes):
        files = tuple(staged.collect())
    return write_manifest(job, staging, files, notes)


def write_manifest(
    job: StageJob, staging: StagingDirectory, files: tuple[StagedFile, ...], notes: SliceNotes | None = None
) -> Manifest:
    """Close the staging directory: from now on the batch can be committed.

    :param files: those of the accepted task attempts
    :param notes: those of the directory, where some were read before
    :raises TransformError: the transform did not read all records
    """
    manifest = Manifest(job.batch_id, job.fingerprint, files, _reads(job, notes or SliceNotes(staging)))
    staging.write_text(MANIFEST, manifest.to_json())
    return manifest


def _reads(job: StageJob, notes: SliceNotes) -> tuple[SliceRead, ...]:
    """What reading the slices showed, also of those that Spark did not need to read.

    :raises TransformError: the transform read some of the records, and not all
    """
    found = notes.find()
    reads = found.finished
    unread = [one for one in job.slices if one.index not in reads]
    if unread and found.begun:
        first = unread[0]
        raise TransformError(
            f"Transform {job.transform!r} stops reading early (limit, head, take): {first.topic}[{first.partition}] "
            f"{first.start}..{first.end} was not read, or not to its end. The positions would move over records that nobody "
            "saw; choose rows by a condition instead."
        )
    if unread and job.transform is None:
        raise StagingError(f"{len(unread)} of {len(job.slices)} slices were not read, although all tasks succeeded")
    # Spark leaves out, as a whole, what cannot change the result: a condition that is always false, a join with an empty
    # table.
    return tuple(
        reads.get(one.index) or SliceRead(one.index, one.topic, one.partition, one.start, one.end, None)
        for one in job.slices
    )
