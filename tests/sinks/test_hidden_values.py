"""A value that the database refuses is in no message: neither in the error, nor in what is logged with it."""

from __future__ import annotations

import traceback

import pytest
import sqlalchemy as sa

from airflow_kafka_offsets.exceptions import RecordError, TargetError
from airflow_kafka_offsets.formats.simple_formats import Json
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from tests.support.clients import Kafka, produce
from tests.support.inline import InlineLauncher
from tests.support.loads import Loader, TopicFactory
from tests.support.rewinds import TARGET, Rewinder

pytestmark = pytest.mark.server

LONG = "4711004711" * 30_000

ORIGIN = "_kafka_topic TEXT, _kafka_partition INT, _kafka_offset BIGINT, _batch_id BIGINT"


@pytest.mark.parametrize("engine", ["postgresql"], indirect=True)
@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
@pytest.mark.parametrize("key", [(), ("id",)], ids=["append", "upsert"])
@pytest.mark.parametrize(
    ("column", "named", "declared", "value"),
    [
        ("UUID", "SQLSTATE 22P02", "STRING", f'"{LONG}"'),
        ("DATERANGE", "SQLSTATE 22P02", "STRING", f'"{LONG}"'),
        ("TEXT CHECK (x = '')", "SQLSTATE 23514", "STRING", f'"{LONG}"'),
        ("INT", "a value of type BIGINT does not fit into INT", "BIGINT", "4711004711"),
    ],
    ids=["uuid", "range", "check", "number"],
)
def test_a_long_value_is_in_no_message(
    kafka: Kafka,
    topic: TopicFactory,
    engine: sa.Engine,
    driver: str,
    key: tuple[str, ...],
    column: str,
    named: str,
    declared: str,
    value: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    name = topic()
    produce(kafka, name, [b'{"id": 0}', f'{{"id": 1, "x": {value}}}'.encode()])
    with engine.begin() as conn:
        conn.exec_driver_sql(f"CREATE TABLE target (id BIGINT PRIMARY KEY, x {column}, {ORIGIN})")
    other = sa.create_engine(engine.url.set(drivername=f"postgresql+{driver}"), hide_parameters=True)
    loader = Loader(kafka, other, InlineLauncher())

    with pytest.raises(RecordError, match=f"topic '{name}' partition 0 offset 1 .*{named}") as refused:
        loader(name, sink=SqlTable("target", upsert_key=key), value_format=Json(f"id BIGINT, x {declared}"))

    other.dispose()
    for text in ("".join(traceback.format_exception(refused.value)), caplog.text):
        assert "4711004711" not in text
        assert len(text) < 20_000
    assert len(str(refused.value)) < 1_000


@pytest.mark.parametrize("engine", ["postgresql"], indirect=True)
@pytest.mark.parametrize(
    ("ddl", "state"),
    [
        (
            "CREATE TABLE child AS SELECT x FROM target; ALTER TABLE child ADD FOREIGN KEY (x) REFERENCES target (x)",
            23503,
        ),
        (
            "CREATE TABLE child AS SELECT x FROM target;"
            "ALTER TABLE child ADD FOREIGN KEY (x) REFERENCES target (x) DEFERRABLE INITIALLY DEFERRED",
            23503,
        ),
        (
            "CREATE FUNCTION f() RETURNS trigger AS $$ BEGIN PERFORM OLD.x::date; RETURN OLD; END $$ LANGUAGE plpgsql;"
            "CREATE TRIGGER t BEFORE DELETE ON target FOR EACH ROW EXECUTE FUNCTION f()",
            22007,
        ),
    ],
    ids=["key", "deferred", "trigger"],
)
def test_a_row_that_a_rewind_cannot_remove_is_in_no_message(
    kafka: Kafka, topic: TopicFactory, engine: sa.Engine, ddl: str, state: int, caplog: pytest.LogCaptureFixture
) -> None:
    name = topic()
    produce(kafka, name, [b'{"id": 1, "x": "CANARY"}'])
    with engine.begin() as conn:
        conn.exec_driver_sql(f"CREATE TABLE target (id BIGINT, x TEXT UNIQUE, {ORIGIN})")
    loader = Loader(kafka, engine, InlineLauncher())
    loader(name, value_format=Json("id BIGINT, x STRING"))
    with engine.begin() as conn:
        conn.exec_driver_sql(ddl)

    with pytest.raises(TargetError, match=rf"nothing was changed: .*'target': .*SQLSTATE {state}") as refused:
        Rewinder(loader)("to-earliest", replace=TARGET)

    assert "CANARY" not in "".join(traceback.format_exception(refused.value)) + caplog.text
