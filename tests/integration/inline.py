"""Loads without Spark, for tests that need hundreds of them: the same tasks, one after another, in this process.

What Spark itself does to a load is tested with real Spark; here its part is only to call the reader and the stager.
"""

from __future__ import annotations

import pyarrow as pa

from airflow_kafka_offsets.spark.application import write_manifest
from airflow_kafka_offsets.spark.job import StagedFile, StageJob
from airflow_kafka_offsets.spark.staging import StagingDirectory
from airflow_kafka_offsets.spark.tasks import SliceReader, Stager


class InlineLauncher:
    """Stages a batch in this process, and remembers what it was asked to run. Knows no transform."""

    def __init__(self) -> None:
        self.jobs: list[StageJob] = []

    def check(self, staging_dir: str | None) -> None:
        """Nothing can be missing."""

    def __call__(self, job: StageJob) -> None:
        assert job.transform is None
        self.jobs.append(job)
        staging = StagingDirectory(job.staging_uri)
        reader, stager = SliceReader(job), Stager(job.staging_uri)
        files: list[StagedFile] = []
        for one in job.slices:
            index = pa.RecordBatch.from_pydict({"id": pa.array([one.index], pa.int64())})
            for result in stager(reader(iter([index]))):
                files += [StagedFile(row["name"], row["row_count"], row["byte_count"]) for row in result.to_pylist()]
        write_manifest(job, staging, tuple(files))
