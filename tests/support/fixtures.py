"""Fixtures for loads: a Spark session, databases, a log in memory, and loaders that use them."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from pyspark.sql import SparkSession
from sqlalchemy.engine import URL, Engine

from airflow_kafka_offsets.database.session import unify_sessions
from airflow_kafka_offsets.kafka import admin
from airflow_kafka_offsets.spark import isolation
from tests.support import warm_children
from tests.support.clients import Kafka
from tests.support.inline import InlineLauncher
from tests.support.loads import CountingLauncher, Loader
from tests.support.memory_log import MemoryLog

# Modules whose matrices SQLite runs in `make soak`, by the beginning of their names: all cases, or all but those that
# keep the real broker. The longest beginning decides. Postgres proves them every day, and the tests of the ledger, of
# rewinds and of planning that need no server run on SQLite every day.
_ALL, _WITHOUT_THE_BROKER = True, False
_SQLITE_IN_SOAK = {
    "cli/": _ALL,
    "cli/test_import": _WITHOUT_THE_BROKER,
    "cli/test_rewind": _WITHOUT_THE_BROKER,
    "dead_letters/": _ALL,
    "docs/test_runbook": _ALL,
    "kafka/test_kafka_transactions": _ALL,
    "loading/test_bounds_of_loads": _WITHOUT_THE_BROKER,
    "loading/test_changed_logs": _WITHOUT_THE_BROKER,
    "loading/test_clean_up": _WITHOUT_THE_BROKER,
    "loading/test_crash_sweep": _ALL,
    "loading/test_damaged_files": _ALL,
    "loading/test_dead_letter": _WITHOUT_THE_BROKER,
    "loading/test_double_loads": _ALL,
    "loading/test_mirror": _ALL,
    "loading/test_new_fields": _ALL,
    "loading/test_older_ledger": _WITHOUT_THE_BROKER,
    "loading/test_protobuf_loads": _ALL,
    "loading/test_races": _ALL,
    "loading/test_staged_again": _ALL,
    "loading/test_starts": _WITHOUT_THE_BROKER,
    "loading/test_transforms": _ALL,
    "replaying/": _ALL,
    "rewinding/": _WITHOUT_THE_BROKER,
    "rewinding/test_kafka_tool": _ALL,
    "rewinding/test_moved_positions": _ALL,
    "rewinding/test_rewind_crash": _ALL,
    "rewinding/test_rewind_races": _ALL,
    "sensors/": _ALL,
    "sinks/test_fan_out": _ALL,
    "sinks/test_function_sink": _ALL,
    "sinks/test_upsert_faults": _ALL,
    "sinks/test_upsert_operations": _ALL,
    "sinks/test_upsert_targets": _ALL,
    "verification/test_coverage": _ALL,
}

# Modules whose matrices have MariaDB as well, by the beginning of their names: every day, or in `make soak`. The
# longest beginning decides; in all others, tests of two databases say enough.
_EVERY_DAY, _IN_SOAK = True, False
_MARIADB = {
    "cli/test_group_changes": _IN_SOAK,
    "ledger/test_hostile_rows": _EVERY_DAY,
    "loading/test_crash_sweep": _IN_SOAK,
    "loading/test_load": _IN_SOAK,
    "loading/test_prefetch": _IN_SOAK,
    "loading/test_races": _IN_SOAK,
    "loading/test_recovery": _IN_SOAK,
    "loading/test_refused_rows": _IN_SOAK,
    "loading/test_refused_values": _IN_SOAK,
    "loading/test_round_trips": _IN_SOAK,
    "loading/test_values": _IN_SOAK,
    "replaying/": _IN_SOAK,
    "rewinding/": _IN_SOAK,
    "sinks/test_unused_tables": _EVERY_DAY,
    "sinks/test_upsert": _IN_SOAK,
    "verification/": _IN_SOAK,
}


_MARIADB_FIXTURES = {"mariadb", "mariadb_database", "mariadb_engine"}

# Tests in these modules whose statements or messages are those of Postgres and SQLite.
_NOT_ON_MARIADB = {
    "test_a_key_may_be_the_origin_itself",
    "test_a_row_that_another_refuses_is_an_error",
    "test_a_row_that_the_database_refuses_is_traced_to_its_record",
    "test_a_table_without_the_unique_key_is_refused_before_reading_with_the_statement_that_makes_it",
    "test_an_index_of_some_rows_or_without_uniqueness_is_no_key",
    "test_an_open_batch_can_be_abandoned_alone",
    "test_it_is_known_by_every_name",
}


# What of a matrix runs every day, by a pattern of the ids: the values of each axis, but not with all of the others.
# `make soak` runs the whole.
_OF_EVERY_DAY = {
    "cli/test_rewind.py::test_each_scenario_moves_the_position_where_its_preview_says": "R03|R07|R14|to-batch",
    "cli/test_targets_of_tasks.py": "^(?!(delta|parquet)$)",
    "docs/test_duckdb_sink.py": "^(?!before)",
    "hooks/test_every_launcher.py::test_a_load_that_airflow_stops_ends_spark": "connect",
    "hooks/test_spark_application.py::TestEnd::test_within_a_job_is_its_error": "1-dies|2-raises",
    "loading/test_older_ledger.py::test_every_group_of_a_table_finds_an_older_backup": "table|delta|iceberg-ext",
    "loading/test_reused_numbers.py::test_a_group_goes_on_after_everything_that_has_a_number": "table|delta|iceberg$",
    "loading/test_reused_numbers.py::test_a_lost_number_that_anything_but_a_load_uses_again_is_found": (
        "^rewind-|-table"
    ),
    "loading/test_reused_numbers.py::test_a_lost_replay_of_dead_letters_is_found_in_an_external_target": (
        "^(rewind|replay)-delta|^(rewind_and_replace|load)-iceberg"
    ),
    "loading/test_round_trips.py::test_values_come_through": "postgresql|sqlite-small-json$",
    "sinks/delta/test_foreign_commits.py::test_between_batches": "append|compact",
    "sinks/delta/test_foreign_commits.py::test_in_the_moment_of_a_replay_that_replaces": "append|compact",
    "sinks/iceberg/test_iceberg_files.py::test_rows_are_partitioned_and_read_back": r"\(\)|day|bucket|truncate",
    "sinks/iceberg/test_iceberg_foreign_writers.py": "^(?!sql|.*-sql)|sql-compact_without_arrow",
    "sinks/iceberg/test_iceberg_upsert.py": "^(?!sql)|sql-replace",
    "sinks/lake/test_external_commits.py": (
        "^[a-z]+$|None-iceberg|before-delta|after-iceberg|delta-after|iceberg-before|parquet-before"
    ),
    "sinks/lake/test_object_store.py::test_loads_and_replays": "DeltaTable-before|ParquetFiles-after",
    "sinks/test_encodings.py::test_values_are_the_same": "psycopg-binary-default|psycopg2-text-encoding|LATIN1$",
    "sinks/test_hidden_values.py::test_a_long_value_is_in_no_message": "append-psycopg-|upsert-psycopg2-",
    "sinks/test_mysql_load.py::test_a_record_whose_generated_column_cannot_be_computed_is_bad": (
        "load.*-append|insert.*-upsert"
    ),
    "sinks/test_mysql_load.py::test_a_refused_row_is_named_and_all_others_are_written": "^load|text|infinity",
    "sinks/test_values_in_mariadb.py::test_no_value_is_changed_silently": (
        r"^load|-(tinyint unsigned|double|decimal\(10,2\)|varchar\(3\).*|binary\(3\)|datetime\(6\)|enum.*)$"
    ),
    "spark/test_isolation.py::test_a_fatal_record_is_bad_and_its_neighbours_are_decoded": (
        "segfault|loop|allocate|panic"
    ),
}


def _is_of_every_day(item: pytest.Item) -> bool:
    nodeid, _, ids = item.nodeid.removeprefix("tests/").removesuffix("]").partition("[")
    patterns = [pattern for name, pattern in _OF_EVERY_DAY.items() if nodeid == name or nodeid.startswith(f"{name}::")]
    return not ids or all(re.search(pattern, ids) for pattern in patterns)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    everything = list(items)
    items.clear()
    tests = Path(__file__).parents[1]
    for name in (*_SQLITE_IN_SOAK, *_MARIADB, *(name.partition(".py")[0] for name in _OF_EVERY_DAY)):
        assert any(tests.glob(f"{name}*")), f"no module of tests begins with {name}"
    for item in everything:
        module = f"{item.path.parent.name}/{item.path.stem}"
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        beginning = max(filter(module.startswith, _SQLITE_IN_SOAK), key=len, default=None)
        if parameters.get("engine") == "mariadb":
            listed = max(filter(module.startswith, _MARIADB), key=len, default=None)
            if listed is None or item.originalname in _NOT_ON_MARIADB:  # type: ignore[attr-defined]
                continue
            if _MARIADB[listed] is _IN_SOAK:
                item.add_marker(pytest.mark.long)
        if parameters.get("engine") == "mariadb" or _MARIADB_FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.mysql)
        items.append(item)
        if not _is_of_every_day(item):
            item.add_marker(pytest.mark.long)
        if parameters.get("engine") != "sqlite" or beginning is None:
            continue
        if _SQLITE_IN_SOAK[beginning] is _ALL or not item.get_closest_marker("broker"):
            item.add_marker(pytest.mark.long)
    items.sort(key=_server_of_few)


# Fixtures that take seconds to start, and that few tests need. These tests come first: of the workers that share the
# tests, the one that begins has them all, and the others start no such server.
_SERVERS_OF_FEW = ("spark_connect", "secured_kafka", "spark_cluster")
# What a module imports if its tests run commands of Airflow's, which one process of a session forks.
_FORKS_AIRFLOW = ("WarmAirflowHome", "airflow_runs")


def _server_of_few(item: pytest.Item) -> int:
    """Return a number that is the same for tests with the same server, and the highest for those that need none of
    these.
    """
    for number, name in enumerate(_SERVERS_OF_FEW):
        if name in getattr(item, "fixturenames", ()):
            return number
    module = getattr(item, "module", None)
    forks = any(hasattr(module, name) for name in _FORKS_AIRFLOW)
    return len(_SERVERS_OF_FEW) if forks else len(_SERVERS_OF_FEW) + 1


@pytest.fixture(scope="session", autouse=True)
def _warm_children() -> Iterator[None]:
    """Fork the child processes that decode records, but where these are the subject: `tests/spark`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(isolation, "subprocess", warm_children.subprocess_of_children)
        yield
    warm_children.stop_server()


