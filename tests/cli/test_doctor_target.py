"""`kafka-offsets doctor`: whether loads can write to their target, and what it would take."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from airflow_kafka_offsets.ledger.install import initialize
from airflow_kafka_offsets.ledger.tables import Ledger
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from tests.support.clients import Kafka
from tests.support.command_line import DB, CommandLine, database_connection, findings
from tests.support.inline import InlineLauncher
from tests.support.loads import Loader, TopicFactory

pytestmark = pytest.mark.server

Look = Callable[..., dict[str, Any]]


@pytest.fixture
def look(cli: CommandLine) -> Look:
    """Runs the command, and returns the line about the target."""
    return lambda *options: findings(cli("doctor", *DB, *options, "--output", "json"))["target"]


@pytest.fixture(autouse=True)
def _no_java(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks that take long, and are not about the target."""
    monkeypatch.setattr("airflow_kafka_offsets.hooks.java.check_java", lambda: None)


def test_the_tables_of_all_loads_are_looked_at(look: Look, inline_loader: Loader, topic: TopicFactory) -> None:
    inline_loader(topic())
    assert look()["found"].removeprefix("public.") == "target: has the privileges for loads, replays and rewinds"


def test_without_a_load_there_is_nothing_to_look_at(look: Look) -> None:
    assert look() == {
        "check": "target",
        "result": "skipped",
        "found": "no load is known; name a table with --table",
        "fix": None,
    }


def test_a_table_that_does_not_exist_can_be_created_and_is_not(look: Look, engine: Engine) -> None:
    assert look("--table", "orders")["found"] == (
        "orders does not exist yet; this user may create it, and the first load does"
    )
    assert sa.inspect(engine).get_table_names() == []


@pytest.mark.parametrize("engine", ["postgresql"], indirect=True)
def test_a_schema_in_which_everybody_may_create_is_a_warning(cli: CommandLine, engine: Engine) -> None:
    with engine.begin() as conn:
        conn.exec_driver_sql("CREATE SCHEMA closed; GRANT CREATE ON SCHEMA public TO PUBLIC")

    row = findings(cli("doctor", *DB, "--output", "json"))["database security"]

    assert row["result"] == "warning"
    assert (
        "create functions and operators in schema 'public', which this user's statements call: REVOKE" in row["found"]
    )


def test_a_view_is_no_target(look: Look, engine: Engine) -> None:
    with engine.begin() as conn:
        conn.exec_driver_sql("CREATE VIEW shown AS SELECT 1 AS id")
    row = look("--table", "shown")
    assert (row["result"], row["found"].split(":")[0]) == (
        "failed",
        "'shown' is a view, but rows are loaded into tables",
    )
    assert "--table" in row["fix"]


def test_a_key_that_is_not_unique_is_found(look: Look, engine: Engine) -> None:
    with engine.begin() as conn:
        conn.exec_driver_sql(
            "CREATE TABLE orders (id BIGINT, _batch_id BIGINT, _kafka_topic TEXT, _kafka_partition INT, "
            "_kafka_offset BIGINT)"
        )
    row = look("--table", "orders", "--upsert-key", "id")
    assert row["result"] == "failed"
    assert "has no primary key and no unique index of exactly the columns of upsert_key" in row["found"]


class TestRights:
    @pytest.fixture
    def kafka(self, log: Kafka) -> Kafka:
        return log

    @pytest.fixture
    def user(self, postgres_engine: Engine) -> Iterator[str]:
        """A user without rights but to see the schema `sales`, which has the table of the load."""
        name = f"user_{postgres_engine.url.database}"
        initialize(Ledger(postgres_engine))
        self.run(
            postgres_engine,
            f"CREATE ROLE {name} LOGIN PASSWORD 'secret'",
            "REVOKE CREATE ON SCHEMA public FROM PUBLIC",
            f'REVOKE TEMPORARY ON DATABASE "{postgres_engine.url.database}" FROM PUBLIC',
            "CREATE SCHEMA sales",
            f"GRANT USAGE ON SCHEMA sales TO {name}",
            "CREATE TABLE sales.orders (id BIGINT PRIMARY KEY, _batch_id BIGINT, _kafka_topic TEXT, _kafka_partition "
            "INT, _kafka_offset BIGINT)",
            "CREATE INDEX ON sales.orders (_batch_id)",
        )
        yield name
        self.run(postgres_engine, f"DROP OWNED BY {name}", f"DROP ROLE {name}")

    @pytest.fixture
    def cli(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], postgres_engine: Engine, user: str
    ) -> CommandLine:
        as_user = sa.create_engine(postgres_engine.url.set(username=user, password="secret"))
        return CommandLine(monkeypatch, capsys, {"warehouse": database_connection(as_user)})

    def run(self, engine: Engine, *statements: str) -> None:
        with engine.begin() as conn:
            for statement in statements:
                conn.exec_driver_sql(statement)

    def test_each_that_a_load_needs_is_asked_for_and_no_other(
        self, look: Look, postgres_engine: Engine, user: str
    ) -> None:
        orders = ("--table", "orders", "--table-schema", "sales")
        upsert = (*orders, "--upsert-key", "id")
        database = postgres_engine.url.database
        for options, lacking, granted in (
            (orders, "GRANT INSERT ON sales.orders", "INSERT ON sales.orders"),
            (orders, "GRANT SELECT ON sales.orders", "SELECT ON sales.orders"),
            (upsert, "GRANT UPDATE ON sales.orders", "UPDATE ON sales.orders"),
            (upsert, f"GRANT TEMPORARY ON DATABASE {database}", f'TEMPORARY ON DATABASE "{database}"'),
        ):
            row = look(*options)
            assert (row["result"], lacking in row["found"]) == ("failed", True), row
            self.run(postgres_engine, f"GRANT {granted} TO {user}")
        for options in (orders, upsert):
            row = look(*options)
            assert row["result"] == "ok"
            assert row["found"].startswith(
                "sales.orders: has the privileges for loads, but not for rewinds and replays that replace rows: "
            )
            assert "GRANT DELETE ON sales.orders" in row["found"]
        self.run(postgres_engine, f"GRANT DELETE ON sales.orders TO {user}")
        assert look(*orders)["found"] == "sales.orders: has the privileges for loads, replays and rewinds"

    @pytest.mark.parametrize(
        ("schema", "found", "fix"),
        [
            ("sales", "the database says: permission denied for schema sales", "create the table"),
            ("nowhere", 'schema "nowhere" does not exist', "CREATE SCHEMA nowhere"),
        ],
    )
    def test_a_table_that_cannot_be_created_is_told(self, look: Look, schema: str, found: str, fix: str) -> None:
        row = look("--table", "invoices", "--table-schema", schema)
        assert (row["result"], row["found"]) == ("failed", found)
        assert fix in row["fix"]

    def test_the_schema_of_a_load_is_known(
        self, look: Look, kafka: Kafka, postgres_engine: Engine, topic: TopicFactory, user: str
    ) -> None:
        self.run(postgres_engine, f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {user}")
        loader = Loader(kafka, postgres_engine, InlineLauncher())
        loader(topic(), sink=SqlTable("payments", "sales"))
        assert "GRANT INSERT ON sales.payments" in look()["found"]
