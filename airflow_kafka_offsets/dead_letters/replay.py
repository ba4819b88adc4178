"""Replay dead letters through the current pipeline. Each batch with dead letters gets a batch of kind `dead_letters`,
which is staged and committed like a load, except that its records are in the state tables, not in Kafka.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from itertools import groupby
from typing import ClassVar

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from airflow_kafka_offsets.core.chunks import chunks
from airflow_kafka_offsets.core.offsets import Slice, TopicPartition
from airflow_kafka_offsets.core.options import DeadLetters
from airflow_kafka_offsets.core.text import MAX_INT64, count, first_few
from airflow_kafka_offsets.database.errors import translated_errors
from airflow_kafka_offsets.dead_letters.selection import (
    DeadLetter,
    DeadLetterFilter,
    can_be_replayed,
    count_by_batch,
    read_dead_letters,
)
from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.formats.record_format import Connections
from airflow_kafka_offsets.kafka.producer import HEADER_BYTES
from airflow_kafka_offsets.ledger.batch_notes import schemas_of_group
from airflow_kafka_offsets.ledger.batch_rows import Batch, current_user
from airflow_kafka_offsets.ledger.dead_letter_batches import (
    Replayed,
    StillBadError,
    errors_of,
    record_dead_letter_batch,
    settle_dead_letter_batches,
)
from airflow_kafka_offsets.ledger.group_table import follow_rename
from airflow_kafka_offsets.ledger.groups import cluster_of
from airflow_kafka_offsets.ledger.publications import run_pending_cleanups
from airflow_kafka_offsets.ledger.tables import Ledger, Tables
from airflow_kafka_offsets.loading.commit import bad_records, stage_and_commit
from airflow_kafka_offsets.loading.context import BatchContext, LoadResult
from airflow_kafka_offsets.loading.load import prefer_fenced_error
from airflow_kafka_offsets.loading.pipeline import Pipeline
from airflow_kafka_offsets.loading.stage import stage
from airflow_kafka_offsets.loading.staging_area import check_staging, clean_up, remove_attempt
from airflow_kafka_offsets.sinks.target_names import TargetNames
from airflow_kafka_offsets.spark.job import Launcher
from airflow_kafka_offsets.spark.launchers import InProcessLauncher
from airflow_kafka_offsets.staging.arrow_files import SCHEMA, write_records
from airflow_kafka_offsets.staging.dead_letters import SCHEMA as DEAD_LETTERS
from airflow_kafka_offsets.staging.dead_letters import headers_of
from airflow_kafka_offsets.staging.directory import StagingDirectory
from airflow_kafka_offsets.staging.rows import Record, StagedRows

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class DeadLetterContext(BatchContext):
    """A replay of dead letters that is ready to run.

    :param dead_letters: which ones are replayed
    :param corrected: values to decode instead of theirs; only these records are replayed then
    """

    records_are_staged: ClassVar[bool] = True

    dead_letters: DeadLetterFilter
    corrected: Mapping[Record, bytes | None] | None

    def slices(self, batch: Batch, directory: StagingDirectory) -> Sequence[Slice]:
        """Write the dead letters of a batch as records, and return a slice for each of its ranges."""
        slices = {
            range_.topic_partition: Slice(index, *range_.topic_partition, range_.start, range_.end)
            for index, range_ in enumerate(batch.ranges)
        }
        unwritten = {slice_.index for slice_ in slices.values()}
        with self.ledger.connect() as conn:
            dead_letters = read_dead_letters(conn, self.ledger.tables, self.dead_letters, replayed_by=batch.batch_id)
            for tp, of_partition in groupby(
                dead_letters, lambda dead_letter: TopicPartition(dead_letter.topic, dead_letter.partition)
            ):
                write_records(directory, slices[tp].index, self._as_records(of_partition))
                unwritten.remove(slices[tp].index)
        for index in unwritten:
            # They were removed meanwhile, which the commit refuses.
            write_records(directory, index, ())
        return tuple(slices.values())

    def check_logs(self, batch: Batch) -> None:
        """Do nothing: dead letters stay what they are, whatever happens to their topic."""

    def refused_dead_letters(self, batch: Batch, rows: StagedRows) -> Iterator[pa.RecordBatch]:
        """Yield dead letters of the records that the target refuses, without what they hold: it is stored already."""
        refused = [
            {**record._asdict(), "error_class": "target", "error": reason}
            for record, reason in rows.refused.reasons.items()
        ]
        if refused:
            yield pa.RecordBatch.from_pylist(refused, schema=DEAD_LETTERS)

    def _as_records(self, dead_letters: Iterable[DeadLetter]) -> Iterator[pa.RecordBatch]:
        """Yield dead letters as Kafka's reader yields records."""

        def size(dead_letter: DeadLetter) -> int:
            headers = dead_letter.headers or ""
            own = len(headers) + HEADER_BYTES * headers.count("[")
            return len(dead_letter.key or b"") + len(dead_letter.value or b"") + own

        for some in chunks(iter(dead_letters), size):
            rows = [
                {
                    "key": dead_letter.key,
                    "value": dead_letter.value if self.corrected is None else self.corrected[dead_letter.record],
                    "offset": dead_letter.offset,
                    "timestamp": dead_letter.timestamp,
                    "headers": [
                        {"key": key, "value": value}
                        for key, value in headers_of(dead_letter.headers, *dead_letter.record)
                    ],
                }
                for dead_letter in some
            ]
            yield pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


