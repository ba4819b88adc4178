"""The function that `load_customer_totals.py` writes with. It has a module of its own, so that the worker imports it
without a DAG.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from sqlalchemy.engine import Connection

    from airflow_kafka_offsets.sinks.function_target import WrittenBatch

TABLE = """
CREATE TABLE IF NOT EXISTS customer_totals (
    customer TEXT PRIMARY KEY, orders BIGINT NOT NULL, amount NUMERIC(14,2) NOT NULL
)
"""

ADD = """
INSERT INTO customer_totals (customer, orders, amount) VALUES (:customer, :id_count, :amount_sum)
ON CONFLICT (customer) DO UPDATE
SET orders = customer_totals.orders + excluded.orders, amount = customer_totals.amount + excluded.amount
"""


def add_to_totals(conn: Connection, batches: Iterator[pa.RecordBatch], batch: WrittenBatch) -> None:
    """Add orders to the totals of their customers: each order once, as the positions move in the same transaction."""
    import pyarrow as pa
    import sqlalchemy as sa

    conn.execute(sa.text(TABLE))
    for orders in batches:
        groups = pa.Table.from_batches([orders]).group_by("customer")
        totals = groups.aggregate([("id", "count"), ("amount", "sum")]).sort_by("customer")
        conn.execute(sa.text(ADD), totals.to_pylist())
