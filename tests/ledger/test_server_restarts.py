"""Postgres is killed, and started again: the next load completes what was begun, exactly once."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from airflow_kafka_offsets.exceptions import CommitUnknownError, DatabaseUnavailableError
from airflow_kafka_offsets.sinks.sql import postgres_copy
from devstack.postgres import PostgresServer
from devstack.process import wait_until
from tests.support.database_faults import RUN, TIMEOUT, Meddled, Then, assert_nothing_written, once
from tests.support.loads import Loader, assert_exactly_once, positions

pytestmark = pytest.mark.server


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
        # The files are complete.
        self.assert_completed_by_the_next(loader, orders, jobs=0)

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

        def interrupted(rows: pa.Table) -> Iterator[bytes]:
            header, *chunks = encode(rows)
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
