"""The database fails, and the load is exactly once all the same: deadlocks, restarts, altered tables, a full disk."""

from __future__ import annotations

import itertools
import os
import shutil
import sqlite3
import subprocess
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from airflow_kafka_offsets.exceptions import (
    CommitUnknownError,
    DatabaseBusyError,
    DatabaseUnavailableError,
    GroupBusyError,
    KafkaOffsetsError,
    RecordError,
    TargetError,
)
from airflow_kafka_offsets.ledger.group_claim import claim_group
from airflow_kafka_offsets.ledger.install import initialize
from airflow_kafka_offsets.ledger.tables import Tables
from airflow_kafka_offsets.ledger.task_run import TaskRun
from airflow_kafka_offsets.sinks.sql import insert, postgres_copy
from airflow_kafka_offsets.sinks.sql import table as sql_table
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from airflow_kafka_offsets.spark.job import StageJob
from airflow_kafka_offsets.staging.rows import Column, StagedRows, TargetColumns
from devstack.kafka import KafkaBroker
from devstack.postgres import PostgresServer
from devstack.process import wait_until
from tests.support.airflow_runs import waits_for_a_lock
from tests.support.clients import produce
from tests.support.loads import (
    CountingLauncher,
    Loader,
    TopicFactory,
    assert_exactly_once,
    names,
    positions,
    rows,
)

pytestmark = pytest.mark.server

RUN = TaskRun("run-1", dag_id="dag", task_id="task", map_index=-1, try_number=1)
TIMEOUT = 120.0
# What a created target has beside the declared columns.
ADDED = "_kafka_topic TEXT, _kafka_partition INTEGER, _kafka_offset BIGINT, _batch_id BIGINT"


@dataclass(frozen=True)
class Meddled(SqlTable):
    """A target to which something happens at a moment of the commit.

    :param after_check: called when the table was found to fit, before the transaction
    :param before_write: called in the transaction, before the rows are written; and `after_write`, after that
    """

    after_check: Callable[[], object] = lambda: None
    before_write: Callable[[Connection], object] = lambda _: None
    after_write: Callable[[], object] = lambda: None

    def prepare(self, engine: Engine, columns: pa.Schema | None) -> TargetColumns:
        checked = super().prepare(engine, columns)
        self.after_check()
        return checked

    def write(self, conn: Connection, rows: StagedRows) -> int:
        self.before_write(conn)
        count = super().write(conn, rows)
        self.after_write()
        return count


class Then(CountingLauncher):
    """Something happens when the rows are staged."""

    def __init__(self, launcher: CountingLauncher, happens: Callable[[], object]) -> None:
        super().__init__(launcher._spark)
        self._happens = happens

    def __call__(self, job: StageJob) -> None:
        super().__call__(job)
        self._happens()


def once(happens: Callable[[], object]) -> Callable[..., None]:
    """Something that happens to the first attempt alone."""
    left = [happens]

    def first(*_: object) -> None:
        if left:
            left.pop()()

    return first


@pytest.fixture
def orders(kafka: KafkaBroker, topic: TopicFactory) -> str:
    """A topic with ten records."""
    name = topic()
    produce(kafka, name, names(0, 10))
    return name


@contextmanager
def over(engine: Engine, loader: Loader) -> Iterator[Loader]:
    """The same loads over another engine."""
    yield Loader(loader.kafka, engine, loader.launcher)
    engine.dispose()


def change(engine: Engine, *statements: str) -> None:
    """What another program does."""
    with engine.begin() as conn:
        conn.execute(sa.text("SET LOCAL lock_timeout = '10s'"))
        for statement in statements:
            conn.execute(sa.text(statement))


def assert_nothing_written(engine: Engine) -> None:
    assert rows(engine, "SELECT count(*) FROM target") == [(0,)]
    assert positions(engine) == {}


def assert_staged_rows_are_committed(loader: Loader, topic: str, count: int) -> None:
    """The next load needs no Spark."""
    launched = len(loader.launcher.jobs)
    assert loader(topic).rows == count
    assert len(loader.launcher.jobs) == launched, "the staged files were not used"
    assert_exactly_once(loader.engine)


def repetition(caplog: pytest.LogCaptureFixture) -> str:
    """What was logged of the one repetition that there was."""
    (message,) = [text for record in caplog.records if "Attempt" in (text := record.getMessage())]
    return message


