"""The driver of the Spark application: take jobs, stage their slices with Spark, and write the manifests. The code of a
task is in `tasks`.

`package` writes the submitted file, which calls `main`. These only speed up small batches, which take a few seconds
(docs/speed.md):

* Without a DataFrame transform, no SQL session is started: an RDD needs no query plan.
* PySpark is imported with its bytecode, and once for all Python workers (`daemon`).
* A session is not stopped. The JVM stops it when the process ends; PySpark's `stop` waits for up to a second.
"""

from __future__ import annotations

import io
import json
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_kafka_offsets.core.text import count, shortened
from airflow_kafka_offsets.exceptions import (
    ConfigurationError,
    KafkaOffsetsError,
    StagingError,
    TransformError,
    WorkerCrashError,
)
from airflow_kafka_offsets.formats.columns import spark_ddl
from airflow_kafka_offsets.formats.read_schemas import with_texts
from airflow_kafka_offsets.spark.daemon import prefer_installed_pyspark
from airflow_kafka_offsets.spark.failures import report_failure, reported_failures
from airflow_kafka_offsets.spark.job import SentJob, StageJob, split_job
from airflow_kafka_offsets.spark.jobs import Answer, open_jobs
from airflow_kafka_offsets.spark.progress import Display, Progress, SliceNotes
from airflow_kafka_offsets.spark.tasks import RESULT_DDL, job_of_attempt, read_arrow, stage_slices, write_arrow
from airflow_kafka_offsets.staging.directory import StagingDirectory
from airflow_kafka_offsets.staging.manifest import MANIFEST, Manifest, SliceRead, StagedFile
from airflow_kafka_offsets.transforms.columns import check_columns
from airflow_kafka_offsets.transforms.dataframe import check_types
from airflow_kafka_offsets.transforms.transform import DataFrameTransform
from airflow_kafka_offsets.transforms.user_errors import from_text

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession

_OPTIMIZED = re.compile(r"== Optimized Logical Plan ==\n(.*?)\n== ", re.DOTALL)

_NODE = re.compile(r"^[\s:+-]*(\w+)", re.MULTILINE)

# What reads the records, what makes rows of each row by itself, and what writes the rows, from last to first.
_ROW_BY_ROW = re.compile(r"(Python)?MapInArrow( Project| Filter)+ (Python)?MapInArrow\b.*")

# Functions of the user's, and those that `Sql` refuses. Spark replaces the current time by a value.
_OTHER = re.compile(
    r"\b(?:\w*udf|rand|randn|uuid|shuffle|monotonically_increasing_id|spark_partition_id)\(", re.IGNORECASE
)

_CLOCK = re.compile(r"\bcurrent_(?:date|timestamp|time)\b|\bnow\(", re.IGNORECASE)


# The Python process of a task ended, or the executor with it.
_CRASH = re.compile(r"Python worker exited unexpectedly|ExecutorLostFailure")

# What Spark's own functions say of a value, as in a division by zero, and what `raise_error` does.
_OF_VALUE = re.compile(r"\[[A-Z][\w.]*\] .* SQLSTATE: (?:22\w{3}|P0001)")

# Behind it comes the part of the query.
_CONTEXT = re.compile(r"^== (?:SQL|DataFrame)\b", re.MULTILINE)


def main(arguments: Sequence[str]) -> int:
    """Stage the jobs that a launcher sends.

    :param arguments: of the application, see `open_jobs`
    :return: the exit status
    """
    prefer_installed_pyspark()
    jobs = open_jobs(arguments)
    lines = jobs.lines()
    # Where there is no line, the launcher is gone, and there are no jobs either.
    application = Application(json.loads(next(lines, "{}")))
    for job in map(StageJob.from_text, lines):
        if application.is_stopped():
            jobs.answer(Answer.STOPPED)
            return 1
        jobs.answer(Answer.BEGUN)
        jobs.answer(_stage(application, job, jobs.display))
    return 0


