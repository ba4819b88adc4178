"""Step 2: have Spark make files of the rows of a batch."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from airflow_kafka_offsets.core import log_identity
from airflow_kafka_offsets.core.offsets import split
from airflow_kafka_offsets.exceptions import KafkaOffsetsError, RecordError, StagingError
from airflow_kafka_offsets.formats.spark_ddl import spark_ddl
from airflow_kafka_offsets.ledger.batch_rows import Batch
from airflow_kafka_offsets.ledger.batches import begin_staging, mark_staged
from airflow_kafka_offsets.loading.context import LoadContext
from airflow_kafka_offsets.loading.pipeline import Pipeline
from airflow_kafka_offsets.loading.staged_batch import Staged, read_staged
from airflow_kafka_offsets.loading.staging_area import make_staging_directory, remove_attempt
from airflow_kafka_offsets.spark.job import StageJob
from airflow_kafka_offsets.spark.launcher import Launcher
from airflow_kafka_offsets.spark.main import failure
from airflow_kafka_offsets.staging.directory import StagingDirectory
from airflow_kafka_offsets.staging.manifest import MANIFEST, Manifest
from airflow_kafka_offsets.staging.target_columns import TargetColumns


def stage(attempt: LoadContext, batch: Batch) -> Staged:
    """Have Spark make files of the batch's rows."""
    pipeline, engine, claim = attempt.pipeline, attempt.engine, attempt.claim
    with engine.connect() as conn:
        # The commit asks again; here it spares Spark's time.
        pipeline.sink.refuse_unknown_rows(conn, pipeline.tables.offset_batches, batch.batch_id)
    directory = make_staging_directory(batch, pipeline.staging_dir)
    job = make_job(
        pipeline, attempt.kafka_config, batch, attempt.columns, attempt.target, directory, attempt.fingerprint
    )
    begin_staging(engine, pipeline.tables, claim, batch, directory.uri, attempt.recipe)
    if batch.staging_uri is not None:
        # An attempt that was killed while it staged: its files are of no use to anybody.
        remove_attempt(batch.batch_id, batch.staging_uri, pipeline.staging_dir)
    work = launch_application(attempt.launcher, job, batch, directory)
    # Records of a topic that was made anew while Spark read would go under the old topic's name.
    log_identity.check_ranges(batch.ranges, attempt.cluster.logs(pipeline.topics))
    mark_staged(engine, pipeline.tables, claim, batch, work.records)
    return work


# Slices below this part of the largest are small.
_SMALL = 8


def make_job(
    pipeline: Pipeline,
    kafka_config: Mapping[str, Any],
    batch: Batch,
    columns: pa.Schema,
    target: TargetColumns,
    directory: StagingDirectory,
    wanted: str,
) -> StageJob:
    """All that the Spark application needs to know, as plain data.

    :param wanted: the fingerprint of the pipeline
    """
    return StageJob(
        batch_id=batch.batch_id,
        group_id=batch.group_id,
        slices=tuple(split(batch.ranges, pipeline.slice_offsets)),
        kafka_config=kafka_config,
        isolation_level=pipeline.isolation_level,
        value_format=pipeline.value_format.kind,
        columns=columns,
        columns_ddl=spark_ddl(columns),
        transform=pipeline.transform,
        target=target,
        fingerprint=wanted,
        staging_uri=directory.uri,
        # A transform may live beside the DAG file, in a folder that only this process was told of.
        python_path=tuple(path for path in sys.path if path) if pipeline.transform else (),
        idle_timeout=pipeline.idle_timeout.total_seconds(),
        on_bad_record=pipeline.on_bad_record,
        max_dead_letters=pipeline.max_dead_letters,
        task_offsets=pipeline.slice_offsets // _SMALL,
    )


def launch_application(launcher: Launcher, job: StageJob, batch: Batch, directory: StagingDirectory) -> Staged:
    """Run the application, and check that it staged what was planned.

    :raises KafkaOffsetsError: what the application reports; RecordError, for example, for a record that does not decode
    :raises ConfigurationError: Spark's Python lacks what it needs
    :raises StagingError: it failed without a report, or staged something else
    """
    if not job.slices:
        # Nothing but a gap to record: no Spark for that.
        directory.write_text(MANIFEST, Manifest(batch.batch_id, job.fingerprint, (), ()).to_json())
        return read_staged(directory, batch)
    try:
        launcher(job)
    except KafkaOffsetsError:
        raise
    except Exception as error:
        reported = _reported(directory)
        if reported is not None:
            raise reported from error
        raise failure(batch.batch_id, error) from error
    return read_staged(directory, batch)


def _reported(directory: StagingDirectory) -> KafkaOffsetsError | None:
    """The error that the application left, in its own words; of several, one that no retry can help."""
    errors = [_error_of(note) for note in directory.notes("failure-")]
    errors.sort(key=lambda error: (error.retriable, str(error)))
    return errors[0] if errors else None


def _error_of(note: Mapping[str, Any]) -> KafkaOffsetsError:
    """Return the error that a note describes; a StagingError where it names none that a message alone makes."""
    kinds = {kind.__name__: kind for kind in _errors_below(KafkaOffsetsError)}
    kind = kinds.get(note["error"])
    if kind is RecordError:
        return RecordError(note["reason"], topic=note["topic"], partition=note["partition"], offset=note["offset"])
    if kind is None or kind.__init__ is not Exception.__init__:
        return StagingError(f"{note['error']}: {note['message']}")
    return kind(note["message"])


def _errors_below(kind: type[KafkaOffsetsError]) -> Iterator[type[KafkaOffsetsError]]:
    for below in kind.__subclasses__():
        yield below
        yield from _errors_below(below)
