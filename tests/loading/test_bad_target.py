"""Targets that do not fit the rows are refused, before Spark starts where that is possible."""

from __future__ import annotations

import re
import traceback
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from airflow_kafka_offsets import StateTables
from airflow_kafka_offsets.exceptions import ConfigurationError, LedgerError, TargetError
from airflow_kafka_offsets.formats.simple_formats import Json
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from devstack.kafka import KafkaBroker
from tests.support.clients import produce
from tests.support.inline import InlineLauncher
from tests.support.loads import Loader, TopicFactory, names, positions, rows

pytestmark = pytest.mark.server


def test_a_target_that_lacks_a_column_is_refused_with_the_statement_that_adds_it(
    loader: Loader, kafka: KafkaBroker, topic: TopicFactory
) -> None:
    name = topic()
    produce(kafka, name, names(0, 3))
    with loader.engine.begin() as conn:
        conn.execute(sa.text("CREATE TABLE target (id BIGINT)"))

    with pytest.raises(TargetError, match=r"no column 'name' .*ALTER TABLE target ADD COLUMN name TEXT"):
        loader(name)

    assert loader.launcher.jobs == []


@pytest.mark.parametrize("table", ["", " ", None], ids=["empty", "blank", "none"])
def test_a_table_without_a_name_is_refused(inline_loader: Loader, topic: TopicFactory, table: Any) -> None:
    with pytest.raises(ConfigurationError, match="needs the name of a table; got table="):
        inline_loader(topic(), sink=SqlTable(table))


def test_a_schema_in_the_name_of_a_table_is_refused_where_it_would_be_created(
    inline_loader: Loader, topic: TopicFactory
) -> None:
    schema = sa.inspect(inline_loader.engine).default_schema_name
    meant = re.escape(f"SqlTable('orders', schema='{schema}')")
    with pytest.raises(ConfigurationError, match=f"no table '{schema}.orders'.*{meant}"):
        inline_loader(topic(), sink=SqlTable(f"{schema}.orders"))

    with inline_loader.engine.begin() as conn:
        conn.exec_driver_sql(f'CREATE TABLE "{schema}.orders" (id BIGINT, name TEXT)')
    inline_loader(topic(), sink=SqlTable(f"{schema}.orders"))


FOREIGN = """
CREATE FOREIGN TABLE {name} (id BIGINT, name TEXT, _kafka_topic TEXT, _kafka_partition INT, _kafka_offset BIGINT)
SERVER elsewhere
"""


@pytest.mark.parametrize("kind", ["table", "partition", "child of a child"])
def test_a_foreign_table_is_refused_because_it_is_committed_elsewhere(
    postgres_engine: Engine, kafka: KafkaBroker, topic: TopicFactory, kind: str
) -> None:
    loader = Loader(kafka, postgres_engine, InlineLauncher())
    columns = FOREIGN.split("(", 1)[1].split(")")[0]
    parts = {
        "table": [FOREIGN.format(name="target")],
        "partition": [
            f"CREATE TABLE target ({columns}) PARTITION BY LIST (name)",
            "CREATE FOREIGN TABLE part PARTITION OF target FOR VALUES IN ('far') SERVER elsewhere ",
        ],
        "child of a child": [
            f"CREATE TABLE target ({columns})",
            "CREATE TABLE near () INHERITS (target)",
            "CREATE FOREIGN TABLE part () INHERITS (near) SERVER elsewhere",
        ],
    }
    with postgres_engine.begin() as conn:
        conn.exec_driver_sql("CREATE FOREIGN DATA WRAPPER far")
        conn.exec_driver_sql("CREATE SERVER elsewhere FOREIGN DATA WRAPPER far")
        for statement in parts[kind]:
            conn.exec_driver_sql(statement)

    foreign = "target" if kind == "table" else "part"
    with pytest.raises(TargetError, match=rf"table {foreign} is a foreign table: what another server has committed"):
        loader(topic(), sink=SqlTable("target"))


def test_state_tables_are_no_foreign_tables(postgres_engine: Engine, kafka: KafkaBroker, topic: TopicFactory) -> None:
    loader, name = Loader(kafka, postgres_engine, InlineLauncher()), topic()
    produce(kafka, name, names(0, 3))
    loader(name)
    with postgres_engine.begin() as conn:
        conn.exec_driver_sql("CREATE FOREIGN DATA WRAPPER far")
        conn.exec_driver_sql("CREATE SERVER elsewhere FOREIGN DATA WRAPPER far")
        conn.exec_driver_sql("CREATE FOREIGN TABLE part () INHERITS (dead_letters) SERVER elsewhere")

    with pytest.raises(LedgerError, match="table part is a foreign table"):
        loader(name)