def _stage(application: Application, job: StageJob, display: Display) -> Answer:
    """Stage a job, and report its failure in the staging directory.

    :raises Exception: no task has reported the failure, and the state of Spark and this process is unknown
    """
    sys.path.extend(path for path in job.python_path if path not in sys.path)
    try:
        application.stage(job, display)
    except KafkaOffsetsError as error:
        report_failure(job, error)
        if isinstance(error, TransformError):
            # It has the frames that are the user's.
            sys.stderr.write(f"TransformError: {error}\n")
        else:
            traceback.print_exc()
        return Answer.FAILED
    except Exception as error:
        # The report of a task says more than Spark's exception, and Spark has logged the traceback of the task.
        if not reported_failures(job):
            report_failure(job, failure(job.batch_id, error, job.dataframe_transform))
            raise
        return Answer.FAILED
    return Answer.DONE


def failure(batch_id: int, error: Exception, transform: DataFrameTransform | None = None) -> KafkaOffsetsError:
    """Return the error for an exception that Spark raised, with the line of its text that names the cause.

    :return: a ConfigurationError where Spark's Python lacks a module that a task needs, a TransformError where the code
        of a UDF of the transform raised, or a function of Spark's refused a value, a WorkerCrashError where a process
        of a task ended, else a StagingError
    """
    text = str(error)
    missing = re.search(r"No module named '([\w.]+)'", text)
    if missing:
        return ConfigurationError(
            f"Spark's Python has no module {missing[1]!r}: where the executors run, install pyarrow, confluent-kafka "
            "and the modules that the format or the transform imports, or set spark.pyspark.python to a Python that "
            "has them"
        )
    if transform is not None:
        what = f"Transform {transform.name!r}"
        if (users := from_text(what, text)) is not None:
            return users
        if (of_value := _OF_VALUE.search(text)) is not None:
            return TransformError(f"{what} failed: {shortened(of_value[0])}")
    if _CRASH.search(text):
        return WorkerCrashError(f"A Python process of Spark, or its executor, ended while it staged batch {batch_id}")
    # After that line come Java's stack frames, indented, and the same again as causes.
    said = _CONTEXT.split(text)[0]
    lines = [line for line in said.splitlines() if re.match(r"(?!Caused by|Driver stacktrace|at |\.\.\. \d)\S", line)]
    cause = shortened(lines[-1]) if lines else type(error).__name__
    return StagingError(f"Spark did not stage batch {batch_id}: {cause}")


class Application:
    """The submitted Spark application, whose session the first job starts.

    :param properties: the Spark properties that hold secrets
    """

    def __init__(self, properties: Mapping[str, Any]) -> None:
        self._properties = dict(properties)
        self._session: SparkSession | None = None
        self._context: SparkContext | None = None

    def is_stopped(self) -> bool:
        """Return whether Spark was started and has stopped, for example by the cluster."""
        from py4j.protocol import Py4JError

        if self._context is None:
            return False
        try:
            # A stopped context refuses it; without the JVM nothing answers.
            _ = self._context.defaultParallelism
        except Py4JError:
            return True
        return False

    def stage(self, job: StageJob, display: Display) -> None:
        """Stage a job. Either all jobs have a DataFrame transform, or none has one."""
        display.line(
            f"Batch {job.batch_id}: {count(job.offsets, 'offset')} in {count(len(job.slices), 'slice')} for Spark"
        )
        if job.dataframe_transform is not None:
            run(self._sql(), job, display)
        else:
            self._stage_without_sql(split_job(job), display)

    def _sql(self) -> SparkSession:
        if self._session is None:
            from pyspark.sql import SparkSession

            self._session = SparkSession.builder.config(map=self._properties).getOrCreate()
            self._context = self._session.sparkContext
        else:
            # What the transform of the batch before has cached.
            self._session.catalog.clearCache()
        return self._session

    def _stage_without_sql(self, sent: SentJob, display: Display) -> None:
        from pyspark import SparkConf, SparkContext

        if self._context is None:
            with warnings.catch_warnings():
                # PySpark warns of its own use of pandas, which needs a DataFrame.
                warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
                self._context = SparkContext.getOrCreate(SparkConf().setAll(list(self._properties.items())))
        number = len(sent.job.tasks)
        files = self._context.parallelize(range(number), number).mapPartitions(
            lambda numbers: stage_slices(job_of_attempt(sent), numbers)
        )
        stage_files(sent.job, files.collect, display)


