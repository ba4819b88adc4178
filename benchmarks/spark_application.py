"""The hand-written Spark application, as users write it: it stores no positions, and a retry duplicates rows."""

from __future__ import annotations

import json
import os

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention

from benchmarks.net_amount import net


def main() -> None:
    job = json.loads(os.environ["HANDWRITTEN_JOB"])
    spark = SparkSession.builder.getOrCreate()
    records = (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", job["bootstrap_servers"])
        .option("subscribe", job["topic"])
        .option("startingOffsets", "earliest")
        .option("endingOffsets", "latest")
        .load()
    )
    orders = records.select(F.from_json(F.col("value").cast("string"), job["columns"]).alias("order")).select("order.*")
    if job["transform"]:
        orders = net(orders)
    options = {
        "driver": "org.postgresql.Driver",
        "user": job["user"],
        "password": job["password"],
        "batchsize": "10000",
        "reWriteBatchedInserts": "true",
    }
    url = f"jdbc:postgresql://{job['host']}:{job['port']}/{job['database']}"
    orders.write.jdbc(url, "orders", mode="append", properties=options)
    spark.stop()


if __name__ == "__main__":
    main()
