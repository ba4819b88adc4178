"""State tables of an earlier schema version: they are upgraded by `init`, and by nothing else."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy.engine import Engine

from airflow_kafka_offsets.core.offsets import OffsetRange, Position
from airflow_kafka_offsets.exceptions import LedgerError
from airflow_kafka_offsets.lag.measure import group_states
from airflow_kafka_offsets.ledger import install
from airflow_kafka_offsets.ledger.batches import open_batch
from airflow_kafka_offsets.ledger.install import create_missing, initialize
from airflow_kafka_offsets.ledger.migrations import MIGRATIONS
from airflow_kafka_offsets.ledger.positions import read_positions
from airflow_kafka_offsets.ledger.tables import SCHEMA_VERSION, Ledger, Tables
from tests.support.old_tables import T0, T1, batch, contents, offset_range, position, structure, upgraded

pytestmark = pytest.mark.server


def test_the_steps_lead_to_the_current_version_one_by_one() -> None:
    assert list(MIGRATIONS) == list(range(2, SCHEMA_VERSION + 1))


def test_every_row_is_kept(old: Engine) -> None:
    wanted = upgraded(old)

    assert initialize(Ledger(old)) is True

    assert contents(old) == wanted
    assert read_positions(Ledger(old), "loader") == {T0: Position(20), T1: Position(5, "id", 4)}
    again = initialize(Ledger(old))
    assert (again, contents(old)) == (False, wanted)


def test_migrated_tables_equal_new_ones(old: Engine) -> None:
    initialize(Ledger(old))
    found = structure(old)
    Tables().metadata.drop_all(old)

    assert initialize(Ledger(old)) is True

    assert structure(old) == found


def test_a_batch_that_is_open_is_finished_with_the_new_tables(old: Engine) -> None:
    batch(old, 3, "planned", target_table="target")
    offset_range(old, 3, T0, 20, 25)

    initialize(Ledger(old))

    still_open = open_batch(Ledger(old), "loader")
    assert still_open is not None
    assert still_open.ranges == (OffsetRange(*T0, 20, 25, 25),)


class TestRecordsThatAreLoadedAhead:
    def test_late_records_are_refused_with_their_groups(self, old: Engine) -> None:
        position(old, T0, 10, "hourly", ahead_offset=14, ahead_before_ms=5_000)
        position(old, T0, 10, "daily", ahead_offset=11, ahead_before_ms=5_000)
        before = contents(old)

        with pytest.raises(
            LedgerError, match=r"of group 'daily', 'hourly' are loaded already.*run a load without until"
        ):
            initialize(Ledger(old))
        with pytest.raises(LedgerError, match="of group 'daily', 'hourly' are loaded already"):
            install.statements(Ledger(old))

        assert contents(old) == before

    def test_late_records_of_an_open_batch_are_refused(self, old: Engine) -> None:
        batch(old, 3, "staged", "hourly", target_table="target")
        offset_range(old, 3, T0, 0, 10, ahead_offset=14, ahead_before_ms=5_000)

        with pytest.raises(LedgerError, match="of group 'hourly' are loaded already"):
            initialize(Ledger(old))

    @pytest.mark.parametrize("offset", [14, 15])
    def test_passed_late_records_are_ignored(self, old: Engine, offset: int) -> None:
        position(old, T0, offset, "hourly", ahead_offset=14, ahead_before_ms=5_000)

        assert initialize(Ledger(old)) is True


class TestOtherVersions:
    def test_whatever_is_not_init_refuses_an_earlier_one_and_names_init(self, old: Engine) -> None:
        before = contents(old)
        told = rf"schema version 1, this package works with {SCHEMA_VERSION}.*'airflow kafka-offsets init'"

        with pytest.raises(LedgerError, match=told):
            create_missing(Ledger(old))
        with old.connect() as conn:
            with pytest.raises(LedgerError, match=told):
                install.check_installed(conn, Tables())
            with pytest.raises(LedgerError, match=told):
                group_states(conn, Tables(), ["loader"])

        assert contents(old) == before

    def test_a_newer_one_is_refused_by_init_too(self, engine: Engine) -> None:
        initialize(Ledger(engine))
        with engine.begin() as conn:
            conn.exec_driver_sql(f"UPDATE offsets_schema_version SET version = {SCHEMA_VERSION + 1}")

        for refused in (initialize, create_missing, install.statements):
            with pytest.raises(LedgerError, match=f"schema version {SCHEMA_VERSION + 1}, this package works with"):
                refused(Ledger(engine))


def test_a_step_that_fails_leaves_nothing_of_itself(old: Engine) -> None:
    with old.begin() as conn:
        conn.exec_driver_sql("CREATE VIEW mine AS SELECT ahead_before_ms FROM offset_ranges")
    before = structure(old), contents(old)

    with pytest.raises(LedgerError, match=r"cannot be upgraded .*--show-sql"):
        initialize(Ledger(old))

    assert (structure(old), contents(old)) == before


def test_one_of_two_processes_migrates(old: Engine) -> None:
    start = threading.Barrier(2)

    def init() -> bool:
        start.wait()
        return initialize(Ledger(old))

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
        upgrade = thread.submit(initialize, Ledger(old))
        with old.connect() as conn:
            while not conn.exec_driver_sql("SELECT count(*) FROM pg_locks WHERE NOT granted").scalar_one():
                assert not upgrade.done(), upgrade.result()
        load.commit()

        with pytest.raises(LedgerError, match="of group 'loader' are loaded already"):
            upgrade.result()


class TestInterruptedReplaysOfDeadLetters:
    """Version 10 knows them as batches; before it, a dead letter named the attempt that may have published it."""

    @pytest.fixture
    def version_9(self, engine: Engine) -> Engine:
        initialize(Ledger(engine))
        with engine.begin() as conn:
            conn.exec_driver_sql("ALTER TABLE dead_letters DROP COLUMN replayed_by")
            conn.exec_driver_sql("ALTER TABLE dead_letters ADD publishing VARCHAR(80)")
            conn.exec_driver_sql("UPDATE offsets_schema_version SET version = 9")
            conn.exec_driver_sql(
                "INSERT INTO dead_letters (batch_id, topic, partition, offset_value, consumer_group, error, "
                "publishing) VALUES (1, 'orders', 0, 5, 'loader', 'no JSON', 'batch-1-x')"
            )
        return engine

    def test_interrupted_replays_are_refused(self, version_9: Engine) -> None:
        with pytest.raises(LedgerError, match="a replay of dead letters was interrupted"):
            initialize(Ledger(version_9))

        assert contents(version_9)["offsets_schema_version"] == [{"version": 9}]

    def test_others_are_upgraded(self, version_9: Engine) -> None:
        with version_9.begin() as conn:
            conn.exec_driver_sql("UPDATE dead_letters SET publishing = NULL")

        assert initialize(Ledger(version_9)) is True

        (letter,) = contents(version_9)["dead_letters"]
        assert letter["replayed_by"] is None
        assert "publishing" not in letter
