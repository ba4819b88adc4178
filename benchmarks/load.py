"""The task of every contender: load all records of a topic into a table of an empty database."""

from __future__ import annotations

from typing import Any, NamedTuple

import psycopg

from benchmarks.datasets import Dataset
from devstack.kafka import KafkaBroker
from devstack.postgres import PostgresServer

TABLE = "CREATE TABLE orders (id bigint NOT NULL, customer text, amount numeric(10,2), created timestamptz)"


class Load(NamedTuple):
    """A load of a data set.

    :param database: empty before the load; afterwards its table `orders` has the rows
    """

    kafka: KafkaBroker
    postgres: PostgresServer
    dataset: Dataset
    database: str

    def connect(self, *, autocommit: bool = False) -> psycopg.Connection[Any]:
        return self.postgres.connect(self.database, autocommit=autocommit)

    def create_table(self) -> None:
        """Create the table for contenders that do not create it themselves."""
        with self.connect() as conn:
            conn.execute(TABLE)

    def check(self) -> None:
        """Check the rows.

        :raises AssertionError: the table does not contain each record once
        """
        with self.connect() as conn:
            found = conn.execute("SELECT count(*), sum(id) FROM orders").fetchone()
        records = self.dataset.records
        assert found == (records, records * (records - 1) // 2), f"{found} of {records} rows are in {self.database}"
