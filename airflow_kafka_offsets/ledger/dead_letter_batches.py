"""Batches of kind `dead_letters`: each replays dead letters of one earlier batch through the pipeline.

A dead letter names the batch that replays it (`replayed_by`). The commit of that batch deletes it, and records in
`replaced_output` the number of dead letters that the earlier batch has lost. An interrupted replay is not resumed: the
next one of the group into the same target finishes its batch if the target has the rows, and abandons it otherwise.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Container, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from itertools import groupby
from typing import Any, ClassVar

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_kafka_offsets.core.chunks import portions
from airflow_kafka_offsets.core.history import DEAD_LETTERS, OPEN_STATES
from airflow_kafka_offsets.core.offsets import OffsetRange, TopicPartition
from airflow_kafka_offsets.core.planning import Plan
from airflow_kafka_offsets.core.text import count
from airflow_kafka_offsets.database.transactions import database_now, transact
from airflow_kafka_offsets.exceptions import FencedError, LedgerError
from airflow_kafka_offsets.ledger.batch_notes import note_added_columns, note_outputs
from airflow_kafka_offsets.ledger.batch_rows import Batch, Recipe, TaskRun, as_batch, insert_batch, update_open
from airflow_kafka_offsets.ledger.claims import BatchClaim
from airflow_kafka_offsets.ledger.commit_transaction import Written, commit_batch
from airflow_kafka_offsets.ledger.dead_letters import DROPPED, WITHOUT_RECORD, may_be_published
from airflow_kafka_offsets.ledger.groups import lock, stored_generation
from airflow_kafka_offsets.ledger.positions import Reads, without_dead_letters
from airflow_kafka_offsets.ledger.publications import Publication, published_reads, run_pending_cleanups
from airflow_kafka_offsets.ledger.tables import Ledger, Tables
from airflow_kafka_offsets.sinks.table import Table
from airflow_kafka_offsets.sinks.target_names import TargetNames
from airflow_kafka_offsets.staging.rows import Record, StagedRows

log = logging.getLogger(__name__)

# Conditions of a statement: databases limit the number of bound values.
_AT_ONCE = 200

_INTERRUPTED = "a later replay of dead letters took over: this one was interrupted, or still running"


class StillBadError(Exception):
    """A target refuses more records: either all of them, or it commits externally.

    :ivar errors: the errors of these and other records
    """

    def __init__(self, errors: list[dict[str, Any]]) -> None:
        super().__init__()
        self.errors = errors


@dataclass(frozen=True, slots=True)
class DeadLetterClaim(BatchClaim):
    """An open batch that replays dead letters, and the right to write it until a later replay takes it over.

    :param source_id: the batch that dead-lettered the records
    :param records: how many dead letters the commit deletes
    :param is_external: whether the target commits externally
    """

    kind: ClassVar[str] = DEAD_LETTERS
    title: ClassVar[str] = "replay of dead letters"

    source_id: int
    records: int
    is_external: bool

    def is_own(self) -> sa.ColumnElement[bool]:
        """Return the condition for the dead letters of the batch."""
        dead_letters = self.ledger.tables.dead_letters.c
        return sa.and_(dead_letters.batch_id == self.source_id, dead_letters.replayed_by == self.batch.batch_id)

    def begin_commit(self, conn: Connection, batch: Batch) -> None:
        """Lock the group and the batch, and check that all dead letters of the batch are still there.

        Rewinds and replays that remove dead letters lock the group too.

        :raises FencedError: a later replay has taken the batch over
        :raises LedgerError: a dead letter is not there any more, or its contents were dropped
        """
        tables = self.ledger.tables
        lock(conn, tables, self.group_id)
        self.lock(conn)
        kept = self.is_own() & tables.dead_letters.c.error_class.is_distinct_from(DROPPED)
        if _count(conn, tables, kept).total() != self.records:
            raise LedgerError(
                f"Dead letters of batch {self.source_id} were replayed or removed by another process meanwhile, or "
                "dropped. Nothing of the batch was changed; list the dead letters again"
            )

    def write_dead_letters(self, conn: Connection, batch: Batch, dead_letters: Iterable[pa.RecordBatch]) -> None:
        """Store the errors of records that are still bad: their dead letters stay.

        :raises StillBadError: no record is left, or the target commits externally and one was not left out before
        """
        errors = errors_of(dead_letters)
        if self._leave_out(conn, errors) and (self.is_external or not _count(conn, self.ledger.tables, self.is_own())):
            raise StillBadError(errors)

    def written_reads(self, reads: Reads) -> Reads:
        """Return the reads without the records that are still bad: they stay dead letters of the earlier batch."""
        return without_dead_letters(reads)

    def finish_commit(self, conn: Connection, batch: Batch, reads: Reads, now: datetime) -> None:
        """Delete the dead letters that became rows, and record how many the earlier batch has lost."""
        tables = self.ledger.tables
        deleted = _count(conn, tables, self.is_own())
        conn.execute(tables.dead_letters.delete().where(self.is_own()))
        of_batch = {"batch_id": batch.batch_id, "replaced_batch_id": self.source_id, "row_count": 0}
        rows = [of_batch | tp._asdict() | {"dead_letters": number} for tp, number in deleted.items()]
        if rows:
            conn.execute(tables.replaced_output.insert(), rows)

    def leave_out(self, errors: Sequence[dict[str, Any]]) -> DeadLetterClaim | None:
        """Store the errors of records that are still bad, and leave their dead letters out of the batch.

        :param errors: see `errors_of`
        :return: the claim for the rest; None if no dead letter is left and the batch was abandoned
        """
        tables = self.ledger.tables

        def work(conn: Connection) -> int:
            # Not the number of those that are there: some may have been removed, which the commit has to notice.
            records = self.records - self._leave_out(conn, errors)
            if not records:
                batches, nothing = tables.offset_batches.c, "nothing was written: all records are bad still"
                # After the reason that the user gave.
                given = sa.func.coalesce(batches.reason.concat(": "), "")
                reason = given.concat(sa.literal(nothing))
                update_open(conn, tables, self.batch.batch_id, state="abandoned", reason=reason)
            return records

        records = self.transact(work)
        return replace(self, records=records) if records else None

    def _leave_out(self, conn: Connection, errors: Sequence[dict[str, Any]]) -> int:
        """Store errors, except those of dropped dead letters, and return the number of dead letters that left the
        batch.
        """
        dead_letters = self.ledger.tables.dead_letters
        names = dict(zip(Record._fields, tuple(dead_letters.primary_key)[1:], strict=True))
        bound = [column == sa.bindparam(f"of_{name}", type_=column.type) for name, column in names.items()]
        is_kept = dead_letters.c.error_class.is_distinct_from(DROPPED)
        rows = [
            {f"of_{name}": error[name] for name in names} | {"found": error["error"], "class": error["error_class"]}
            for error in errors
        ]
        if rows:
            of_class = dead_letters.c.error_class
            # What was corrected is not kept: a dead letter that does not hold its record stays one.
            new_class = sa.case(
                *((of_class == name, of_class) for name in WITHOUT_RECORD),
                else_=sa.bindparam("class", type_=of_class.type),
            )
            error = sa.bindparam("found", type_=dead_letters.c.error.type)
            stored = dead_letters.update().values(error=error, error_class=new_class)
            conn.execute(stored.where(self.is_own(), is_kept, *bound), rows)
        records = [Record(*(error[name] for name in names)) for error in errors]
        left_out = dead_letters.update().where(self.is_own()).values(replayed_by=None)
        parts = portions(records, _AT_ONCE)
        return sum(conn.execute(left_out.where(_are_of(dead_letters, some))).rowcount for some in parts)

    def fenced(self, conn: Connection) -> FencedError:
        """Return the error with the reason why this replay has lost the batch."""
        batches = self.ledger.tables.offset_batches.c
        of_batch = batches.batch_id == self.batch.batch_id
        row = conn.execute(sa.select(batches.state, batches.reason).where(of_batch)).one_or_none()
        current = f"{row.state}, {row.reason}" if row is not None else "its row is gone"
        return FencedError(
            f"Batch {self.batch.batch_id}, a replay of dead letters of batch {self.source_id} of group "
            f"{self.group_id!r}, was taken over ({current}). This replay wrote nothing of it; list the dead letters "
            "again, and replay the remaining ones."
        )


def errors_of(dead_letters: Iterable[pa.RecordBatch]) -> list[dict[str, Any]]:
    """Return the errors of records: `topic`, `partition`, `offset`, `error_class` and `error` of each.

    :param dead_letters: record batches with the columns of `staging.dead_letters.SCHEMA`
    """
    names = ["topic", "partition", "offset", "error_class", "error"]
    return [error for chunk in dead_letters for error in chunk.select(names).to_pylist()]


def record_dead_letter_batch(
    ledger: Ledger,
    group_id: str,
    source_id: int,
    wanted: sa.ColumnElement[bool],
    chosen: Container[Record] | None,
    recipe: Recipe,
    *,
    is_external: bool,
    who: str,
    reason: str | None,
) -> DeadLetterClaim | None:
    """Plan the replay of dead letters of a batch: from now on they name the new batch.

    Those that another replay may have published are left out.

    :param source_id: the batch that dead-lettered the records
    :param wanted: the condition for the dead letters that are replayed
    :param chosen: which of these; None is all
    :return: None where there are none
    """
    tables, owner = ledger.tables, TaskRun.of_this_process()
    dead_letters, batches = tables.dead_letters, tables.offset_batches.c
    _, *place = dead_letters.primary_key

    def work(conn: Connection) -> DeadLetterClaim | None:
        lock(conn, tables, group_id)
        is_free = sa.and_(dead_letters.c.batch_id == source_id, wanted, sa.not_(may_be_published(tables, group_id)))
        found = conn.execute(sa.select(*place).where(is_free).order_by(*place))
        records = [record for record in (Record(*row) for row in found) if chosen is None or record in chosen]
        if not records:
            return None
        source = conn.execute(sa.select(tables.offset_batches).where(batches.batch_id == source_id)).one()
        ranges = _ranges(as_batch(conn, tables, source), records)
        values = asdict(recipe) | {"state": "planned", "epoch": 1, "planned_at": database_now(conn)}
        values |= {"scenario": f"dead letters of batch {source_id}", "who": who, "reason": reason}
        generation = stored_generation(conn, tables, group_id)
        batch = insert_batch(conn, tables, group_id, owner, DEAD_LETTERS, generation, Plan(ranges), **values)
        replayed = dead_letters.update().where(dead_letters.c.batch_id == source_id).values(replayed_by=batch.batch_id)
        for some in portions(records, _AT_ONCE):
            conn.execute(replayed.where(_are_of(dead_letters, some)))
        return DeadLetterClaim(ledger, group_id, 1, owner, batch, source_id, len(records), is_external)

    return transact(ledger.engine, work)


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result of a replay of the dead letters of a batch.

    :param batch: the batch that dead-lettered the records
    :param records: the number of records that became rows, and are no longer dead letters
    :param rows: the number of rows that the target reports
    :param still_bad: the number of records that are still dead letters, with the new reason
    :param replayed_by: the id of the batch that replayed them, which the rows have; it is abandoned if no record became
        a row
    """

    batch: int
    records: int
    rows: int
    still_bad: int
    replayed_by: int


