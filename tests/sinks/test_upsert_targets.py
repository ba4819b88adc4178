"""Which tables, names, types and users an upsert works with, and what is missing where it does not."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from airflow_kafka_offsets.exceptions import ConfigurationError, RecordError, TargetError
from airflow_kafka_offsets.formats.simple_formats import Json
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from devstack.kafka import KafkaBroker
from tests.support.clients import produce
from tests.support.inline import InlineLauncher
from tests.support.loads import Loader, TopicFactory, names, positions, rows
from tests.support.upserts import KEYED, ORIGIN, POSTGRES, SQLITE, do, held, record

pytestmark = pytest.mark.server


def test_a_created_table_gets_the_key_as_its_primary_key(
    inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory
) -> None:
    name = topic()
    produce(kafka, name, names(0, 3))
    columns = Json("name STRING, id BIGINT")

    inline_loader(name, value_format=columns, sink=SqlTable("target", upsert_key=("id", "name")))

    key = sa.inspect(inline_loader.engine).get_pk_constraint("target")
    assert key["constrained_columns"] == ["id", "name"]
    produce(kafka, name, names(2, 2))
    assert inline_loader(name, value_format=columns, sink=SqlTable("target", upsert_key=("id", "name"))).rows == 2


@pytest.mark.parametrize(
    "key",
    ["", "PRIMARY KEY (id, name)", "UNIQUE (name)"],
    ids=["none", "of-more-columns", "of-another"],
)
def test_a_table_without_the_unique_key_is_refused_before_reading_with_the_statement_that_makes_it(
    inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory, key: str
) -> None:
    name = topic()
    produce(kafka, name, names(0, 3))
    do(inline_loader.engine, f"CREATE TABLE target (id BIGINT, name TEXT, {ORIGIN}{', ' if key else ''}{key})")

    with pytest.raises(TargetError) as raised:
        inline_loader(name, **KEYED)

    assert inline_loader.launcher.jobs == []
    statement = "CREATE UNIQUE INDEX target_key ON target (id)"
    assert str(raised.value).endswith(statement)
    do(inline_loader.engine, statement)
    assert inline_loader(name, **KEYED).rows == 3


def test_an_index_of_some_rows_or_without_uniqueness_is_no_key(inline_loader: Loader) -> None:
    do(
        inline_loader.engine,
        f"CREATE TABLE target (id BIGINT, name TEXT, {ORIGIN})",
        "CREATE UNIQUE INDEX partly ON target (id) WHERE id > 5",
        "CREATE UNIQUE INDEX more ON target (name, id)",
        "CREATE INDEX plain ON target (name)",
    )

    for key in ("id", "name"):
        with pytest.raises(TargetError, match="no unique index of exactly the columns of upsert_key"):
            SqlTable("target", upsert_key=(key,)).connect(inline_loader.engine).prepare(None)


@POSTGRES
@pytest.mark.parametrize("key", ["PRIMARY KEY (id)", "UNIQUE (id)"])
def test_a_constraint_that_is_deferrable_is_no_key(inline_loader: Loader, key: str) -> None:
    do(inline_loader.engine, f"CREATE TABLE target (id BIGINT, {ORIGIN}, {key} DEFERRABLE)")
    sink = SqlTable("target", upsert_key=("id",))

    with pytest.raises(TargetError, match="no unique index of exactly the columns of upsert_key"):
        sink.connect(inline_loader.engine).prepare(None)

    do(inline_loader.engine, "CREATE UNIQUE INDEX target_key ON target (id)")
    sink.connect(inline_loader.engine).prepare(None)


@POSTGRES
def test_an_index_that_was_not_finished_is_no_key(inline_loader: Loader) -> None:
    do(
        inline_loader.engine,
        f"CREATE TABLE target (id BIGINT, {ORIGIN})",
        "CREATE UNIQUE INDEX target_key ON target (id)",
        # As CREATE INDEX CONCURRENTLY leaves it where it fails.
        "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'target_key'::regclass",
    )

    with pytest.raises(TargetError, match="no unique index of exactly the columns of upsert_key"):
        SqlTable("target", upsert_key=("id",)).connect(inline_loader.engine).prepare(None)


def test_an_index_of_the_beginning_of_a_text_is_no_key(mariadb_engine: Engine) -> None:
    do(mariadb_engine, f"CREATE TABLE target (name VARCHAR(100), {ORIGIN}, UNIQUE (name(3)))")

    with pytest.raises(TargetError, match="no unique index of exactly the columns of upsert_key"):
        SqlTable("target", upsert_key=("name",)).connect(mariadb_engine).prepare(None)


@POSTGRES
def test_an_index_of_an_expression_is_no_key(inline_loader: Loader) -> None:
    do(
        inline_loader.engine,
        f"CREATE TABLE target (id BIGINT, name TEXT, {ORIGIN})",
        "CREATE UNIQUE INDEX lowered ON target (lower(name))",
    )

    with pytest.raises(TargetError, match="no unique index of exactly the columns of upsert_key"):
        SqlTable("target", upsert_key=("name",)).connect(inline_loader.engine).prepare(None)


@pytest.mark.parametrize(
    "key", ["id BIGINT PRIMARY KEY", "id INTEGER PRIMARY KEY", "id BIGINT UNIQUE", "id BIGINT, UNIQUE (id)"]
)
def test_every_kind_of_key_will_do(inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory, key: str) -> None:
    name = topic()
    produce(kafka, name, [*names(0, 3), record(1, "last")])
    # Declared with the other columns first: constraints come last in SQL.
    do(inline_loader.engine, f"CREATE TABLE target (name TEXT, {ORIGIN}, {key})")

    assert inline_loader(name, **KEYED).rows == 3
    assert (1, "last", 3) in held(inline_loader.engine)


def test_a_table_that_cannot_tell_the_newest_is_refused_with_the_statements(
    inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory
) -> None:
    name = topic()
    produce(kafka, name, names(0, 3))
    do(inline_loader.engine, "CREATE TABLE target (id BIGINT PRIMARY KEY, name TEXT, _kafka_topic TEXT)")

    with pytest.raises(
        TargetError,
        match=r"no column '_kafka_partition', '_kafka_offset', '_batch_id': .*ADD COLUMN _kafka_partition INTEGER; "
        r".*_kafka_offset BIGINT; .*ADD COLUMN _batch_id BIGINT; or append, without upsert_key",
    ):
        inline_loader(name, **KEYED)

    assert inline_loader.launcher.jobs == []


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (("no",), r"upsert_key names 'no', which the rows do not hold; they hold 'id', 'name', '_kafka_topic'"),
        (("_batch_id",), "upsert_key names '_batch_id'"),
    ],
    ids=["unknown", "batch-id"],
)
@SQLITE
def test_a_key_that_is_none_is_refused(
    inline_loader: Loader, topic: TopicFactory, key: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        inline_loader(topic(), sink=SqlTable("target", upsert_key=key))

    assert not sa.inspect(inline_loader.engine).has_table("target")


def test_names_are_quoted(inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory) -> None:
    name = topic()
    odd = 'the "key"; 100%% %s :x \' (1)'
    table = 'ta"r;get %(a)s 50%.ä'
    values = [{odd: 1, "na%me": "a"}, {odd: 2, "na%me": "b"}, {odd: 1, "na%me": "c"}]
    produce(kafka, name, [json.dumps(value).encode() for value in values])
    value_format, sink = Json(f"`{odd}` BIGINT, `na%me` STRING"), SqlTable(table, upsert_key=(odd,))

    assert inline_loader(name, value_format=value_format, sink=sink).rows == 2
    assert inline_loader(name, group_id="again", value_format=value_format, sink=sink).rows == 2

    with inline_loader.engine.connect() as conn:
        made = sa.Table(table, sa.MetaData(), autoload_with=conn)
        found = conn.execute(sa.select(made.c[odd], made.c["na%me"]).order_by(made.c[odd])).all()
    assert [tuple(row) for row in found] == [(1, "c"), (2, "b")]
    assert inline_loader(name, group_id="plain", value_format=value_format, sink=SqlTable(f"{table}!")).rows == 3


@POSTGRES
def test_a_table_of_another_schema(inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory) -> None:
    name, sink = topic(), SqlTable("target", schema="sh op%", upsert_key=("id",))
    do(inline_loader.engine, 'CREATE SCHEMA "sh op%%"')
    produce(kafka, name, [*names(0, 3), *names(1, 1)])

    assert inline_loader(name, sink=sink).rows == 3
    assert inline_loader(name, group_id="again", sink=sink).rows == 3


@POSTGRES
def test_types_that_only_the_database_can_read(inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory) -> None:
    """CSV instead of binary rows; and keys that only the database knows to be the same."""
    name = topic()
    values = ["6f1b9a0e-7c44-4d0b-9b36-0d6a2a1a5a11", "{6F1B9A0E-7C44-4D0B-9B36-0D6A2A1A5A11}"]
    produce(kafka, name, [record(value, json.dumps({"at": at})) for at, value in enumerate(values)])
    do(inline_loader.engine, f"CREATE TABLE target (id UUID PRIMARY KEY, name JSONB, {ORIGIN})")

    assert inline_loader(name, value_format=Json("id STRING, name STRING"), **KEYED).rows == 1

    assert rows(inline_loader.engine, "SELECT id::text, name->>'at' FROM target") == [(values[0], "1")]


@POSTGRES
def test_a_driver_without_copy_upserts_and_traces_refused_rows(
    inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory
) -> None:
    """psycopg2 stands for every driver that this package knows no faster way for."""
    name = topic()
    engine = sa.create_engine(inline_loader.engine.url.set(drivername="postgresql+psycopg2"))
    other = Loader(kafka, engine, inline_loader.launcher)
    sink = SqlTable('50% "off"', upsert_key=("id",))
    produce(kafka, name, [*names(0, 50), record(7, "again")])
    assert other(name, sink=sink).rows == 50
    assert rows(engine, 'SELECT name FROM "50% ""off""" WHERE id = 7') == [("again",)]

    do(engine, 'ALTER TABLE "50%% ""off""" ADD CHECK (name <> \'bad\')')
    produce(kafka, name, [*names(50, 5), record(7, "bad")])
    with pytest.raises(RecordError, match=f"topic '{name}' partition 0 offset 56 .*violates check constraint"):
        other(name, sink=sink)

    assert positions(engine) == {(name, 0): 51}
    engine.dispose()