def run(spark: SparkSession, job: StageJob, display: Display) -> Manifest:
    """Stage a batch: read and decode each slice, apply the transform, write files, and name them in the manifest.

    Only DataFrames are used, so it works in any session, also of Spark Connect.

    :raises TransformError: the transform cannot be imported, raised, did not return a DataFrame, or did not read all
        records
    :raises TargetError: the columns of the transform do not fit the target; no record was read
    """
    sent = split_job(job)
    tasks = spark.range(0, len(job.tasks), 1, len(job.tasks))
    if (transform := job.dataframe_transform) is None:
        staged = tasks.mapInArrow(
            lambda numbers: write_arrow(sent.whole(), read_arrow(job_of_attempt(sent), numbers)), RESULT_DDL
        )
    else:
        decoded = tasks.mapInArrow(lambda numbers: read_arrow(job_of_attempt(sent), numbers), spark_ddl(job.columns))
        rows = transform.apply(decoded)
        check_columns(rows.columns, job.target, transform.name)
        check_types(transform.name, rows)
        staged = rows.mapInArrow(lambda batches: write_arrow(sent.whole(), batches), RESULT_DDL)
        if (text := advice(staged, transform.name)) is not None:
            display.line(text)
    return stage_files(job, lambda: (StagedFile(**json.loads(row.file)) for row in staged.collect()), display)


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
    """Stage a job without a DataFrame transform in this process: few records need no Spark."""
    files = (file for number in range(len(job.tasks)) for file in stage_slices(job, [number]))
    return write_manifest(job, StagingDirectory(job.staging_uri), tuple(files))


def write_manifest(
    job: StageJob, staging: StagingDirectory, files: tuple[StagedFile, ...], notes: SliceNotes | None = None
) -> Manifest:
    """Write the manifest: from then on, the batch can be committed. It has the reads of all slices, also of those that
    Spark did not need to read.

    :param files: those of the accepted task attempts
    :param notes: those of the directory, if some are read already
    :raises TransformError: the transform read some of the records, and not all
    """
    found = (notes or SliceNotes(staging)).find()
    unread = [slice_ for slice_ in job.slices if slice_.index not in found.finished]
    if unread and found.started and job.dataframe_transform is not None:
        raise TransformError(
            f"Transform {job.dataframe_transform.name!r} stops reading early (limit, head, take): "
            f"{unread[0]} was not read to its end. The positions would move past unread records; choose rows by a "
            "condition instead."
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


def advice(rows: DataFrame, name: str) -> str | None:
    """Return the advice for the log if `Sql` could do the transform; None otherwise.

    :param rows: the files that are written of what the transform returned. Spark plans them once, for this and for the
        job
    :param name: of the transform
    """
    text = io.StringIO()
    # All versions, and Spark Connect, can print it, and have no other public way.
    with redirect_stdout(text):
        rows.explain(extended=True)
    if not is_simple(text.getvalue()):
        return None
    return (
        f"Transform {name!r} can be written as Sql(…): it only selects, computes and filters. Sql runs in the pass "
        "that decodes the records, in a fraction of the time; the rows of a DataFrame go through the JVM and back"
    )


def is_simple(plan: str) -> bool:
    """Return whether a plan makes rows from each decoded row separately, with Spark's own expressions.

    :param plan: what `DataFrame.explain` prints
    """
    optimized = _OPTIMIZED.search(plan)
    if optimized is None or _OTHER.search(optimized[1]) or _CLOCK.search(plan):
        return False
    return _ROW_BY_ROW.fullmatch(" ".join(_NODE.findall(optimized[1]))) is not None
