"""Dead letters as rows: how they and what is wrong with them are written, also into databases whose encoding lacks a character."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DataError

from airflow_kafka_offsets.ledger.batch_rows import Batch
from airflow_kafka_offsets.ledger.tables import Tables

if TYPE_CHECKING:
    import pyarrow as pa

_RENAMED = {"offset": "offset_value", "timestamp": "record_timestamp"}


def write_dead_letters(conn: Connection, tables: Tables, batch: Batch, letters: Iterable[pa.RecordBatch]) -> None:
    """Insert the dead letters of a batch.

    :param letters: record batches with the columns of `staging.dead_letters.SCHEMA`
    """
    of_batch = {"batch_id": batch.batch_id, "consumer_group": batch.group_id}
    for chunk in letters:
        rows = [
            of_batch | {_RENAMED.get(name, name): value for name, value in letter.items()}
            for letter in chunk.to_pylist()
        ]
        execute_with_errors(conn, tables.dead_letters.insert(), rows)


def execute_with_errors(conn: Connection, statement: sa.Insert | sa.Update, rows: Sequence[Mapping[str, Any]]) -> None:
    """Run a statement with rows of which `error` is what is wrong with a record.

    Where the encoding of the database lacks a character of it, it is written in ASCII: a batch does not fail for that.
    """
    if all(row["error"].isascii() for row in rows):
        conn.execute(statement, rows)
        return
    try:
        with conn.begin_nested():
            conn.execute(statement, rows)
    except DataError:
        # All else is bytes or ASCII.
        plain = ({"error": row["error"].encode("ascii", "backslashreplace").decode()} for row in rows)
        conn.execute(statement, [{**row, **error} for row, error in zip(rows, plain, strict=True)])