def settle_dead_letter_batches(ledger: Ledger, table: Table, group_id: str) -> list[Replayed]:
    """Finish or abandon the open replays of dead letters of a group into a target, and clean up after abandoned ones.
    Return the finished ones: their processes died after the commit of the target.

    A batch whose rows the target has is committed. Any other batch is abandoned: its process was interrupted, or still
    runs and can no longer commit. Safe to repeat, also in two processes at once.

    :raises TargetError: the target cannot be asked
    """
    batches = ledger.tables.offset_batches.c
    finished: list[Replayed] = []
    with ledger.connect() as conn:
        query = sa.select(batches.batch_id, batches.target_table).where(
            batches.consumer_group == group_id,
            batches.kind == DEAD_LETTERS,
            batches.state.in_(OPEN_STATES),
        )
        names = TargetNames(conn, ledger.tables.offset_batches)
        rows = conn.execute(query.order_by(batches.batch_id)).all()
        ids = [row.batch_id for row in rows if names.same(row.target_table, table.sink.name)]
    for batch_id in ids:
        claim = _take_over(ledger, group_id, batch_id, is_external=table.sink.commits_externally)
        if claim is None:
            continue
        publication = Publication.of(ledger, table, claim.batch, DEAD_LETTERS)
        # Another process that takes it over settles it.
        with suppress(FencedError):
            if claim.batch.is_publishing and claim.records and publication.is_published():
                finished.append(_finish(claim, publication))
                continue
            abandoned = {"state": "abandoned", "reason": _INTERRUPTED}
            claim.transact(lambda conn: update_open(conn, ledger.tables, batch_id, **abandoned))  # noqa: B023
            log.info("Batch %d of group %r is abandoned: %s", batch_id, group_id, _INTERRUPTED)
    run_pending_cleanups(ledger, table, group_id)
    return finished


