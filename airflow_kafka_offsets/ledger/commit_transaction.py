"""The commit: rows and positions in one transaction, and what became of it where the connection broke.

A replay commits rows alone, and never moves a position.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError, ProgrammingError

from airflow_kafka_offsets.core.offsets import TopicPartition
from airflow_kafka_offsets.database.errors import database_message, is_outage
from airflow_kafka_offsets.database.transactions import database_now, transact
from airflow_kafka_offsets.exceptions import (
    CommitUnknownError,
    DatabaseBusyError,
    DatabaseUnavailableError,
    PositionConflictError,
    TargetError,
)
from airflow_kafka_offsets.ledger.batch_rows import OPEN_STATES, Batch
from airflow_kafka_offsets.ledger.claims import Claim
from airflow_kafka_offsets.ledger.positions import RangeRead
from airflow_kafka_offsets.ledger.tables import Tables


def commit_batch(
    engine: Engine,
    tables: Tables,
    claim: Claim,
    batch: Batch,
    reads: Mapping[TopicPartition, RangeRead],
    write: Callable[[Connection], int],
) -> int:
    """Write the rows and close the batch, in one transaction; that of a load moves the positions to the ends of the ranges.

    :param reads: what reading each range showed
    :param write: writes all the rows over the connection it is given, and returns how many; may be called several times,
        each time in a new transaction that holds nothing of the one before (see `transact`)
    :return: the number of rows
    :raises FencedError: a later attempt took over
    :raises PositionConflictError: a stored position is not where its range starts
    :raises DoubleLoadError: records of a replay would be in the target twice
    :raises TargetError: the database refuses the transaction as a whole
    :raises DatabaseBusyError: other writers were in the way at every attempt; nothing was written
    :raises DatabaseUnavailableError: no room, no connection, a time-out; nothing was written
    :raises CommitUnknownError: the connection broke, and the ledger could not be asked
    """

    def work(conn: Connection) -> int:
        claim.begin_commit(conn, tables, batch)
        rows = write(conn)
        now = database_now(conn)
        claim.finish_commit(conn, tables, batch, reads, now)
        _close(conn, tables, batch, reads, rows, now)
        return rows

    try:
        return transact(engine, work, outcome=lambda conn: _rows_committed(conn, tables, claim, batch))
    except DBAPIError as error:
        if is_outage(error):
            raise _not_committed(batch, error) from error
        if isinstance(error, ProgrammingError):  # as missing rights in the state tables are
            raise
        # At COMMIT, as deferred constraints are. Not as the cause, whose details quote the row.
        raise TargetError(
            f"Batch {batch.batch_id} of group {batch.group_id!r} was not committed, and nothing of it was written: {database_message(error)}. "
            "Correct the target table, or the records, and run the task again."
        ) from None
    except CommitUnknownError as unknown:
        raise CommitUnknownError(
            f"Whether batch {batch.batch_id} of group {batch.group_id!r} was committed is not known. {unknown}. Run the task "
            "again: it looks the batch up in the ledger and carries on from there."
        ) from unknown
    except DatabaseBusyError as busy:
        raise DatabaseBusyError(
            f"Batch {batch.batch_id} of group {batch.group_id!r} was not committed: {busy}"
        ) from busy


def _rows_committed(conn: Connection, tables: Tables, claim: Claim, batch: Batch) -> int | None:
    """Return how many rows a batch was committed with; None where it is not committed."""
    # The server may not have noticed yet that the connection broke, and still hold the lock of the transaction.
    claim.wait(conn, tables)
    batches = tables.offset_batches.c
    row = conn.execute(sa.select(batches.state, batches.row_count).where(batches.batch_id == batch.batch_id)).one()
    return int(row.row_count) if row.state == "committed" else None


def _not_committed(batch: Batch, error: DBAPIError) -> DatabaseUnavailableError:
    return DatabaseUnavailableError(
        f"Batch {batch.batch_id} of group {batch.group_id!r} was not committed, and nothing of it was written: "
        f"{database_message(error)}. Run the task again when the database has what it lacked: staged files that are still there are "
        "committed without reading Kafka again."
    )


def _close(
    conn: Connection,
    tables: Tables,
    batch: Batch,
    reads: Mapping[TopicPartition, RangeRead],
    rows: int,
    now: datetime,
) -> None:
    ranges, batches = tables.offset_ranges, tables.offset_batches
    if reads:
        conn.execute(
            ranges.update()
            .where(
                ranges.c.batch_id == batch.batch_id,
                ranges.c.topic == sa.bindparam("of_topic"),
                ranges.c.partition == sa.bindparam("of_partition"),
            )
            .values(
                records=sa.bindparam("read_records"),
                dead_letters=sa.bindparam("read_dead_letters"),
                bytes=sa.bindparam("read_bytes"),
                first_timestamp=sa.bindparam("read_first"),
                last_timestamp=sa.bindparam("read_last"),
            ),
            [
                {
                    "of_topic": tp.topic,
                    "of_partition": tp.partition,
                    "read_records": read.records,
                    "read_dead_letters": read.dead_letters,
                    "read_bytes": read.bytes,
                    "read_first": read.first_timestamp,
                    "read_last": read.last_timestamp,
                }
                for tp, read in reads.items()
            ],
        )
    closed = conn.execute(
        batches.update()
        .where(batches.c.batch_id == batch.batch_id, batches.c.state.in_(OPEN_STATES))
        .values(
            state="committed",
            records=sum(read.records or 0 for read in reads.values()),
            row_count=rows,
            dead_letters=sum(read.dead_letters for read in reads.values()),
            committed_at=now,
        )
    )
    if closed.rowcount != 1:
        raise PositionConflictError(
            f"Batch {batch.batch_id} of group {batch.group_id!r} is not open any more: it was committed or abandoned by "
            "somebody else. Nothing was written."
        )
