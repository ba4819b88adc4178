"""Rows that the database refuses are traced to their records."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import sqlalchemy as sa

from airflow_kafka_offsets import DeadLetters, Staging
from airflow_kafka_offsets.exceptions import RecordError
from airflow_kafka_offsets.formats.simple_formats import Json
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from devstack.kafka import KafkaBroker
from tests.support.clients import produce
from tests.support.inline import InlineLauncher
from tests.support.loads import Loader, TopicFactory, names, positions, rows

pytestmark = pytest.mark.server


def test_a_value_outside_its_column_is_named(postgres_loader: Loader, kafka: KafkaBroker, topic: TopicFactory) -> None:
    name = topic()
    produce(kafka, name, [*names(0, 5), b'{"id": 3000000000, "name": "big"}', *names(5, 5)])
    with postgres_loader.engine.begin() as conn:
        conn.execute(sa.text("CREATE TABLE target (id INTEGER, name TEXT)"))

    with pytest.raises(RecordError, match=f"topic '{name}' partition 0 offset 5 .*column 'id'"):
        postgres_loader(name)

    assert rows(postgres_loader.engine, "SELECT count(*) FROM target") == [(0,)]
    assert positions(postgres_loader.engine) == {}


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [
        ("name TEXT CHECK (name <> 'bad')", "bad", "violates check constraint"),
        ("name TEXT UNIQUE", "name-3", "duplicate key value"),
        ("name VARCHAR(6)", "too-long", "value too long"),
        ("name TEXT", "nul\\u0000byte", "invalid byte sequence|null character"),
        ("name JSONB", "{", "invalid input syntax for type json"),
    ],
)
def test_a_row_that_postgres_refuses_is_traced_to_its_record(
    postgres_loader: Loader, kafka: KafkaBroker, topic: TopicFactory, column: str, value: str, reason: str
) -> None:
    name = topic()
    good = [b'{"id": %d, "name": "%s"}' % (i, b"{}" if "JSONB" in column else b"n%d" % i) for i in range(7)]
    twin = [b'{"id": 7, "name": "name-3"}'] if "UNIQUE" in column else []
    produce(kafka, name, [*good, *twin, f'{{"id": 8, "name": "{value}"}}'.encode(), *good[:1]])
    with postgres_loader.engine.begin() as conn:
        conn.execute(sa.text(f"CREATE TABLE target (id BIGINT, {column})"))

    with pytest.raises(RecordError, match=f"partition 0 offset {7 + len(twin)} .*({reason})"):
        postgres_loader(name, staging=Staging(slice_offsets=100))

    assert rows(postgres_loader.engine, "SELECT count(*) FROM target") == [(0,)]
    assert positions(postgres_loader.engine) == {}


@pytest.mark.parametrize("key", [(), ("id",)], ids=["appended", "upserted"])
@pytest.mark.parametrize("bad", [0, 1, 4])
@pytest.mark.parametrize("engine", ["postgresql"], indirect=True)
def test_lines_within_values_do_not_hide_which_row_postgres_refuses(
    inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory, bad: int, key: tuple[str, ...]
) -> None:
    name = topic()
    texts = ["a\nb\r\nc\rd\r", "\n\n", "", "e\r\rf\r\n\n", "\ng\n", "h"]
    produce(
        kafka,
        name,
        [
            json.dumps({"id": i, "name": text, "doc": "{" if i == bad else '{"a":\n1}', "more": text}).encode()
            for i, text in enumerate(texts)
        ],
    )
    with inline_loader.engine.begin() as conn:
        conn.execute(
            sa.text(
                "CREATE TABLE target (id BIGINT PRIMARY KEY, name TEXT, doc JSONB, more TEXT,"
                " _kafka_topic TEXT, _kafka_partition INT, _kafka_offset BIGINT, _batch_id BIGINT)"
            )
        )

    with pytest.raises(RecordError, match=f"partition 0 offset {bad} .*invalid input syntax for type json"):
        inline_loader(
            name,
            sink=SqlTable("target", upsert_key=key),
            value_format=Json("id BIGINT, name STRING, doc STRING, more STRING"),
        )


@pytest.mark.parametrize("bad", range(5))
def test_a_trigger_that_writes_does_not_hide_which_row_sqlite_refuses(
    tmp_path: Path, kafka: KafkaBroker, topic: TopicFactory, bad: int
) -> None:
    name = topic()
    produce(kafka, name, [*names(0, bad), b'{"id": 1000}', *names(bad, 4 - bad)])
    engine = sa.create_engine(f"sqlite:///{tmp_path}/w.db")
    with engine.begin() as conn:
        conn.exec_driver_sql("CREATE TABLE target (id BIGINT CHECK (id < 1000), name TEXT)")
        conn.exec_driver_sql("CREATE TABLE seen (id BIGINT)")
        conn.exec_driver_sql("CREATE TRIGGER see AFTER INSERT ON target BEGIN INSERT INTO seen VALUES (new.id); END")

    with pytest.raises(RecordError, match=f"partition 0 offset {bad} .*CHECK constraint failed"):
        Loader(kafka, engine, InlineLauncher())(name)

    assert rows(engine, "SELECT count(*) FROM seen") == [(0,)]
    engine.dispose()


def test_a_record_for_which_a_trigger_of_sqlite_raises_is_bad(
    tmp_path: Path, kafka: KafkaBroker, topic: TopicFactory
) -> None:
    name = topic()
    produce(kafka, name, names(0, 5))
    engine = sa.create_engine(f"sqlite:///{tmp_path}/w.db")
    with engine.begin() as conn:
        conn.exec_driver_sql("CREATE TABLE target (id BIGINT, name TEXT)")
        conn.exec_driver_sql(
            "CREATE TRIGGER no_three BEFORE INSERT ON target WHEN new.id = 3 BEGIN SELECT RAISE(ABORT, 'no three'); END"
        )

    result = Loader(kafka, engine, InlineLauncher())(name, on_bad_record=DeadLetters())

    assert (result.rows, result.dead_letters) == (4, 1)
    assert rows(engine, "SELECT offset_value, error_class FROM dead_letters") == [(3, "target")]
    engine.dispose()


def test_a_row_that_sqlite_refuses_is_traced_to_its_record(
    tmp_path: Path, postgres_loader: Loader, kafka: KafkaBroker, topic: TopicFactory
) -> None:
    name = topic()
    produce(kafka, name, [*names(0, 7), *names(3, 1), *names(9, 1)])
    engine = sa.create_engine(f"sqlite:///{tmp_path}/w.db")
    with engine.begin() as conn:
        conn.execute(sa.text("CREATE TABLE target (id BIGINT UNIQUE, name TEXT)"))

    with pytest.raises(RecordError, match=r"partition 0 offset 7 .*UNIQUE constraint failed: target\.id"):
        Loader(kafka, engine, postgres_loader.launcher)(name)

    assert rows(engine, "SELECT count(*) FROM target") == [(0,)]
    engine.dispose()


def test_a_driver_without_copy_inserts_with_a_warning_and_traces_refused_rows(
    postgres_loader: Loader, kafka: KafkaBroker, topic: TopicFactory, caplog: pytest.LogCaptureFixture
) -> None:
    """psycopg2 stands for every driver that this package knows no faster way for."""
    name = topic()
    produce(kafka, name, names(0, 50))
    engine = sa.create_engine(postgres_loader.engine.url.set(drivername="postgresql+psycopg2"))
    other = Loader(kafka, engine, postgres_loader.launcher)
    assert other(name).rows == 50
    assert rows(engine, "SELECT count(DISTINCT id) FROM target") == [(50,)]
    assert "by INSERT, many times slower than by COPY" in caplog.text
    assert "(it is psycopg2)" in caplog.text

    with engine.begin() as conn:
        conn.execute(sa.text("CREATE UNIQUE INDEX ON target (id)"))
    produce(kafka, name, [*names(50, 5), *names(7, 1)])
    with pytest.raises(
        RecordError,
        match=f"topic '{name}' partition 0 offset 55 .*duplicate key value.*correct the target, or the record; then",
    ):
        other(name)

    assert rows(engine, "SELECT count(*) FROM target") == [(50,)]
    assert positions(engine) == {(name, 0): 50}
    engine.dispose()


def test_text_is_read_by_postgres_where_the_type_has_no_binary_form_here(
    postgres_loader: Loader, kafka: KafkaBroker, topic: TopicFactory
) -> None:
    name = topic()
    produce(
        kafka,
        name,
        [
            b'{"id": "6f1b9a0e-7c44-4d0b-9b36-0d6a2a1a5a11", "doc": "{\\"a\\": \\"x,\\\\\\"y\\"}", "text": '
            b'"a,\\"b\\"\\nc", "net": "10.0.0.1"}',
            b'{"text": ""}',
            b'{"text": "\\\\N"}',
        ],
    )
    with postgres_loader.engine.begin() as conn:
        conn.execute(sa.text("CREATE TABLE target (id UUID, doc JSONB, text TEXT, net INET, _kafka_offset BIGINT)"))

    postgres_loader(name, value_format=Json("id STRING, doc STRING, text STRING, net STRING"))

    query = "SELECT id::text, doc->>'a', text, net::text FROM target ORDER BY _kafka_offset"
    assert rows(postgres_loader.engine, query) == [
        ("6f1b9a0e-7c44-4d0b-9b36-0d6a2a1a5a11", 'x,"y', 'a,"b"\nc', "10.0.0.1/32"),
        (None, None, "", None),
        (None, None, "\\N", None),
    ]