@pytest.fixture
def guest(inline_loader: Loader) -> Iterator[Engine]:
    """A user who may do everything with the state tables, and insert into the target."""
    engine = inline_loader.engine
    role = f"guest_{engine.url.database}"
    do(engine, f"CREATE TABLE target (id BIGINT PRIMARY KEY, name TEXT, {ORIGIN})")
    do(engine, f"CREATE ROLE {role} LOGIN PASSWORD 'guest'", f"GRANT INSERT ON target TO {role}")
    made = sa.create_engine(engine.url.set(username=role, password="guest"))
    yield made
    made.dispose()
    do(engine, f"DROP OWNED BY {role}", f"DROP ROLE {role}")


@POSTGRES
def test_a_user_who_may_not_update_is_told_what_to_grant(inline_loader: Loader, guest: Engine) -> None:
    sink, database = SqlTable("target", upsert_key=("id",)), inline_loader.engine.url.database
    with pytest.raises(TargetError, match=r"may not SELECT and UPDATE .*GRANT SELECT, UPDATE ON target TO"):
        sink.connect(guest).prepare(None)
    do(inline_loader.engine, f"GRANT SELECT, UPDATE ON target TO {guest.url.username}")
    do(inline_loader.engine, f"REVOKE TEMPORARY ON DATABASE {database} FROM PUBLIC")
    with pytest.raises(TargetError, match=f"GRANT TEMPORARY ON DATABASE {database} TO"):
        sink.connect(guest).prepare(None)
    do(inline_loader.engine, f"GRANT TEMPORARY ON DATABASE {database} TO {guest.url.username}")

    assert sink.connect(guest).prepare(None).required == ("id", "_kafka_topic", "_kafka_partition", "_kafka_offset")