def test_a_view_is_refused_before_spark_starts(loader: Loader, topic: TopicFactory) -> None:
    name, kinds = topic(), {"shown": "VIEW"}
    if loader.engine.dialect.name == "postgresql":
        kinds["kept"] = "MATERIALIZED VIEW"
    with loader.engine.begin() as conn:
        conn.execute(sa.text("CREATE TABLE hidden (id BIGINT, name TEXT)"))
        for view, kind in kinds.items():
            conn.execute(sa.text(f"CREATE {kind} {view} AS SELECT * FROM hidden"))

    for view in kinds:
        with pytest.raises(ConfigurationError, match=f"'{view}' is a view, but rows are loaded into tables"):
            loader(name, sink=SqlTable(view))

    assert loader.launcher.jobs == []


@pytest.mark.parametrize("of_mariadb", [False, True], ids=["postgresql", "mariadb"])
@pytest.mark.parametrize("name", ["nul\0", "half\ud800"])
def test_a_name_with_characters_that_no_database_takes_is_refused(
    request: pytest.FixtureRequest, kafka: KafkaBroker, topic: TopicFactory, name: str, of_mariadb: bool
) -> None:
    engine = request.getfixturevalue("mariadb_engine" if of_mariadb else "postgres_engine")
    produce(kafka, orders := topic(), names(0, 1))
    for sink in (SqlTable(name), SqlTable("target", schema=name)):
        with pytest.raises(ConfigurationError, match="No database takes NUL and lone surrogates in names"):
            Loader(kafka, engine, InlineLauncher())(orders, sink=sink)


@pytest.mark.parametrize(("table", "columns"), [("x" * 65, "id BIGINT"), ("target", f"id BIGINT, {'x' * 65} STRING")])
def test_a_name_that_mariadb_refuses_is_named_before_spark_starts(
    kafka: KafkaBroker, mariadb_engine: Engine, topic: TopicFactory, table: str, columns: str
) -> None:
    produce(kafka, orders := topic(), names(0, 1))
    with pytest.raises(ConfigurationError, match=r"longer than the 64 characters that m[a-z]+ keeps: .*x{65}"):
        Loader(kafka, mariadb_engine, InlineLauncher())(orders, sink=SqlTable(table), value_format=Json(columns))


LONG = "é" * 31 + "x"  # 63 bytes


@pytest.mark.parametrize(
    ("table", "columns", "named"),
    [
        (LONG + "y", "id BIGINT", f"table '{LONG}y'"),
        ("target", f"id BIGINT, {LONG}y STRING", f"column '{LONG}y'"),
        ("target", f"id BIGINT, {LONG}1 STRING, {LONG}2 STRING", f"column '{LONG}1', column '{LONG}2'"),
    ],
    ids=["table", "column", "two columns that would become one"],
)
def test_a_name_that_postgres_would_truncate_is_refused_before_spark_starts(
    postgres_loader: Loader, topic: TopicFactory, table: str, columns: str, named: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"longer than the 63 bytes that postgresql keeps: {named}\\."):
        postgres_loader(topic(), sink=SqlTable(table), value_format=Json(columns))

    assert postgres_loader.launcher.jobs == []
    assert not {table, "target"} & set(sa.inspect(postgres_loader.engine).get_table_names())


def test_the_longest_names_that_postgres_keeps_are_loaded(
    postgres_engine: Engine, kafka: KafkaBroker, topic: TopicFactory
) -> None:
    name = topic()
    produce(kafka, name, [f'{{"{LONG}": 7}}'.encode()])
    Loader(kafka, postgres_engine, InlineLauncher())(name, sink=SqlTable(LONG), value_format=Json(f"{LONG} BIGINT"))
    assert rows(postgres_engine, f'SELECT "{LONG}" FROM "{LONG}"') == [(7,)]


def test_where_the_search_path_has_no_schema_no_schema_is_made_up(
    postgres_engine: Engine, kafka: KafkaBroker, topic: TopicFactory
) -> None:
    engine = sa.create_engine(postgres_engine.url, connect_args={"options": "-c search_path=nowhere"})
    with pytest.raises(
        LedgerError, match=r"No schema of the user's search_path exists: name one with --schema"
    ) as raised:
        Loader(kafka, engine, InlineLauncher())(topic())
    engine.dispose()
    assert "CREATE SCHEMA" not in str(raised.value)


