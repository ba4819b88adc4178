"""Fixtures with real servers. Each is started on its first use in the session, so unit tests pay for none of them."""

import gc
import itertools
import os
import re
import shutil
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from multiprocessing.util import Finalize
from pathlib import Path

import pytest

from devstack.airflow import AirflowHome
from devstack.kafka import KafkaBroker
from devstack.mariadb import MariaDbServer
from devstack.mysql import MySqlServer
from devstack.postgres import PostgresServer
from devstack.quick_java import quick_java_home
from devstack.secured_kafka import SecuredKafka
from devstack.spark import SparkStandalone
from devstack.spark_connect import SparkConnectServer
from devstack.topics import create_topic, create_topics
from tests.support import warm_airflow
from tests.support.clients import Kafka
from tests.support.examples import register_profiles
from tests.support.iceberg import stop_rest_server
from tests.support.loads import TopicFactory

pytest_plugins = ["tests.support.fixtures"]

register_profiles(os.environ.get("HYPOTHESIS_PROFILE", "daily"))

_HOME = pytest.StashKey[AirflowHome]()
_SCRATCH = pytest.StashKey[Path]()
# One request takes a broker little longer for many topics than for one.
_TOPICS_AT_ONCE = 20

# Three workers write three gigabytes, beside what their servers need of the memory.
_IN_MEMORY = Path("/dev/shm")
_ROOM_IN_MEMORY = 12 * 1024**3


def pytest_addoption(parser: pytest.Parser) -> None:
    help_ = "versions of servers in place of those of every day, such as kafka-2.8,postgres-14,mysql-8.0"
    parser.addoption("--servers", default="", help=f"{help_}; MySQL replaces MariaDB")


@pytest.fixture(scope="session")
def server_versions(pytestconfig: pytest.Config) -> dict[str, str]:
    """The versions of the servers that are not those of every day, by name."""
    given = filter(None, pytestconfig.getoption("servers").split(","))
    return dict(name.split("-", 1) for name in given)


def pytest_configure(config: pytest.Config) -> None:
    """Give the session an AIRFLOW_HOME of its own, before anything imports Airflow and writes into the developer's.

    Its environment also makes `pytest` work where no virtual environment is activated.
    """
    assert "airflow.configuration" not in sys.modules, "a conftest.py imports Airflow"
    config.stash[_SCRATCH] = _own_temporary_directory()
    home = config.stash[_HOME] = AirflowHome()
    for name in [name for name in os.environ if name.startswith("AIRFLOW_")]:
        del os.environ[name]
    os.environ.update(home.env)
    if (java := quick_java_home()) is not None:
        os.environ["JAVA_HOME"] = str(java)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Keep the garbage collector from what lives until the end: thousands of tests, and all modules."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def pytest_unconfigure(config: pytest.Config) -> None:
    warm_airflow.stop_server()
    stop_rest_server()
    config.stash[_HOME].close()
    # multiprocessing removes its own directory in it at the end, by a finalizer of priority -100.
    Finalize(None, shutil.rmtree, [config.stash[_SCRATCH]], {"ignore_errors": True}, exitpriority=-200)


def _own_temporary_directory() -> Path:
    """Create the temporary directory of this process and its children, and return it.

    Every load without a `Staging.dir` looks at all directories in the one of its user, where other sessions leave
    theirs.
    """
    if "TMPDIR" not in os.environ and _has_room(_IN_MEMORY):
        os.environ["TMPDIR"] = tempfile.tempdir = str(_IN_MEMORY)
    # What pytest keeps for whoever looks into a failure is there when this directory is gone.
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    directory = Path(tempfile.mkdtemp(prefix="tests-"))
    # Postgres runs as another user.
    directory.chmod(0o711)
    os.environ["TMPDIR"] = tempfile.tempdir = str(directory)
    return directory


