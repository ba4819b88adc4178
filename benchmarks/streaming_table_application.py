"""Structured Streaming with the trigger `availableNow` into a table of Postgres, each row once, as careful users write
it.

`foreachBatch` may get a batch again. The transaction of its rows also has its number, and a batch whose number is there
is skipped.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from functools import partial
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.csv
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention

# The driver has a whole batch in memory.
_BATCH_RECORDS = 1_000_000

_QUERY = "orders"
_BATCHES = "CREATE TABLE IF NOT EXISTS batches (query text, batch bigint, PRIMARY KEY (query, batch))"
_NEW_BATCH = "INSERT INTO batches VALUES (%s, %s) ON CONFLICT DO NOTHING"


def main() -> None:
    job = json.loads(os.environ["HANDWRITTEN_JOB"])
    spark = SparkSession.builder.getOrCreate()
    records = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", job["bootstrap_servers"])
        .option("subscribe", job["topic"])
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", _BATCH_RECORDS)
        .load()
    )
    orders = records.select(F.from_json(F.col("value").cast("string"), job["columns"]).alias("order")).select("order.*")
    create_batches(job)
    query = (
        orders.writeStream.foreachBatch(partial(write_batch, job))
        .option("checkpointLocation", job["checkpoint"])
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


def create_batches(job: dict[str, Any]) -> None:
    """Create the table of the numbers of written batches, if it does not exist."""
    with _connect(job) as conn:
        conn.execute(_BATCHES)


def write_batch(job: dict[str, Any], orders: DataFrame, batch: int) -> None:
    """Write a batch and its number in one transaction, unless the number is there already."""
    with _connect(job) as conn, conn.cursor() as cursor:
        if cursor.execute(_NEW_BATCH, (_QUERY, batch)).rowcount == 0:
            return
        rows = orders.toArrow()
        with cursor.copy(f"COPY orders ({', '.join(rows.column_names)}) FROM STDIN (FORMAT csv)") as copy:
            for text in _csv(rows):
                copy.write(text)


def _csv(rows: pa.Table) -> Iterator[pa.Buffer]:
    options = pyarrow.csv.WriteOptions(include_header=False)
    for batch in rows.to_batches():
        sink = pa.BufferOutputStream()
        pyarrow.csv.write_csv(batch, sink, options)
        yield sink.getvalue()


def _connect(job: dict[str, Any]) -> psycopg.Connection[Any]:
    return psycopg.connect(
        host=job["host"], port=job["port"], dbname=job["database"], user=job["user"], password=job["password"]
    )


if __name__ == "__main__":
    main()
