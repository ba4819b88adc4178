"""The driver: plan the Spark side, run it, write the manifest."""

from __future__ import annotations

import inspect
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_kafka_offsets.exceptions import (
    ConfigurationError,
    KafkaOffsetsError,
    StagingError,
    TargetError,
    TransformError,
)
from airflow_kafka_offsets.spark.job import MANIFEST, Manifest, SliceRead, StagedFile, StageJob, TargetColumns
from airflow_kafka_offsets.spark.pandas_import import do_without_pandas, hidden_pandas
from airflow_kafka_offsets.spark.progress import Progress
from airflow_kafka_offsets.spark.slice_notes import SliceNotes
from airflow_kafka_offsets.spark.staging import StagingDirectory
from airflow_kafka_offsets.spark.tasks import RESULT_DDL, OnePass, SliceReader, Stager, leave_failure

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession

Transform = Callable[["DataFrame"], "DataFrame"]


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
        transformed = _transformed(
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


def load_transform(path: str) -> Transform:
    """Import `package.module.function`.

    :raises TransformError: there is no such module or function, or it is not callable
    """
    module_name, _, name = path.rpartition(".")
    if not module_name:
        raise TransformError(f"transform={path!r} is no import path; write 'package.module.function'")
    try:
        module = import_module(module_name)
    except ImportError as error:
        raise TransformError(
            f"transform={path!r}: module {module_name!r} cannot be imported: {error}. It has to be importable where "
            "the Airflow worker runs, for example from the DAG bundle or from an installed package."
        ) from error
    function = getattr(module, name, None)
    if not callable(function):
        raise TransformError(f"transform={path!r}: module {module_name!r} has no function {name!r}")
    transform: Transform = function
    return transform


def transform_code(transform: Transform) -> Any:
    """Return the function, or the class of an object with `__call__`, whose code a transform runs."""
    code: Any = inspect.unwrap(transform)
    while isinstance(code, partial):
        code = inspect.unwrap(code.func)
    return code if inspect.isroutine(code) or inspect.isclass(code) else type(code)


def check_columns(columns: list[str], target: TargetColumns, transform: str) -> None:
    """Compare the columns that a transform returns with those of the target.

    :raises TargetError: naming what the target lacks, and what it cannot do without
    """
    if target.known is None:
        return
    extra = [name for name in columns if name not in target.known and not name.startswith("_kafka_")]
    missing = [name for name in target.required if name not in columns]
    if extra or missing:
        told = [f"the target has no column {', '.join(map(repr, extra))}"] if extra else []
        told += (
            [f"the target needs column {', '.join(map(repr, missing))}, which the transform drops"] if missing else []
        )
        raise TargetError(f"Transform {transform!r} does not fit table {target.table!r}: {'; '.join(told)}")


def _transformed(transform: Transform, rows: DataFrame, job: StageJob) -> DataFrame:
    _pickle_by_value(transform)
    try:
        result = transform(rows)
    except Exception as error:
        raise TransformError(f"Transform {job.transform!r} raised {type(error).__name__}: {error}") from error
    if not hasattr(result, "mapInArrow"):
        raise TransformError(f"Transform {job.transform!r} returned {type(result).__name__}, not a DataFrame")
    return result


def _pickle_by_value(transform: Transform) -> None:
    """A UDF in the transform's module reaches the executors as code: they need not have the module."""
    from pyspark import cloudpickle

    module = sys.modules.get(transform_code(transform).__module__)
    if module is not None:
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]


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


def main(directory: str) -> int:
    """Run as a Spark application.

    :param directory: the directory that holds `job.json`
    :return: the exit status
    """
    file = Path(directory) / "job.json"
    job = StageJob.from_json(file.read_text(encoding="utf-8"))
    # It holds Kafka's credentials, and nobody else needs it; whoever launched us may be killed before tidying up.
    file.unlink()
    sys.path.extend(path for path in job.python_path if path not in sys.path)
    try:
        _submitted(job)
    except KafkaOffsetsError as error:
        leave_failure(StagingDirectory(job.staging_uri), error)
        traceback.print_exc()
        return 1
    except Exception as error:
        # What a task reported itself says more.
        staging = StagingDirectory(job.staging_uri)
        if not staging.find("failure-", ".json"):
            leave_failure(staging, failure(job.batch_id, error))
        raise
    return 0


def failure(batch_id: int, error: Exception) -> KafkaOffsetsError:
    """What an exception of Spark's is about, in one line of it.

    :return: a ConfigurationError where Spark's Python lacks a module that reading needs, else a StagingError
    """
    text = str(error)
    missing = re.search(r"No module named '(pyarrow|confluent_kafka)\b", text)
    if missing:
        return ConfigurationError(
            f"Spark's Python has no module {missing[1]!r}: install pyarrow and confluent-kafka where the executors run, or set "
            "spark.pyspark.python to a Python that has them"
        )
    # Behind the line that says it come frames of Java's, indented, and the same again as causes.
    said = [line for line in text.splitlines() if re.match(r"(?!Caused by|Driver stacktrace)\S", line)]
    return StagingError(f"Spark did not stage batch {batch_id}: {said[-1] if said else type(error).__name__}")


def _submitted(job: StageJob) -> None:
    """Stage in an application of its own. The JVM stops it when this process ends: PySpark's own way waits for up to a second."""
    if job.transform is None:
        do_without_pandas()
        from pyspark import SparkContext

        run_without_sql(SparkContext.getOrCreate(), job)
    else:
        from pyspark.sql import SparkSession

        with hidden_pandas():
            session = SparkSession.builder.getOrCreate()
        run(session, job)
