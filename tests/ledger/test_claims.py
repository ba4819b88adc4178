"""One attempt at a time holds a group: claims, and the lease that keeps other runs out."""

import logging
import sqlite3
import threading
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace

import pytest
import sqlalchemy as sa

from airflow_kafka_offsets.exceptions import ClusterChangedError, FencedError, GroupBusyError, LedgerError
from airflow_kafka_offsets.ledger import claims
from airflow_kafka_offsets.ledger.batch_rows import TaskRun
from airflow_kafka_offsets.ledger.claims import GroupClaim, claim_group, heartbeat
from airflow_kafka_offsets.ledger.tables import Ledger
from tests.support.ledgers import CLUSTER, FIRST_TRY, GROUP, MINUTE, OTHER_RUN, SECOND_TRY, Database, until


class TestClaim:
    def test_every_claim_raises_the_epoch(self, db: Database) -> None:
        assert [db.claim().epoch, db.claim(SECOND_TRY).epoch] == [1, 2]

    def test_a_live_lease_keeps_another_run_out_and_names_its_holder(self, db: Database) -> None:
        db.claim(FIRST_TRY)
        with pytest.raises(GroupBusyError) as raised:
            db.claim(OTHER_RUN)
        assert f"Group '{GROUP}' is being loaded by dag 'dag' task 'load' run 'run-1'" in str(raised.value)

    def test_a_claim_that_is_refused_changes_nothing(self, db: Database) -> None:
        db.claim(FIRST_TRY)
        before = db.dump()
        with pytest.raises(GroupBusyError):
            db.claim(OTHER_RUN)
        assert db.dump() == before

    def test_a_later_try_of_the_same_task_instance_takes_over_at_once(self, db: Database) -> None:
        first = db.claim(FIRST_TRY)
        second = db.claim(SECOND_TRY)
        with pytest.raises(FencedError):
            db.plan(first)
        assert db.plan(second).state == "planned"

    def test_another_map_index_is_another_run(self, db: Database) -> None:
        db.claim(replace(FIRST_TRY, map_index=0))
        with pytest.raises(GroupBusyError, match="map index 0"):
            db.claim(replace(FIRST_TRY, map_index=1))

    def test_two_processes_are_never_the_same_run(self, db: Database) -> None:
        db.claim(TaskRun.of_this_process())
        with pytest.raises(GroupBusyError, match="loaded by process "):
            db.claim(TaskRun.of_this_process())

    def test_another_run_takes_over_when_the_lease_has_ended(self, db: Database) -> None:
        first = db.claim(FIRST_TRY, lease=timedelta(milliseconds=20))
        second: list[GroupClaim] = []

        def taken_over() -> bool:
            try:
                second.append(db.claim(OTHER_RUN))
            except GroupBusyError:
                return False
            return True

        until(taken_over)
        assert second[0].epoch == first.epoch + 1

    def test_the_lease_keeps_others_out_for_as_long_as_it_says(self, db: Database) -> None:
        db.claim(FIRST_TRY, lease=timedelta(days=2))
        assert db.rows(
            "SELECT julianday(lease_expires_at) - julianday('now') BETWEEN 1.9 AND 2 AS fits FROM consumer_groups"
        ) == [{"fits": 1}]

    def test_groups_do_not_get_in_each_others_way(self, db: Database) -> None:
        db.claim(FIRST_TRY)
        other = claim_group(db.ledger, "another", OTHER_RUN, cluster_id=CLUSTER, lease=MINUTE)
        assert other.epoch == 1

    def test_another_cluster_is_refused_with_both_ids(self, db: Database) -> None:
        db.claim().release()
        with pytest.raises(ClusterChangedError, match=f"(?s){CLUSTER}.*'another-cluster'"):
            db.claim(cluster_id="another-cluster")

    def test_another_cluster_is_refused_before_the_group_is_taken(self, db: Database) -> None:
        first = db.claim(FIRST_TRY)
        with pytest.raises(ClusterChangedError):
            db.claim(SECOND_TRY, cluster_id="another-cluster")
        assert db.plan(first).state == "planned"

    @pytest.mark.usefixtures("impatient")
    def test_a_writer_that_holds_sqlites_lock_makes_the_group_busy(self, db: Database) -> None:
        with closing(sqlite3.connect(db.path, isolation_level=None)) as writer:
            writer.execute("BEGIN IMMEDIATE")
            with pytest.raises(GroupBusyError, match="is locked by another program"):
                db.claim()

    def test_a_database_that_cannot_be_written_says_which_rights_are_missing(self, db: Database) -> None:
        engine = sa.create_engine(f"sqlite:///file:{db.path}?mode=ro&uri=true")
        with pytest.raises(LedgerError, match=r"may not write to the state tables.*GRANT"):
            claim_group(Ledger(engine, db.tables), GROUP, FIRST_TRY, cluster_id=CLUSTER, lease=MINUTE)
        engine.dispose()


