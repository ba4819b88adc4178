"""Put dead letters through the pipeline as it is now. One transaction for each batch writes their rows and removes the letters."""

from __future__ import annotations

import base64
import json
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from airflow_kafka_offsets.core.offsets import Slice
from airflow_kafka_offsets.core.parameters import from_attributes
from airflow_kafka_offsets.core.text import count, first_few
from airflow_kafka_offsets.database.errors import translated_errors
from airflow_kafka_offsets.database.transactions import transact
from airflow_kafka_offsets.exceptions import ConfigurationError, LedgerError
from airflow_kafka_offsets.formats.record_format import Connections
from airflow_kafka_offsets.ledger.batch_rows import current_user
from airflow_kafka_offsets.ledger.group_table import same_table_names
from airflow_kafka_offsets.ledger.groups import cluster_of, lock
from airflow_kafka_offsets.ledger.tables import Ledger, Tables
from airflow_kafka_offsets.letters.selection import TOO_LARGE, Letter, Letters, read_letters
from airflow_kafka_offsets.letters.statements import correct_history, delete, is_of, store_errors
from airflow_kafka_offsets.loading.commit import add_columns, write_rows
from airflow_kafka_offsets.loading.pipeline import Pipeline
from airflow_kafka_offsets.loading.stage import StagedBatch
from airflow_kafka_offsets.loading.staging_area import create_directory
from airflow_kafka_offsets.spark.driver import write_manifest
from airflow_kafka_offsets.spark.job import Launcher, StageJob
from airflow_kafka_offsets.spark.tasks import stage_slices
from airflow_kafka_offsets.staging.dead_letters import dead_letters
from airflow_kafka_offsets.staging.directory import StagingDirectory
from airflow_kafka_offsets.staging.manifest import MANIFEST, Manifest
from airflow_kafka_offsets.staging.records import SCHEMA, write_records
from airflow_kafka_offsets.staging.refused import Record
from airflow_kafka_offsets.transforms.transform import as_transform

log = logging.getLogger(__name__)