class TestInTheWay:
    """Other transactions make the database roll the commit back."""

    @pytest.mark.parametrize("check", ["NOT DEFERRABLE", "INITIALLY DEFERRED"], ids=["at-a-statement", "at-commit"])
    def test_a_deadlock(
        self, postgres_loader: Loader, orders: str, check: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        engine = postgres_loader.engine
        change(
            engine,
            "CREATE TABLE known (name TEXT PRIMARY KEY)",
            "INSERT INTO known SELECT 'name-' || n FROM generate_series(0, 9) n",
            f"CREATE TABLE target (id BIGINT, name TEXT REFERENCES known {check}, {ADDED})",
        )

        def want_the_group(other: Connection) -> None:
            with other:
                other.execute(sa.text("UPDATE consumer_groups SET epoch = epoch"))
                other.commit()

        def hold_a_name_and_want_the_group() -> None:
            other = engine.connect()
            # Whoever looks first finds the deadlock, and is its victim: not this one.
            other.execute(sa.text("SET deadlock_timeout = '1h'"))
            other.execute(sa.text("SELECT * FROM known WHERE name = 'name-7' FOR UPDATE"))
            others.submit(want_the_group, other)
            wait_until(lambda: waits_for_a_lock(engine, "UPDATE consumer_groups"), TIMEOUT, "the other to wait")

        impatient = sa.create_engine(engine.url, connect_args={"options": "-c deadlock_timeout=20ms"})
        with over(impatient, postgres_loader) as loader, ThreadPoolExecutor(1) as others:
            result = loader(orders, sink=Meddled("target", before_write=once(hold_a_name_and_want_the_group)))

        assert result.rows == 10
        assert "deadlock detected. Attempt 2 of 5 follows" in repetition(caplog)
        assert_exactly_once(engine)

    @pytest.mark.parametrize("isolation_level", ["REPEATABLE READ", "SERIALIZABLE"])
    def test_a_row_that_changed_since_the_snapshot(
        self, postgres_loader: Loader, orders: str, isolation_level: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        engine = postgres_loader.engine
        change_the_batch = once(lambda: change(engine, "UPDATE offset_batches SET reason = 'changed'"))

        with over(sa.create_engine(engine.url, isolation_level=isolation_level), postgres_loader) as loader:
            result = loader(orders, sink=Meddled("target", before_write=change_the_batch))

        assert result.rows == 10
        assert "could not serialize access due to concurrent update. Attempt 2 of 5 follows" in repetition(caplog)
        assert_exactly_once(engine)

    def test_two_transactions_that_read_what_the_other_writes(
        self, postgres_loader: Loader, orders: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        engine = postgres_loader.engine
        read_rows_and_write_positions = once(
            lambda: change(
                engine.execution_options(isolation_level="SERIALIZABLE"),
                "SELECT count(*) FROM target",
                "INSERT INTO consumed_offsets (consumer_group, topic, partition, offset_value, batch_id, updated_at)"
                " VALUES ('another', 'another', 0, 0, 0, now())",
            )
        )

        with over(sa.create_engine(engine.url, isolation_level="SERIALIZABLE"), postgres_loader) as loader:
            loader(orders, sink=Meddled("target", before_write=read_rows_and_write_positions))

        assert "could not serialize access due to read/write dependencies" in repetition(caplog)
        change(engine, "DELETE FROM consumed_offsets WHERE consumer_group = 'another'")
        assert_exactly_once(engine)

    def test_at_every_attempt_it_ends_the_load_with_nothing_written(self, postgres_loader: Loader, orders: str) -> None:
        engine = postgres_loader.engine
        attempts: list[Connection] = []

        def change_the_batch(conn: Connection) -> None:
            attempts.append(conn)
            change(engine, "UPDATE offset_batches SET reason = 'changed'")

        with (
            over(sa.create_engine(engine.url, isolation_level="REPEATABLE READ"), postgres_loader) as loader,
            pytest.raises(DatabaseBusyError, match=r"Batch 1 of group 'loader' .*could not serialize access") as raised,
        ):
            loader(orders, sink=Meddled("target", before_write=change_the_batch))

        assert raised.value.retriable
        assert len(attempts) == 5
        assert_nothing_written(engine)
        assert_staged_rows_are_committed(postgres_loader, orders, 10)

    def test_a_group_that_another_run_makes_at_the_same_moment_is_busy(self, postgres_engine: Engine) -> None:
        tables = Tables()
        initialize(postgres_engine, tables)
        insert_it = once(
            lambda: change(
                postgres_engine, "INSERT INTO consumer_groups VALUES ('loader', 'cluster', 0, 0, NULL, NULL)"
            )
        )
        engine = sa.create_engine(postgres_engine.url, isolation_level="REPEATABLE READ")

        @sa.event.listens_for(engine, "before_cursor_execute")
        def before(conn: object, cursor: object, statement: str, *_: object) -> None:
            if statement.startswith("INSERT INTO consumer_groups"):
                insert_it()

        with pytest.raises(GroupBusyError, match="was claimed by another run at the same moment"):
            claim_group(engine, tables, "loader", RUN, cluster_id="cluster", lease=timedelta(minutes=1))
        engine.dispose()


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """One that may be killed."""
    # With synchronous_commit=on a COMMIT is durable, but is not answered before a standby has it; there is none.
    with PostgresServer(settings={"synchronous_standby_names": "nobody", "synchronous_commit": "local"}) as server:
        yield server


class TestRestart:
    """Postgres is killed, and started again."""

    @pytest.fixture
    def database(self, server: PostgresServer, _unique_name: Callable[[str], str]) -> str:
        """Of this server; what the loader of these tests loads into."""
        if not server.process.running:  # the test before ended too early to start it again
            server.start()
        return server.create_database(_unique_name("database"))

    def restart(self, server: PostgresServer) -> None:
        server.process.kill()
        server.start()

    def assert_completed_by_the_next(self, loader: Loader, topic: str, *, jobs: int) -> None:
        loader(topic, run=RUN)
        assert len(loader.launcher.jobs) == jobs
        assert positions(loader.engine) == {(topic, 0): 10}
        assert_exactly_once(loader.engine)

    def test_while_spark_works(self, server: PostgresServer, postgres_loader: Loader, orders: str) -> None:
        loader = postgres_loader
        restarted = Loader(loader.kafka, loader.engine, Then(loader.launcher, lambda: self.restart(server)))

        with pytest.raises(DatabaseUnavailableError, match=r"state of group 'loader' could not be written") as raised:
            restarted(orders, run=RUN)

        assert raised.value.retriable
        assert_nothing_written(loader.engine)
        self.assert_completed_by_the_next(loader, orders, jobs=1)

    def test_before_the_transaction(self, server: PostgresServer, postgres_loader: Loader, orders: str) -> None:
        checks = itertools.count(1)

        def restart_at_the_second() -> None:
            if next(checks) == 2:  # the first is before Spark begins
                self.restart(server)

        with pytest.raises(DatabaseUnavailableError, match=r"Batch 1 of group 'loader' was not committed"):
            postgres_loader(orders, run=RUN, sink=Meddled("target", after_check=restart_at_the_second))

        assert_nothing_written(postgres_loader.engine)
        self.assert_completed_by_the_next(postgres_loader, orders, jobs=1)

    def test_while_rows_are_copied(
        self, server: PostgresServer, postgres_loader: Loader, orders: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        encode, restart = postgres_copy._binary, once(lambda: self.restart(server))

        def interrupted(batches: Iterator[pa.RecordBatch], columns: Sequence[Column]) -> Iterator[bytes]:
            header, *chunks = encode(batches, columns)
            yield header
            restart()
            yield from chunks

        monkeypatch.setattr(postgres_copy, "_binary", interrupted)
        with pytest.raises(DatabaseUnavailableError, match="was not committed"):
            postgres_loader(orders, run=RUN)
        monkeypatch.undo()

        assert_nothing_written(postgres_loader.engine)
        self.assert_completed_by_the_next(postgres_loader, orders, jobs=1)

    def test_after_the_rows_and_before_the_positions(
        self, server: PostgresServer, postgres_loader: Loader, orders: str
    ) -> None:
        with pytest.raises(DatabaseUnavailableError, match=r"Batch 1 of group 'loader' was not committed"):
            postgres_loader(orders, run=RUN, sink=Meddled("target", after_write=once(lambda: self.restart(server))))

        assert_nothing_written(postgres_loader.engine)
        self.assert_completed_by_the_next(postgres_loader, orders, jobs=1)

    def test_a_server_that_does_not_come_back_leaves_the_outcome_open(
        self, server: PostgresServer, postgres_loader: Loader, orders: str
    ) -> None:
        with pytest.raises(CommitUnknownError, match=r"batch 1 of group 'loader'.*Connection refused") as raised:
            postgres_loader(orders, run=RUN, sink=Meddled("target", after_write=server.process.kill))

        server.start()
        assert raised.value.retriable
        assert_nothing_written(postgres_loader.engine)
        self.assert_completed_by_the_next(postgres_loader, orders, jobs=1)

    @pytest.mark.parametrize("server_dies", [False, True], ids=["connection-lost", "server-killed"])
    def test_after_the_commit_and_before_its_answer(
        self, server: PostgresServer, postgres_loader: Loader, orders: str, server_dies: bool
    ) -> None:
        wait_for_a_standby = Meddled(
            "target", before_write=lambda conn: conn.exec_driver_sql("SET LOCAL synchronous_commit = on")
        )
        waiting = "FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
        with ThreadPoolExecutor(1) as background, server.connect() as admin:
            loading = background.submit(postgres_loader, orders, run=RUN, sink=wait_for_a_standby)
            wait_until(
                lambda: loading.done() or admin.execute(f"SELECT pid {waiting}").fetchone(), TIMEOUT, "the COMMIT"
            )
            if server_dies:
                server.process.kill()
            else:
                admin.execute(f"SELECT pg_terminate_backend(pid) {waiting}")
            error = loading.exception(TIMEOUT)

        if server_dies:
            assert isinstance(error, CommitUnknownError)
            server.start()
        else:
            assert error is None, "the ledger was not asked"
            assert loading.result().rows == 10
        assert positions(postgres_loader.engine) == {(orders, 0): 10}
        self.assert_completed_by_the_next(postgres_loader, orders, jobs=1)


class TestAlteredTarget:
    """Somebody alters the target between staging and commit; mended, it takes what was staged."""

    @pytest.fixture
    def orders(self, kafka: KafkaBroker, orders: str) -> str:
        """Ten records with a name, and one without."""
        produce(kafka, orders, [b'{"id": 10}'])
        return orders

    @pytest.mark.parametrize(
        ("alteration", "error", "message", "mended"),
        [
            ("DROP COLUMN name", TargetError, "it has no column 'name'", "ADD COLUMN name TEXT"),
            ("RENAME name TO label", TargetError, "it has no column 'name'", "RENAME label TO name"),
            ("ALTER name TYPE BIGINT USING 1", TargetError, "column 'name' is BIGINT", "ALTER name TYPE TEXT"),
            (
                "ADD COLUMN region TEXT NOT NULL",
                TargetError,
                "needs a value for 'region'",
                "ALTER region SET DEFAULT 'north'",
            ),
            (
                "ALTER name SET NOT NULL",
                RecordError,
                'offset 10 .*null value in column "name"',
                "ALTER name DROP NOT NULL",
            ),
        ],
        ids=["dropped", "renamed", "of-another-type", "one-more", "not-null"],
    )
    def test_it_is_told_what_does_not_fit(
        self,
        postgres_loader: Loader,
        orders: str,
        alteration: str,
        error: type[KafkaOffsetsError],
        message: str,
        mended: str,
    ) -> None:
        loader, engine = postgres_loader, postgres_loader.engine
        altered = Then(loader.launcher, lambda: change(engine, f"ALTER TABLE target {alteration}"))

        with pytest.raises(error, match=message):
            Loader(loader.kafka, engine, altered)(orders)

        assert_nothing_written(engine)
        change(engine, f"ALTER TABLE target {mended}")
        assert_staged_rows_are_committed(loader, orders, 11)

    @pytest.mark.parametrize("writer", [postgres_copy.copy_rows, insert.insert_rows], ids=["copy", "insert"])
    def test_also_in_the_transaction_when_the_table_was_found_to_fit(
        self, postgres_loader: Loader, orders: str, writer: sql_table.Writer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        engine = postgres_loader.engine
        # Without an index on _batch_id: where there is one, the commit has read the table by then, and ALTER has to wait.
        change(engine, f"CREATE TABLE target (id BIGINT, name TEXT, {ADDED})")

        def alter_and_write(conn: Connection, table: sa.Table, columns: Sequence[Column], rows: StagedRows) -> int:
            change(engine, "ALTER TABLE target RENAME name TO label")
            return writer(conn, table, columns, rows)

        monkeypatch.setattr(sql_table, "_writer", lambda conn: alter_and_write)
        with pytest.raises(TargetError, match='column "name" of relation "target" does not exist'):
            postgres_loader(orders)
        monkeypatch.undo()

        assert_nothing_written(engine)
        change(engine, "ALTER TABLE target RENAME label TO name")
        assert_staged_rows_are_committed(postgres_loader, orders, 11)

    def test_a_trigger_that_refuses_a_row_has_the_record_named(self, postgres_loader: Loader, orders: str) -> None:
        engine = postgres_loader.engine
        change(engine, f"CREATE TABLE target (id BIGINT, name TEXT, {ADDED})")
        raise_for_each_row(engine, "NEW.id = 7", "raise_exception")

        with pytest.raises(RecordError, match="offset 7 cannot be loaded: the database refuses its row: not this one"):
            postgres_loader(orders)

        assert_nothing_written(engine)
        change(engine, "DROP TRIGGER refuse ON target")
        assert_staged_rows_are_committed(postgres_loader, orders, 11)


def raise_for_each_row(engine: Engine, where: str, errcode: str) -> None:
    """Let Postgres raise an error for rows of the target."""
    change(
        engine,
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        f"RAISE 'not this one' USING ERRCODE = '{errcode}'; END $$",
        f"CREATE TRIGGER refuse BEFORE INSERT ON target FOR EACH ROW WHEN ({where}) EXECUTE FUNCTION refuse()",
    )


NO_ROOM = "Batch {batch} of group 'loader' was not committed, and nothing of it was written: {said}. Run the task again"


class TestFullDisk:
    """There is no room for the rows; once there is, what was staged is committed."""

    def test_of_sqlite(
        self, kafka: KafkaBroker, launcher: CountingLauncher, topic: TopicFactory, tmp_path: Path
    ) -> None:
        name = topic()
        produce(kafka, name, names(0, 10))
        loader = Loader(kafka, sa.create_engine(f"sqlite:///{tmp_path}/warehouse.db"), launcher)
        loader(name)
        produce(kafka, name, names(10, 20_000))
        most_pages = [rows(loader.engine, "PRAGMA page_count")[0][0] + 20]

        @sa.event.listens_for(loader.engine, "checkout")
        def limit(connection: sqlite3.Connection, *_: object) -> None:
            connection.execute(f"PRAGMA max_page_count = {most_pages[0]}")

        with pytest.raises(DatabaseUnavailableError, match=NO_ROOM.format(batch=2, said="database or disk is full")):
            loader(name)

        assert positions(loader.engine) == {(name, 0): 10}
        assert_exactly_once(loader.engine)
        most_pages[0] = 1_000_000
        assert_staged_rows_are_committed(loader, name, 20_000)
        loader.engine.dispose()

    def test_of_postgres(self, kafka: KafkaBroker, postgres_loader: Loader, topic: TopicFactory) -> None:
        name, engine = topic(), postgres_loader.engine
        produce(kafka, name, names(0, 20_000))
        with small_disk() as disk, tablespace(engine, disk) as space:
            change(engine, f"CREATE TABLE target (id BIGINT, name TEXT, {ADDED}) TABLESPACE {space}")

            with pytest.raises(
                DatabaseUnavailableError, match=NO_ROOM.format(batch=1, said=".*No space left on device")
            ):
                postgres_loader(name)

            assert_nothing_written(engine)
            subprocess.run(["mount", "-o", "remount,size=64m", disk], check=True)
            assert_staged_rows_are_committed(postgres_loader, name, 20_000)

    def test_it_is_told_without_the_row(self, kafka: KafkaBroker, postgres_loader: Loader, topic: TopicFactory) -> None:
        name, engine = topic(), postgres_loader.engine
        produce(kafka, name, [b'{"id": 1, "name": "10.99.99.99"}'])
        # A type that is written as text: then Postgres says where it was by quoting the row.
        change(engine, f"CREATE TABLE target (id BIGINT, name INET, {ADDED})")
        raise_for_each_row(engine, "true", "disk_full")

        with pytest.raises(DatabaseUnavailableError, match=NO_ROOM.format(batch=1, said="not this one")) as raised:
            postgres_loader(name)

        assert "10.99.99.99" not in "".join(traceback.format_exception(raised.value))


@contextmanager
def small_disk() -> Iterator[Path]:
    """A file system of one megabyte."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    disk = Path(tempfile.mkdtemp(prefix="small-disk-"))
    try:
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], capture_output=True, text=True
        )
        if mounted.returncode != 0:
            pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.strip()}")
        try:
            yield disk
        finally:
            subprocess.run(["umount", "--lazy", disk], check=True)
    finally:
        disk.rmdir()


@contextmanager
def tablespace(engine: Engine, disk: Path) -> Iterator[str]:
    """A tablespace on a disk, for tables of the database; all are dropped in the end."""
    disk.chmod(0o755)
    space = disk / "space"
    space.mkdir()
    shutil.chown(space, "nobody")  # who runs Postgres where root cannot
    name = disk.name.replace("-", "_")
    autocommit = engine.execution_options(isolation_level="AUTOCOMMIT")
    with autocommit.connect() as conn:
        conn.execute(sa.text(f"CREATE TABLESPACE \"{name}\" LOCATION '{space}'"))
    try:
        yield f'"{name}"'
    finally:
        change(engine, "DROP TABLE IF EXISTS target")
        with autocommit.connect() as conn:
            conn.execute(sa.text(f'DROP TABLESPACE "{name}"'))