def _take_over(ledger: Ledger, group_id: str, batch_id: int, *, is_external: bool) -> DeadLetterClaim | None:
    """Fence the process that replays a batch; return None where the batch was closed meanwhile."""
    tables, owner = ledger.tables, TaskRun.of_this_process()
    batches, dead_letters = tables.offset_batches, tables.dead_letters.c

    def work(conn: Connection) -> DeadLetterClaim | None:
        # A replay that is within its transaction ends it first.
        lock(conn, tables, group_id)
        if not update_open(conn, tables, batch_id, epoch=batches.c.epoch + 1):
            return None
        row = conn.execute(sa.select(batches).where(batches.c.batch_id == batch_id)).one()
        is_own = sa.and_(dead_letters.consumer_group == group_id, dead_letters.replayed_by == batch_id)
        source_id = conn.scalar(sa.select(sa.func.min(dead_letters.batch_id)).where(is_own)) or 0
        batch, records = as_batch(conn, tables, row), _count(conn, tables, is_own).total()
        return DeadLetterClaim(ledger, group_id, row.epoch, owner, batch, source_id, records, is_external)

    return transact(ledger.engine, work)


def _finish(claim: DeadLetterClaim, publication: Publication) -> Replayed:
    """Commit a batch that the target has, without its files."""
    tables, batch_id = claim.ledger.tables, claim.batch.batch_id

    def write(conn: Connection) -> Written:
        with publication.open(conn) as target:
            rows = target.write(StagedRows.none(batch_id))
            if added := target.add_columns(pa.schema([])):
                note_added_columns(conn, tables, batch_id, added)
            note_outputs(conn, tables, batch_id, target)
        counts = _count(conn, tables, claim.is_own())
        reads = published_reads(claim.ledger, batch_id)
        return Written(rows, {tp: replace(read, records=counts[tp]) for tp, read in reads.items()}, "")

    rows = commit_batch(claim, claim.batch, write).rows
    log.info(
        "Removed %s of batch %d: batch %d, a replay that was interrupted, had written %s of them",
        count(claim.records, "dead letter"),
        claim.source_id,
        batch_id,
        count(rows, "row"),
    )
    return Replayed(claim.source_id, claim.records, rows, 0, batch_id)