class TestLease:
    def test_renewing_makes_it_longer(self, db: Database) -> None:
        held = db.claim(lease=MINUTE)
        before = db.lease_ends()
        assert replace(held, lease=2 * MINUTE).renew() is True
        after = db.lease_ends()
        assert before is not None
        assert after is not None
        assert after > before

    def test_an_attempt_that_was_taken_over_cannot_renew(self, db: Database) -> None:
        first = db.claim(FIRST_TRY)
        db.claim(SECOND_TRY)
        before = db.dump()
        assert first.renew() is False
        assert db.dump() == before

    def test_releasing_lets_another_run_in_at_once(self, db: Database) -> None:
        db.claim(FIRST_TRY).release()
        assert db.claim(OTHER_RUN).epoch == 2

    def test_an_attempt_that_was_taken_over_does_not_release_its_successor(self, db: Database) -> None:
        first = db.claim(FIRST_TRY)
        db.claim(SECOND_TRY)
        first.release()
        with pytest.raises(GroupBusyError):
            db.claim(OTHER_RUN)

    def test_a_heartbeat_renews_it_while_the_attempt_works(self, db: Database) -> None:
        held = db.claim(lease=timedelta(milliseconds=30))
        db.change("UPDATE consumer_groups SET lease_expires_at = '2000-01-01 00:00:00.000000'")
        with heartbeat(held):
            until(lambda: (db.lease_ends() or "") > "2001")

    def test_a_heartbeat_renews_three_times_a_lease(self, db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
        pauses: list[float | None] = []

        class Clock(threading.Event):
            """An event that is not set before two pauses have passed, which take no time."""

            def wait(self, timeout: float | None = None) -> bool:
                pauses.append(timeout)
                return len(pauses) > 2

        monkeypatch.setattr(claims, "threading", SimpleNamespace(Event=Clock, Thread=threading.Thread))
        with heartbeat(db.claim(lease=MINUTE)) as thread:
            until(lambda: not thread.is_alive())

        assert pauses == [20.0, 20.0, 20.0]

    def test_a_heartbeat_ends_with_its_block(self, db: Database) -> None:
        with heartbeat(db.claim(lease=timedelta(milliseconds=3))) as thread:
            pass
        assert not thread.is_alive()

    def test_a_heartbeat_gives_up_when_the_group_was_taken_over(
        self, db: Database, caplog: pytest.LogCaptureFixture
    ) -> None:
        first = db.claim(FIRST_TRY)
        db.claim(SECOND_TRY)
        with (
            caplog.at_level(logging.WARNING),
            heartbeat(replace(first, lease=timedelta(milliseconds=3))) as thread,
        ):
            until(lambda: not thread.is_alive())
        assert f"Group '{GROUP}' was taken over by a later attempt" in caplog.text

    @pytest.mark.usefixtures("impatient")
    def test_a_heartbeat_outlives_a_renewal_that_fails(self, db: Database, caplog: pytest.LogCaptureFixture) -> None:
        held = db.claim(lease=timedelta(milliseconds=30))
        with (
            caplog.at_level(logging.WARNING),
            closing(sqlite3.connect(db.path, isolation_level=None)) as writer,
            heartbeat(held),
        ):
            writer.execute("BEGIN IMMEDIATE")
            until(lambda: "could not be renewed" in caplog.text)
            writer.execute("UPDATE consumer_groups SET lease_expires_at = '2000-01-01 00:00:00.000000'")
            writer.execute("COMMIT")
            until(lambda: (db.lease_ends() or "") > "2001")
