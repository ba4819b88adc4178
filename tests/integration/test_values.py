"""What the records say is what the target holds, or the load says which record does not fit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_kafka_offsets.formats import Json
from airflow_kafka_offsets.sinks import SqlTable, insert, sql_table
from devstack.kafka import KafkaBroker
from tests.integration.conftest import Loader, TopicFactory, produce, rows
from tests.integration.inline import InlineLauncher


def record(**fields: object) -> bytes:
    return json.dumps(fields).encode()


@pytest.fixture(params=["copy", "insert", "psycopg2"])
def postgres_writer(
    request: pytest.FixtureRequest, kafka: KafkaBroker, database: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Loader]:
    """A loader for each way into Postgres: COPY, the same driver where pgpq is not installed, and another driver."""
    url = sa.make_url(database)
    if request.param == "psycopg2":
        pytest.importorskip("psycopg2")
        url = url.set(drivername="postgresql+psycopg2")
    if request.param == "insert":
        monkeypatch.setattr(sql_table, "_writer", lambda _: insert.insert_rows)
    engine = sa.create_engine(url, hide_parameters=True)
    yield Loader(kafka, engine, InlineLauncher())
    engine.dispose()


class TestText:
    @pytest.mark.parametrize("key", [(), ("id",)], ids=["appended", "upserted"])
    def test_postgres_reads_it_the_same_whichever_way_it_comes(
        self, postgres_writer: Loader, kafka: KafkaBroker, topic: TopicFactory, key: tuple[str, ...]
    ) -> None:
        texts: dict[str, Any] = {
            "jsonb": ('{"a": 1}', '{"a": 1}'),
            "json": ("[1]", "[1]"),
            "text[]": ("{x,y}", "{x,y}"),
            "int[]": ("{1,2}", "{1,2}"),
            "uuid": ("6F1B9A0E-7C44-4D0B-9B36-0D6A2A1A5A11", "6f1b9a0e-7c44-4d0b-9b36-0d6a2a1a5a11"),
            "mood": ("sad", "sad"),
            "inet": ("10.0.0.1", "10.0.0.1/32"),
            "interval": ("1 day", "1 day"),
            "time": ("10:00", "10:00:00"),
            "int4range": ("[1,4]", "[1,5)"),
            "varchar(3)": ("a%b", "a%b"),
        }
        columns = [f"c{number}" for number in range(len(texts))]
        name = topic()
        produce(
            kafka,
            name,
            [record(id=1, **dict(zip(columns, [text for text, _ in texts.values()], strict=True))), record(id=2)],
        )
        types = ", ".join(f"{column} {kind}" for column, kind in zip(columns, texts, strict=True))
        with postgres_writer.engine.begin() as conn:
            conn.exec_driver_sql("CREATE TYPE mood AS ENUM ('sad', 'happy')")
            conn.exec_driver_sql(
                f"CREATE TABLE target (id BIGINT PRIMARY KEY, {types},"
                " _kafka_topic TEXT, _kafka_partition INT, _kafka_offset BIGINT)"
            )

        postgres_writer(
            name,
            sink=SqlTable("target", upsert_key=key),
            value_format=Json(f"id BIGINT, {', '.join(f'{column} STRING' for column in columns)}"),
        )

        query = f"SELECT {', '.join(f'{column}::text' for column in columns)} FROM target ORDER BY id"
        assert rows(postgres_writer.engine, query) == [
            tuple(read for _, read in texts.values()),
            tuple(None for _ in columns),
        ]
