"""Verifications of what loads left, and the hands that break it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from airflow_kafka_offsets import DeadLetters
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from airflow_kafka_offsets.verification.facts import Coverage
from airflow_kafka_offsets.verification.verify import verify
from tests.support.loads import Loader, in_dialect

ON_ONE = pytest.mark.parametrize("engine", ["sqlite"], indirect=True)
"""For what the kind of database has no part in."""

LEFT_OUT: dict[str, Any] = {"on_bad_record": DeadLetters()}


def verified(loader: Loader, **options: Any) -> Coverage:
    return verify("loader", sink=SqlTable("target"), engine=loader.engine, **options)


def reread(loader: Loader, **options: Any) -> Coverage:
    return verified(loader, kafka_config=loader.config, **options)


def do(engine: Engine, *statements: str) -> None:
    with engine.begin() as conn:
        for statement in statements:
            assert conn.execute(sa.text(in_dialect(engine, statement))).rowcount, statement


@contextmanager
def put_back(engine: Engine) -> Iterator[None]:
    """Every table holds afterwards what it holds now: a load for each thing to break would take a minute."""
    metadata = sa.MetaData()
    metadata.reflect(engine)
    with engine.connect() as conn:
        contents = {table: conn.execute(table.select()).mappings().all() for table in metadata.sorted_tables}
    yield
    with engine.begin() as conn:
        for table, content in contents.items():
            conn.execute(table.delete())
            if content:
                # MySQL takes no value for a generated column.
                stored = [column.name for column in table.columns if column.computed is None]
                conn.execute(table.insert(), [{name: row[name] for name in stored} for row in content])
