"""Dead letters whose rows go into a target that commits elsewhere: which replay may have published them, and how that
is found out.

Before the commit of the target, each of the letters says which attempt to replay it may have published it
(`publishing`). Where that attempt died between the two commits, the target is asked, before anything else is done with
the letters:

* it has the rows: the letters are removed, as the attempt would have done;
* it has none: it takes the number of the attempt, which can never publish afterwards, and the letters are as they were.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import NamedTuple

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_kafka_offsets.core.text import count
from airflow_kafka_offsets.database.transactions import transact
from airflow_kafka_offsets.exceptions import LedgerError
from airflow_kafka_offsets.ledger.batch_rows import current_user, note_added_columns
from airflow_kafka_offsets.ledger.groups import lock
from airflow_kafka_offsets.ledger.installation import installation_id
from airflow_kafka_offsets.ledger.replayed_dead_letters import correct_history, delete, is_of, parts
from airflow_kafka_offsets.ledger.tables import Ledger, Tables
from airflow_kafka_offsets.sinks.table import Output, Table
from airflow_kafka_offsets.sinks.target_names import same_table_names
from airflow_kafka_offsets.staging.refused import Record
from airflow_kafka_offsets.staging.rows import StagedRows

log = logging.getLogger(__name__)

_INTERRUPTED = "the end of a replay that was interrupted"


class FinishedReplay(NamedTuple):
    """A replay of dead letters of a batch that died after the commit of the target.

    :param records: how many letters there were
    :param rows: how many rows the target has of them
    """

    batch_id: int
    records: int
    rows: int


def dead_letters_output(ledger: Ledger, table: Table, group_id: str, batch_id: int, attempt: str) -> Output:
    """Return what a sink is told of dead letters of a batch.

    :param attempt: the name of the attempt to replay them: it is published under that name, once
    """
    series = f"{installation_id(ledger)}.{group_id}.{attempt}" if table.sink.commits_externally else ""
    return Output(batch_id, group_id, (), series, attempt)


def begin_publishing_dead_letters(
    ledger: Ledger, output: Output, records: Collection[Record], earlier: int = 0
) -> None:
    """Write down that the target may have the rows of some letters from now on, and of no others of the attempt.

    :param earlier: of how many letters the attempt wrote it down before: where its end was found out meanwhile, it can
        publish none
    :raises LedgerError: one of them is not there any more, or another replay may have published it
    """
    tables, group_id = ledger.tables, output.group_id
    letters = tables.dead_letters

    def work(conn: Connection) -> None:
        lock(conn, tables, group_id)
        unmarked = conn.execute(
            letters.update().where(_is_published_by(tables, output)).values(publishing=None)
        ).rowcount
        marked = 0
        for some in parts(records):
            free = letters.update().where(is_of(tables, output.batch_id, some), letters.c.publishing.is_(None))
            marked += conn.execute(free.values(publishing=output.attempt)).rowcount
        if (unmarked, marked) != (earlier, len(records)):
            raise LedgerError(
                f"Dead letters of batch {output.batch_id} were replayed or removed by somebody else meanwhile. Nothing "
                "of the batch was changed; look at the list again"
            )

    transact(ledger.engine, work)


def finish_publishing_dead_letters(ledger: Ledger, table: Table, group_id: str) -> list[FinishedReplay]:
    """Find out what interrupted replays of dead letters published, and finish these.

    Safe to repeat, and in two processes at once. A replay that still runs publishes first, or never.

    :param table: whose letters are concerned
    :raises TargetError: the target cannot be asked
    """
    if not table.sink.commits_externally:
        return []
    tables = ledger.tables
    with ledger.connect() as conn:
        attempts = _attempts(conn, tables, group_id, table.sink.name)
    found = [_finish(ledger, table, dead_letters_output(ledger, table, group_id, *attempt)) for attempt in attempts]
    return [finished for finished in found if finished is not None]


def _attempts(conn: Connection, tables: Tables, group_id: str, target: str) -> list[tuple[int, str]]:
    """Return the attempts that may have published letters, with their batches."""
    letters, batches = tables.dead_letters.c, tables.offset_batches.c
    query = (
        sa.select(letters.batch_id, letters.publishing)
        .join(tables.offset_batches, batches.batch_id == letters.batch_id)
        .where(
            letters.consumer_group == group_id,
            letters.publishing.is_not(None),
            batches.target_table.in_(same_table_names(conn, target)),
        )
    )
    return [(row.batch_id, row.publishing) for row in conn.execute(query.distinct().order_by(letters.batch_id))]


def _finish(ledger: Ledger, table: Table, output: Output) -> FinishedReplay | None:
    tables, batch_id = ledger.tables, output.batch_id
    letters = tables.dead_letters.c

    def work(conn: Connection) -> FinishedReplay | None:
        # A replay that is within its transaction ends it first.
        lock(conn, tables, output.group_id)
        places = sa.select(letters.topic, letters.partition, letters.offset_value)
        records = [Record(*row) for row in conn.execute(places.where(_is_published_by(tables, output)))]
        if not records:
            return None
        with table.publish(conn, output) as target:
            rows = target.write(StagedRows.none(batch_id))
            # A target that was dropped takes no columns.
            added = target.add_columns(pa.schema([])) if rows else []
        if not rows:
            conn.execute(tables.dead_letters.update().where(_is_published_by(tables, output)).values(publishing=None))
            return None
        if added:
            note_added_columns(conn, tables, batch_id, added)
        delete(conn, tables, batch_id, records, output.attempt)
        correct_history(conn, tables, batch_id, records, rows, current_user(), _INTERRUPTED)
        return FinishedReplay(batch_id, len(records), rows)

    finished = transact(ledger.engine, work)
    if finished is not None:
        log.info(
            "Removed %s of batch %d: a replay that was interrupted had written %s of them into %s",
            count(finished.records, "dead letter"),
            batch_id,
            count(finished.rows, "row"),
            table.sink.name,
        )
    return finished


def _is_published_by(tables: Tables, output: Output) -> sa.ColumnElement[bool]:
    letters = tables.dead_letters.c
    return sa.and_(letters.batch_id == output.batch_id, letters.publishing == output.attempt)
