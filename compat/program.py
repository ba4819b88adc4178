"""The program of a cell, run by the Python of its environment: servers, loads, a kill, and the proof after each step.

    python -m compat.program postgres-14 kafka-2.8 …

It prints the steps that held, and then, as JSON, the versions that it found and the seconds that it took.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import signal
import sqlite3
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack, closing
from importlib.metadata import version
from pathlib import Path

import sqlalchemy as sa
from confluent_kafka import Producer

from devstack.airflow import USER
from devstack.kafka import KafkaBroker
from devstack.kafka_jars import kafka_jars
from devstack.mariadb import MariaDbServer
from devstack.mysql import MySqlServer
from devstack.orders import produce_orders
from devstack.postgres import PostgresServer
from devstack.process import wait_until
from devstack.quick_java import quick_java_home
from devstack.spark import SparkStandalone
from devstack.topics import create_topic, delete_topic, end_offsets
from tests.support.warm_airflow import WarmAirflowHome, stop_server

DAGS = Path(__file__).resolve().parent / "dags"
FIRST, MORE, BAD = 20_000, 5_000, 3
_TIMEOUT = 900.0


class CellError(Exception):
    """What a step found to be wrong."""


def expect(holds: bool, what: str) -> None:
    if not holds:
        raise CellError(what)


class Cell:
    """The servers of a cell, and what its steps do with them."""

    def __init__(self, servers: dict[str, str], master: str, stack: ExitStack) -> None:
        self.kafka = stack.enter_context(KafkaBroker(version=servers.get("kafka")))
        self.database = self._database(servers)
        stack.enter_context(self.database)
        self.url = self.database.create_database("warehouse")
        self.engine = sa.create_engine(self.url)
        stack.callback(self.engine.dispose)
        spark = master if master != "standalone" else stack.enter_context(SparkStandalone()).master_url
        connections = {
            "kafka_default": json.dumps(
                {"conn_type": "kafka", "extra": {"bootstrap.servers": self.kafka.bootstrap_servers}}
            ),
            "spark_default": json.dumps(_spark_connection(spark)),
            "warehouse": self.database.airflow_uri("warehouse"),
        }
        # A cluster needs a directory that its executors share.
        shared = stack.enter_context(tempfile.TemporaryDirectory(prefix="compat-"))
        env = {"COMPAT_STAGING": shared} if master == "standalone" else {}
        self.airflow = stack.enter_context(WarmAirflowHome(dags=DAGS, connections=connections, env=env))
        stack.callback(stop_server)
        self.dates = (f"2026-01-{day:02d}" for day in range(1, 29))

    @staticmethod
    def _database(servers: dict[str, str]) -> PostgresServer | MariaDbServer:
        if "mysql" in servers:
            return MySqlServer()
        if "mariadb" in servers:
            return MariaDbServer(version=servers["mariadb"])
        return PostgresServer(version=servers.get("postgres"))

    def produce(self, count: int, start: int) -> None:
        produce_orders(self.kafka.bootstrap_servers, "orders", count, start_id=start)

    def run(self, dag: str, *, fails_with: str | None = None) -> str:
        """Run a DAG, and return its log.

        :param fails_with: what its log must say; None where it must succeed
        """
        done = self.airflow.run("dags", "test", dag, next(self.dates), timeout=_TIMEOUT)
        text = done.stdout + done.stderr
        if fails_with is None:
            expect(done.returncode == 0, f"DAG {dag} failed:\n{text[-6000:]}")
        else:
            expect(fails_with in text, f"DAG {dag} does not say {fails_with!r}:\n{text[-6000:]}")
        return text

    def command(self, name: str, *arguments: str, kafka: bool = False, status: int = 0) -> str:
        """Run a command of the package, and return what it prints."""
        arguments = (
            name,
            *arguments,
            "--conn-id",
            "warehouse",
            *(("--kafka-conn-id", "kafka_default") if kafka else ()),
        )
        done = self.airflow.run("kafka-offsets", *arguments, timeout=_TIMEOUT)
        expect(
            done.returncode == status,
            f"{name} ended with status {done.returncode}:\n{done.stdout[-3000:]}{done.stderr[-3000:]}",
        )
        return done.stdout

    def count(self, query: str) -> int:
        with self.engine.connect() as conn:
            return int(conn.execute(sa.text(query)).scalar_one())

    def states(self, group: str) -> list[str]:
        """Return the states of a group's batches; nothing while there are no state tables."""
        query = sa.text("SELECT state FROM offset_batches WHERE consumer_group = :group AND kind = 'load'")
        try:
            with self.engine.connect() as conn:
                return list(conn.scalars(query, {"group": group}))
        except sa.exc.DBAPIError:
            return []


def _spark_connection(master: str) -> dict[str, str | int]:
    scheme, found, address = master.partition("://")
    if not found:
        return {"conn_type": "spark", "host": master}
    host, _, port = address.rpartition(":")
    return {"conn_type": "spark", "host": f"{scheme}://{host}", "port": int(port)}


