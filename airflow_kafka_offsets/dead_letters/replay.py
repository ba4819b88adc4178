"""Put dead letters through the pipeline as it is now. One transaction for each batch writes their rows and removes the
letters.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from itertools import groupby

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from airflow_kafka_offsets.core.chunks import chunks
from airflow_kafka_offsets.core.offsets import Slice
from airflow_kafka_offsets.core.options import DeadLetters
from airflow_kafka_offsets.core.text import MAX_INT64, count, first_few
from airflow_kafka_offsets.database.errors import translated_errors
from airflow_kafka_offsets.database.transactions import transact
from airflow_kafka_offsets.dead_letters.selection import (
    TOO_LARGE,
    DeadLetter,
    DeadLetterFilter,
    count_by_batch,
    read_dead_letters,
)
from airflow_kafka_offsets.exceptions import ConfigurationError, LedgerError
from airflow_kafka_offsets.formats.record_format import Connections
from airflow_kafka_offsets.ledger.batch_outputs import note_outputs
from airflow_kafka_offsets.ledger.batch_rows import current_user
from airflow_kafka_offsets.ledger.batch_schemas import schemas_of_group, store_schemas
from airflow_kafka_offsets.ledger.dead_letters import DROPPED
from airflow_kafka_offsets.ledger.groups import cluster_of, lock
from airflow_kafka_offsets.ledger.published_dead_letters import (
    begin_publishing_dead_letters,
    dead_letters_output,
    finish_publishing_dead_letters,
)
from airflow_kafka_offsets.ledger.replayed_dead_letters import correct_history, delete, is_of, store_errors
from airflow_kafka_offsets.ledger.tables import Ledger, Tables
from airflow_kafka_offsets.loading.commit import add_columns, write_rows
from airflow_kafka_offsets.loading.pipeline import Pipeline
from airflow_kafka_offsets.loading.stage import StagedBatch, job_of, launch
from airflow_kafka_offsets.loading.staging_area import create_directory
from airflow_kafka_offsets.sinks.table import Output, Table
from airflow_kafka_offsets.sinks.target_names import same_table_names
from airflow_kafka_offsets.spark.driver import stage_here
from airflow_kafka_offsets.spark.job import Launcher, StageJob
from airflow_kafka_offsets.staging.dead_letters import dead_letters, headers_of
from airflow_kafka_offsets.staging.directory import StagingDirectory
from airflow_kafka_offsets.staging.manifest import MANIFEST, Manifest
from airflow_kafka_offsets.staging.records import SCHEMA, write_records
from airflow_kafka_offsets.staging.refused import Record

log = logging.getLogger(__name__)

# Conditions of a statement: databases limit the number of bound values.
_AT_ONCE = 200

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


def replay_dead_letters(
    letters: DeadLetterFilter,
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

    Safe to run again at any time, and from two places at once: a letter is written and removed in the same transaction.
    Loads may go on meanwhile. Records that were too large to be kept are left out: raise `Reading.max_record_bytes`,
    and replay their offsets. So are dropped ones. A replay that died after a target elsewhere had its rows is finished
    first, whichever letters it was of.

    :param letters: which ones
    :param pipeline: as it is now; its group is that of the letters
    :param engine: the database of the target and the positions
    :param launcher: runs a transform of DataFrames, and is closed at the end; without one, no Spark is started
    :param corrected: values to decode instead of those that the letters hold; only these letters are replayed then
    :param who: who does it, for the history; None is the user of this process
    :param reason: why, for the history
    :param connections: as for `load`
    :return: for each batch of theirs what became of them
    :raises ConfigurationError: they belong into another target, there is no such group, or a transform of DataFrames
        has no launcher
    :raises KafkaOffsetsError: see `exceptions`
    """
    with (
        translated_errors(f"The dead letters of group {letters.group_id!r} were not replayed to the end"),
        closing(launcher) if launcher is not None else nullcontext(),
    ):
        pipeline = pipeline.prepared(connections or {}, engine)
        columns = pipeline.check()
        table = pipeline.sink.connect(engine, connections)
        if pipeline.needs_spark_sql:
            if launcher is None:
                raise ConfigurationError(
                    f"Transform {pipeline.transform_name!r} needs a launcher, such as SessionLauncher(spark)"
                )
            launcher.check(pipeline.staging.dir)
        ledger, who = Ledger(engine, pipeline.tables), who or current_user()
        with ledger.connect() as conn:
            cluster_of(conn, ledger.tables, letters.group_id)
        # The letters that remain are those that no earlier replay has written.
        finished = finish_publishing_dead_letters(ledger, table, letters.group_id)
        replayed = [Replayed(batch_id, records, rows, 0) for batch_id, records, rows in finished]
        with ledger.connect() as conn:
            counts = count_by_batch(conn, ledger.tables, letters, corrected)
            batches = _of_target(conn, ledger.tables, counts, pipeline.sink.name)
            pipeline = pipeline.with_schemas(schemas_of_group(conn, ledger.tables, letters.group_id))
        target = table.prepare(pipeline.result_columns(columns), may_grow=pipeline.adds_columns)
        for batch_id in batches:
            directory = create_directory(batch_id, pipeline.staging.dir)
            try:
                with ledger.connect() as conn:
                    found = read_dead_letters(conn, ledger.tables, replace(letters, batch_id=batch_id))
                    slices, records = _write(directory, _as_they_are_now(found, corrected))
                if not records:  # somebody else was quicker
                    continue
                output = dead_letters_output(ledger, table, letters.group_id, batch_id, directory.name)
                job = job_of(
                    pipeline,
                    directory,
                    table,
                    output,
                    batch_id=batch_id,
                    slices=slices,
                    kafka_config={},
                    connections=connections or {},
                    columns=columns,
                    target=target,
                    fingerprint=pipeline.fingerprint(columns),
                    span_ms=None,
                    has_dead_letters=True,
                    max_dead_letters=None,
                    # What is kept already is not measured again.
                    max_record_bytes=MAX_INT64,
                    records_are_staged=True,
                )
                staged = _stage(job, directory, launcher)
                replayed.append(
                    _commit(ledger, letters.group_id, pipeline, table, output, records, staged, who, reason)
                )
            finally:
                directory.remove()
    return replayed


