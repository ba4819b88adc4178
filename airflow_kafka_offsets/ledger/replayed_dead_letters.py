"""The statements of a replay of dead letters, within its transaction: letters are removed, and the history of their
batch is corrected.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_kafka_offsets.core.instants import format_instant
from airflow_kafka_offsets.core.offsets import TopicPartition
from airflow_kafka_offsets.core.text import count
from airflow_kafka_offsets.database.transactions import database_now
from airflow_kafka_offsets.ledger.dead_letters import DROPPED, execute_with_errors
from airflow_kafka_offsets.ledger.tables import Tables
from airflow_kafka_offsets.staging.refused import Record

# Conditions of a statement: databases limit the number of bound values.
_AT_ONCE = 200


def is_of(tables: Tables, batch_id: int, records: Iterable[Record]) -> sa.ColumnElement[bool]:
    """Return the condition for the letters of some records of a batch."""
    letters = tables.dead_letters.c
    places = [
        sa.and_(
            letters.topic == record.topic, letters.partition == record.partition, letters.offset_value == record.offset
        )
        for record in records
    ]
    return sa.and_(letters.batch_id == batch_id, sa.or_(sa.false(), *places))


def parts(records: Collection[Record]) -> Iterator[list[Record]]:
    """Yield as many records at once as a statement can name."""
    ordered = sorted(records)
    for first in range(0, len(ordered), _AT_ONCE):
        yield ordered[first : first + _AT_ONCE]


def delete(
    conn: Connection, tables: Tables, batch_id: int, records: Collection[Record], attempt: str | None = None
) -> int:
    """Delete the letters of some records of a batch, but for dropped ones, and return how many there were.

    :param attempt: the replay that may have published them; None for letters that none may have published
    """
    letters = tables.dead_letters
    is_free = sa.and_(
        letters.c.error_class.is_distinct_from(DROPPED), letters.c.publishing.is_not_distinct_from(attempt)
    )
    return sum(
        conn.execute(letters.delete().where(is_of(tables, batch_id, some), is_free)).rowcount for some in parts(records)
    )


def store_errors(conn: Connection, tables: Tables, batch_id: int, errors: Mapping[Record, tuple[str, str]]) -> None:
    """Store what is wrong with letters that are bad still: the class of the error, and the reason. Dropped ones stay as
    they are.
    """
    letters = tables.dead_letters
    place = {"topic": letters.c.topic, "partition": letters.c.partition, "offset": letters.c.offset_value}
    of_letter = [column == sa.bindparam(f"of_{name}", type_=column.type) for name, column in place.items()]
    rows = [
        {"error_class": error_class, "error": error} | {f"of_{name}": value for name, value in record._asdict().items()}
        for record, (error_class, error) in errors.items()
    ]
    if rows:
        is_kept = letters.c.error_class.is_distinct_from(DROPPED)
        execute_with_errors(conn, letters.update().where(letters.c.batch_id == batch_id, is_kept, *of_letter), rows)


def correct_history(
    conn: Connection, tables: Tables, batch_id: int, records: Sequence[Record], rows: int, who: str, reason: str | None
) -> None:
    """Make the counts of a batch those that it would have if some records had never been bad, and say who did it.

    :param rows: how many rows of the records were written
    """
    ranges, batches = tables.offset_ranges, tables.offset_batches
    for tp, number in Counter(TopicPartition(record.topic, record.partition) for record in records).items():
        of_range = (ranges.c.batch_id == batch_id, ranges.c.topic == tp.topic, ranges.c.partition == tp.partition)
        conn.execute(ranges.update().where(*of_range).values(dead_letters=ranges.c.dead_letters - number))
    of_batch = batches.c.batch_id == batch_id
    earlier = conn.scalar(sa.select(batches.c.reason).where(of_batch))
    replayed = f"{count(len(records), 'dead letter')} replayed by {who} at {format_instant(database_now(conn))}"
    replayed += f": {reason}" if reason else ""
    conn.execute(
        batches.update()
        .where(of_batch)
        .values(
            dead_letters=batches.c.dead_letters - len(records),
            row_count=batches.c.row_count + rows,
            reason="; ".join(filter(None, (earlier, replayed))),
        )
    )
