"""What every contender is asked to do: load all records of a topic into a table of an empty database."""

from __future__ import annotations

from typing import Any, NamedTuple

import psycopg

from benchmarks.datasets import Dataset
from devstack.kafka import KafkaBroker
from devstack.postgres import PostgresServer

_TABLE = "CREATE TABLE orders (id bigint NOT NULL, customer text, amount numeric(10,2), created timestamptz)"


class Load(NamedTuple):
    """
    :param database: empty before; its table `orders` holds the rows after
    """

    kafka: KafkaBroker
    postgres: PostgresServer
    dataset: Dataset
    database: str

    def connect(self, *, autocommit: bool = False) -> psycopg.Connection[Any]:
        return self.postgres.connect(self.database, autocommit=autocommit)

    def create_table(self) -> None:
        """For contenders that do not do so themselves."""
        with self.connect() as conn:
            conn.execute(_TABLE)

    def check(self) -> None:
        """
        :raises AssertionError: the table does not hold each record once
        """
        with self.connect() as conn:
            found = conn.execute("SELECT count(*), sum(id) FROM orders").fetchone()
        records = self.dataset.records
        assert found == (records, records * (records - 1) // 2), f"{found} of {records} rows are in {self.database}"
