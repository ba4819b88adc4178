"""Tables that a load created and never wrote to: what is dropped, and what is not."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest
from sqlalchemy.engine import Engine

from airflow_kafka_offsets import SqlTable
from tests.support.loads import rows

pytestmark = pytest.mark.server


def test_a_table_with_rows_or_of_another_is_not_dropped(engine: Engine) -> None:
    created = SqlTable("orders").connect(engine)
    created.prepare(pa.schema([("id", pa.int64())]))
    with engine.begin() as conn:
        conn.exec_driver_sql("INSERT INTO orders VALUES (1, 1)")
        conn.exec_driver_sql("CREATE TABLE theirs (id BIGINT, _batch_id BIGINT)")

    assert not created.drop_unused()
    assert not SqlTable("theirs").connect(engine).drop_unused()
    assert not SqlTable("missing").connect(engine).drop_unused()

    with engine.begin() as conn:
        conn.exec_driver_sql("DELETE FROM orders")
    assert created.drop_unused()
    created.prepare(pa.schema([("id", pa.string())]))


def test_a_row_that_is_written_meanwhile_is_kept(engine: Engine) -> None:
    created = SqlTable("orders").connect(engine)
    created.prepare(pa.schema([("id", pa.int64())]))

    with ThreadPoolExecutor(1) as thread:
        with engine.begin() as conn:
            conn.exec_driver_sql("INSERT INTO orders VALUES (1, 1)")
            was_dropped = thread.submit(created.drop_unused)
        assert not was_dropped.result()

    assert rows(engine, "SELECT id FROM orders") == [(1,)]
