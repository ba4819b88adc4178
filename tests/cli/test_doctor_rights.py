"""`kafka-offsets doctor`: the rights of a user in Postgres, one by one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from airflow_kafka_offsets.ledger.install import initialize
from airflow_kafka_offsets.ledger.tables import Ledger
from devstack.kafka import KafkaBroker
from tests.support.command_line import DB, CommandLine, findings, kafka_connection

pytestmark = [pytest.mark.server, pytest.mark.broker]

SECRET = "5ecret-canary"


class TestRights:
    @pytest.fixture
    def reader(self, postgres_engine: Engine) -> Iterator[str]:
        """A user who may read, and a connection of hers."""
        initialize(Ledger(postgres_engine))
        name = f"reader_{postgres_engine.url.database}"
        with postgres_engine.begin() as conn:
            conn.execute(sa.text(f"CREATE USER {name} PASSWORD '{SECRET}'"))
            conn.execute(sa.text(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {name}"))
        yield name
        with postgres_engine.begin() as conn:
            conn.execute(sa.text(f"DROP OWNED BY {name}"))
            conn.execute(sa.text(f"DROP USER {name}"))

    @pytest.fixture
    def cli(
        self,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
        postgres_engine: Engine,
        kafka: KafkaBroker,
        reader: str,
    ) -> CommandLine:
        url = postgres_engine.url.set(drivername="postgres", username=reader, password=SECRET)
        connections = {
            "warehouse": url.render_as_string(hide_password=False),
            "kafka_default": kafka_connection(kafka),
            "spark_default": json.dumps({"conn_type": "spark", "host": "local[2]"}),
        }
        return CommandLine(monkeypatch, capsys, connections)

    def rights(self, cli: CommandLine) -> dict[str, Any]:
        row: dict[str, Any] = findings(cli("doctor", *DB, "--output", "json"))["rights"]
        return row

    def test_missing_rights_are_named_one_by_one(self, cli: CommandLine, postgres_engine: Engine, reader: str) -> None:
        def grant(right: str) -> None:
            with postgres_engine.begin() as conn:
                conn.execute(sa.text(f"GRANT {right} TO {reader}"))

        row = self.rights(cli)
        assert row["result"] == "failed"
        assert "INSERT on consumed_offsets" in row["found"]
        assert "--grant-to" in row["fix"]
        grant("INSERT, UPDATE ON ALL TABLES IN SCHEMA public")
        assert self.rights(cli)["found"] == "missing: USAGE on the sequence of offset_batches"
        grant("USAGE ON ALL SEQUENCES IN SCHEMA public")
        row = self.rights(cli)
        assert row["result"] == "ok"
        assert row["found"].startswith(
            "has the privileges for loads, but not for rewinds and replays that replace rows: DELETE on consumer_"
        )
        grant("DELETE ON ALL TABLES IN SCHEMA public")
        assert self.rights(cli)["found"].startswith("has the privileges for loads, replays and rewinds")

    def test_doctor_asks_for_the_rights_that_init_grants(
        self, cli: CommandLine, postgres_engine: Engine, reader: str
    ) -> None:
        before = findings(cli("doctor", *DB, "--output", "json"))["rights"]["result"]
        printed = cli("init", "--conn-id", "warehouse", "--show-sql", "--grant-to", reader)
        assert f"GRANT SELECT, INSERT, UPDATE ON consumed_offsets TO {reader};" in printed.stdout.splitlines()
        with postgres_engine.begin() as conn:
            conn.exec_driver_sql(printed.stdout)

        found = self.rights(cli)["found"]

        assert (before, found[:37]) == ("failed", "has the privileges for loads, but not")
        printed = cli("init", "--conn-id", "warehouse", "--show-sql", "--grant-to", reader, "--grant-moves")
        with postgres_engine.begin() as conn:
            conn.exec_driver_sql(printed.stdout)
        assert self.rights(cli)["found"].startswith("has the privileges for loads, replays and rewinds")

    def test_a_role_has_to_be_named(self, cli: CommandLine) -> None:
        done = cli("init", "--conn-id", "warehouse", "--grant-moves")
        assert done.status == 2
        assert "the name of a role" in done.stderr
        unknown = cli("init", "--conn-id", "warehouse", "--grant-to", "no_such_role")
        assert unknown.status == 1
        assert "Create the role, or correct --grant-to" in unknown.stderr

    def test_a_database_that_is_read_only_is_told(self, cli: CommandLine, postgres_engine: Engine) -> None:
        with postgres_engine.begin() as conn:
            name = postgres_engine.url.database
            conn.execute(sa.text(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on'))
        row = self.rights(cli)
        assert (row["result"], "read-only transaction" in row["found"]) == ("failed", True)
        with postgres_engine.begin() as conn:
            conn.execute(sa.text("SET default_transaction_read_only = off"))

    def test_a_user_who_may_not_create_tables_is_told(
        self, cli: CommandLine, postgres_engine: Engine, reader: str
    ) -> None:
        row = findings(cli("doctor", *DB, "--prefix", "other_", "--output", "json"))["state tables"]
        assert row["result"] == "failed"
        assert row["found"].startswith("the database says: permission denied")
        assert "doctor" not in row["found"]
        assert "--show-sql" in row["fix"]

    def test_a_user_who_may_not_read_the_tables_is_told(
        self, cli: CommandLine, postgres_engine: Engine, reader: str
    ) -> None:
        with postgres_engine.begin() as conn:
            conn.execute(sa.text(f"REVOKE ALL ON ALL TABLES IN SCHEMA public FROM {reader}"))
        found = findings(cli("doctor", *DB, "--output", "json"))
        assert found["state tables"]["found"] == (
            "they exist, but this user may not read them: permission denied for table offsets_schema_version"
        )
        assert found["state tables"]["fix"].startswith("GRANT SELECT, INSERT")
        assert found["rights"]["found"] == "there are no state tables to check"

    def test_a_schema_that_is_not_there_is_told(self, cli: CommandLine) -> None:
        row = findings(cli("doctor", *DB, "--schema", "No where", "--output", "json"))["state tables"]
        assert (row["result"], row["found"]) == ("failed", 'schema "No where" does not exist')
        assert row["fix"].startswith('CREATE SCHEMA "No where"')

    def test_a_user_without_any_schema_is_told_to_name_one(
        self, cli: CommandLine, postgres_engine: Engine, reader: str
    ) -> None:
        with postgres_engine.begin() as conn:
            conn.execute(sa.text(f"ALTER USER {reader} SET search_path = ''"))
        row = findings(cli("doctor", *DB, "--prefix", "other_", "--output", "json"))["state tables"]
        assert row["result"] == "failed"
        assert row["fix"].startswith("name a schema with --schema")