def replay_dead_letters(
    dead_letters: DeadLetterFilter,
    pipeline: Pipeline,
    *,
    engine: Engine,
    launcher: Launcher | None = None,
    corrected: Mapping[int, Mapping[Record, bytes | None]] | None = None,
    who: str | None = None,
    reason: str | None = None,
    connections: Connections | None = None,
) -> list[Replayed]:
    """Decode dead letters again, write their rows into the target, and remove the dead letters, batch by batch.

    Each batch with dead letters is replayed by a batch of its own, of kind `dead_letters`. Safe to run again at any
    time, also in two processes at once: a later replay into the same target takes over from an earlier one, finishes
    the batch if the target has its rows, and abandons it otherwise. Loads of the group may run meanwhile. Dropped dead
    letters are left out, and so are, unless they are corrected, those that do not hold their record: it was too large,
    for which raise `Reading.max_record_bytes`, and replay the offsets; or it had expired (class `decoded`).

    :param dead_letters: which ones
    :param pipeline: as it is now; its group is that of the dead letters
    :param engine: the database of the target and the positions
    :param launcher: runs a DataFrame transform, and is closed at the end; None does not start Spark
    :param corrected: by the number of the batch that dead-lettered them, values to decode instead of those that the
        dead letters hold; only these are replayed then
    :param who: the author, for the history; None is the user of this process
    :param reason: a note for the history
    :param connections: as for `load`
    :return: the result for the dead letters of each batch; those of interrupted replays first
    :raises ConfigurationError: the dead letters belong in another target, the group does not exist, or a DataFrame
        transform has no launcher
    :raises KafkaOffsetsError: see `exceptions`
    """
    with (
        translated_errors(f"The dead letters of group {dead_letters.group_id!r} were not replayed to the end"),
        closing(launcher) if launcher is not None else nullcontext(),
    ):
        pipeline = pipeline.prepared(connections or {}, engine)
        columns = pipeline.check()
        ledger = Ledger(engine, pipeline.tables)
        with ledger.connect() as conn:
            cluster_of(conn, ledger.tables, dead_letters.group_id)
        follow_rename(ledger, pipeline.sink.name)
        with ledger.connect() as conn:
            counts = count_by_batch(conn, ledger.tables, dead_letters, corrected)
            batches = _of_target(conn, ledger.tables, dead_letters.group_id, counts, pipeline.sink.name)
            pipeline = _for_dead_letters(pipeline).with_schemas(
                schemas_of_group(conn, ledger.tables, dead_letters.group_id)
            )
        context = DeadLetterContext.connect(
            pipeline,
            columns,
            engine,
            connections,
            launcher=_launcher(pipeline, launcher),
            dead_letters=dead_letters,
            corrected=None,
        )
        replayed = settle_dead_letter_batches(ledger, context.table, dead_letters.group_id)
        clean_up(ledger, pipeline)
        for batch_id in batches:
            of_batch = replace(
                context,
                dead_letters=replace(dead_letters, batch_id=batch_id),
                corrected=None if corrected is None else corrected[batch_id],
            )
            done = _replay(of_batch, batch_id, who or current_user(), reason)
            replayed += [done] if done is not None else []
    return replayed


