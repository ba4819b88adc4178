"""The careful streaming job, without Spark: a batch that comes again is skipped, and one that fails leaves nothing."""

from decimal import Decimal
from typing import Any, cast

import psycopg
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from sqlalchemy.engine import make_url

from benchmarks.load import TABLE
from benchmarks.streaming_table_application import create_batches, write_batch

pytestmark = pytest.mark.server

_SCHEMA = pa.schema(
    {
        "id": pa.int64(),
        "customer": pa.string(),
        "amount": pa.decimal128(10, 2),
        "created": pa.timestamp("us", tz="UTC"),
    }
)


class _Orders:
    """A batch of the query, as far as the job looks at it."""

    def __init__(self, *ids: int | None) -> None:
        rows = [{"id": id_, "customer": 'a "b",\nc', "amount": Decimal("1.50"), "created": None} for id_ in ids]
        self._rows = pa.Table.from_pylist(rows, _SCHEMA)

    def toArrow(self) -> pa.Table:
        return self._rows


@pytest.fixture
def job(database: str) -> dict[str, Any]:
    url = make_url(database)
    job = {
        "host": url.host,
        "port": url.port,
        "database": url.database,
        "user": url.username,
        "password": url.password,
    }
    with psycopg.connect(_plain(database)) as conn:
        conn.execute(TABLE)
    create_batches(job)
    return job


def test_a_batch_that_comes_again_is_skipped(job: dict[str, Any], database: str) -> None:
    for batch in (0, 0, 1):
        write_batch(job, cast("DataFrame", _Orders(2 * batch, 2 * batch + 1)), batch)

    assert _rows(database, "SELECT id, customer, amount, created FROM orders ORDER BY id") == [
        (id_, 'a "b",\nc', Decimal("1.50"), None) for id_ in range(4)
    ]


def test_a_batch_that_fails_leaves_nothing(job: dict[str, Any], database: str) -> None:
    with pytest.raises(psycopg.errors.NotNullViolation):
        write_batch(job, cast("DataFrame", _Orders(1, None)), 0)

    assert _rows(database, "SELECT id FROM orders") == []
    assert _rows(database, "SELECT * FROM batches") == []


def _rows(database: str, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(_plain(database)) as conn:
        return conn.execute(query.encode()).fetchall()


def _plain(database: str) -> str:
    return make_url(database).set(drivername="postgresql").render_as_string(hide_password=False)
