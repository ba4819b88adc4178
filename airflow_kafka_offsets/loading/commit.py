"""Step 3: commit the rows and dead letters of a batch, with its positions, in one transaction.

The digests of the files are checked while they are read within the transaction. If a file is damaged, the batch is
staged again.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta

import pyarrow as pa
from sqlalchemy.engine import Connection

from airflow_kafka_offsets.core.text import count, first_few
from airflow_kafka_offsets.exceptions import StagedFileError
from airflow_kafka_offsets.ledger.batch_notes import note_added_columns, note_outputs, store_schemas
from airflow_kafka_offsets.ledger.batch_rows import Batch, latest_batch
from airflow_kafka_offsets.ledger.claims import Claim
from airflow_kafka_offsets.ledger.commit_transaction import Written, commit_batch
from airflow_kafka_offsets.ledger.dead_letters import drop_expired
from airflow_kafka_offsets.ledger.publications import Publication
from airflow_kafka_offsets.ledger.replaced_output import refuse_compacted, replace_output
from airflow_kafka_offsets.ledger.tables import Tables
from airflow_kafka_offsets.loading.context import BatchContext, Commit, LoadResult, with_refused
from airflow_kafka_offsets.loading.pipeline import Pipeline
from airflow_kafka_offsets.loading.stage import StagedBatch, stage
from airflow_kafka_offsets.loading.staging_area import remove_attempt
from airflow_kafka_offsets.sinks.table import Target
from airflow_kafka_offsets.staging.dead_letters import dead_letters, too_many
from airflow_kafka_offsets.staging.manifest import MANIFEST
from airflow_kafka_offsets.staging.rows import RefusedRecords, StagedRows

log = logging.getLogger(__name__)


def stage_and_commit(
    context: BatchContext,
    claim: Claim,
    batch: Batch,
    staged: StagedBatch | None,
    began: float,
    prefetch: Callable[[Batch, StagedBatch], AbstractContextManager[None]] = lambda *_: nullcontext(),
) -> LoadResult:
    """Stage a batch, if no earlier attempt has, and commit it. If its files are damaged, do both once more.

    :param staged: the files that an earlier attempt completed
    :param began: when this attempt started with the batch, by the monotonic clock
    :param prefetch: a context manager around the commit of the staged batch; if the commit fails, it has stopped
    :raises StagedFileError: the files are damaged again; the next attempt stages the batch again
    :raises TopicRecreatedError: a topic that has to be read again was recreated
    :raises LogTruncatedError: a log that has to be read again was truncated
    """
    try:
        staged = staged or stage(context, claim, batch)
        with prefetch(batch, staged):
            return commit(context, claim, batch, staged, began)
    except StagedFileError as damaged:
        log.warning("Batch %d is staged again: %s", batch.batch_id, damaged)
    # An earlier attempt staged the files: the topic may be another one by now.
    context.check_logs(batch)
    try:
        return commit(context, claim, batch, stage(context, claim, batch), began)
    except StagedFileError as damaged:
        raise StagedFileError(
            f"Files of batch {batch.batch_id} were damaged twice, and nothing of it was committed: {damaged}. Find "
            "out what changes or removes files in the staging directory, and run the task again, which stages the "
            "batch again"
        ) from damaged


def commit(context: BatchContext, claim: Claim, batch: Batch, staged: StagedBatch, began: float) -> LoadResult:
    """Commit a staged batch in one transaction, then remove its files, and report it.

    :param began: when this attempt started with the batch, by the monotonic clock
    :raises DeadLetterError: more records could not be decoded than the pipeline allows
    :raises DataLossError: it would replace output of records that Kafka no longer has
    :raises StagedFileError: a file is missing, or not as it was written; nothing was committed
    """
    pipeline, publication = context.pipeline, context.publication(batch, claim.kind, staged.directory.name)
    if {file.branch for file in staged.manifest.files} - set(pipeline.sink.branch_numbers):
        raise StagedFileError(f"{MANIFEST} names a branch that the sink does not have")
    if staged.manifest.columns is not None and not pipeline.sink.writes_files:
        raise StagedFileError(f"{MANIFEST} names final files, and the sink has none")
    _refuse_too_many(pipeline, batch, staged)
    commit_began = time.monotonic()
    schema = StagedRows(staged.directory, staged.manifest).schema()
    if schema is not None:
        # Again: only now a transform's columns are known, and the target may have changed since the batch was planned.
        context.checks.prepare(schema)
    if not staged.is_lost:
        refused = _staged_rows(pipeline, staged).refused.reasons
        reads = claim.written_reads(with_refused(staged.reads, refused))
        if context.replace and not (context.skips_lost or batch.span or batch.is_publishing):
            with context.ledger.connect() as conn:
                refuse_compacted(conn, context.ledger.tables, batch, pipeline.sink.name, reads)
        publication.begin(claim, batch, reads, replace=context.replace)
    written = commit_batch(claim, batch, lambda conn: _write(conn, context, claim, batch, staged, publication))
    context.checks.note_committed(batch.batch_id)
    dead_letters, seconds = written.dead_letters, time.monotonic() - commit_began
    log.info(
        "Committed batch %d, a %s of group %r: %s, %s into %s%s in %.1f s (%s rows/s): %s",
        batch.batch_id,
        claim.title,
        batch.group_id,
        count(written.records, "record"),
        count(written.rows, "row"),
        written.into,
        f", {count(dead_letters, 'dead letter')}" if dead_letters else "",
        seconds,
        f"{written.rows / max(seconds, 0.001):,.0f}",
        first_few(batch.ranges),
    )
    _warn_of_nulls(context, batch, staged)
    remove_attempt(batch.batch_id, staged.directory.uri, pipeline.staging.dir)
    _report(context, claim, batch, written, timedelta(seconds=time.monotonic() - began))
    return LoadResult((batch.batch_id,), written.records, written.rows, dead_letters)


def _warn_of_nulls(context: BatchContext, batch: Batch, staged: StagedBatch) -> None:
    """Warn of columns without a value in the first batch that is loaded so: their names may be misspelt."""
    if not staged.manifest.nulls:
        return
    tables, fingerprint = context.ledger.tables, context.recipe.fingerprint
    batches = tables.offset_batches.c
    same = batches.fingerprint == fingerprint, batches.state == "committed", batches.batch_id != batch.batch_id
    with context.ledger.connect() as conn:
        if conn.scalar(latest_batch(tables, batch.group_id, *same)) is not None:
            return
    log.warning(
        "In all rows of batch %d, the first one with these columns, %s null: compare the names, also in upper and "
        "lower case, with the fields of the records. A column that is declared NOT NULL refuses records without it",
        batch.batch_id,
        f"{first_few(map(repr, staged.manifest.nulls))} {'is' if len(staged.manifest.nulls) == 1 else 'are'}",
    )


def _refuse_too_many(pipeline: Pipeline, batch: Batch, staged: StagedBatch) -> None:
    most = pipeline.most_dead_letters(staged.records)
    if most is not None and staged.dead_letters > most:
        first = next(dead_letters(staged.directory, staged.manifest)).slice(0, 1).to_pylist()[0]
        cause = f"{staged.dead_letters:,} of {staged.records:,} records of batch {batch.batch_id} cannot be decoded"
        raise too_many(cause, most, first["topic"], first["partition"], first["offset"], first["error"])


def _write(
    conn: Connection, context: BatchContext, claim: Claim, batch: Batch, staged: StagedBatch, publication: Publication
) -> Written:
    """Write rows and dead letters within the transaction of the commit."""
    pipeline, tables = context.pipeline, context.ledger.tables
    # A target that commits externally does so at the end of the block.
    with publication.open(conn) as target:
        # First, as it may lock the target: a lock that others of this transaction hold could not be made a stronger
        # one.
        _add_columns(conn, tables, batch.batch_id, pipeline, target, staged)
        context.checks.refuse_unknown_rows(conn, publication.output)
        if context.replace:
            replace_output(conn, tables, batch.group_id, batch.batch_id, pipeline.sink.name, target.remove, batch.span)
        claim.write_dead_letters(conn, batch, dead_letters(staged.directory, staged.manifest))
        rows = _staged_rows(pipeline, staged)
        # If the target has the batch, it does not refuse its records once more. Final files are refused by tasks.
        refuses_once = publication.is_external and not pipeline.sink.writes_files and not staged.is_lost
        if refuses_once:
            rows.refuse_kept()
        number = _write_rows(conn, pipeline, target, rows)
        if refuses_once:
            rows.keep_refused()
        claim.write_dead_letters(conn, batch, context.refused_dead_letters(batch, rows))
        # At the end: a text that is new to the database is locked from here to COMMIT.
        store_schemas(conn, tables, batch.batch_id, staged.manifest.schemas)
        note_outputs(conn, tables, batch.batch_id, target)
        kept = pipeline.dead_letters
        if kept is not None and kept.retention is not None:
            drop_expired(conn, tables, batch.group_id, kept.retention)
        reads = claim.written_reads(with_refused(staged.reads, rows.refused.reasons))
        return Written(number, reads, _described(pipeline, target), None if kept is None else kept.topic)


def bad_records(context: BatchContext, batch: Batch, staged: StagedBatch) -> Iterator[pa.RecordBatch]:
    """Yield dead letters of the records that are known before the commit to become no row.

    :return: record batches with the columns of `staging.dead_letters.SCHEMA`
    :raises StagedFileError: a file is missing, or not as it was written
    """
    yield from dead_letters(staged.directory, staged.manifest)
    yield from context.refused_dead_letters(batch, _staged_rows(context.pipeline, staged))


def _report(context: BatchContext, claim: Claim, batch: Batch, written: Written, duration: timedelta) -> None:
    """Call `on_commit`."""
    if context.on_commit is None:
        return
    records: Counter[str] = Counter()
    bad: Counter[str] = Counter()
    for tp, read in written.reads.items():
        records[tp.topic] += read.records or 0
        bad[tp.topic] += read.dead_letters
    try:
        context.on_commit(Commit(batch.group_id, claim.kind, records, bad, written.rows, duration))
    except Exception:
        # The batch is committed, and the load goes on.
        log.exception("on_commit failed for batch %d of group %r", batch.batch_id, batch.group_id)


def _described(pipeline: Pipeline, target: Target) -> str:
    """Return the name of the target for the log; of several targets, also the rows of each."""
    counts = ", ".join(f"{name} {output.rows:,}" for name, output in target.written.items())
    return f"{pipeline.sink.name} ({counts})" if counts else pipeline.sink.name


def _add_columns(
    conn: Connection, tables: Tables, batch_id: int, pipeline: Pipeline, target: Target, staged: StagedBatch
) -> None:
    """Add the columns that the target lacks, within a transaction, and note them in the history of the batch."""
    schema = StagedRows(staged.directory, staged.manifest).schema() if pipeline.adds_columns else None
    added = target.add_columns(schema) if schema is not None else []
    if added:
        note_added_columns(conn, tables, batch_id, added)
        log.info("Batch %d adds columns to %s: %s", batch_id, pipeline.sink.name, first_few(map(repr, added)))


def _write_rows(conn: Connection, pipeline: Pipeline, target: Target, rows: StagedRows) -> int:
    """Write staged rows within a transaction, without those of records that the target refuses.

    :return: how many rows the target reports
    """
    if pipeline.transform is None:
        return target.write(rows)
    while True:
        attempt, known = conn.begin_nested(), len(rows.refused.reasons)
        number = target.write(rows)
        # Rows of records that were refused before are left out.
        if len(rows.refused.reasons) == known or not rows.wrote_refused():
            attempt.commit()
            return number
        # Of a record that is a dead letter no other row may stay either.
        attempt.rollback()


def _staged_rows(pipeline: Pipeline, staged: StagedBatch) -> StagedRows:
    """Return staged rows, with the records whose rows Spark's tasks could not write into final files."""
    refused = RefusedRecords(
        pipeline.dead_letters is not None,
        reads=staged.manifest.reads,
        undecoded=staged.dead_letters,
        max_dead_letters=pipeline.most_dead_letters(staged.records),
    )
    rows = StagedRows(staged.directory, staged.manifest, refused)
    rows.refuse_staged()
    return rows