def test_a_target_of_other_types_is_refused(postgres_loader: Loader, topic: TopicFactory) -> None:
    with postgres_loader.engine.begin() as conn:
        conn.execute(sa.text("CREATE TABLE target (id DATE, name BOOLEAN, needed INT NOT NULL)"))

    with pytest.raises(TargetError, match=r"'id' is DATE.*'name' is BOOLEAN.*needs a value for 'needed'"):
        postgres_loader(topic())


def test_a_schema_that_is_not_there_is_told(postgres_loader: Loader, topic: TopicFactory) -> None:
    with pytest.raises(LedgerError, match=r'schema "nowhere" does not exist\. CREATE SCHEMA nowhere'):
        postgres_loader(topic(), state_tables=StateTables(schema="nowhere"))
    with pytest.raises(TargetError, match=r"cannot create it: .*\. Create the schema, or correct schema='shopp'\."):
        postgres_loader(topic(), sink=SqlTable("target", "shopp"))


def test_a_schema_that_is_not_there_is_told_on_mysql(
    mariadb_engine: Engine, kafka: KafkaBroker, topic: TopicFactory
) -> None:
    """Where a schema is a database, and that of a connection may be wrong, too."""
    with pytest.raises(TargetError, match=r"cannot create it: .*\. Create the schema, or correct schema='shopp'\."):
        Loader(kafka, mariadb_engine, InlineLauncher())(topic(), sink=SqlTable("target", "shopp"))
    with pytest.raises(LedgerError, match="Unknown database 'nowhere'"):
        Loader(kafka, mariadb_engine, InlineLauncher())(topic(), state_tables=StateTables(schema="nowhere"))


def test_a_constraint_that_is_checked_at_commit_is_told_without_the_row(
    postgres_loader: Loader, kafka: KafkaBroker, topic: TopicFactory
) -> None:
    name = topic()
    produce(kafka, name, [*names(0, 3), b'{"id": 99887766}', b'{"id": 99887766}'])
    with postgres_loader.engine.begin() as conn:
        conn.execute(sa.text("CREATE TABLE target (id BIGINT, name TEXT, UNIQUE (id) DEFERRABLE INITIALLY DEFERRED)"))

    with pytest.raises(
        TargetError, match=r"Batch 1 of group 'loader' was not committed.* duplicate key value violates"
    ) as raised:
        postgres_loader(name)

    assert "99887766" not in "".join(traceback.format_exception(raised.value))
    assert rows(postgres_loader.engine, "SELECT count(*) FROM target") == [(0,)]
    assert positions(postgres_loader.engine) == {}


def test_what_a_trigger_raises_at_commit_is_told(
    postgres_loader: Loader, kafka: KafkaBroker, topic: TopicFactory
) -> None:
    name = topic()
    produce(kafka, name, names(0, 3))
    with postgres_loader.engine.begin() as conn:
        conn.exec_driver_sql(
            "CREATE TABLE target (id BIGINT, name TEXT);"
            "CREATE FUNCTION f() RETURNS trigger AS $$ BEGIN RAISE EXCEPTION 'no b'; END $$ LANGUAGE plpgsql;"
            "CREATE CONSTRAINT TRIGGER t AFTER INSERT ON target DEFERRABLE INITIALLY DEFERRED FOR EACH ROW "
            "EXECUTE FUNCTION f()"
        )

    with pytest.raises(TargetError, match=r"Batch 1 of group 'loader' was not committed.*: no b \(SQLSTATE P0001\)"):
        postgres_loader(name)


def test_deferred_constraint_error_has_no_row_values(
    postgres_loader: Loader, kafka: KafkaBroker, topic: TopicFactory
) -> None:
    name = topic()
    produce(kafka, name, [b'{"id": 1, "name": "secret-value"}'])
    with postgres_loader.engine.begin() as conn:
        conn.execute(sa.text("CREATE TABLE known (name TEXT PRIMARY KEY)"))
        conn.execute(sa.text("CREATE TABLE target (id BIGINT, name TEXT REFERENCES known)"))

    with pytest.raises(TargetError, match="violates foreign key constraint") as raised:
        postgres_loader(name)

    assert "secret-value" not in str(raised.value)
    assert raised.value.__cause__ is None