def _ranges(source: Batch, records: Sequence[Record]) -> tuple[OffsetRange, ...]:
    """Return the range of each partition, from its first record to the last one."""
    topic_ids = {range_.topic_partition: range_.topic_id for range_ in source.ranges}
    ranges = []
    for tp, group in groupby(records, lambda record: TopicPartition(record.topic, record.partition)):
        offsets = [record.offset for record in group]
        end = offsets[-1] + 1
        ranges.append(OffsetRange(*tp, offsets[0], end, end, topic_ids.get(tp), DEAD_LETTERS))
    return tuple(ranges)


def _count(conn: Connection, tables: Tables, where: sa.ColumnElement[bool]) -> Counter[TopicPartition]:
    """Return how many dead letters there are of each partition."""
    dead_letters = tables.dead_letters.c
    counts = sa.select(dead_letters.topic, dead_letters.partition, sa.func.count()).where(where)
    found = conn.execute(counts.group_by(dead_letters.topic, dead_letters.partition))
    return Counter({TopicPartition(row[0], row[1]): row[2] for row in found})


def _are_of(dead_letters: sa.Table, records: Iterable[Record]) -> sa.ColumnElement[bool]:
    """Return the condition for the dead letters of some records."""
    _, *place = dead_letters.primary_key
    of_record = (sa.and_(*(column == value for column, value in zip(place, record, strict=True))) for record in records)
    return sa.or_(sa.false(), *of_record)