def a_load_that_is_killed_goes_on(cell: Cell) -> None:
    cell.produce(FIRST, 0)
    producer = Producer({"bootstrap.servers": cell.kafka.bootstrap_servers, "log_level": 0})
    for number in range(BAD):
        producer.produce("orders", b"{", partition=number)
    producer.flush(60)
    path = cell.airflow.directory / "killed.log"
    with path.open("w") as log:
        killed = cell.airflow.popen("dags", "test", "compat_load", next(cell.dates), stdout=log)
        wait_until(lambda: cell.states("orders") or killed.poll() is not None, _TIMEOUT, "a planned batch")
        expect(killed.poll() is None, f"the load ended by itself:\n{path.read_text()[-6000:]}")
        os.killpg(killed.pid, signal.SIGKILL)
        killed.wait()
    expect(cell.states("orders") in (["planned"], ["staged"]), f"a killed load left {cell.states('orders')}")
    cell.run("compat_load")  # its second task verifies the rows
    expect(cell.states("orders") == ["committed"], f"the batches are {cell.states('orders')}")
    expect(cell.count("SELECT count(*) FROM orders") == FIRST, "the table has other rows than the topic")


def bad_records_are_dead_letters(cell: Cell) -> None:
    expect(cell.count("SELECT count(*) FROM dead_letters") == BAD, "there are other dead letters")
    listed = json.loads(cell.command("dead-letters", "list", "orders", "--output", "json"))
    expect(bool(listed), "dead-letters list prints none")


def sensors_wait_and_loads_follow(cell: Cell) -> None:
    for round_, dag in enumerate(("compat_wait", "compat_defer"), 1):
        cell.produce(MORE, FIRST + (round_ - 1) * MORE)
        cell.run(dag)
        rows = FIRST + round_ * MORE
        expect(cell.count("SELECT count(*) FROM orders") == rows, f"after {dag} the table has no {rows} rows")


def transforms_and_upserts(cell: Cell) -> None:
    cell.run("compat_transforms")
    rows = FIRST + 2 * MORE
    newest = "SELECT count(DISTINCT customer) FROM orders"
    expect(cell.count("SELECT count(*) FROM customers") == cell.count(newest), "the upsert has other keys")
    wrong = "SELECT count(*) FROM gross_orders WHERE gross <> CAST(amount * 1.19 AS DECIMAL(12,4))"
    expect((cell.count("SELECT count(*) FROM gross_orders"), cell.count(wrong)) == (rows, 0), "the transform lost rows")


def commands_and_the_proof(cell: Cell) -> None:
    groups = json.loads(cell.command("groups", "--output", "json"))
    expect(len(groups) == 3, f"groups prints {groups}")
    lag = json.loads(cell.command("lag", "orders", "--output", "json", kafka=True))
    expect(all(int(row.get("lag") or 0) == 0 for row in lag), f"lag prints {lag}")
    cell.command("show", "orders", kafka=True)
    cell.command("history", "orders")
    cell.command("verify", "orders", "--table", "orders", kafka=True)


def a_rewind_replaces_rows(cell: Cell) -> None:
    rewind = ("rewind", "orders", "--to-earliest", "--replace", "orders", "--reason", "compat")
    cell.command(*rewind, kafka=True)
    expect(cell.count("SELECT count(*) FROM orders") == FIRST + 2 * MORE, "a preview changed the table")
    cell.command(*rewind, "--execute", "--yes", kafka=True)
    expect(cell.count("SELECT count(*) FROM orders") == 0, "the rewind left rows")
    cell.run("compat_load")
    expect(cell.count("SELECT count(*) FROM orders") == FIRST + 2 * MORE, "other rows are loaded again")
    cell.command("verify", "orders", "--table", "orders", kafka=True)


def transactions_compaction_and_recreated_topics(cell: Cell) -> None:
    servers = cell.kafka.bootstrap_servers
    compact = {"cleanup.policy": "compact", "segment.ms": "500", "max.compaction.lag.ms": "500"}
    create_topic(servers, "compacted", 1, compact)
    create_topic(servers, "transactions", 1)
    create_topic(servers, "recreated", 1)
    producer = Producer({"bootstrap.servers": servers, "transactional.id": "compat", "log_level": 0})
    producer.init_transactions(60)
    for kept in (True, False, True):
        producer.begin_transaction()
        for number in range(100):
            producer.produce("transactions", b"kept" if kept else b"aborted", str(number).encode())
        producer.flush(60)
        (producer.commit_transaction if kept else producer.abort_transaction)(60)
    plain = Producer({"bootstrap.servers": servers, "log_level": 0})
    for round_ in range(3):
        for number in range(100):
            plain.produce("compacted", str(round_).encode(), str(number).encode())
        plain.flush(60)
        time.sleep(0.6)  # a segment is closed by the next record after its time
    plain.produce("recreated", b"first")
    plain.flush(60)
    time.sleep(3)
    cell.run("compat_topics")
    rows = "SELECT count(*) FROM records WHERE _kafka_topic = "
    expect(cell.count(f"{rows}'transactions'") == 200, "the load has other records than the committed ones")
    expect(100 <= cell.count(f"{rows}'compacted'") <= 300, "the load lacks the newest records of a compacted topic")
    expect(end_offsets(servers, "compacted") == {0: 300}, "the compacted topic has another end")
    cell.command("verify", "topics", "--table", "records", kafka=True)

    delete_topic(servers, "recreated")
    create_topic(servers, "recreated", 1)
    plain.produce("recreated", b"second")
    plain.produce("recreated", b"third")
    plain.flush(60)
    cell.run("compat_topics", fails_with="recreated")
    expect(cell.count(f"{rows}'recreated'") == 1, "records of a recreated topic were loaded as those of the old one")


