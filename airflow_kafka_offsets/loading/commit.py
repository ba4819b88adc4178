"""Step 3: commit the rows and dead letters of a batch, with its positions, in one transaction."""

from __future__ import annotations

import logging
import time
from collections import Counter
from datetime import timedelta

from sqlalchemy.engine import Connection

from airflow_kafka_offsets.core.text import first_few
from airflow_kafka_offsets.ledger.batch_rows import Batch
from airflow_kafka_offsets.ledger.claims import Claim
from airflow_kafka_offsets.ledger.commit_transaction import commit_batch, write_dead_letters
from airflow_kafka_offsets.ledger.replaced_output import replace_output
from airflow_kafka_offsets.loading.context import Commit, LoadContext, LoadResult
from airflow_kafka_offsets.loading.stage import StagedBatch
from airflow_kafka_offsets.loading.staging_area import remove_attempt
from airflow_kafka_offsets.staging.dead_letters import dead_letters, too_many
from airflow_kafka_offsets.staging.rows import StagedRows

log = logging.getLogger(__name__)


def commit(context: LoadContext, claim: Claim, batch: Batch, staged: StagedBatch, began: float) -> LoadResult:
    """Commit a staged batch in one transaction, then remove its files, and report it.

    :param began: when this attempt started with the batch, by the monotonic clock
    :raises DeadLetterError: more records could not be decoded than the pipeline allows
    """
    pipeline, tables = context.pipeline, context.ledger.tables
    most = pipeline.max_dead_letters
    if most is not None and staged.dead_letters > most:
        first = next(dead_letters(staged.directory, staged.manifest)).slice(0, 1).to_pylist()[0]
        cause = f"{staged.dead_letters:,} of {staged.records:,} records of batch {batch.batch_id} cannot be decoded"
        raise too_many(cause, most, first["topic"], first["partition"], first["offset"], first["error"])
    commit_began = time.monotonic()
    rows = StagedRows(staged.directory, staged.manifest)
    schema = rows.schema()
    if schema is not None:
        # Again: only now a transform's columns are known, and the target may have changed since the batch was planned.
        pipeline.sink.prepare(context.ledger.engine, schema)

    def write(conn: Connection) -> int:
        pipeline.sink.refuse_unknown_rows(conn, tables.offset_batches, batch.batch_id)
        if context.replace:
            replace_output(conn, tables, batch.group_id, batch.batch_id, pipeline.sink)
        write_dead_letters(conn, tables, batch, dead_letters(staged.directory, staged.manifest))
        return pipeline.sink.write(conn, rows)

    count = commit_batch(claim, batch, staged.reads, write)
    log.info(
        "Committed batch %d, a %s of group %r: %s records, %s rows into %s%s in %.1f s: %s",
        batch.batch_id,
        claim.kind,
        batch.group_id,
        f"{staged.records:,}",
        f"{count:,}",
        pipeline.sink.name,
        f", {staged.dead_letters:,} dead letters" if staged.dead_letters else "",
        time.monotonic() - commit_began,
        first_few(batch.ranges),
    )
    remove_attempt(batch.batch_id, staged.directory.uri, pipeline.staging_dir)
    if context.on_commit is not None:
        records: Counter[str] = Counter()
        bad: Counter[str] = Counter()
        for tp, read in staged.reads.items():
            records[tp.topic] += read.records or 0
            bad[tp.topic] += read.dead_letters
        duration = timedelta(seconds=time.monotonic() - began)
        try:
            context.on_commit(Commit(batch.group_id, claim.kind, records, bad, count, duration))
        except Exception:
            # The batch is committed, and the load goes on.
            log.exception("on_commit failed for batch %d of group %r", batch.batch_id, batch.group_id)
    return LoadResult((batch.batch_id,), staged.records, count, staged.dead_letters)
