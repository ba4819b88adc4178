"""Loads into databases of other encodings, and whose sessions have other settings: equal values, or a named refusal."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, date, datetime, timedelta

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from airflow_kafka_offsets import DeadLetters
from airflow_kafka_offsets.dead_letters import replay
from airflow_kafka_offsets.dead_letters.replay import replay_dead_letters
from airflow_kafka_offsets.dead_letters.selection import DeadLetterFilter
from airflow_kafka_offsets.exceptions import RecordError
from airflow_kafka_offsets.formats import json_decoder
from airflow_kafka_offsets.formats.simple_formats import Json
from airflow_kafka_offsets.ledger.dead_letter_batches import Replayed
from airflow_kafka_offsets.ledger.positions import read_positions
from airflow_kafka_offsets.ledger.tables import Ledger
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from airflow_kafka_offsets.verification.verify import verify
from devstack.postgres import PostgresServer
from tests.support.clients import Kafka, produce, producer
from tests.support.inline import InlineLauncher
from tests.support.loads import Loader, TopicFactory, names, rows
from tests.support.mariadb import do
from tests.support.sessions import ODD_SETTINGS, altered

pytestmark = pytest.mark.server

ENCODINGS = ("UTF8", "LATIN1", "WIN1252", "SQL_ASCII")

SETTINGS: Mapping[str, Mapping[str, str]] = {
    "default": {},
    "encoding": {"client_encoding": "WIN1252"},
    "bytes": {"client_encoding": "SQL_ASCII"},
    "styles": {"DateStyle": "SQL, DMY", "IntervalStyle": "sql_standard", "bytea_output": "escape"},
    "time zone": {"TimeZone": "America/St_Johns", "DateStyle": "German", "IntervalStyle": "iso_8601"},
    "all": ODD_SETTINGS | {"bytea_output": "escape", "search_path": "private"},
}

# By driver and table. The rows of the second driver are inserted.
WAYS = (("psycopg", "binary"), ("psycopg", "text"), ("psycopg2", "text"))

# The second one has types for which COPY sends text.
TABLES = {
    "binary": "id BIGINT, name VARCHAR(40), day DATE, at TIMESTAMPTZ, wall TIMESTAMP",
    "text": "id BIGINT, name VARCHAR(40), day DATE, at TIMESTAMPTZ, wall TIMESTAMP, span INTERVAL, days DATERANGE, "
    "hours TSTZRANGE",
}

ORIGIN = "_batch_id BIGINT, _kafka_topic TEXT, _kafka_partition INT, _kafka_offset BIGINT"

# Texts that a database cannot hold, by its encoding.
TOO_MUCH = (("LATIN1", "€"), ("WIN1252", "日本"), ("LATIN1", "𝄞"), ("WIN1252", "\u0081"))


def daily_in_one_way(number: int, way: int) -> list[pytest.MarkDecorator]:
    """Cases that are alike but for their way take turns: each runs in one of the ways every day, and in all of them in
    `make soak`.
    """
    return [] if number % len(WAYS) == way else [pytest.mark.long]


COLUMNS = "id BIGINT NOT NULL, name STRING, day DATE, at TIMESTAMP, wall TIMESTAMP_NTZ"

RECORD = {
    "id": 7,
    "name": 'café \\ "ü"',
    "day": "2026-02-03",
    "at": "2026-02-03T04:05:06.789+01:00",
    "wall": "2026-02-03T04:05:06.789",
}
TEXTS = {"span": "-1 2:03:04", "days": "[02/03/2026,02/04/2026)", "hours": "[2026-02-03 01:00,2026-02-03 02:00)"}

LOADED = (
    7,
    'café \\ "ü"',
    date(2026, 2, 3),
    datetime(2026, 2, 3, 3, 5, 6, 789000, tzinfo=UTC),
    datetime(2026, 2, 3, 4, 5, 6, 789000),
)
# What cannot be decoded is kept as bytes.
BAD = b"{\xff\\\x00"
# The sign is that of the first field alone.
LOADED_TEXTS = (
    timedelta(days=-1, hours=2, minutes=3, seconds=4),
    "[2026-02-03,2026-02-04)",
    '["2026-02-03 01:00:00+00","2026-02-03 02:00:00+00")',
)


@pytest.fixture
def kafka(log: Kafka) -> Kafka:
    """A log in memory."""
    return log


@pytest.fixture(scope="module")
def databases(postgres: PostgresServer) -> Iterator[Callable[[str], str]]:
    """The database of an encoding, by its name."""
    made: dict[str, str] = {}

    def database(encoding: str) -> str:
        if encoding not in made:
            made[encoding] = name = f"of_{encoding.lower()}"
            with postgres.connect() as conn:
                conn.execute(
                    f"CREATE DATABASE \"{name}\" ENCODING '{encoding}' TEMPLATE template0 STRATEGY FILE_COPY"
                    " LC_COLLATE 'C' LC_CTYPE 'C'".encode()
                )
        return made[encoding]

    yield database
    for name in made.values():
        postgres.drop_database(name)


@pytest.fixture
def database(databases: Callable[[str], str], encoding: str, postgres: PostgresServer) -> Iterator[str]:
    """The name of a database of the encoding, without tables."""
    name = databases(encoding)
    altered(postgres, name, {})
    with postgres.connect(name) as conn:
        conn.execute("CREATE SCHEMA private")
    yield name
    altered(postgres, name, {})
    with postgres.connect(name) as conn:
        conn.execute("SET client_min_messages = error")
        conn.execute("DROP SCHEMA private CASCADE; DROP SCHEMA public CASCADE; CREATE SCHEMA public")


@pytest.fixture
def engine(postgres: PostgresServer, database: str, driver: str) -> Iterator[Engine]:
    made = sa.create_engine(postgres.url(database).replace("+psycopg", f"+{driver}"), hide_parameters=True)
    yield made
    made.dispose()


def loader_of(kafka: Kafka, engine: Engine) -> Loader:
    return Loader(kafka, engine, InlineLauncher())


# Each encoding meets all settings, each of these two meets all ways.
@pytest.mark.parametrize(
    ("driver", "table", "settings", "encoding"),
    [
        pytest.param(*WAYS[way], settings, encoding, marks=daily_in_one_way(row + column, way))
        for row, settings in enumerate(SETTINGS)
        for column, encoding in enumerate(ENCODINGS)
        for way in range(len(WAYS))
    ],
)
def test_values_are_the_same(
    kafka: Kafka,
    topic: TopicFactory,
    postgres: PostgresServer,
    database: str,
    engine: Engine,
    encoding: str,
    settings: str,
    table: str,
) -> None:
    name, columns, record = topic(), COLUMNS, RECORD
    loaded: tuple[object, ...] = LOADED
    if table == "text":
        columns, record = f"{COLUMNS}, span STRING, days STRING, hours STRING", RECORD | TEXTS
        loaded = (*LOADED, *LOADED_TEXTS)
    produce(
        kafka, name, [json.dumps(record).encode(), json.dumps(record, ensure_ascii=False).encode(), b'{"id": 8}', BAD]
    )
    chosen = dict(SETTINGS[settings])
    if "client_encoding" in chosen and {"LATIN1", "WIN1252"} == {encoding, chosen["client_encoding"]}:
        # The server knows no conversion between these two, and refuses every session.
        chosen["client_encoding"] = encoding
    altered(postgres, database, chosen)
    with postgres.connect(database) as conn:
        conn.execute(f"CREATE TABLE target ({TABLES[table]}, {ORIGIN})".encode())
    loader = loader_of(kafka, engine)

    result = loader(name, value_format=Json(columns), on_bad_record=DeadLetters())

    assert (result.rows, result.dead_letters) == (3, 1)
    assert len(read_positions(Ledger(engine), "loader")) == 1
    verify("loader", sink=SqlTable("target"), engine=engine, kafka_config=loader.config)
    names = [column.split()[0] for column in columns.split(", ")]
    names = [f"{column}::text" if column in ("days", "hours") else column for column in names]
    altered(postgres, database, {})
    with postgres.connect(database) as conn:
        conn.execute("SET client_encoding = 'UTF8'")
        conn.execute("SET TimeZone = 'UTC'")
        conn.execute("SET search_path = public, private")
        found = conn.execute(f"SELECT {', '.join(names)} FROM target ORDER BY _kafka_offset".encode()).fetchall()
        dead_letters = conn.execute("SELECT value FROM dead_letters").fetchall()
    assert dead_letters == [(BAD,)]
    assert found == [loaded, loaded, (8, *(None,) * (len(loaded) - 1))]


@pytest.mark.parametrize(
    ("driver", "table", "encoding", "text"),
    [
        pytest.param(*WAYS[way], encoding, text, marks=daily_in_one_way(number, way))
        for number, (encoding, text) in enumerate(TOO_MUCH)
        for way in range(len(WAYS))
    ],
)
def test_unencodable_text_is_refused_with_its_offset(
    kafka: Kafka, topic: TopicFactory, postgres: PostgresServer, database: str, engine: Engine, text: str, table: str
) -> None:
    name = topic()
    values = [{"id": number, "name": f"{text}" if number == 1234 else "café"} for number in range(3000)]
    produce(kafka, name, [json.dumps(value).encode() for value in values])
    with postgres.connect(database) as conn:
        conn.execute(f"CREATE TABLE target ({TABLES[table]}, {ORIGIN})".encode())

    with pytest.raises(RecordError, match=f"topic '{name}' partition 0 offset 1234 .* has no equivalent in encoding"):
        loader_of(kafka, engine)(name, value_format=Json("id BIGINT, name STRING"))

    with engine.connect() as conn:
        assert conn.exec_driver_sql("SELECT count(*) FROM target").scalar() == 0


@pytest.mark.parametrize("driver", ["psycopg"])
@pytest.mark.parametrize("encoding", ["UTF8", "SQL_ASCII"])
@pytest.mark.parametrize("text", ["€", "日本", "𝄞"])
def test_where_it_holds_all_characters_they_are_there(
    kafka: Kafka, topic: TopicFactory, postgres: PostgresServer, database: str, engine: Engine, text: str
) -> None:
    name = topic()
    produce(kafka, name, [json.dumps({"name": text}).encode()])
    altered(postgres, database, {"client_encoding": "SQL_ASCII"})

    loader_of(kafka, engine)(name, value_format=Json("name STRING"))

    with postgres.connect(database) as conn:
        assert conn.execute("SELECT name::bytea FROM target").fetchall() == [(text.encode(),)]


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
@pytest.mark.parametrize(
    ("encoding", "reason"),
    [("LATIN1", r"café costs \u20ac"), ("UTF8", "café costs €"), ("SQL_ASCII", r"caf\xe9 costs \u20ac")],
)
def test_a_reason_that_the_database_cannot_hold_is_escaped(
    kafka: Kafka, topic: TopicFactory, database: str, engine: Engine, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, bad = topic(), '{"id": "€"}'.encode()
    writer = producer(kafka)
    writer.produce(name, bad, key="€", headers=[("€", "€".encode())])
    assert writer.flush(30) == 0
    produce(kafka, name, [b'{"id": 2}'])
    # A column of this name could not be in the target; a reason of another format may hold anything.
    monkeypatch.setattr(json_decoder, "_reason", lambda message: "café costs €")

    result = loader_of(kafka, engine)(name, value_format=Json("id BIGINT"), on_bad_record=DeadLetters())

    assert (result.rows, result.dead_letters) == (1, 1)
    (dead_letter,) = rows(engine, "SELECT error, headers, key, value FROM dead_letters")
    assert dead_letter[:2] == (reason, r'[["\u20ac", "4oKs"]]')
    assert list(map(bytes, dead_letter[2:])) == ["€".encode(), bad]

    # The same where they are bad still when they are replayed: here, as a child process has the reasons of its own.
    monkeypatch.setattr(replay, "InProcessLauncher", InlineLauncher)
    with engine.begin() as conn:
        conn.exec_driver_sql("UPDATE dead_letters SET error = ''")
    pipeline = loader_of(kafka, engine).pipeline([name], value_format=Json("id BIGINT"))
    assert replay_dead_letters(DeadLetterFilter("loader"), pipeline, engine=engine) == [Replayed(1, 0, 0, 1, 2)]
    assert rows(engine, "SELECT error FROM dead_letters") == [(reason,)]


@pytest.mark.parametrize("character_set", ["ucs2", "utf16", "latin1"])
def test_topics_in_another_character_set_can_be_verified(
    mariadb_engine: Engine, kafka: Kafka, topic: TopicFactory, character_set: str
) -> None:
    name, load = topic(), loader_of(kafka, mariadb_engine)
    produce(kafka, name, [*names(0, 3), b"{"])
    do(
        mariadb_engine,
        "CREATE TABLE target (id BIGINT, name TEXT, _batch_id BIGINT, _kafka_topic VARCHAR(250), _kafka_partition INT, "
        f"_kafka_offset BIGINT) CHARACTER SET {character_set}",
    )
    load(name, on_bad_record=DeadLetters())

    found = verify("loader", sink=SqlTable("target"), engine=mariadb_engine)

    assert (found.rows, found.dead_letters) == (3, 1)
