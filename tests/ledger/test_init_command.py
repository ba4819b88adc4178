"""`init` upgrades the state tables, or prints the statements for it."""

import pytest
from sqlalchemy.engine import Engine

from airflow_kafka_offsets.ledger import install
from airflow_kafka_offsets.ledger.install import initialize
from airflow_kafka_offsets.ledger.migrations import RENAMED_COLUMNS
from airflow_kafka_offsets.ledger.tables import SCHEMA_VERSION, Ledger, Tables
from tests.support.command_line import CommandLine, database_connection
from tests.support.old_tables import contents, run_script, structure, upgraded

pytestmark = pytest.mark.server


class TestPrintedStatements:
    def test_printed_statements_upgrade_like_init(self, old: Engine) -> None:
        wanted = upgraded(old)
        script = install.statements(Ledger(old))
        assert wanted != contents(old)

        run_script(old, script)

        assert contents(old) == wanted
        assert install.statements(Ledger(old)) == ""

    def test_printed_statements_create_the_tables(self, engine: Engine) -> None:
        assert install.statements(Ledger(engine)) == Tables().ddl(engine.dialect)

    @pytest.mark.parametrize("prefix", ["select ", "100%", "or\"der's", ":name"])
    def test_odd_names_stay_names(self, engine: Engine, prefix: str) -> None:
        tables = Tables(prefix=prefix)
        initialize(Ledger(engine, tables))
        current = structure(engine)

        def quoted(table: str) -> str:
            return '"' + (prefix + table).replace('"', '""') + '"'

        version_9 = "".join(
            f"ALTER TABLE {quoted(table)} RENAME COLUMN {new} TO {old};\n"
            for table, renamed in RENAMED_COLUMNS.items()
            for old, new in renamed.items()
        )
        version_9 += f"ALTER TABLE {quoted('dead_letters')} RENAME COLUMN replayed_by TO publishing;\n"
        for way in (
            lambda: initialize(Ledger(engine, tables)),
            lambda: run_script(engine, install.statements(Ledger(engine, tables))),
        ):
            run_script(engine, version_9)
            with engine.begin() as conn:
                conn.execute(tables.schema_version.update().values(version=9))
            assert structure(engine) != current
            way()
            assert structure(engine) == current


class TestCommand:
    @pytest.fixture
    def cli(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], engine: Engine) -> CommandLine:
        return CommandLine(monkeypatch, capsys, {"warehouse": database_connection(engine)})

    def test_init_upgrades_and_says_so(self, cli: CommandLine, old: Engine) -> None:
        wanted = upgraded(old)

        done = cli("init", "--conn-id", "warehouse")

        assert (done.status, done.stdout) == (0, "")
        assert f"were upgraded from schema version 9 to {SCHEMA_VERSION}" in done.stderr
        assert contents(old) == wanted
        assert "exist already, in the version of this package" in cli("init", "--conn-id", "warehouse").stderr

    def test_init_that_is_refused_fails(self, cli: CommandLine, old: Engine) -> None:
        with old.begin() as conn:
            conn.exec_driver_sql("UPDATE dead_letters SET publishing = 'batch-1-x'")

        for options in ((), ("--show-sql",)):
            done = cli("init", "--conn-id", "warehouse", *options)
            assert (done.status, done.stdout) == (1, "")
            assert "a replay of dead letters was interrupted" in done.stderr

    def test_show_sql_prints_what_would_run_on_this_database(self, cli: CommandLine, old: Engine) -> None:
        before = contents(old)

        done = cli("init", "--conn-id", "warehouse", "--show-sql")

        assert done.status == 0, done.stderr
        assert done.stdout == install.statements(Ledger(old))
        assert done.stdout.count("RENAME COLUMN") == 6
        assert contents(old) == before
        initialize(Ledger(old))
        current = cli("init", "--conn-id", "warehouse", "--show-sql")
        assert (current.status, current.stdout) == (0, "")
        assert f"already have schema version {SCHEMA_VERSION}: there is nothing to run" in current.stderr
        if old.dialect.name != "sqlite":
            granted = cli("init", "--conn-id", "warehouse", "--show-sql", "--grant-to", "loader")
            assert granted.stdout.startswith("GRANT ")
            assert f"schema version {SCHEMA_VERSION}: only the grants are to be run" in granted.stderr

    def test_show_sql_needs_no_database(self, cli: CommandLine, engine: Engine) -> None:
        cli.connect(
            "nowhere",
            "postgres://user:secret@127.0.0.1:1/db"
            if engine.dialect.name == "postgresql"
            else "sqlite:////no/such/directory/state.db",
        )

        done = cli("init", "--conn-id", "nowhere", "--show-sql")

        assert (done.status, done.stdout) == (0, Tables().ddl(engine.dialect))
        assert "cannot be read" in done.stderr
