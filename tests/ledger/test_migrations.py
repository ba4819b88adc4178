"""State tables of an earlier schema version: they are upgraded by `init`, and by nothing else."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from airflow_kafka_offsets.core.offsets import OffsetRange, Position, TopicPartition
from airflow_kafka_offsets.exceptions import LedgerError
from airflow_kafka_offsets.lag.group_states import group_states
from airflow_kafka_offsets.ledger import install
from airflow_kafka_offsets.ledger.batches import open_batch
from airflow_kafka_offsets.ledger.install import create_missing, initialize
from airflow_kafka_offsets.ledger.migrations import MIGRATIONS
from airflow_kafka_offsets.ledger.positions import read_positions
from airflow_kafka_offsets.ledger.tables import SCHEMA_VERSION, Tables
from tests.support.command_line import CommandLine, database_connection

pytestmark = pytest.mark.server

DATA = Path(__file__).parent / "data"
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
DROPPED = {"ahead_offset", "ahead_before_ms", "loaded_offset", "loaded_before_ms"}
T0, T1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


def run_script(engine: Engine, script: str) -> None:
    """Run statements as a client of the database does: those that the script does not put in a transaction commit alone."""
    with engine.connect() as conn:
        conn = conn.execution_options(isolation_level="AUTOCOMMIT")
        for statement in script.split(";\n"):
            if statement.strip():
                # Without parameters, so that a % is a % to every driver.
                conn.connection.cursor().execute(statement)


def insert(engine: Engine, table: str, **values: Any) -> None:
    with engine.begin() as conn:
        conn.execute(sa.Table(table, sa.MetaData(), autoload_with=conn).insert().values(**values))


def contents(engine: Engine) -> dict[str, list[dict[str, Any]]]:
    """Every row of every table."""
    metadata = sa.MetaData()
    metadata.reflect(engine)
    with engine.connect() as conn:
        return {
            table.name: [dict(row) for row in conn.execute(sa.select(table).order_by(*table.primary_key)).mappings()]
            for table in metadata.sorted_tables
        }


def index_text(index: Any) -> str:
    options = {name: str(value) for name, value in index["dialect_options"].items()}
    return f"{index['name']} {index['column_names']} {index['unique']} {options}"


def structure(engine: Engine) -> dict[str, Any]:
    """Columns, keys and indexes of every table."""
    inspector = sa.inspect(engine)
    return {
        table: (
            [(column["name"], str(column["type"]), column["nullable"]) for column in inspector.get_columns(table)],
            inspector.get_pk_constraint(table),
            sorted(map(index_text, inspector.get_indexes(table))),
        )
        for table in inspector.get_table_names()
    }


def batch(engine: Engine, batch_id: int, state: str = "committed", group: str = "loader", **values: Any) -> None:
    names = {"consumer_group": group, "generation": 0, "kind": "load", "state": state, "attempt": 1, "planned_at": NOON}
    insert(engine, "offset_batches", batch_id=batch_id, **names | values)


def offset_range(engine: Engine, batch_id: int, tp: TopicPartition, start: int, end: int, **values: Any) -> None:
    names = {"topic": tp.topic, "partition": tp.partition, "start_offset": start, "end_offset": end, "how": "stored"}
    insert(engine, "offset_ranges", batch_id=batch_id, **{"target_offset": end} | names | values)


def position(engine: Engine, tp: TopicPartition, offset: int, group: str = "loader", **values: Any) -> None:
    names = {"consumer_group": group, "topic": tp.topic, "partition": tp.partition, "offset_value": offset}
    insert(engine, "consumed_offsets", **names | {"batch_id": 1, "updated_at": NOON} | values)


@pytest.fixture
def old(engine: Engine) -> Engine:
    """State tables of version 1 with a group that loaded two batches; what the first loaded early, its position has passed."""
    run_script(engine, (DATA / f"state_tables_version_1_{engine.dialect.name}.sql").read_text())
    insert(engine, "consumer_groups", group_id="loader", cluster_id="c", generation=0, epoch=2)
    batch(engine, 1, target_table="target", records=12, row_count=12, committed_at=NOON)
    batch(engine, 2, target_table="target", records=8, row_count=7, dead_letters=1, committed_at=NOON)
    offset_range(engine, 1, T0, 0, 10, ahead_offset=14, ahead_before_ms=5_000, records=12)
    offset_range(engine, 2, T0, 10, 20, loaded_offset=14, loaded_before_ms=5_000, records=8)
    offset_range(engine, 2, T1, 0, 5, topic_id="id", leader_epoch=3, end_epoch=4)
    insert(
        engine,
        "dead_letters",
        batch_id=2,
        topic="orders",
        partition=0,
        offset_value=11,
        consumer_group="loader",
        value=b"{",
        error="no JSON",
    )
    insert(
        engine,
        "offset_gaps",
        batch_id=2,
        topic="orders",
        partition=1,
        start_offset=0,
        end_offset=2,
        cause="expired",
        decision="skipped",
    )
    position(engine, T0, 20, batch_id=2, record_timestamp=NOON)
    position(engine, T1, 5, batch_id=2, topic_id="id", leader_epoch=4)
    return engine


def upgraded(engine: Engine) -> dict[str, list[dict[str, Any]]]:
    """What version 1 holds, as version 2 has to."""
    found = {
        table: [{name: value for name, value in row.items() if name not in DROPPED} for row in rows]
        for table, rows in contents(engine).items()
    }
    return found | {"offsets_schema_version": [{"version": SCHEMA_VERSION}]}


def test_the_steps_lead_to_the_current_version_one_by_one() -> None:
    assert list(MIGRATIONS) == list(range(2, SCHEMA_VERSION + 1))


def test_every_row_is_kept(old: Engine) -> None:
    wanted = upgraded(old)

    assert initialize(old, Tables()) is True

    assert contents(old) == wanted
    assert read_positions(old, Tables(), "loader") == {T0: Position(20), T1: Position(5, "id", 4)}
    again = initialize(old, Tables())
    assert (again, contents(old)) == (False, wanted)


def test_they_are_what_a_new_database_gets(old: Engine) -> None:
    initialize(old, Tables())
    found = structure(old)
    Tables().metadata.drop_all(old)

    assert initialize(old, Tables()) is True

    assert structure(old) == found


def test_a_batch_that_is_open_is_finished_with_the_new_tables(old: Engine) -> None:
    batch(old, 3, "planned", target_table="target")
    offset_range(old, 3, T0, 20, 25)

    initialize(old, Tables())

    still_open = open_batch(old, Tables(), "loader")
    assert still_open is not None
    assert still_open.ranges == (OffsetRange(*T0, 20, 25, 25),)


class TestRecordsThatAreLoadedAhead:
    def test_they_are_refused_with_the_groups(self, old: Engine) -> None:
        position(old, T0, 10, "hourly", ahead_offset=14, ahead_before_ms=5_000)
        position(old, T0, 10, "daily", ahead_offset=11, ahead_before_ms=5_000)
        before = contents(old)

        with pytest.raises(
            LedgerError, match=r"of group 'daily', 'hourly' are loaded already.*run a load without until"
        ):
            initialize(old, Tables())
        with pytest.raises(LedgerError, match="of group 'daily', 'hourly' are loaded already"):
            install.statements(old, Tables())

        assert contents(old) == before

    def test_those_of_an_open_batch_are_refused(self, old: Engine) -> None:
        batch(old, 3, "staged", "hourly", target_table="target")
        offset_range(old, 3, T0, 0, 10, ahead_offset=14, ahead_before_ms=5_000)

        with pytest.raises(LedgerError, match="of group 'hourly' are loaded already"):
            initialize(old, Tables())

    @pytest.mark.parametrize("offset", [14, 15])
    def test_those_that_the_position_has_passed_are_none(self, old: Engine, offset: int) -> None:
        position(old, T0, offset, "hourly", ahead_offset=14, ahead_before_ms=5_000)

        assert initialize(old, Tables()) is True


class TestOtherVersions:
    def test_whatever_is_not_init_refuses_an_earlier_one_and_names_init(self, old: Engine) -> None:
        before = contents(old)
        told = rf"schema version 1, this package works with {SCHEMA_VERSION}.*'airflow kafka-offsets init'"

        with pytest.raises(LedgerError, match=told):
            create_missing(old, Tables())
        with old.connect() as conn:
            with pytest.raises(LedgerError, match=told):
                install.check_installed(conn, Tables())
            with pytest.raises(LedgerError, match=told):
                group_states(conn, Tables(), ["loader"])

        assert contents(old) == before

    def test_a_newer_one_is_refused_by_init_too(self, engine: Engine) -> None:
        initialize(engine, Tables())
        with engine.begin() as conn:
            conn.exec_driver_sql(f"UPDATE offsets_schema_version SET version = {SCHEMA_VERSION + 1}")

        for refused in (initialize, create_missing, install.statements):
            with pytest.raises(LedgerError, match=f"schema version {SCHEMA_VERSION + 1}, this package works with"):
                refused(engine, Tables())


class TestPrintedStatements:
    def test_they_upgrade_an_earlier_version_as_init_does(self, old: Engine) -> None:
        wanted = upgraded(old)
        script = install.statements(old, Tables())
        assert wanted != contents(old)

        run_script(old, script)

        assert contents(old) == wanted
        assert install.statements(old, Tables()) == ""

    def test_they_create_the_tables_of_an_empty_database(self, engine: Engine) -> None:
        assert install.statements(engine, Tables()) == Tables().ddl(engine.dialect)

    @pytest.mark.parametrize("prefix", ["select ", "100%", "or\"der's", ":name"])
    def test_odd_names_stay_names(self, engine: Engine, prefix: str) -> None:
        tables = Tables(prefix=prefix)
        initialize(engine, tables)
        current = structure(engine)
        names = ('"' + (prefix + table).replace('"', '""') + '"' for table in ("consumed_offsets", "offset_ranges"))
        version_1 = "".join(
            f"ALTER TABLE {name} ADD COLUMN {column} BIGINT;\n"
            for name in names
            for column in ("ahead_offset", "ahead_before_ms")
        )
        for way in (
            lambda: initialize(engine, tables),
            lambda: run_script(engine, install.statements(engine, tables)),
        ):
            run_script(engine, version_1)
            with engine.begin() as conn:
                conn.execute(tables.schema_version.update().values(version=1))
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
        assert f"were upgraded from schema version 1 to {SCHEMA_VERSION}" in done.stderr
        assert contents(old) == wanted
        assert "exist already, in the version of this package" in cli("init", "--conn-id", "warehouse").stderr

    def test_init_that_is_refused_fails(self, cli: CommandLine, old: Engine) -> None:
        position(old, T0, 10, "hourly", ahead_offset=14, ahead_before_ms=5_000)

        for options in ((), ("--show-sql",)):
            done = cli("init", "--conn-id", "warehouse", *options)
            assert (done.status, done.stdout) == (1, "")
            assert "of group 'hourly' are loaded already" in done.stderr

    def test_show_sql_prints_what_would_run_on_this_database(self, cli: CommandLine, old: Engine) -> None:
        before = contents(old)

        done = cli("init", "--conn-id", "warehouse", "--show-sql")

        assert done.status == 0, done.stderr
        assert done.stdout == install.statements(old, Tables())
        assert done.stdout.count("DROP COLUMN") == 6
        assert contents(old) == before
        initialize(old, Tables())
        current = cli("init", "--conn-id", "warehouse", "--show-sql")
        assert (current.status, current.stdout) == (0, "")
        assert f"already have schema version {SCHEMA_VERSION}: there is nothing to run" in current.stderr

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


def test_a_step_that_fails_leaves_nothing_of_itself(old: Engine) -> None:
    with old.begin() as conn:
        conn.exec_driver_sql("CREATE VIEW mine AS SELECT ahead_before_ms FROM offset_ranges")
    before = structure(old), contents(old)

    with pytest.raises(LedgerError, match=r"cannot be upgraded .*--show-sql"):
        initialize(old, Tables())

    assert (structure(old), contents(old)) == before


def test_of_two_processes_at_once_one_does_it(old: Engine) -> None:
    start = threading.Barrier(2)

    def init() -> bool:
        start.wait()
        return initialize(old, Tables())

    with ThreadPoolExecutor(2) as threads:
        done = [future.result() for future in [threads.submit(init), threads.submit(init)]]

    assert sorted(done) == [False, True]
    with old.connect() as conn:
        assert install.installed_version(conn, Tables()) == SCHEMA_VERSION


def test_a_load_that_is_being_committed_is_waited_for(old: Engine) -> None:
    """What it loaded ahead of its position is seen, and not dropped unseen."""
    if old.dialect.name == "sqlite":
        pytest.skip("the writer that comes second waits at BEGIN")
    with ThreadPoolExecutor(1) as thread, old.connect() as load, load.begin():
        load.exec_driver_sql("UPDATE consumed_offsets SET ahead_offset = 99, ahead_before_ms = 5 WHERE partition = 0")
        upgrade = thread.submit(initialize, old, Tables())
        with old.connect() as conn:
            while not conn.exec_driver_sql("SELECT count(*) FROM pg_locks WHERE NOT granted").scalar_one():
                assert not upgrade.done(), upgrade.result()
        load.commit()

        with pytest.raises(LedgerError, match="of group 'loader' are loaded already"):
            upgrade.result()
