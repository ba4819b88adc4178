"""Dead letters: records that could not be decoded, written in the transaction that commits their batch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from sqlalchemy.engine import Connection

from airflow_kafka_offsets.ledger.batch_rows import Batch
from airflow_kafka_offsets.ledger.tables import Tables

if TYPE_CHECKING:
    import pyarrow as pa


def write_dead_letters(conn: Connection, tables: Tables, batch: Batch, letters: Iterable[pa.RecordBatch]) -> None:
    """Insert the dead letters of a batch.

    :param letters: record batches with the columns of `staging.dead_letters.SCHEMA`
    """
    of_batch = {"batch_id": batch.batch_id, "consumer_group": batch.group_id}
    renamed = {"offset": "offset_value", "timestamp": "record_timestamp"}
    for chunk in letters:
        rows = [{renamed.get(name, name): value for name, value in letter.items()} for letter in chunk.to_pylist()]
        conn.execute(tables.dead_letters.insert(), [of_batch | row for row in rows])