def _for_dead_letters(pipeline: Pipeline) -> Pipeline:
    """Return a pipeline in which a record that is bad still stays a dead letter, and no record is too large."""
    return replace(
        pipeline, on_bad_record=DeadLetters(limit=None), reading=replace(pipeline.reading, max_record_bytes=MAX_INT64)
    )


def _launcher(pipeline: Pipeline, launcher: Launcher | None) -> Launcher:
    """Return what stages dead letters: few records need no Spark, unless Spark SQL transforms them."""
    if not pipeline.needs_spark_sql:
        return InProcessLauncher()
    if launcher is None:
        raise ConfigurationError(
            f"Transform {pipeline.transform_name!r} needs a launcher, such as SessionLauncher(spark)"
        )
    launcher.check(pipeline.staging.dir)
    check_staging(pipeline.staging.dir)
    return launcher


def _replay(context: DeadLetterContext, source_id: int, who: str, reason: str | None) -> Replayed | None:
    """Plan, stage and commit the replay of the dead letters of a batch; return None where none are left."""
    claim = record_dead_letter_batch(
        context.ledger,
        context.pipeline.group_id,
        source_id,
        can_be_replayed(context.ledger.tables, context.dead_letters, corrected=context.corrected is not None),
        context.corrected,
        context.recipe,
        is_external=context.table.sink.commits_externally,
        who=who,
        reason=reason,
    )
    if claim is None:
        return None
    batch, began = claim.batch, time.monotonic()
    log.info(
        "Planned batch %d, a %s of group %r: %s of batch %d",
        batch.batch_id,
        claim.title,
        batch.group_id,
        count(claim.records, "dead letter"),
        source_id,
    )
    with prefer_fenced_error(claim):
        staged = stage(context, claim, batch)
        done, rest = LoadResult(), claim.leave_out(errors_of(bad_records(context, batch, staged)))
        while rest is not None:
            try:
                done = stage_and_commit(context, rest, batch, staged, began)
                break
            except StillBadError as refused:
                rest = rest.leave_out(refused.errors)
        else:
            # It may have begun to be published before the target refused the last record.
            run_pending_cleanups(context.ledger, context.table, batch.group_id)
            remove_attempt(batch.batch_id, staged.directory.uri, context.pipeline.staging.dir)
    still_bad = claim.records - done.records
    of_batch = f"{count(claim.records, 'replayed dead letter')} of batch {source_id}"
    log.info("Of %s, %s bad still", of_batch, f"{still_bad:,} {'is' if still_bad == 1 else 'are'}")
    return Replayed(source_id, done.records, done.rows, still_bad, batch.batch_id)


def _of_target(conn: Connection, tables: Tables, group_id: str, counts: Mapping[int, int], target: str) -> list[int]:
    """Return the batches with dead letters of a group that were loaded into a target.

    :param counts: of the dead letters, by batch
    :raises ConfigurationError: there are dead letters, and all are of batches that were loaded into another target
    """
    batches, dead = tables.offset_batches.c, tables.dead_letters.c
    of_group = sa.select(dead.batch_id).where(dead.consumer_group == group_id)
    query = sa.select(batches.batch_id, batches.target_table).where(batches.batch_id.in_(of_group))
    names = TargetNames(conn, tables.offset_batches)
    targets = {row.batch_id: row.target_table for row in conn.execute(query)}
    # Those of other batches were removed since they were counted.
    counts = {batch_id: number for batch_id, number in counts.items() if batch_id in targets}
    found = [batch_id for batch_id in sorted(counts) if names.same(targets[batch_id], target)]
    if counts and not found:
        batch_id = min(counts)
        raise ConfigurationError(
            f"Batch {batch_id} was loaded into {targets[batch_id]!r}, and its dead letters belong there, not in "
            f"{target!r}. Nothing was changed; name that table"
        )
    if len(found) < len(counts):
        others = sorted({targets[batch_id][0] for batch_id in counts.keys() - set(found)})
        log.info(
            "%s of batches that were loaded into %s stay: they belong there",
            count(sum(counts.values()) - sum(counts[batch_id] for batch_id in found), "dead letter"),
            first_few(map(repr, others)),
        )
    return found
