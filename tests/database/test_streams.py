"""Results of any size are read without being held, several side by side, on each database."""

from __future__ import annotations

import tracemalloc
from itertools import islice

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from airflow_kafka_offsets.database import transactions
from airflow_kafka_offsets.database.transactions import stream, transaction

pytestmark = pytest.mark.server

COUNT = 20_000
NUMBERS = sa.table("numbers", sa.column("n", sa.BigInteger), sa.column("padding", sa.Text))
QUERY = sa.select(NUMBERS.c.n, NUMBERS.c.padding).order_by(NUMBERS.c.n)


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "_ROWS_AT_ONCE", 500)


@pytest.fixture(params=["postgres_engine", "mariadb_engine"])
def numbers(request: pytest.FixtureRequest) -> Engine:
    """A database with twenty million bytes in a table."""
    engine: Engine = request.getfixturevalue(request.param)
    with engine.begin() as conn:
        conn.exec_driver_sql("CREATE TABLE numbers (n BIGINT PRIMARY KEY, padding TEXT)")
        conn.execute(sa.insert(NUMBERS), [{"n": n, "padding": "x" * 1000} for n in range(COUNT)])
    return engine


def test_rows_are_not_held(numbers: Engine) -> None:
    with transaction(numbers) as conn:
        conn.execute(QUERY.limit(1)).all()
        tracemalloc.start()
        try:
            assert sum(row.n for row in stream(conn, QUERY)) == COUNT * (COUNT - 1) // 2
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()

    assert peak < 5_000_000


def test_results_are_open_side_by_side_and_one_may_be_left(numbers: Engine) -> None:
    with transaction(numbers) as conn:
        left = stream(conn, QUERY)
        assert [row.n for row in islice(left, 3)] == [0, 1, 2]
        pairs = zip(stream(conn, QUERY), stream(conn, QUERY.where(NUMBERS.c.n < 700)), strict=False)
        assert all(one == other for one, other in pairs)
        assert conn.scalar(sa.select(sa.func.count()).select_from(NUMBERS)) == COUNT
        assert [row.n for row in islice(left, 3)] == [3, 4, 5]


def test_an_empty_result_has_no_rows(numbers: Engine) -> None:
    with transaction(numbers) as conn:
        assert list(stream(conn, QUERY.where(NUMBERS.c.n < 0))) == []
        assert len(list(stream(conn, QUERY.where(NUMBERS.c.n < 500)))) == 500