Errors = dict[Record, tuple[str, str]]
"""What is wrong with records: the class of the error, and the reason."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """What became of the dead letters of a batch.

    :param records: how many were written, and are dead letters no more
    :param rows: how many rows the database reports
    :param still_bad: how many are dead letters still, with the reason of today
    """

    batch: int
    records: int
    rows: int
    still_bad: int


def replay_letters(
    letters: Letters,
    pipeline: Pipeline,
    *,
    engine: Engine,
    launcher: Launcher | None = None,
    corrected: Mapping[Record, bytes | None] | None = None,
    who: str | None = None,
    reason: str | None = None,
    connections: Connections | None = None,
) -> list[Replayed]:
    """Decode dead letters again, write their rows into the target, and remove the letters, batch by batch.

    Safe to run again at any time, and from two places at once: a letter is written and removed in the same transaction. Loads may go
    on meanwhile. Records that were too large to be kept are left out: raise `max_record_bytes`, and replay their offsets.

    :param pipeline: as it is now; its group is that of the letters
    :param launcher: runs a transform of DataFrames; without one, no Spark is started
    :param corrected: values to decode instead of those that the letters hold; only these letters are replayed then
    :param who: who does it, for the history
    :param connections: as for `load`
    :return: for each batch of theirs what became of them
    :raises ConfigurationError: they belong into another target, there is no such group, or a transform of DataFrames has no launcher
    :raises KafkaOffsetsError: see `exceptions`
    """
    pipeline = pipeline.prepared(connections or {}, engine)
    columns = pipeline.check()
    if pipeline.needs_spark_sql:
        if launcher is None:
            raise ConfigurationError(
                f"Transform {pipeline.transform_name!r} needs a launcher, such as SessionLauncher(spark)"
            )
        launcher.check(pipeline.staging_dir)
    ledger, who = Ledger(engine, pipeline.tables), who or current_user()
    with translated_errors(f"The dead letters of group {letters.group_id!r} were not replayed to the end"):
        with ledger.connect() as conn:
            cluster_of(conn, ledger.tables, letters.group_id)
            found = [
                letter if corrected is None else replace(letter, value=corrected[letter.record])
                for letter in read_letters(conn, ledger.tables, letters)
                if (letter.error_class != TOO_LARGE if corrected is None else letter.record in corrected)
            ]
            found = _of_target(conn, ledger.tables, found, pipeline.sink.name)
        target = pipeline.sink.prepare(
            engine, pipeline.result_columns(columns), may_grow=pipeline.on_new_field == "add"
        )
        replayed = []
        for batch_id, of_batch in groupby(found, attrgetter("batch_id")):
            some = list(of_batch)
            directory = create_directory(batch_id, pipeline.staging_dir)
            try:
                job = from_attributes(
                    StageJob,
                    pipeline,
                    transform=as_transform(pipeline.transform),
                    batch_id=batch_id,
                    slices=tuple(_write(directory, some)),
                    kafka_config={},
                    connections=connections or {},
                    columns=columns,
                    target=target,
                    fingerprint=pipeline.fingerprint(columns),
                    staging_uri=directory.uri,
                    python_path=tuple(filter(None, sys.path)) if pipeline.needs_path else (),
                    idle_timeout=pipeline.idle_timeout.total_seconds(),
                    on_bad_record="dead_letter",
                    max_dead_letters=None,
                    task_offsets=0,
                    span_ms=None,
                    progress_interval=StageJob.progress_interval,
                    records_are_staged=True,
                )
                staged = _stage(job, directory, launcher)
                replayed.append(_commit(ledger, letters.group_id, pipeline, some, staged, who, reason))
            finally:
                directory.remove()
    return replayed


def _of_target(conn: Connection, tables: Tables, letters: Sequence[Letter], target: str) -> list[Letter]:
    """Return the letters of batches that were loaded into a target.

    :raises ConfigurationError: there are letters, and all are of batches that were loaded elsewhere
    """
    batches = tables.offset_batches.c
    query = sa.select(batches.batch_id, batches.target_table, batches.target_table.in_(same_table_names(conn, target)))
    targets: dict[int, tuple[str, bool]] = {
        row[0]: (row[1], row[2])
        for row in conn.execute(query.where(batches.batch_id.in_(sorted({letter.batch_id for letter in letters}))))
    }
    found = [letter for letter in letters if targets[letter.batch_id][1]]
    if letters and not found:
        batch_id = letters[0].batch_id
        raise ConfigurationError(
            f"Batch {batch_id} was loaded into {targets[batch_id][0]!r}, and its dead letters belong there, not into {target!r}. "
            "Nothing was changed; name that table"
        )
    if len(found) < len(letters):
        elsewhere = sorted({name for name, is_target in targets.values() if not is_target})
        log.info(
            "%s of batches that were loaded into %s stay: they belong there",
            count(len(letters) - len(found), "dead letter"),
            first_few(map(repr, elsewhere)),
        )
    return found


def _write(directory: StagingDirectory, letters: Sequence[Letter]) -> Iterator[Slice]:
    """Write letters as records, and yield the slice of each partition."""
    partitions = groupby(letters, lambda letter: (letter.topic, letter.partition))
    for index, (tp, of_partition) in enumerate(partitions):
        some = list(of_partition)
        slice_ = Slice(index, *tp, some[0].offset, some[-1].offset + 1)
        records = [
            {
                "key": letter.key,
                "value": letter.value,
                "offset": letter.offset,
                "timestamp": letter.timestamp,
                "headers": _headers(letter.headers),
            }
            for letter in some
        ]
        write_records(directory, slice_, pa.RecordBatch.from_pylist(records, schema=SCHEMA))
        yield slice_


def _headers(text: str | None) -> list[dict[str, str | bytes | None]]:
    return [
        {"key": key, "value": None if value is None else base64.b64decode(value)}
        for key, value in json.loads(text or "[]")
    ]


def _stage(job: StageJob, directory: StagingDirectory, launcher: Launcher | None) -> StagedBatch:
    if job.dataframe_transform is None or launcher is None:
        # There are few of them: no Spark is needed to decode them.
        files = (file for number in range(len(job.tasks)) for file in stage_slices(job, [number]))
        manifest = write_manifest(job, directory, tuple(files))
    else:
        launcher(job)
        manifest = Manifest.from_json(directory.read_text(MANIFEST))
    return StagedBatch(directory, manifest, {})


def _commit(
    ledger: Ledger,
    group_id: str,
    pipeline: Pipeline,
    letters: Sequence[Letter],
    staged: StagedBatch,
    who: str,
    reason: str | None,
) -> Replayed:
    tables, batch_id = ledger.tables, letters[0].batch_id
    retried = replace(pipeline, on_bad_record="dead_letter", max_dead_letters=None)
    done, good = Replayed(batch_id, 0, 0, 0), list[Record]()

    def work(conn: Connection) -> Replayed:
        nonlocal done, good
        # A rewind or a replay that removes letters waits, or has removed them.
        lock(conn, tables, group_id)
        add_columns(conn, tables, batch_id, retried, staged)
        rows, staged_rows = write_rows(conn, retried, staged)
        errors = _errors(staged) | {record: ("target", why) for record, why in staged_rows.refused.reasons.items()}
        good = [letter.record for letter in letters if letter.record not in errors]
        if delete(conn, tables, batch_id, good) != len(good):
            raise LedgerError(
                f"Dead letters of batch {batch_id} were replayed or removed by somebody else meanwhile. Nothing of the batch was "
                "changed; look at the list again"
            )
        store_errors(conn, tables, batch_id, errors)
        done = Replayed(batch_id, len(good), rows, len(errors))
        if good:
            correct_history(conn, tables, batch_id, good, rows, who, reason)
        return done

    def look_up(conn: Connection) -> Replayed | None:
        # Until the server notices that the connection broke, the transaction is open and has the group locked.
        lock(conn, tables, group_id)
        is_first = is_of(tables, batch_id, good[:1])
        return done if good and not conn.scalar(sa.select(sa.func.count()).where(is_first)) else None

    result = transact(ledger.engine, work, outcome=look_up)
    log.info(
        "Replayed %s of batch %d into %s: %s; %s bad still",
        count(result.records, "dead letter"),
        batch_id,
        pipeline.sink.name,
        count(result.rows, "row"),
        f"{result.still_bad:,}",
    )
    return result


def _errors(staged: StagedBatch) -> Errors:
    return {
        Record(letter["topic"], letter["partition"], letter["offset"]): (letter["error_class"], letter["error"])
        for batch in dead_letters(staged.directory, staged.manifest)
        for letter in batch.to_pylist()
    }