def _as_they_are_now(
    letters: Iterable[DeadLetter], corrected: Mapping[Record, bytes | None] | None
) -> Iterator[DeadLetter]:
    """Yield the letters that can be replayed, with corrected values."""
    for letter in letters:
        if letter.error_class == DROPPED:
            continue  # without its value it would be a tombstone
        if corrected is None:
            if letter.error_class != TOO_LARGE:
                yield letter
        elif letter.record in corrected:
            yield replace(letter, value=corrected[letter.record])


def _of_target(conn: Connection, tables: Tables, counts: Mapping[int, int], target: str) -> list[int]:
    """Return the batches with dead letters that were loaded into a target.

    :param counts: of the dead letters, by batch
    :raises ConfigurationError: there are letters, and all are of batches that were loaded elsewhere
    """
    batches = tables.offset_batches.c
    query = sa.select(batches.batch_id, batches.target_table, batches.target_table.in_(same_table_names(conn, target)))
    targets: dict[int, tuple[str, bool]] = {}
    for first in range(0, len(counts), _AT_ONCE):
        some = query.where(batches.batch_id.in_(sorted(counts)[first : first + _AT_ONCE]))
        targets |= {row[0]: (row[1], row[2]) for row in conn.execute(some)}
    found = [batch_id for batch_id in sorted(counts) if targets[batch_id][1]]
    if counts and not found:
        batch_id = min(counts)
        raise ConfigurationError(
            f"Batch {batch_id} was loaded into {targets[batch_id][0]!r}, and its dead letters belong there, not into "
            f"{target!r}. Nothing was changed; name that table"
        )
    if len(found) < len(counts):
        elsewhere = sorted({name for name, is_target in targets.values() if not is_target})
        log.info(
            "%s of batches that were loaded into %s stay: they belong there",
            count(sum(counts.values()) - sum(counts[batch_id] for batch_id in found), "dead letter"),
            first_few(map(repr, elsewhere)),
        )
    return found


def _write(directory: StagingDirectory, letters: Iterable[DeadLetter]) -> tuple[list[Slice], list[Record]]:
    """Write letters of a batch as records; return the slice of each partition, and which records there are."""
    slices, records = list[Slice](), list[Record]()
    for index, (tp, of_partition) in enumerate(groupby(letters, lambda letter: (letter.topic, letter.partition))):
        first = len(records)
        write_records(directory, index, _as_records(of_partition, records))
        slices.append(Slice(index, *tp, records[first].offset, records[-1].offset + 1))
    return slices, records


