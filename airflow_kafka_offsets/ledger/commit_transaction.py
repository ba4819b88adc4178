"""The transaction that commits a batch, also if its connection breaks before COMMIT is answered.

`ledger.claims` has what a load checks and writes besides rows (positions, lease), `replaying.replay_batches` that of a
replay.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError, ProgrammingError

from airflow_kafka_offsets.database.errors import database_message, is_outage, refusal
from airflow_kafka_offsets.database.transactions import database_now, transact
from airflow_kafka_offsets.exceptions import (
    CommitUnknownError,
    DatabaseBusyError,
    DatabaseUnavailableError,
    TargetError,
)
from airflow_kafka_offsets.ledger.batch_rows import Batch, change_open, latest_try
from airflow_kafka_offsets.ledger.claims import Claim
from airflow_kafka_offsets.ledger.positions import Reads, store_reads


class Written(NamedTuple):
    """What a commit wrote.

    :param rows: the number of rows
    :param reads: what was read of each range, with the number of dead letters
    :param into: the name of the target for the log; of several targets, with the rows of each
    :param dead_letter_topic: the topic to which the dead letters are to be written
    """

    rows: int
    reads: Reads
    into: str
    dead_letter_topic: str | None = None

    @property
    def records(self) -> int:
        return sum(read.records or 0 for read in self.reads.values())

    @property
    def dead_letters(self) -> int:
        return sum(read.dead_letters for read in self.reads.values())


def commit_batch(claim: Claim, batch: Batch, write: Callable[[Connection], Written]) -> Written:
    """Write the rows of a batch and mark it committed, in one transaction, with what its claim adds.

    :param write: writes all rows and dead letters over the given connection; may be called several times, each time in
        a new transaction (see `transact`)
    :return: what was written
    :raises FencedError: a later attempt took over
    :raises PositionConflictError: a stored position is not where its range starts
    :raises BatchClosedError: the batch was committed or abandoned meanwhile
    :raises DoubleLoadError: records of a replay would be duplicated
    :raises TargetError: the database refuses the transaction as a whole
    :raises DatabaseBusyError: other writers interfered with every attempt; nothing was written
    :raises DatabaseUnavailableError: the database is full, has no connection left, or timed out; nothing was written
    :raises CommitUnknownError: the connection broke, and the state tables could not be read
    """
    latest: Written | None = None

    def work(conn: Connection) -> Written:
        nonlocal latest
        claim.begin_commit(conn, batch)
        latest = write(conn)
        now = database_now(conn)
        _close(conn, claim, batch, latest, now)
        # A load moves its positions here, and opens the prefetched batch: only now no other one is open.
        claim.finish_commit(conn, batch, latest.reads, now)
        return latest

    def look_up(conn: Connection) -> Written | None:
        return latest if _is_committed(conn, claim, batch) else None

    of_group = f"{batch.batch_id} of group {batch.group_id!r}"
    try:
        # Not `Claim.transact`: each kind of claim locks in its own order, and checks more.
        return transact(claim.ledger.engine, work, outcome=look_up)
    except DBAPIError as error:
        reason = database_message(error) if is_outage(error) else refusal(error)
        nothing = f"Batch {of_group} was not committed, and nothing of it was written: {reason}."
        if is_outage(error):
            raise DatabaseUnavailableError(
                f"{nothing} Run the task again when the database is available: it commits the staged files without "
                "reading Kafka again."
            ) from error
        if isinstance(error, ProgrammingError) and error.statement is not None:  # as for missing rights
            raise
        # Deferred constraints and their triggers fail at COMMIT. Without the cause, whose details quote the row.
        raise TargetError(f"{nothing} Correct the target table, or the records, and run the task again.") from None
    except CommitUnknownError as unknown:
        raise CommitUnknownError(
            f"It is unknown whether batch {of_group} was committed. {unknown}. Run the task again: it looks up the "
            "batch in the state tables, and continues from there."
        ) from unknown
    except DatabaseBusyError as busy:
        raise DatabaseBusyError(f"Batch {of_group} was not committed: {busy}") from busy


def _is_committed(conn: Connection, claim: Claim, batch: Batch) -> bool:
    """Return whether a batch was committed by the transaction whose connection broke."""
    # Until the server notices that the connection broke, the transaction is open and has the claim locked.
    claim.wait(conn)
    batches = claim.ledger.tables.offset_batches.c
    return conn.scalar(sa.select(batches.state).where(batches.batch_id == batch.batch_id)) == "committed"


def _close(conn: Connection, claim: Claim, batch: Batch, written: Written, now: datetime) -> None:
    tables, dead_letters = claim.ledger.tables, written.dead_letters
    store_reads(conn, tables, batch.batch_id, written.reads)
    change_open(
        conn,
        tables,
        batch,
        state="committed",
        try_number=latest_try(tables, batch.group_id, claim.owner),
        records=written.records,
        row_count=written.rows,
        dead_letters=dead_letters,
        dead_letter_topic=written.dead_letter_topic if dead_letters else None,
        committed_at=now,
        publish_started_at=None,
    )
