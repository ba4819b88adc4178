"""What the records say is what the target holds, or the load says which record does not fit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_kafka_offsets.exceptions import RecordError
from airflow_kafka_offsets.formats.simple_formats import Json
from airflow_kafka_offsets.sinks.sql import connected_table, insert
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from devstack.kafka import KafkaBroker
from tests.support.clients import produce
from tests.support.inline import InlineLauncher
from tests.support.loads import Loader, TopicFactory, positions, rows

pytestmark = pytest.mark.server

POSTGRES = pytest.mark.parametrize("engine", ["postgresql"], indirect=True)
SQLITE = pytest.mark.parametrize("engine", ["sqlite"], indirect=True)


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
        monkeypatch.setattr(connected_table, "_writer", lambda _: insert.insert_rows)
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
                " _kafka_topic TEXT, _kafka_partition INT, _kafka_offset BIGINT, _batch_id BIGINT)"
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


class TestNumbers:
    DECIMALS = ("123456789012345678.91", "-0.00000001", "0", "99999999999999999999999999999.12345678", "1.5")

    @pytest.mark.parametrize("key", [(), ("id",)], ids=["appended", "upserted"])
    @pytest.mark.broker
    def test_a_decimal_is_exact_in_a_created_table(
        self, inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory, key: tuple[str, ...]
    ) -> None:
        name = topic()
        produce(kafka, name, [record(id=number, d=text) for number, text in enumerate(self.DECIMALS)])

        inline_loader(
            name, sink=SqlTable("target", upsert_key=key), value_format=Json("id BIGINT NOT NULL, d DECIMAL(38,8)")
        )

        stored = [text for (text,) in rows(inline_loader.engine, "SELECT CAST(d AS TEXT) FROM target ORDER BY id")]
        assert stored == [f"{Decimal(text):.8f}" for text in self.DECIMALS]

    @SQLITE
    @pytest.mark.parametrize(
        ("column", "kept", "rounded"),
        [
            ("NUMERIC", ["1.5", "999999999999999.00", "9999999999999.99"], "12345678901234.56"),
            ("DECIMAL(30,0)", ["9223372036854775807", "-9223372036854775808"], "9223372036854775809"),
        ],
        ids=["fraction", "whole"],
    )
    def test_a_decimal_that_sqlite_would_round_is_refused(
        self,
        inline_loader: Loader,
        kafka: KafkaBroker,
        topic: TopicFactory,
        column: str,
        kept: list[str],
        rounded: str,
    ) -> None:
        name = topic()
        produce(kafka, name, [record(d=text) for text in kept])
        with inline_loader.engine.begin() as conn:
            conn.exec_driver_sql(f"CREATE TABLE target (d {column}, _kafka_offset BIGINT)")
        declared = Json("d DECIMAL(20,2)" if column == "NUMERIC" else "d DECIMAL(30,0)")
        inline_loader(name, value_format=declared)
        stored = [Decimal(str(d)) for (d,) in rows(inline_loader.engine, "SELECT d FROM target ORDER BY _kafka_offset")]
        assert stored == [Decimal(text) for text in kept]

        produce(kafka, name, [record(d=kept[0]), record(d=rounded)])
        with pytest.raises(RecordError, match=f"offset {len(kept) + 1} .*column 'd'.* has type TEXT"):
            inline_loader(name, value_format=declared)

        assert positions(inline_loader.engine) == {(name, 0): len(kept)}

    @SQLITE
    def test_every_number_of_sqlite_is_as_wide_as_it_gets(
        self, inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory
    ) -> None:
        name = topic()
        produce(kafka, name, [record(id=2**63 - 1, small=-(2**63), ratio=0.1), record(id=3_000_000_000, ratio=1e300)])
        with inline_loader.engine.begin() as conn:
            conn.exec_driver_sql("CREATE TABLE target (id INTEGER PRIMARY KEY, small SMALLINT, ratio REAL)")

        inline_loader(name, value_format=Json("id BIGINT, small BIGINT, ratio DOUBLE"))

        assert rows(inline_loader.engine, "SELECT id, small, ratio FROM target ORDER BY id") == [
            (3_000_000_000, None, 1e300),
            (2**63 - 1, -(2**63), 0.1),
        ]

    @POSTGRES
    @pytest.mark.parametrize("number", [-1e300, 1e-300])
    def test_a_number_that_is_too_large_or_too_small_for_a_real_is_refused(
        self, inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory, number: float
    ) -> None:
        name = topic()
        produce(kafka, name, [record(x=1.5), record(x=0), record(x=3.4e38), record(x=number)])
        with inline_loader.engine.begin() as conn:
            conn.exec_driver_sql("CREATE TABLE target (x REAL)")

        with pytest.raises(
            RecordError, match=r"offset 3 .*column 'x': a value of type DOUBLE does not fit into (REAL|FLOAT)\."
        ):
            inline_loader(name, value_format=Json("x DOUBLE"))

        assert positions(inline_loader.engine) == {}