@pytest.fixture
def log(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Kafka:
    """A log in memory; the session's broker for a test that is marked `broker`, and for loads with Spark, which reads
    in processes of its own.

    A module whose matrix is not about the broker has it for its `kafka`.
    """
    if request.node.get_closest_marker("broker") or "spark" in request.fixturenames:
        kafka: Kafka = request.getfixturevalue("broker")
        return kafka
    return MemoryLog().install(monkeypatch)


@pytest.fixture
def unknown_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a topic that the broker does not know be unknown at once: there is no other broker that may know it."""
    monkeypatch.setattr(admin, "_UNKNOWN_GRACE_SECONDS", 0.0)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One local session for all tests that do not test how Spark is launched."""
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.pyspark.python", sys.executable)
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.log.level", "WARN")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )
    # Its farewell would be logged after the log is closed.
    logging.getLogger("py4j").setLevel(logging.WARNING)
    yield session
    session.stop()


@pytest.fixture
def launcher(spark: SparkSession) -> CountingLauncher:
    return CountingLauncher(spark)


_compiled: dict[URL, Engine] = {}


def new_engine(url: str) -> Engine:
    """Return an engine that shares what SQLAlchemy has compiled with the others of its server: each test has a database
    of its own, and to compile all statements anew would be a sixth of its time.
    """
    made = sa.create_engine(url, hide_parameters=True)
    first = _compiled.setdefault(made.url.set(database=""), made)
    # A dialect of MySQL knows its database.
    if made.dialect.name != "mysql" and getattr(first.dialect, "server_version_info", None) is not None:
        made.dialect = made.pool._dialect = first.dialect
        made._compiled_cache = first._compiled_cache
    return made


@pytest.fixture(params=["postgresql", "sqlite", "mariadb"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """An empty database of each kind."""
    if request.param != "sqlite":
        url = request.getfixturevalue("database" if request.param == "postgresql" else "mariadb_database")
    else:
        url = f"sqlite:///{request.getfixturevalue('tmp_path')}/warehouse.db"
    made = new_engine(url)
    yield made
    made.dispose()


# A module of one kind of database has `engine = fixtures.sqlite_engine`, or one of the others below.
@pytest.fixture
def sqlite_engine(tmp_path: Path) -> Iterator[Engine]:
    made = new_engine(f"sqlite:///{tmp_path}/warehouse.db")
    yield made
    made.dispose()


@pytest.fixture
def postgres_engine(database: str) -> Iterator[Engine]:
    made = new_engine(database)
    yield made
    made.dispose()


@pytest.fixture
def mariadb_engine(mariadb_database: str) -> Iterator[Engine]:
    """An empty database of MariaDB, with the sessions that every ledger has."""
    made = new_engine(mariadb_database)
    unify_sessions(made)
    yield made
    made.dispose()


@pytest.fixture
def loader(kafka: Kafka, engine: Engine, launcher: CountingLauncher) -> Loader:
    return Loader(kafka, engine, launcher)


@pytest.fixture
def postgres_loader(kafka: Kafka, postgres_engine: Engine, launcher: CountingLauncher) -> Loader:
    return Loader(kafka, postgres_engine, launcher)


@pytest.fixture
def inline_loader(kafka: Kafka, engine: Engine) -> Loader:
    """For what Spark has no part in: its work is done in this process."""
    return Loader(kafka, engine, InlineLauncher())
