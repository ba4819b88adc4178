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
from airflow_kafka_offsets.ledger.migrations import MIGRATIONS, OLDEST_VERSION
from airflow_kafka_offsets.ledger.positions import read_positions
from airflow_kafka_offsets.ledger.tables import SCHEMA_VERSION, Ledger, Tables
from tests.support.old_tables import T0, T1, batch, contents, offset_range, structure, upgraded

pytestmark = pytest.mark.server


def test_the_steps_lead_to_the_current_version_one_by_one() -> None:
    assert list(MIGRATIONS) == list(range(OLDEST_VERSION + 1, SCHEMA_VERSION + 1))


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


def test_tables_of_version_10_get_what_they_lack(engine: Engine) -> None:
    initialize(Ledger(engine))
    found = structure(engine)
    Tables().erased_offsets.drop(engine)
    with engine.begin() as conn:
        conn.exec_driver_sql("UPDATE offsets_schema_version SET version = 10")

    assert "CREATE TABLE" in install.statements(Ledger(engine))
    assert initialize(Ledger(engine)) is True

    assert structure(engine) == found


def test_a_batch_that_is_open_is_finished_with_the_new_tables(old: Engine) -> None:
    batch(old, 3, "planned", target_table="target")
    offset_range(old, 3, T0, 20, 25)

    initialize(Ledger(old))

    still_open = open_batch(Ledger(old), "loader")
    assert still_open is not None
    assert still_open.ranges == (OffsetRange(*T0, 20, 25, 25),)


class TestOtherVersions:
    def test_whatever_is_not_init_refuses_an_earlier_one_and_names_init(self, old: Engine) -> None:
        before = contents(old)
        told = rf"schema version 9, this package works with {SCHEMA_VERSION}.*'kafka-offsets init'"

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

    def test_one_before_the_first_release_is_refused_by_init_too(self, old: Engine) -> None:
        with old.begin() as conn:
            conn.exec_driver_sql(f"UPDATE offsets_schema_version SET version = {OLDEST_VERSION - 1}")
        before = contents(old)

        for refused in (initialize, create_missing, install.statements):
            with pytest.raises(
                LedgerError, match=r"before the first release.*note the positions in 'consumed_offsets'"
            ):
                refused(Ledger(old))

        assert contents(old) == before


def test_a_step_that_fails_leaves_nothing_of_itself(old: Engine) -> None:
    with old.begin() as conn:
        conn.exec_driver_sql("CREATE VIEW mine AS SELECT publishing FROM dead_letters")
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


def test_states_and_kinds_and_names_of_targets_get_their_new_words(old: Engine) -> None:
    batch(old, 3, "planned", target_table="target")
    batch(old, 4, "ahead", target_table="callable://shop.write")
    batch(old, 5, kind="start")

    initialize(Ledger(old))

    found = {row["batch_id"]: row for row in contents(old)["offset_batches"]}
    assert (found[4]["state"], found[4]["target_table"]) == ("prefetched", "function://shop.write")
    assert found[5]["kind"] == "initialize"


class TestInterruptedReplaysOfDeadLetters:
    """Version 10 knows them as batches; before it, a dead letter named the attempt that may have published it."""

    def test_they_are_refused(self, old: Engine) -> None:
        with old.begin() as conn:
            conn.exec_driver_sql("UPDATE dead_letters SET publishing = 'batch-1-x'")
        before = contents(old)

        with pytest.raises(LedgerError, match="a replay of dead letters was interrupted"):
            initialize(Ledger(old))
        with pytest.raises(LedgerError, match="a replay of dead letters was interrupted"):
            install.statements(Ledger(old))

        assert contents(old) == before

    def test_one_that_begins_to_publish_is_waited_for(self, old: Engine) -> None:
        """What it publishes is seen, and not dropped unseen."""
        if old.dialect.name == "sqlite":
            pytest.skip("the writer that comes second waits at BEGIN")
        with ThreadPoolExecutor(1) as thread, old.connect() as replay, replay.begin():
            replay.exec_driver_sql("UPDATE dead_letters SET publishing = 'batch-1-x'")
            upgrade = thread.submit(initialize, Ledger(old))
            with old.connect() as conn:
                while not conn.exec_driver_sql("SELECT count(*) FROM pg_locks WHERE NOT granted").scalar_one():
                    assert not upgrade.done(), upgrade.result()
            replay.commit()

            with pytest.raises(LedgerError, match="a replay of dead letters was interrupted"):
                upgrade.result()