def a_triggerer_wakes_a_sensor(cell: Cell) -> None:
    """With all components of Airflow: `dags test` runs a trigger itself."""
    home, rows = cell.airflow, FIRST + 2 * MORE
    home.start()
    # `dags test` has left the DAG paused.
    for command in (("unpause",), ("trigger", "--run-id", "triggered")):
        done = home.run("dags", *command, "compat_defer")
        expect(done.returncode == 0, f"dags {command[0]} failed:\n{done.stdout}{done.stderr}")

    def is_deferred() -> bool:
        with closing(sqlite3.connect(f"file:{home.directory}/airflow.db?mode=ro", uri=True, timeout=30)) as conn:
            states = conn.execute("SELECT state FROM task_instance WHERE run_id = 'triggered' AND task_id = 'wait'")
            return states.fetchall() == [("deferred",)]

    def is_loaded() -> bool:
        for each in home.components:
            expect(each.running, f"{each.name} ended:\n{each.log_tail()}")
        return cell.count("SELECT count(*) FROM orders") == rows + MORE

    wait_until(is_deferred, _TIMEOUT, "the sensor to be deferred")
    cell.produce(MORE, rows)
    wait_until(is_loaded, _TIMEOUT, "the load after the sensor")


def the_page_shows_the_groups(cell: Cell) -> None:
    home = cell.airflow
    body = json.dumps({"username": USER, "password": home.password}).encode()
    token = json.loads(_get(f"{home.url}/auth/token", body))["access_token"]
    deadline = time.monotonic() + 60
    while "orders" not in (page := _get(f"{home.url}/kafka-offsets/", token=token)):
        expect(time.monotonic() < deadline, f"the page does not show the group:\n{page[:3000]}")
        time.sleep(1)


def _get(url: str, body: bytes | None = None, token: str = "") -> str:
    headers = {"Content-Type": "application/json", "Cookie": f"_token={token}", "Authorization": f"Bearer {token}"}
    request = urllib.request.Request(url, data=body, headers=headers if token else {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        return str(response.read().decode())


STEPS: tuple[Callable[[Cell], None], ...] = (
    a_load_that_is_killed_goes_on,
    bad_records_are_dead_letters,
    sensors_wait_and_loads_follow,
    transforms_and_upserts,
    commands_and_the_proof,
    a_rewind_replaces_rows,
    transactions_compaction_and_recreated_topics,
    a_triggerer_wakes_a_sensor,
    the_page_shows_the_groups,
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("servers", nargs="*", help="versions of servers, such as postgres-14")
    parser.add_argument("--spark", default="local[2]", help="the master, or `standalone`")
    parser.add_argument("--result", type=Path, required=True, help="the file for the result")
    arguments = parser.parse_args()
    servers = dict(name.split("-", 1) for name in arguments.servers)
    if (java := quick_java_home()) is not None:
        os.environ["JAVA_HOME"] = str(java)
    start, done, wrong = time.monotonic(), [], ""
    with ExitStack() as stack:
        cell = Cell(servers, arguments.spark, stack)
        for step in STEPS:
            begun, name = time.monotonic(), step.__name__.replace("_", " ")
            try:
                step(cell)
            except Exception as error:
                wrong = f"{name}: {error}"
                print(f"  NO   {wrong}", flush=True)
                break
            done.append(name)
            print(f"  yes  {name} ({time.monotonic() - begun:.0f} s)", flush=True)
        with cell.engine.connect() as conn:
            number = ".".join(map(str, conn.dialect.server_version_info or ()))
    title = next((name for name in ("MySQL", "MariaDB") if name.lower() in servers), "Postgres")
    kafka = kafka_jars(servers.get("kafka")).name.removeprefix("kafka-")
    names = ("apache-airflow", "pyspark", "sqlalchemy", "confluent-kafka", "pyarrow")
    versions = {"python": platform.python_version(), **{name: version(name) for name in names}}
    versions |= {"kafka": kafka, "database": f"{title} {number}"}
    # Of this process and all that it has started: what the cell would take on an idle machine, nearly.
    used = sum(sum(resource.getrusage(of)[:2]) for of in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    times = {"seconds": round(time.monotonic() - start), "cpu": round(used)}
    result = {"held": done, "wrong": wrong[:2000], **times, "versions": versions}
    arguments.result.write_text(json.dumps(result))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
