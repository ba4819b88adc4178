"""The development stack keeps its promises: nothing outlives its starter, and what comes back has its data."""

import contextlib
import os
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from devstack.airflow import AirflowHome
from devstack.kafka import KafkaBroker
from devstack.orders import produce_orders
from devstack.paths import REPOSITORY
from devstack.playground import runnable
from devstack.postgres import PostgresServer
from devstack.process import ServerProcess, free_port, listens, pid_running, wait_until
from devstack.topics import end_offsets

pytestmark = pytest.mark.server

STARTER = """
import signal
from devstack.{module} import {server}
with {server}() as server:
    print(server.process.pid, server.port, server.directory, flush=True)
    signal.pause()
"""

CLUSTER_STARTER = """
import signal
from devstack.kafka_cluster import KafkaCluster
with KafkaCluster() as cluster:
    print(cluster.directory, *(node.process.pid for node in cluster.nodes), flush=True)
    signal.pause()
"""

ENDLESS_DAG = """
import subprocess
from pathlib import Path
from airflow.sdk import dag, task

@dag
def endless():
    @task
    def wait():
        sleep = subprocess.Popen(["sleep", "1000"])
        partial = Path(__file__).with_name("partial")
        partial.write_text(str(sleep.pid))
        partial.rename(partial.with_name("pid"))
        sleep.wait()
    wait()

endless()
"""


# Every day each server is left by its starter, and one by a whole process group; `make soak` has all of both.
@pytest.mark.parametrize(
    ("module", "server", "kill"),
    [
        pytest.param(module, server, kill, id=f"{server}-{name}", marks=marks)
        for name, kill, long in (
            ("starter", os.kill, {"SecuredKafka"}),
            ("process group", os.killpg, {"KafkaBroker", "SecuredKafka", "MariaDbServer"}),
        )
        for module, server in (
            ("kafka", "KafkaBroker"),
            ("secured_kafka", "SecuredKafka"),
            ("postgres", "PostgresServer"),
            ("mariadb", "MariaDbServer"),
        )
        for marks in ([pytest.mark.long] if server in long else [],)
    ],
)
def test_server_and_its_files_are_gone_after_a_sigkill_of_the_starter(
    module: str, server: str, kill: Callable[[int, int], None], request: pytest.FixtureRequest
) -> None:
    if module == "mariadb":
        request.getfixturevalue("mariadb")  # which skips where there is none
    command = [sys.executable, "-c", STARTER.format(module=module, server=server)]
    with subprocess.Popen(
        command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as starter:
        assert starter.stdout is not None
        pid, port, directory = starter.stdout.readline().split()
        assert pid_running(int(pid))
        assert listens(int(port))
        assert Path(directory).exists()
        kill(starter.pid, signal.SIGKILL)
    wait_until(lambda: not pid_running(int(pid)), 20, f"{server} to end")
    wait_until(lambda: not Path(directory).exists(), 20, f"the removal of {directory}")


@pytest.mark.long
def test_a_cluster_and_its_files_are_gone_after_a_sigkill_of_the_starter() -> None:
    command = [sys.executable, "-c", CLUSTER_STARTER]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        directory, *pids = starter.stdout.readline().split()
        assert len(pids) == 3
        assert all(pid_running(int(pid)) for pid in pids)
        starter.kill()
    wait_until(lambda: not any(pid_running(int(pid)) for pid in pids), 20, "the nodes to end")
    wait_until(lambda: not Path(directory).exists(), 20, f"the removal of {directory}")


def test_kill_reaches_descendants_that_left_the_process_group(tmp_path: Path) -> None:
    leave = "import os, signal; os.setsid(); print(os.getpid(), flush=True); signal.pause()"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {leave!r}])"
    server = ServerProcess("parent", [sys.executable, "-c", parent], log=tmp_path / "log").start()
    wait_until(lambda: (tmp_path / "log").read_text().strip(), 20, "the child's id")
    child = int((tmp_path / "log").read_text())
    server.kill()
    assert not pid_running(child)


def test_stop_ends_a_server_that_ignores_the_request(tmp_path: Path) -> None:
    stubborn = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); signal.pause()"
    server = ServerProcess("stubborn", [sys.executable, "-c", stubborn], log=tmp_path / "log").start()
    server.wait_until(lambda: "deaf" in (tmp_path / "log").read_text(), 20, "the handler")
    server.stop(timeout=0.2)
    assert not server.running
    assert not pid_running(server.pid)
    assert server.exit_status == 128 + signal.SIGKILL


def test_waiting_for_a_server_that_ended_fails_at_once_with_its_last_words(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "raise SystemExit('the port is taken')"]
    with (
        ServerProcess("broken", command, log=tmp_path / "log") as server,
        pytest.raises(RuntimeError, match=r"(?s)broken ended with status 1 .* for its port.*the port is taken"),
    ):
        server.wait_until(lambda: False, 60, "its port")


def test_wait_until_names_what_it_waited_for() -> None:
    with pytest.raises(TimeoutError, match=r"waited 0.1 s for a miracle"):
        wait_until(lambda: False, 0.1, "a miracle")


def test_free_port_can_be_bound() -> None:
    with socket.create_server(("127.0.0.1", free_port())) as listener:
        assert listens(listener.getsockname()[1])


@pytest.mark.long
def test_broker_keeps_records_and_port_over_restart_and_kill(own_kafka: KafkaBroker) -> None:
    address = own_kafka.bootstrap_servers
    assert produce_orders(address, "orders", 1000, partitions=1) == 1000
    own_kafka.restart()
    assert end_offsets(own_kafka.bootstrap_servers, "orders") == {0: 1000}
    own_kafka.kill()
    own_kafka.start()
    assert end_offsets(own_kafka.bootstrap_servers, "orders") == {0: 1000}
    assert own_kafka.bootstrap_servers == address


