"""Spark's own way into a lake table: Structured Streaming with the trigger `availableNow`, as users write it."""

from __future__ import annotations

import json
import os

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention


def main() -> None:
    job = json.loads(os.environ["STREAMING_JOB"])
    spark = SparkSession.builder.getOrCreate()
    records = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", job["bootstrap_servers"])
        .option("subscribe", job["topic"])
        .option("startingOffsets", "earliest")
        .load()
    )
    orders = records.select(F.from_json(F.col("value").cast("string"), job["columns"]).alias("order")).select("order.*")
    writer = (
        orders.writeStream.format(job["format"])
        .option("checkpointLocation", job["checkpoint"])
        .trigger(availableNow=True)
    )
    if job["format"] == "iceberg":
        spark.sql(f"CREATE TABLE lake.shop.orders ({job['columns']}) USING iceberg")
        query = writer.toTable("lake.shop.orders")
    else:
        query = writer.start(job["path"])
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
