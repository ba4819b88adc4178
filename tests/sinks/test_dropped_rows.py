"""Rows that a trigger or a rule of the target drops, rewrites or writes elsewhere."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from airflow_kafka_offsets import SqlTable, Staging
from tests.support.clients import Kafka, produce
from tests.support.inline import InlineLauncher
from tests.support.loads import Loader, TopicFactory, names, rows
from tests.support.replays import Replayer

pytestmark = pytest.mark.server

# COPY in binary, COPY of text, INSERT by SQLAlchemy, INSERT into SQLite.
WAYS = ("copy", "copy of text", "insert", "sqlite")

_FUNCTION = (
    "CREATE FUNCTION changed() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {} END $$;"
    " CREATE TRIGGER of_target BEFORE INSERT ON target FOR EACH ROW EXECUTE FUNCTION changed()"
)
_DROPS = _FUNCTION.format("IF NEW.id % 10 = 3 THEN RETURN NULL; END IF; RETURN NEW;")
_REWRITES = _FUNCTION.format("NEW.id = NEW.id + 1000; RETURN NEW;")
_MOVES = "CREATE TABLE elsewhere (LIKE target); " + _FUNCTION.format("INSERT INTO elsewhere SELECT NEW.*; RETURN NULL;")

_INHERITS = "CREATE TABLE of_day () INHERITS (target); " + _FUNCTION.format(
    "INSERT INTO of_day SELECT NEW.*; RETURN NULL;"
)


@pytest.fixture
def kafka(log: Kafka) -> Kafka:
    """A log in memory."""
    return log


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def engine(request: pytest.FixtureRequest, way: str) -> Iterator[Engine]:
    if way == "sqlite":
        url = f"sqlite:///{request.getfixturevalue('tmp_path')}/warehouse.db"
    else:
        url = request.getfixturevalue("database").replace("+psycopg", "+psycopg2" if way == "insert" else "+psycopg")
    made = sa.create_engine(url, hide_parameters=True)
    with made.begin() as conn:
        # A type for which COPY sends text.
        kind = "TSVECTOR" if way == "copy of text" else "TEXT"
        conn.exec_driver_sql(f"CREATE TABLE target (id BIGINT, name {kind}, _batch_id BIGINT)")
    yield made
    made.dispose()


def alter(engine: Engine, statement: str, sqlite: str) -> None:
    with engine.begin() as conn:
        conn.execute(sa.text(sqlite if engine.dialect.name == "sqlite" else statement))


def load(kafka: Kafka, topic: TopicFactory, engine: Engine, count: int) -> int:
    """Load records, in two files, and return the number of rows that the load and the history report."""
    name = topic()
    produce(kafka, name, names(0, count))
    result = Loader(kafka, engine, InlineLauncher())(name, staging=Staging(slice_offsets=count // 2))
    assert rows(engine, "SELECT records, row_count FROM offset_batches") == [(count, result.rows)]
    return result.rows


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Those of the target."""
    of_target = (record for record in caplog.records if record.name.startswith("airflow_kafka_offsets.sinks."))
    found = [record.getMessage() for record in of_target if record.levelname == "WARNING"]
    # Of a driver without COPY.
    return [message for message in found if not message.startswith("Rows are written by INSERT")]


def test_dropped_rows_are_counted(
    kafka: Kafka, topic: TopicFactory, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    alter(
        engine,
        _DROPS,
        "CREATE TRIGGER of_target BEFORE INSERT ON target WHEN NEW.id % 10 = 3 BEGIN SELECT RAISE(IGNORE); END",
    )

    assert load(kafka, topic, engine, 3000) == 2700

    assert rows(engine, "SELECT count(*) FROM target") == [(2700,)]
    (warning,) = warnings(caplog)
    assert warning.startswith("There are 2,700 rows in table 'target', but 3,000 were sent")


def test_rewritten_rows_are_rows(
    kafka: Kafka, topic: TopicFactory, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    alter(
        engine,
        _REWRITES,
        "CREATE TRIGGER of_target AFTER INSERT ON target BEGIN"
        " UPDATE target SET id = id + 1000 WHERE rowid = NEW.rowid; END",
    )

    assert load(kafka, topic, engine, 3000) == 3000

    assert rows(engine, "SELECT min(id), count(*) FROM target") == [(1000, 3000)]
    assert warnings(caplog) == []


@pytest.mark.parametrize("way", ["copy", "copy of text", "insert"], indirect=True)
def test_rows_that_are_written_elsewhere_are_not_in_the_table(
    kafka: Kafka, topic: TopicFactory, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    alter(engine, _MOVES, "")

    assert load(kafka, topic, engine, 10) == 0

    assert rows(engine, "SELECT count(*) FROM elsewhere") == [(10,)]
    assert "There are 0 rows in table 'target', but 10 were sent" in warnings(caplog)[0]


@pytest.mark.parametrize("way", ["copy", "copy of text", "insert"], indirect=True)
def test_rows_of_partitions_that_inherit_from_the_table_are_counted_and_replaced(
    kafka: Kafka, topic: TopicFactory, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    with engine.begin() as conn:
        for column in ("_kafka_topic TEXT", "_kafka_partition INT", "_kafka_offset BIGINT"):
            conn.exec_driver_sql(f"ALTER TABLE target ADD COLUMN {column}")
    alter(engine, _INHERITS, "")
    name = topic()
    produce(kafka, name, names(0, 10))
    loader = Loader(kafka, engine, InlineLauncher())

    assert loader(name).rows == 10
    Replayer(loader)(name, {name: {0: (2, 7)}}, sink=SqlTable("target"), replace=True)

    assert rows(engine, "SELECT count(*), count(DISTINCT _kafka_offset) FROM target") == [(10, 10)]
    assert warnings(caplog) == []


def test_without_any_there_is_no_warning(
    kafka: Kafka, topic: TopicFactory, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    assert load(kafka, topic, engine, 3000) == 3000
    assert warnings(caplog) == []
