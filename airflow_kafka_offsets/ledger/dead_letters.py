"""Records that a batch sets aside, written in the transaction that passes them over."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from sqlalchemy.engine import Connection

from airflow_kafka_offsets.ledger.batch_rows import Batch
from airflow_kafka_offsets.ledger.tables import Tables

if TYPE_CHECKING:
    import pyarrow as pa


def write_dead_letters(conn: Connection, tables: Tables, batch: Batch, letters: Iterable[pa.RecordBatch]) -> None:
    """Insert dead letters.

    :param letters: record batches with the columns of `spark.dead_letters.SCHEMA`
    """
    for some in letters:
        conn.execute(
            tables.dead_letters.insert(),
            [
                {
                    "batch_id": batch.batch_id,
                    "topic": letter["topic"],
                    "partition": letter["partition"],
                    "offset_value": letter["offset"],
                    "consumer_group": batch.group_id,
                    "key": letter["key"],
                    "value": letter["value"],
                    "headers": letter["headers"],
                    "record_timestamp": letter["timestamp"],
                    "error": letter["error"],
                }
                for letter in some.to_pylist()
            ],
        )