@pytest.mark.long
def test_paused_broker_is_silent_and_goes_on_after_resume(own_kafka: KafkaBroker) -> None:
    admin = AdminClient({"bootstrap.servers": own_kafka.bootstrap_servers, "log_level": 0})
    own_kafka.pause()
    with pytest.raises(KafkaException):
        admin.list_topics(timeout=1)
    own_kafka.resume()
    assert admin.list_topics(timeout=30).brokers


def test_postgres_keeps_committed_rows_and_port_over_restart_and_kill(own_postgres: PostgresServer) -> None:
    url = own_postgres.create_database("kept")
    with own_postgres.connect("kept") as connection:
        connection.execute("CREATE TABLE number AS SELECT 1 AS n")
    own_postgres.restart()
    with own_postgres.connect("kept") as connection:
        connection.execute("INSERT INTO number VALUES (2)")
        own_postgres.kill()
    own_postgres.start()
    with own_postgres.connect("kept") as connection:
        assert connection.execute("SELECT n FROM number ORDER BY n").fetchall() == [(1,), (2,)]
    assert own_postgres.url("kept") == url


def test_kill_of_postgres_ends_busy_backends(own_postgres: PostgresServer) -> None:
    # closing(): leaving a psycopg connection's own context commits, and this one is in the middle of a statement.
    with own_postgres.connect() as watcher, contextlib.closing(own_postgres.connect()) as busy:
        backend = busy.info.backend_pid
        # Pure computation: this backend looks at nothing, and would not notice that its parent has gone.
        busy.pgconn.send_query(b"SELECT count(*) FROM generate_series(1, 1000000000000)")
        active = "SELECT state = 'active' FROM pg_stat_activity WHERE pid = %s"
        wait_until(lambda: watcher.execute(active, [backend]).fetchone() == (True,), 20, "the query to run")
        own_postgres.kill()
        assert not pid_running(backend)


def test_postgres_asks_for_the_password(postgres: PostgresServer) -> None:
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(host="127.0.0.1", port=postgres.port, user="postgres", password="wrong", dbname="postgres")


def test_orders_are_the_same_for_the_same_seed(kafka: KafkaBroker, topic: Callable[..., str]) -> None:
    def produced(seed: int) -> list[tuple[bytes | None, bytes | None]]:
        name = topic()
        produce_orders(kafka.bootstrap_servers, name, 50, start_id=7, seed=seed)
        consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "unused"})
        try:
            consumer.assign([TopicPartition(name, 0, 0)])
            return [(message.key(), message.value()) for message in consumer.consume(50, timeout=30)]
        finally:
            consumer.close()

    first = produced(seed=1)
    assert len(first) == 50
    assert produced(seed=1) == first
    assert produced(seed=2) != first


def test_a_migrated_database_is_kept_whole_for_later_homes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A command that was forked leaves its pages in the write-ahead log."""
    monkeypatch.setattr("devstack.airflow.BUILD", tmp_path)
    with contextlib.ExitStack() as left_open:

        class Migrating(AirflowHome):
            def run(self, *arguments: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
                database = left_open.enter_context(contextlib.closing(sqlite3.connect(self.directory / "airflow.db")))
                database.executescript("PRAGMA journal_mode = WAL; CREATE TABLE dag (dag_id TEXT)")
                return subprocess.CompletedProcess(arguments, 0)

        for _ in range(2):
            with Migrating() as home, contextlib.closing(sqlite3.connect(home.directory / "airflow.db")) as database:
                assert database.execute("SELECT name FROM sqlite_master").fetchall() == [("dag",)]


@pytest.mark.long  # every test with an Airflow has the first half every day
def test_airflow_sees_the_connections_it_was_given_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_OF_A_DEVELOPER", "http://example.org")
    with AirflowHome(connections={"warehouse": "sqlite:///tmp/x.db"}) as airflow:
        given = airflow.run("connections", "get", "warehouse", "--output", "plain")
        assert "sqlite" in given.stdout, given.stderr
        assert airflow.run("connections", "get", "of_a_developer").returncode != 0


@pytest.mark.long
def test_processes_of_an_airflow_command_end_with_its_home(tmp_path: Path) -> None:
    (tmp_path / "endless.py").write_text(ENDLESS_DAG)
    with AirflowHome(dags=tmp_path) as airflow:
        airflow.run("dags", "reserialize")
        airflow.popen("dags", "test", "endless", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until((tmp_path / "pid").exists, 60, "the task to start")
        child = int((tmp_path / "pid").read_text())
        assert pid_running(child)
    assert not pid_running(child)


def test_the_playground_has_the_examples_that_its_servers_can_run(tmp_path: Path) -> None:
    examples = {file.stem for file in runnable(tmp_path).iterdir()}

    assert {"load_orders", "transform_orders_in_dag", "order_transforms"} <= examples
    assert not examples & {"load_avro_orders", "load_orders_into_mariadb", "load_orders_into_delta"}


def test_command_line_tools_of_kafka_run(kafka: KafkaBroker, topic: Callable[..., str]) -> None:
    name = topic()
    produce_orders(kafka.bootstrap_servers, name, 100)
    tool = "org.apache.kafka.tools.ConsumerPerformance"
    arguments = ["--bootstrap-server", kafka.bootstrap_servers, "--topic", name, "--num-records", "100"]
    assert ", 100, " in kafka.run_class(tool, *arguments)