def _has_room(directory: Path) -> bool:
    """Return whether the files of all workers fit into a file system in memory, which may run programs.

    There, nothing waits for a disk: SQLite syncs each commit, MariaDB each table that it creates or drops.
    """
    if not directory.is_dir() or not os.access(directory, os.W_OK | os.X_OK):
        return False
    system = os.statvfs(directory)
    memory = re.search(r"^MemAvailable: +(\d+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE)
    free = min(system.f_bavail * system.f_frsize, int(memory[1]) * 1024 if memory else 0)
    return free > _ROOM_IN_MEMORY and not system.f_flag & os.ST_NOEXEC


@pytest.fixture(scope="session")
def airflow_home(pytestconfig: pytest.Config) -> AirflowHome:
    """The session's AIRFLOW_HOME with a migrated metadata database, for tests that run DAGs in this process."""
    home = pytestconfig.stash[_HOME]
    # A command that looked for a connection has opened the database before it had tables.
    if (settings := sys.modules.get("airflow.settings")) is not None and settings.engine is not None:
        settings.engine.dispose()
    home.migrate()
    return home


@pytest.fixture(scope="session")
def broker(server_versions: dict[str, str]) -> Iterator[KafkaBroker]:
    """A broker for the whole session. Tests that stop, kill or freeze a broker start one of their own."""
    with KafkaBroker(version=server_versions.get("kafka")) as broker:
        yield broker


@pytest.fixture(scope="session")
def secured_kafka() -> Iterator[SecuredKafka]:
    """A broker with TLS, logins and ACLs for the whole session; `loader` logs in by SCRAM, `plain` by PLAIN."""
    with SecuredKafka(plain_users={"plain": "plain-secret"}) as broker:
        broker.add_user("loader", "loader-secret")
        yield broker


@pytest.fixture(scope="session")
def kafka(broker: KafkaBroker) -> KafkaBroker:
    """The session's broker; modules may take a log in memory in its place."""
    return broker


@pytest.fixture(scope="session")
def postgres(server_versions: dict[str, str]) -> Iterator[PostgresServer]:
    """A Postgres for the whole session. Tests that stop, kill or freeze a server start one of their own."""
    with PostgresServer(version=server_versions.get("postgres")) as server:
        yield server


@pytest.fixture(scope="session")
def mariadb(server_versions: dict[str, str]) -> Iterator[MariaDbServer]:
    """A MariaDB, or a MySQL, for the whole session. Tests that stop, kill or freeze a server start one of their own."""
    try:
        server = MySqlServer() if "mysql" in server_versions else MariaDbServer(version=server_versions.get("mariadb"))
    except RuntimeError as missing:
        pytest.skip(str(missing))
    with server:
        yield server


@pytest.fixture(scope="session")
def spark_cluster() -> Iterator[SparkStandalone]:
    """A standalone Spark master with one worker."""
    with SparkStandalone() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def spark_connect() -> Iterator[SparkConnectServer]:
    """A Spark Connect server on local[2], whose clients need a token."""
    with SparkConnectServer(master="local[2]", token="canary/5e=;") as server:
        yield server


@pytest.fixture(scope="session")
def _unique_name() -> Callable[[str], str]:
    numbers = itertools.count(1)
    session = uuid.uuid4().hex[:6]
    return lambda prefix: f"{prefix}_{session}_{next(numbers)}"


@pytest.fixture(scope="session")
def _spare_topics() -> dict[str, list[str]]:
    """By broker, topics of one partition that no test has used."""
    return {}


@pytest.fixture
def topic(kafka: Kafka, _unique_name: Callable[[str], str], _spare_topics: dict[str, list[str]]) -> TopicFactory:
    """Creates topics: ``topic(partitions=3, cleanup_policy="compact")`` returns the name of a new one, ready to use.

    Underscores in the names of topic settings stand for Kafka's dots.
    """

    def create(partitions: int = 1, **config: str | int) -> str:
        if partitions == 1 and not config:
            spare = _spare_topics.setdefault(kafka.bootstrap_servers, [])
            if not spare:
                spare += [_unique_name("topic") for _ in range(_TOPICS_AT_ONCE)]
                create_topics(kafka.bootstrap_servers, spare)
            return spare.pop()
        name = _unique_name("topic")
        settings = {key.replace("_", "."): str(value) for key, value in config.items()}
        create_topic(kafka.bootstrap_servers, name, partitions, settings)
        return name

    return create


@pytest.fixture
def database(postgres: PostgresServer, _unique_name: Callable[[str], str]) -> Iterator[str]:
    """The SQLAlchemy URL of an empty database of the session's Postgres."""
    name = postgres.borrow_database(_unique_name("database"))
    yield postgres.url(name)
    postgres.give_back_database(name)


@pytest.fixture
def mariadb_database(mariadb: MariaDbServer, _unique_name: Callable[[str], str]) -> Iterator[str]:
    """The SQLAlchemy URL of an empty database of the session's MariaDB."""
    name = _unique_name("database")
    yield mariadb.create_database(name)
    mariadb.drop_database(name)