@POSTGRES
def test_a_table_of_which_policies_hide_rows_is_refused(inline_loader: Loader, guest: Engine) -> None:
    do(inline_loader.engine, f"GRANT SELECT, UPDATE ON target TO {guest.url.username}")
    do(inline_loader.engine, "ALTER TABLE target ENABLE ROW LEVEL SECURITY")

    for sink in (SqlTable("target"), SqlTable("target", upsert_key=("id",))):
        with pytest.raises(TargetError, match=rf"policies for user '{guest.url.username}'.* ALTER ROLE .*BYPASSRLS"):
            sink.connect(guest).prepare(None)


@pytest.mark.parametrize(("column", "index"), [("", "any_case"), ("any_case", '"C"')])
def test_an_index_that_takes_other_keys_for_equal_than_its_column_is_no_key(
    postgres_engine: Engine, kafka: KafkaBroker, topic: TopicFactory, column: str, index: str
) -> None:
    collated = f"COLLATE {column}" if column else ""
    do(
        postgres_engine,
        "CREATE COLLATION any_case (provider = libc, locale = 'C')",
        f"CREATE TABLE target (id TEXT {collated}, {ORIGIN})",
        f"CREATE UNIQUE INDEX other ON target (id COLLATE {index}) INCLUDE (_batch_id)",
        # These are none of the key.
        f"CREATE UNIQUE INDEX computed ON target (id COLLATE {index}, lower(_kafka_topic))",
        f"CREATE UNIQUE INDEX partly ON target (id COLLATE {index}) WHERE _batch_id IS NULL",
        # As one of ICU may be, which not every server has.
        "UPDATE pg_collation SET collisdeterministic = false WHERE collname = 'any_case'",
    )
    loader = Loader(kafka, postgres_engine, InlineLauncher())

    with pytest.raises(TargetError, match=r"index 'other' of table 'target' and the columns .* different collations"):
        loader(topic(), value_format=Json("id STRING"), sink=SqlTable("target", upsert_key=("id",)))

    do(postgres_engine, "DROP INDEX other", 'CREATE UNIQUE INDEX same ON target (id COLLATE "C")')
    if column:
        do(postgres_engine, "DROP INDEX same", "CREATE UNIQUE INDEX same ON target (id)")
    loader(topic(), value_format=Json("id STRING"), sink=SqlTable("target", upsert_key=("id",)))
