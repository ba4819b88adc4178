"""Passwords, connections, variables and values of records are found nowhere: after good runs, and after each way to
fail.

Values of records are in the target, in the columns of `dead_letters` that hold a record, and in the staged Arrow files.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from devstack.process import wait_until
from devstack.secured_kafka import SecuredKafka
from devstack.spark import SparkStandalone
from devstack.topics import create_topic
from devstack.yarn import HadoopCluster
from tests.support.airflow_runs import DAGS, Runs, airflow_uri
from tests.support.canaries import Canaries, Watch
from tests.support.clients import produce
from tests.support.loads import rows
from tests.support.sniffer import Sniffer
from tests.support.warm_airflow import WarmAirflowHome

pytestmark = [pytest.mark.server, pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")]

COLUMNS = "id BIGINT NOT NULL, name STRING, day DATE, price DECIMAL(9,2), net STRING"

TARGET = "id BIGINT, name TEXT, day DATE, price NUMERIC(9, 2), net INET, _batch_id BIGINT, _kafka_offset BIGINT"

# Where a record's own bytes are meant to be.
RECORDS_IN = {"target": (), "dead_letters": ("key", "value", "headers")}

RECORD_FILES = ("part-*.arrow", "dead-*.arrow")


@pytest.fixture
def canaries() -> Canaries:
    return Canaries(
        "kafka password", "key password", "database password", "connection", "variable", "environment", "row", "group"
    )


@pytest.fixture
def login(secured_kafka: SecuredKafka, canaries: Canaries) -> dict[str, Any]:
    """What the connection to Kafka holds, of a user of this test alone."""
    name = f"user_{uuid.uuid4().hex}"
    secured_kafka.add_user(name, canaries["kafka password"])
    return secured_kafka.sasl(name, canaries["kafka password"]) | {"ssl.key.password": canaries["key password"]}


@pytest.fixture
def user(postgres_engine: Engine, canaries: Canaries) -> Iterator[Engine]:
    """The database, as a user with a password to be found nowhere."""
    name = f"user_{postgres_engine.url.database}"
    with postgres_engine.begin() as conn:
        conn.execute(sa.text(f"CREATE USER {name} SUPERUSER PASSWORD '{canaries['database password']}'"))
    engine = sa.create_engine(postgres_engine.url.set(username=name, password=canaries["database password"]))
    yield engine
    engine.dispose()
    with postgres_engine.begin() as conn:
        conn.execute(sa.text(f"DROP OWNED BY {name}"))
        conn.execute(sa.text(f"DROP USER {name}"))


Topics = Callable[[list[dict[str, Any]]], str]


# Names of Hadoop, Iceberg and the clouds.
SECRETS = (
    "spark.hadoop.fs.s3a.secret.key",
    "spark.hadoop.fs.s3a.encryption.key",
    "spark.hadoop.fs.s3a.server-side-encryption.key",
    "spark.sql.catalog.lake.credential",
    "spark.sql.catalog.lake.header.Authorization",
    "spark.hadoop.fs.swift.service.x.apikey",
)


class Loads:
    """Runs of the DAG under test, whose connections and variables are in Airflow's database, and not in the
    environment.
    """

    def __init__(
        self, home: WarmAirflowHome, directory: Path, canaries: Canaries, login: dict[str, Any], database: Engine
    ) -> None:
        self.directory, self.canaries, self.login, self.database = directory, canaries, login, database
        self.home, self.runs, self.outputs = home, Runs(home), list[str]()
        self.staging, self.events, self.local = (directory / name for name in ("staging", "events", "local"))
        for path in (self.staging, self.events, self.local):
            path.mkdir()
        home.env["TMPDIR"] = str(self.local)
        self.options: dict[str, Any] = {"transform": "load_under_test.keep_all"}
        self.conf = {
            "spark.ui.enabled": "false",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": self.events.as_uri(),
            "spark.eventLog.compress": "false",
            "spark.local.dir": str(self.local),
            **dict.fromkeys(SECRETS, "{{ conn.lake.password }}"),
            "spark.hadoop.fs.s3a.session.token": "{{ var.value.lake_token }}",
            "spark.executorEnv.API_KEY": "{{ var.value.api_key }}",
        }
        self._dates = (f"2026-01-{day:02}" for day in range(1, 32))

    def connect(self, spark: str) -> None:
        """Create connections and a variable with secrets."""
        wrong = self.login | {"sasl.password": self.canaries["connection"]}
        database = airflow_uri(self.database)
        connections = {
            "kafka_default": {"conn_type": "kafka", "extra": json.dumps(self.login)},
            "kafka_wrong": {"conn_type": "kafka", "extra": json.dumps(wrong)},
            "spark_default": {"conn_type": "spark", "host": spark},
            "lake": {"conn_type": "generic", "password": self.canaries["connection"]},
            "warehouse": database,
        }
        self._import("connections", connections)
        self._import("variables", {"lake_token": self.canaries["variable"], "api_key": self.canaries["environment"]})

    def break_database(self) -> None:
        """Give the connection a wrong password."""
        wrong = self.database.url.set(password=f"{self.canaries['database password']}x")
        self._import("connections", {"warehouse": airflow_uri(sa.create_engine(wrong))}, "--overwrite")

    def run(self, topic: str, **options: Any) -> tuple[int, str]:
        """Load a topic, with properties of Spark that come from a connection and a variable."""
        run = self.runs.begin(
            next(self._dates),
            topics=[topic],
            columns=COLUMNS,
            staging={"dir": str(self.staging)},
            spark={"conf": self.conf},
            **self.options,
            **options,
        )
        status, output = run.end()
        self.outputs.append(output)
        return status, output

    def watch(self) -> Watch:
        return Watch(self.canaries.without("group"), {self.staging: RECORD_FILES, self.local: ()})

    def assert_found_nowhere(self, *more: Path) -> None:
        """Look at all that the runs left."""
        hidden = self.canaries.without("group")
        assert [hidden.in_text(output) for output in self.outputs] == [[] for _ in self.outputs]
        found, content = hidden.in_sqlite(self.home.directory / "airflow.db")
        assert found == []
        for table in ("rendered_task_instance_fields", "xcom", "serialized_dag", "task_instance"):
            assert f'INSERT INTO "{table}"' in content, f"nothing is looked at in {table}"
        assert hidden.in_tables(self.database, RECORDS_IN) == {}
        assert hidden.in_tables(self.database, {"target": ()}) == {"dead_letters": ["row"]}
        assert any(self.events.iterdir())
        for directory in (self.home.directory, self.events, self.local, *more):
            assert hidden.in_files(directory) == {}
        assert hidden.in_files(self.staging, but=RECORD_FILES) == {}

    def _import(self, kind: str, objects: dict[str, Any], *options: str) -> None:
        file = self.directory / f"{kind}.json"
        file.write_text(json.dumps(objects))
        done = self.home.run(kind, "import", str(file), *options)
        assert done.returncode == 0, done.stdout + done.stderr
        file.unlink()


@pytest.fixture
def loads(tmp_path: Path, canaries: Canaries, login: dict[str, Any], user: Engine) -> Iterator[Loads]:
    with WarmAirflowHome(dags=DAGS) as home:
        loads = Loads(home, tmp_path, canaries, login, user)
        yield loads
        loads.runs.close()


@pytest.fixture
def topic(secured_kafka: SecuredKafka, login: dict[str, Any]) -> Topics:
    """Creates topics that the user may load, with records."""

    def create(values: list[dict[str, Any]]) -> str:
        name = f"topic_{uuid.uuid4().hex}"
        create_topic(secured_kafka.bootstrap_servers, name, 1, {})
        produce(secured_kafka, name, [json.dumps(value).encode() for value in values])
        for operation in ("Read", "Describe", "DescribeConfigs"):
            secured_kafka.allow(f"User:{login['sasl.username']}", operation, "topic", name)
        return name

    return create


def load_well_and_badly(loads: Loads, topic: Topics, failing: Collection[str]) -> None:
    """Run a load that succeeds, with dead letters of each kind, and loads that fail.

    :param failing: those that fail on Spark, or after it: `undecodable`, `unparsed`, `refused`
    """
    row = loads.canaries["row"]
    undecodable, unparsed, refused = ({"id": 2, name: row} for name in ("day", "price", "net"))
    with loads.database.begin() as conn:
        conn.execute(sa.text(f"CREATE TABLE target ({TARGET})"))

    values = [{"id": 1, "name": row}, undecodable, unparsed, refused, {"id": 5, "name": row}]
    good = topic(values)
    status, output = loads.run(good, group_id=loads.canaries["group"], dead_letters={})
    assert status == 0, output[-8000:]
    assert rows(loads.database, "SELECT id, name FROM target ORDER BY id") == [(1, row), (5, row)]
    assert rows(loads.database, "SELECT offset_value FROM dead_letters ORDER BY 1") == [(1,), (2,), (3,)]

    for name, value, reason in [
        ("undecodable", undecodable, "the text is not an ISO 8601 date"),
        ("unparsed", unparsed, "its value is not of type DECIMAL(9,2)"),
        ("refused", refused, 'invalid input syntax for type inet: "…" (SQLSTATE 22P02'),
    ]:
        if name not in failing:
            continue
        bad = topic([value])
        status, output = loads.run(bad, group_id=name)
        assert status != 0
        assert f"topic '{bad}' partition 0 offset 0 cannot be loaded" in output
        assert reason in output

    status, output = loads.run(good, group_id="wrong", kafka_conn_id="kafka_wrong")
    assert status != 0
    assert "uthentication" in output
    loads.break_database()
    status, output = loads.run(good, group_id="broken")
    assert status != 0
    assert "password authentication failed" in output


@pytest.mark.parametrize(
    "failing",
    [
        pytest.param([], id="connections fail", marks=pytest.mark.long),
        # Each starts Spark. What they say of a value is in tests/sinks/test_hidden_values.py and tests/formats.
        pytest.param(["undecodable", "unparsed", "refused"], id="records fail", marks=pytest.mark.long),
    ],
)
def test_secrets_of_local_runs_are_found_nowhere(loads: Loads, topic: Topics, failing: list[str]) -> None:
    loads.connect("local[2]")
    with loads.watch() as watch:
        load_well_and_badly(loads, topic, failing)
    assert_only_environments(watch)
    assert any("SparkSubmit" in command for command in watch.commands)
    loads.assert_found_nowhere()


def assert_only_environments(watch: Watch) -> None:
    """A variable of the executors is in their environment, and nothing is elsewhere."""
    found = {(name, where) for name, where in watch.found if not where.startswith("environment of ")}
    assert found == set()
    assert {name for name, _ in watch.found} <= {"environment"}


def test_canaries_would_be_found(canaries: Canaries, tmp_path: Path) -> None:
    value = canaries["row"]
    for text in (
        value,
        value.encode().hex(),
        *(base64.b64encode(f"{'x' * n}{value}yz".encode()).decode() for n in range(3)),
    ):
        assert canaries.in_text(f"before {text} after") == ["row"]
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "part-1.arrow").write_bytes(value.encode())
    assert list(canaries.in_files(tmp_path).values()) == [["row"]]
    assert canaries.in_files(tmp_path, but=RECORD_FILES) == {}

    for place, arguments, variables in [("arguments", [value], {}), ("environment", [], {"A_VARIABLE": value})]:
        command = [sys.executable, "-c", "input()", *arguments]
        with subprocess.Popen(command, stdin=subprocess.PIPE, env={**os.environ, **variables}) as process:
            watch = Watch(canaries, {})

            def is_found(watch: Watch = watch) -> bool:
                watch.look()
                return bool(watch.found)

            # While a program is started, the system shows neither its arguments nor its environment.
            wait_until(is_found, 10, f"the canary in the {place} of a process")
            process.communicate(b"\n")
        ((name, where),) = watch.found
        assert (name, where.split()[0]) == ("row", place)


# An address of its own: what a machine on the way to the driver, an executor, the master or the worker would see.
# Between the processes of one machine, such as a JVM and its Python workers, all goes through 127.0.0.1.
HOST = "127.0.0.2"

ADDRESSES = {
    "spark.driver.host": HOST,
    "spark.driver.bindAddress": HOST,
    # In what is compressed, a text may be in pieces, which nobody would find.
    **dict.fromkeys(("spark.broadcast.compress", "spark.shuffle.compress", "spark.rdd.compress"), "false"),
}

PROTECTED = {
    "spark.authenticate": "true",
    "spark.network.crypto.enabled": "true",
    "spark.io.encryption.enabled": "true",
}


@pytest.fixture
def sniffer() -> Sniffer:
    try:
        return Sniffer(HOST)
    except PermissionError:
        pytest.skip("only root may look at packets")


# a cluster of its own: half a minute. The halves of the configuration are in tests/spark/test_secrets_of_jobs.py
@pytest.mark.long
@pytest.mark.parametrize("protected", [True, False], ids=["protected", "unprotected"])
def test_secrets_of_a_cluster_are_found_nowhere_and_cross_no_network(
    loads: Loads, topic: Topics, sniffer: Sniffer, protected: bool
) -> None:
    properties = {**ADDRESSES, **({**PROTECTED, "spark.authenticate.secret": uuid.uuid4().hex} if protected else {})}
    with SparkStandalone(host=HOST, properties=properties) as cluster:
        loads.home.env["SPARK_CONF_DIR"] = str(cluster.directory)
        loads.connect(cluster.master_url)
        with sniffer, loads.watch() as watch:
            load_well_and_badly(loads, topic, ["undecodable", "refused"])
        loads.assert_found_nowhere(cluster.directory)
    assert_only_environments(watch)
    assert any("CoarseGrainedExecutorBackend" in command for command in watch.commands)
    # Spark sends its properties, among them the variables of the executors, and code, which the name of the group is
    # in. Of Kafka's configuration it sends one half.
    assert loads.canaries.in_text(sniffer.seen) == (
        [] if protected else ["connection", "variable", "environment", "group"]
    )
    assert ("unprotected" in loads.outputs[0]) is not protected


# Half a dozen applications on YARN.
@pytest.mark.long
def test_secrets_of_a_driver_in_a_container_are_found_nowhere(loads: Loads, topic: Topics) -> None:
    with HadoopCluster() as cluster:
        loads.home.env["HADOOP_CONF_DIR"] = str(cluster.conf_dir)
        # The driver sees no module of the worker's.
        loads.options = {}
        loads.conf |= cluster.spark("cluster") | PROTECTED
        # YARN starts executors with their variables from a script in their directories.
        del loads.conf["spark.executorEnv.API_KEY"]
        loads.connect("yarn")
        with loads.watch() as watch:
            load_well_and_badly(loads, topic, ["undecodable", "refused"])
        pages = cluster.pages()
        # With all that containers left: the cluster keeps it.
        assert any(cluster.directory.rglob("launch_container.sh"))
        loads.assert_found_nowhere(cluster.directory)
    assert watch.found == set()
    assert any("YarnCoarseGrainedExecutorBackend" in command for command in watch.commands)
    assert [path for path, page in pages.items() if loads.canaries.without("group").in_text(page)] == []
    assert any("container_" in page for page in pages.values())