def _as_records(letters: Iterator[DeadLetter], records: list[Record]) -> Iterator[pa.RecordBatch]:
    """Yield letters as Kafka's reader yields records, and add which they are to a list."""
    for some in chunks(
        letters, lambda letter: len(letter.key or b"") + len(letter.value or b"") + len(letter.headers or "")
    ):
        records += [letter.record for letter in some]
        rows = [
            {
                "key": letter.key,
                "value": letter.value,
                "offset": letter.offset,
                "timestamp": letter.timestamp,
                "headers": [{"key": key, "value": value} for key, value in headers_of(letter.headers)],
            }
            for letter in some
        ]
        yield pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


def _stage(job: StageJob, directory: StagingDirectory, launcher: Launcher | None) -> StagedBatch:
    if job.dataframe_transform is None or launcher is None:
        manifest = stage_here(job)
    else:
        launch(launcher, job, directory)
        manifest = Manifest.from_json(directory.read_text(MANIFEST))
    return StagedBatch(directory, manifest, {})


def _commit(
    ledger: Ledger,
    group_id: str,
    pipeline: Pipeline,
    table: Table,
    output: Output,
    records: Sequence[Record],
    staged: StagedBatch,
    who: str,
    reason: str | None,
) -> Replayed:
    tables, batch_id = ledger.tables, staged.manifest.batch_id
    retried = replace(pipeline, on_bad_record=DeadLetters(limit=None))
    is_elsewhere = retried.sink.commits_externally
    errors = _errors(staged)
    done, good = Replayed(batch_id, 0, 0, 0), list[Record]()

    def write(conn: Connection) -> int:
        nonlocal good
        # What a target commits elsewhere is committed at the end of the block: what may be refused comes before.
        with table.publish(conn, output) as target:
            add_columns(conn, tables, batch_id, retried, target, staged)
            rows, staged_rows = write_rows(conn, retried, target, staged)
            note_outputs(conn, tables, batch_id, target)
            refused = {record: ("target", why) for record, why in staged_rows.refused.reasons.items()}
            if is_elsewhere and not refused.keys() <= errors.keys():
                raise _RefusedRowsError(refused)
            good = [record for record in records if record not in errors and record not in refused]
            if delete(conn, tables, batch_id, good, output.attempt if is_elsewhere else None) != len(good):
                raise LedgerError(
                    f"Dead letters of batch {batch_id} were replayed or removed by somebody else meanwhile, or "
                    "dropped. Nothing of the batch was changed; look at the list again"
                )
            store_errors(conn, tables, batch_id, errors | refused)
        return rows

    def work(conn: Connection) -> Replayed:
        nonlocal done
        # A rewind or a replay that removes letters waits, or has removed them.
        lock(conn, tables, group_id)
        if good or not is_elsewhere:
            rows = write(conn)
        else:  # a target elsewhere needs no commit for nothing
            rows = 0
            store_errors(conn, tables, batch_id, errors)
        store_schemas(conn, tables, batch_id, staged.manifest.schemas)
        done = Replayed(batch_id, len(good), rows, len(records) - len(good))
        if good:
            correct_history(conn, tables, batch_id, good, rows, who, reason)
        return done

    def look_up(conn: Connection) -> Replayed | None:
        # Until the server notices that the connection broke, the transaction is open and has the group locked.
        lock(conn, tables, group_id)
        is_first = is_of(tables, batch_id, good[:1])
        return done if good and not conn.scalar(sa.select(sa.func.count()).where(is_first)) else None

    earlier = 0
    while True:
        good = [record for record in records if record not in errors]
        if is_elsewhere:
            begin_publishing_dead_letters(ledger, output, good, earlier)
            earlier = len(good)
        try:
            result = transact(ledger.engine, work, outcome=look_up)
            break
        except _RefusedRowsError as refused:
            # Nothing was written: only of the others the target may have rows.
            errors |= refused.errors
    log.info(
        "Replayed %s of batch %d into %s: %s; %s bad still",
        count(result.records, "dead letter"),
        batch_id,
        pipeline.sink.name,
        count(result.rows, "row"),
        f"{result.still_bad:,}",
    )
    return result


class _RefusedRowsError(Exception):
    """A target elsewhere refuses rows of records that are not known as bad yet."""

    def __init__(self, errors: Errors) -> None:
        self.errors = errors


def _errors(staged: StagedBatch) -> Errors:
    return {
        Record(letter["topic"], letter["partition"], letter["offset"]): (letter["error_class"], letter["error"])
        for batch in dead_letters(staged.directory, staged.manifest)
        for letter in batch.to_pylist()
    }
