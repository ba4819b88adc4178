"""What Postgres says of a row that COPY cannot write, and what it makes of texts."""

from __future__ import annotations

import json
import random
import string
from datetime import timedelta

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from airflow_kafka_offsets.formats.simple_formats import Json
from airflow_kafka_offsets.sinks.sql.postgres_copy import _failed_place
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from tests.support.clients import Kafka, produce
from tests.support.inline import InlineLauncher
from tests.support.loads import Loader, TopicFactory, rows
from tests.support.upserts import ORIGIN, POSTGRES, do
from tests.support.verifying import LEFT_OUT


@pytest.mark.parametrize(
    ("context", "is_value"),
    [
        ("COPY orders_2, line 3, column id", True),
        ('COPY orders_2, line 3: "7,\nCOPY orders_2, line 9, column id"', False),
        ('COPY orders_2, line 3: "7, 8"', False),
        ("COPY orders_2, Zeile 3, Spalte id: »7«", True),
        ("COPY orders_2, ligne 3, colonne id : « 7 »", True),
        ("COPY orders_2, ligne 3 : « 7, 8 »", False),
        ("COPY orders_2, строка 3, столбец id", True),
        ("COPY orders_2, línea 3", False),
        ("orders_2のCOPY、行 3、列 id", True),
        ('orders_2のCOPY、行 3: "7、8"', False),
        ("orders_2 복사, 3번째 줄, id 열", True),
        ("PL/pgSQL-Funktion refuse() Zeile 1 bei RAISE\nCOPY orders_2, Zeile 3", False),
    ],
)
def test_the_line_is_found_in_any_language(context: str, is_value: bool) -> None:
    assert _failed_place(context, "orders_2") == (3, is_value)


@pytest.mark.parametrize(
    "context", ["", "COPY orders_2", "COPY orders_22, line 3", "PL/pgSQL function refuse() line 1 at RAISE"]
)
def test_copy_of_no_rows(context: str) -> None:
    assert _failed_place(context, "orders_2") is None


@pytest.fixture
def kafka(log: Kafka) -> Kafka:
    return log


def dead_letters(loader: Loader) -> list[int]:
    return [offset for (offset,) in rows(loader.engine, "SELECT offset_value FROM dead_letters ORDER BY offset_value")]


@POSTGRES
@pytest.mark.server
@pytest.mark.filterwarnings("ignore:Did not recognize type")
@pytest.mark.parametrize("key", [(), ("id",)], ids=["append", "upsert"])
@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        ("TSQUERY", "a & b", ["a &", "((("]),
        ("JSONPATH", "$.a", ["$.["]),
        ("REGCLASS", "pg_class", ["nope", "nope.nope"]),
        ("ACLITEM", "postgres=r/postgres", ["nobody=r/postgres"]),
    ],
)
def test_texts_that_a_type_does_not_read_are_bad(
    inline_loader: Loader, topic: TopicFactory, kind: str, good: str, bad: list[str], key: tuple[str, ...]
) -> None:
    """Their input functions report what a wrong statement would: a syntax error, an undefined table."""
    name = topic()
    texts = [good, *bad, good]
    produce(inline_loader.kafka, name, [json.dumps({"id": i, "x": x}).encode() for i, x in enumerate(texts)])
    do(inline_loader.engine, f"CREATE TABLE target (id BIGINT PRIMARY KEY, x {kind}, {ORIGIN})")

    result = inline_loader(
        name, value_format=Json("id BIGINT, x STRING"), sink=SqlTable("target", upsert_key=key), **LEFT_OUT
    )

    assert result.rows == 2
    assert dead_letters(inline_loader) == list(range(1, len(bad) + 1))


@POSTGRES
@pytest.mark.server
@pytest.mark.parametrize("sound", [20, *(pytest.param(count, marks=pytest.mark.long) for count in (1, 300))])
def test_a_row_that_is_too_large_for_a_page_is_alone_bad(
    inline_loader: Loader, topic: TopicFactory, sound: int
) -> None:
    """COPY names another row of those that it stores together, or one that does not exist."""
    name, columns = topic(), [f"c{number}" for number in range(1_200)]
    small, large = ({"id": 1} | dict.fromkeys(columns[:count], 7) for count in (600, 1_200))
    values = [json.dumps(record).encode() for record in [*[small] * sound, large, *[small] * sound]]
    produce(inline_loader.kafka, name, values)

    ddl = f"id BIGINT, {', '.join(f'{column} BIGINT' for column in columns)}"
    assert inline_loader(name, value_format=Json(ddl), **LEFT_OUT).rows == 2 * sound

    assert dead_letters(inline_loader) == [sound]


@POSTGRES
@pytest.mark.server
@pytest.mark.parametrize("key", [("name",), ("id",)])
def test_a_text_that_is_too_long_for_an_index_is_bad(
    inline_loader: Loader, topic: TopicFactory, key: tuple[str, ...]
) -> None:
    name, letters = topic(), random.Random(1)
    long = "".join(letters.choices(string.ascii_letters, k=6_000))
    values = [json.dumps({"id": i, "name": text}).encode() for i, text in enumerate(["a", long, "b"])]
    produce(inline_loader.kafka, name, values)
    do(
        inline_loader.engine,
        f"CREATE TABLE target (id BIGINT UNIQUE, name TEXT UNIQUE, {ORIGIN})",
    )

    assert inline_loader(name, sink=SqlTable("target", upsert_key=key), **LEFT_OUT).rows == 2

    assert dead_letters(inline_loader) == [1]


def test_values_are_what_they_are_behind_a_pooler_that_gives_each_transaction_another_session(
    postgres_engine: Engine, kafka: Kafka, topic: TopicFactory
) -> None:
    """Each transaction begins with the settings of the database, as in a session that nobody has looked at."""
    name = topic()
    produce(kafka, name, [json.dumps({"id": 1, "span": "-1 days 02:03:00"}).encode()])
    with postgres_engine.begin() as conn:
        conn.exec_driver_sql(f"CREATE TABLE target (id BIGINT, span INTERVAL, {ORIGIN})")
    sa.event.listen(
        postgres_engine, "begin", lambda conn: conn.exec_driver_sql("SET LOCAL IntervalStyle = sql_standard")
    )

    Loader(kafka, postgres_engine, InlineLauncher())(name, value_format=Json("id BIGINT, span STRING"))

    ((seconds,),) = rows(postgres_engine, "SELECT EXTRACT(epoch FROM span) FROM target")
    assert timedelta(seconds=int(seconds)) == timedelta(days=-1, hours=2, minutes=3)
