"""The transform of `net_amount` in the other ways to write one."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from airflow_kafka_offsets import ArrowTransform, Sql

ARROW_NET = ArrowTransform("benchmarks.transforms.arrow_net")

SQL_NET = Sql(
    "SELECT id, customer, CAST(amount / 2 AS DECIMAL(10,2)) AS amount, created FROM records WHERE amount >= 0"
)


def arrow_net(orders: pa.RecordBatch) -> pa.RecordBatch:
    kept = orders.filter(pc.greater_equal(orders["amount"], pa.scalar(0, pa.decimal128(10, 2))))
    amount = pc.cast(pc.divide(kept["amount"], pa.scalar(2, pa.decimal128(1, 0))), pa.decimal128(10, 2), safe=False)
    return kept.set_column(kept.schema.get_field_index("amount"), "amount", amount)
