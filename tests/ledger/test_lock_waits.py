"""Other transactions that have the group's row for longer than a database waits for it: finished work waits, too."""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest
from sqlalchemy.engine import Engine

from airflow_kafka_offsets.exceptions import DatabaseBusyError, DatabaseUnavailableError, FencedError
from airflow_kafka_offsets.ledger import claims
from airflow_kafka_offsets.ledger.batch_rows import Batch
from airflow_kafka_offsets.ledger.batches import begin_staging, mark_staged, record_plan
from airflow_kafka_offsets.ledger.claims import GroupClaim, claim_group
from airflow_kafka_offsets.ledger.groups import lock
from airflow_kafka_offsets.ledger.install import initialize
from airflow_kafka_offsets.ledger.tables import Ledger
from devstack.mariadb import MariaDbServer
from tests.support.ledgers import CLUSTER, FIRST_LOAD, FIRST_TRY, GROUP, MINUTE, RECIPE, Database
from tests.support.loads import rows


def staging(ledger: Ledger) -> tuple[GroupClaim, Batch]:
    """A batch whose staging has begun."""
    held = claim_group(ledger, GROUP, FIRST_TRY, cluster_id=CLUSTER, lease=MINUTE)
    batch = record_plan(held, FIRST_LOAD, RECIPE, 0)
    assert batch is not None
    begin_staging(held, batch, "/staging/1", RECIPE)
    return held, batch


@contextmanager
def at_a_warning(act: Callable[[], object]) -> Iterator[None]:
    """Do something when a wait was in vain."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            assert "was in vain" in record.getMessage()
            act()

    handler = Handler(logging.WARNING)
    claims.log.addHandler(handler)
    try:
        yield
    finally:
        claims.log.removeHandler(handler)


@pytest.mark.server
class TestMariaDb:
    @pytest.fixture
    def ledger(self, mariadb: MariaDbServer, mariadb_engine: Engine) -> Iterator[Ledger]:
        (kept,) = mariadb.execute("SELECT @@GLOBAL.innodb_lock_wait_timeout")[0]
        mariadb.execute("SET GLOBAL innodb_lock_wait_timeout = 1")
        made = Ledger(mariadb_engine)
        initialize(made)
        yield made
        mariadb.execute(f"SET GLOBAL innodb_lock_wait_timeout = {kept}")

    def test_a_staged_batch_is_marked_when_the_lock_is_free(self, ledger: Ledger) -> None:
        held, batch = staging(ledger)
        free = threading.Event()
        with at_a_warning(free.set), ledger.engine.connect() as other:
            lock(other, ledger.tables, GROUP)
            thread = threading.Thread(target=mark_staged, args=(held, batch, 10))
            thread.start()
            assert free.wait(30)
            other.rollback()
            thread.join(30)
        assert rows(ledger.engine, "SELECT state, records FROM offset_batches") == [("staged", 10)]

    def test_the_wait_ends_where_a_later_attempt_takes_over(self, ledger: Ledger) -> None:
        held, batch = staging(ledger)
        raised: list[BaseException] = []

        def mark() -> None:
            try:
                mark_staged(held, batch, 10)
            except FencedError as error:
                raised.append(error)

        free = threading.Event()
        with at_a_warning(free.set), ledger.engine.connect() as other:
            lock(other, ledger.tables, GROUP)
            thread = threading.Thread(target=mark)
            thread.start()
            assert free.wait(30)
            other.exec_driver_sql("UPDATE consumer_groups SET epoch = epoch + 1")
            other.commit()
            thread.join(30)
        assert len(raised) == 1
        assert rows(ledger.engine, "SELECT state FROM offset_batches") == [("planned",)]

    def test_no_wait_is_endless(self, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(claims, "_LOCK_WAITS", 1)
        held, batch = staging(ledger)
        with ledger.engine.connect() as other:
            lock(other, ledger.tables, GROUP)
            with pytest.raises(DatabaseUnavailableError, match="Lock wait timeout"):
                mark_staged(held, batch, 10)


def test_a_busy_sqlite_database_is_waited_for(db: Database, impatient: None) -> None:
    held, batch = staging(db.ledger)
    with closing(sqlite3.connect(db.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with at_a_warning(lambda: other.in_transaction and other.rollback()):
            mark_staged(held, batch, 10)
    assert db.batch(batch.batch_id)["state"] == "staged"


def test_a_sqlite_database_that_stays_busy_is_an_error(db: Database, impatient: None) -> None:
    held, batch = staging(db.ledger)
    with closing(sqlite3.connect(db.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(DatabaseBusyError, match="locked by another program"):
            mark_staged(held, batch, 10)
